"""What one image, sound or video may take: bytes, pixels, seconds, samples, frames, and time to decode it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields

from headrace.errors import Refused, SpecError, shown

WALL = 10
"""Decoding may take this many times `timeout` on the wall: a busy machine is not the item's fault."""


@dataclass(frozen=True, kw_only=True)
class Budget:
    """Limits for one item. What is over one of them is refused before it is decoded, or while it is."""

    max_bytes: int = 256 << 20
    """Of the encoded item, and of each of its parts that is named by a row."""
    max_pixels: int = 1 << 26
    """Of an image, or of one frame of a video: width times height."""
    max_seconds: float = 3600.0
    """Of a sound or a video."""
    max_samples: int = 3600 * 48_000 * 2
    """Of a sound, all channels together: as announced, as decoded, before and after resampling, and of a spectrogram.
    Each takes 4 bytes. The default is an hour of stereo at 48 kHz, whatever rate a file claims to have."""
    max_frames: int = 1 << 20
    """Of a video, whatever number of them is taken."""
    timeout: float = 30.0
    """Seconds that an item may take to arrive, and seconds of work that it may take to decode."""

    def __post_init__(self) -> None:
        for field in fields(Budget):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
                raise SpecError(f"{field.name}={shown(value)}: a limit is a number above 0")

    def require(self, name: str, found: float, what: str) -> None:
        """Refuse `found` of something if the limit `name` is below it."""
        limit = getattr(self, name)
        if found > limit:
            raise over(f"{what} of {found:,}", name, limit)


DEFAULT = Budget()


def over(what: str, name: str, limit: float) -> Refused:
    return Refused(f"{what} is over the limit {name}={limit:,}; raise it in the MediaPolicy if such items are wanted")


class Clock:
    """The time that decoding one item has left."""

    def __init__(self, budget: Budget) -> None:
        self.budget = budget
        self._work = time.thread_time() + budget.timeout
        self._wall = time.monotonic() + budget.timeout * WALL

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """What is done inside does not count."""
        work, wall = time.thread_time(), time.monotonic()
        try:
            yield
        finally:
            self._work += time.thread_time() - work
            self._wall += time.monotonic() - wall

    def is_over(self) -> bool:
        return time.thread_time() > self._work or time.monotonic() > self._wall

    def check(self) -> None:
        if self.is_over():
            raise over("the time it takes to decode", "timeout", self.budget.timeout)

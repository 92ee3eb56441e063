"""A part of a video or a sound, from one second to another."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from headrace.errors import DataError, described

ROUNDED = 0.1
"""Seconds by which a clip may end after its medium does: those who wrote it down rounded."""
_CLOCK = re.compile(r"(?:(?:(\d{1,4}):)?(\d{1,4}):)?(\d{1,9}(?:\.\d{1,9})?)")
_NEAR = 1e-6


class Clip(NamedTuple):
    start: float
    end: float | None
    """Seconds; None: to the end."""

    def __str__(self) -> str:
        return f"the clip from {self.start:g} s to {'its end' if self.end is None else f'{self.end:g} s'}"

    def require_within(self, seconds: float, kind: str) -> None:
        """Refuse a clip that the medium does not have."""
        if self.start >= seconds or (self.end is not None and self.end > seconds + ROUNDED):
            raise DataError(f"{self} goes beyond the end of the {kind}, which is {seconds:.3f} s long")

    @property
    def seconds(self) -> float | None:
        return None if self.end is None else self.end - self.start


def clip_of(value: Any) -> Clip | None:
    """A pair of times: seconds, as numbers or texts, or texts like `0:01:02.5`. Nothing at all is no clip; nothing
    for one of the two is the start or the end of the medium."""
    if value is None:
        return None
    pair = list(value) if isinstance(value, list | tuple) or getattr(value, "ndim", 0) == 1 else None
    if pair is None or len(pair) != 2:
        raise DataError(f"the clip is {described(value)}; a pair of times, the start and the end, is expected")
    if pair[0] is None and pair[1] is None:
        return None
    start, end = _seconds(pair[0]), _seconds(pair[1])
    if end is not None and end <= (start or 0.0):
        raise DataError(f"the clip ends before it begins, or where it begins: from {start or 0.0:g} s to {end:g} s")
    return Clip(start or 0.0, end)


def _seconds(time: Any) -> float | None:
    if time is None:
        return None
    found = math.nan
    if isinstance(time, str) and (parts := _CLOCK.fullmatch(time.strip())):
        hours, minutes, seconds = (float(part or 0) for part in parts.groups())
        found = 3600 * hours + 60 * minutes + seconds
    elif not isinstance(time, bool | str):
        try:
            found = float(time)
        except (TypeError, ValueError, OverflowError):
            found = math.nan
    if not 0 <= found < math.inf:
        raise DataError(
            f"the clip has {described(time)} in it, which is no time in seconds from 0 on; times are numbers, or texts "
            f"like '0:01:02.5'"
        )
    return found


def frames_in(times: Sequence[float], clip: Clip, most: int) -> list[int]:
    """Numbers of the frames that are shown at `most` times, evenly spread over the clip; all of it if there are fewer.

    `times`: when each frame is shown first, in seconds, in order. A frame that is shown for long counts for as long. Of
    a clip between two frames it is the one that is shown then.
    """
    from bisect import bisect_left, bisect_right

    step = (times[-1] - times[0]) / (len(times) - 1) if len(times) > 1 else ROUNDED
    clip.require_within(times[-1] + step, "video")
    first = bisect_left(times, clip.start - _NEAR)
    last = len(times) if clip.end is None else bisect_left(times, clip.end - _NEAR)
    if first >= last:
        return [max(0, bisect_right(times, clip.start + _NEAR) - 1)]
    if last - first <= most:
        return list(range(first, last))
    begin, end = times[first], times[last - 1]
    wanted = [(begin + end) / 2] if most == 1 else [begin + k * (end - begin) / (most - 1) for k in range(most)]
    return [bisect_right(times, time + _NEAR) - 1 for time in wanted]

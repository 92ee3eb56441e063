"""What the media of one sample take together. Each is within its own limits, and a small file may have many of them."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from headrace.errors import Refused
from headrace.fetch.media.policy import MediaPolicy

if TYPE_CHECKING:
    import torch

MAX_SAMPLE_BYTES = 1 << 30
_SAMPLE_BYTES = 4


class Total:
    """Counts the media of a sample as they are made."""

    def __init__(self, policy: MediaPolicy, max_bytes: int = MAX_SAMPLE_BYTES) -> None:
        self._policy, self._max_bytes = policy, max_bytes
        self._samples = self._bytes = 0

    def for_sound(self) -> MediaPolicy:
        """The policy, with what the sounds before it leave for the next: all of them may have what one may."""
        if not self._samples:
            return self._policy
        left = self._policy.max_samples - self._samples
        if left < 1:
            raise _too_many_samples(self._samples + 1, self._samples, self._policy.max_samples)
        own = {field.name: getattr(self._policy, field.name) for field in fields(MediaPolicy)}
        return _Left(**{**own, "max_samples": left}, whole=self._policy.max_samples)

    def add_sound(self, sound: torch.Tensor) -> None:
        """Samples, or what was made of them, as samples of four bytes."""
        before, self._samples = self._samples, self._samples + _nbytes(sound) // _SAMPLE_BYTES
        if before and self._samples > self._policy.max_samples:
            raise _too_many_samples(self._samples, before, self._policy.max_samples)

    def require_pixels(self, least: int) -> None:
        """Refuse a picture or a video of `least` bytes or more that would bring the sample over its limit. The first
        one is never refused: its size was asked for."""
        if self._bytes and self._bytes + least > self._max_bytes:
            raise Refused(
                f"the pictures and frames of the sample take {self._bytes + least:,} bytes or more together, "
                f"{self._bytes:,} of them before this one, which is over the limit max_sample_bytes="
                f"{self._max_bytes:,}; raise it by configure(max_sample_bytes=...) if such samples are wanted"
            )

    def add_pixels(self, made: torch.Tensor) -> None:
        self.require_pixels(_nbytes(made))
        self._bytes += _nbytes(made)


@dataclass(frozen=True, kw_only=True)
class _Left(MediaPolicy):
    """What a policy leaves for one more sound."""

    whole: int

    def require(self, name: str, found: float, what: str) -> None:
        if name != "max_samples":
            super().require(name, found, what)
        elif found > self.max_samples:
            before = self.whole - self.max_samples
            raise _too_many_samples(before + int(found), before, self.whole)


def _too_many_samples(found: int, before: int, limit: int) -> Refused:
    return Refused(
        f"the sounds of the sample take {found:,} samples or more together, {before:,} of them before this one, which "
        f"is over the limit max_samples={limit:,}; raise it in the MediaPolicy if such samples are wanted"
    )


def _nbytes(made: torch.Tensor) -> int:
    return int(made.numel() * made.element_size())

"""How many tokens media take in a sequence, once a model has put its own in their place."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from headrace.errors import DataError, SpecError, described, shown
from headrace.fetch.media.audio import sound_seconds
from headrace.fetch.media.clip import clip_of
from headrace.fetch.media.mel import HOP_SECONDS
from headrace.sequence.finish import CLIPPED, MEDIA, Finish, several
from headrace.sequence.processors import gives_samples

MediaTokens: TypeAlias = Mapping[str, float] | Callable[[Mapping[str, Any]], int]

MEDIA_TOKENS: Mapping[str, float] = MappingProxyType(
    {"image": 256, "video_frame": 64, "audio_second": 25, "audio": 750}
)
"""Of an image, of a frame that is taken of a video, of a second of sound; and of a sound whose length is not known
before it is decoded."""


def media_tokens_of(given: MediaTokens | None) -> MediaTokens:
    """What is given, checked; ours stand in for what is not."""
    if given is None or callable(given):
        return dict(MEDIA_TOKENS) if given is None else given
    if not isinstance(given, Mapping):
        raise SpecError(f"media_tokens={shown(given)!r}: numbers by name, or a function of a sample, are expected")
    for name, value in given.items():
        if name not in MEDIA_TOKENS:
            raise SpecError(f"media_tokens has {shown(name)!r}; it may have {', '.join(MEDIA_TOKENS)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1 << 40:
            raise SpecError(f"media_tokens[{name!r}]={shown(value)!r}: a number of tokens from 0 on is expected")
    return {**MEDIA_TOKENS, **given}


@dataclass(frozen=True, kw_only=True)
class Cost:
    tokens: MediaTokens
    finish: Finish

    def expected(self, extras: Mapping[str, Any]) -> int:
        """Of a sample whose media are not decoded yet: at most so many, where it can be known."""
        if callable(self.tokens):
            return _asked(self.tokens, extras)
        total = 0
        for name, (kind, fields) in MEDIA.items():
            for value in [one for field in fields for one in several(kind, field, extras.get(field))]:
                total += math.ceil(self._one(name, kind, value, extras))
        return total

    def _one(self, name: str, kind: str, value: Any, extras: Mapping[str, Any]) -> float:
        assert isinstance(self.tokens, Mapping)
        if kind == "image":
            return self.tokens["image"]
        if kind == "video":
            frames, listed = (
                self.finish.max_video_frames,
                isinstance(value, list | tuple) or hasattr(value, "__array__"),
            )
            return (min(len(value), frames) if listed else frames) * self.tokens["video_frame"]
        clip = clip_of(extras.get("clip")) if name in CLIPPED else None
        seconds = self._seconds(value) if clip is None or clip.seconds is None else clip.seconds
        if not (self.finish.use_raw_waveform or gives_samples(self.finish.voice_processor)):
            most = self.finish.audio_max_length * HOP_SECONDS
            seconds = most if seconds is None else min(seconds, most)
        return self.tokens["audio"] if seconds is None else seconds * self.tokens["audio_second"]

    def _seconds(self, value: Any) -> float | None:
        """By what the row has of it; nothing is opened."""
        rate: Any = self.finish.audio_sample_rate
        if isinstance(value, Mapping):
            array, rate = value.get("array"), value.get("sampling_rate")
            value = value.get("bytes") if array is None else array
        if isinstance(value, bytes | bytearray | memoryview):
            return sound_seconds(bytes(value))
        if not (isinstance(value, list | tuple) or hasattr(value, "__array__")) or not isinstance(rate, int | float):
            return None
        import numpy as np

        return max(np.shape(value), default=0) / rate if rate > 0 else None

    def actual(self, extras: Mapping[str, Any], made: Mapping[str, Any]) -> int:
        """The same, of what it became."""
        if callable(self.tokens):
            return self.expected(extras)
        total = 0
        for name, (kind, _) in MEDIA.items():
            found = made.get(name)
            for item in found if isinstance(found, list) else [] if found is None else [found]:
                total += math.ceil(self._made(kind, item.shape) - 1e-9)
        return total

    def _made(self, kind: str, shape: Any) -> float:
        assert isinstance(self.tokens, Mapping)
        if kind == "image":
            return self.tokens["image"]
        if kind == "video":
            return int(shape[0]) * self.tokens["video_frame"]
        each = 1 / self.finish.audio_sample_rate if len(shape) == 1 else HOP_SECONDS
        return int(shape[-1]) * each * self.tokens["audio_second"]


def _asked(tokens: Callable[[Mapping[str, Any]], int], extras: Mapping[str, Any]) -> int:
    try:
        found = tokens(extras)
    except Exception as error:
        raise DataError(f"media_tokens failed: {type(error).__name__}: {shown(error)}") from error
    if isinstance(found, bool) or not isinstance(found, int) or found < 0:
        raise DataError(f"media_tokens gave {described(found)} for a sample; a whole number from 0 on is expected")
    return found

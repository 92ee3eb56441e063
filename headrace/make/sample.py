"""What a row becomes: tokens, and which of them are learned from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


ERROR = "__error__"
"""In the extras of a sample that stands for a row that could not be formatted: the error."""
MEDIA_STOP = "__media_stop__"
"""In the extras of a sample with media, where it matters: tokens up to the last of them."""
MEDIA_FIELDS = (
    *("image", "images", "video", "videos", "audio", "audios"),
    *("target_audio", "speaker_ref", "gen_images", "gen_videos"),
)
"""What formatters call media."""


def has_media(sample: Mapping[str, Any]) -> bool:
    """Of what a formatter gave, or of the extras that it became."""
    return any(sample.get(name) is not None for name in MEDIA_FIELDS)


class Sample(NamedTuple):
    """One row made ready for training."""

    tokens: NDArray[np.int32]
    loss: NDArray[np.bool_] | None = None
    """Per token, whether it is learned from; None: all are."""
    extras: Mapping[str, Any] | None = None
    """What goes along: media, not decoded yet, and flags."""

"""From a media value of a row to what a model takes, in one step: policy, bytes, decoding."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.fetch.media.policy import MediaPolicy, open_media
from headrace.fetch.media.sniff import BYTES, Kind

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from PIL.Image import Image

    from headrace.fetch.media.clip import Clip
    from headrace.fetch.media.video import Backend, Size

Made = TypeVar("Made")
_HOLDERS = (*BYTES, dict, str, Mapping)


def load_image(value: Any, policy: MediaPolicy) -> NDArray[np.uint8]:
    """[height, width, 3]"""
    from headrace.fetch.media.images import decode_image

    return decode_image(_encoded(value, policy, "image"), policy)


def load_picture(value: Any, policy: MediaPolicy) -> Image:
    """An RGB image of PIL."""
    from headrace.fetch.media.images import open_image

    return open_image(_encoded(value, policy, "image"), policy)


def load_image_tensor(value: Any, policy: MediaPolicy, size: int, out: torch.Tensor | None = None) -> torch.Tensor:
    """[3, size, size], by the built-in resize and normalisation; in `out`, if it is given."""
    from headrace.fetch.media.images import open_image
    from headrace.fetch.media.tensors import image_tensor

    return image_tensor(open_image(_encoded(value, policy, "image"), policy, size=size), size, out=out)


def load_video(
    value: Any,
    policy: MediaPolicy,
    max_frames: int,
    size: Size = None,
    clip: Clip | None = None,
    *,
    backend: Backend = "pyav",
) -> NDArray[np.uint8]:
    """[T, height, width, 3]"""
    from headrace.fetch.media.video import decode_video

    return decode_video(open_media(value, policy, "video"), max_frames, size, policy, clip, backend=backend)


def load_frames(
    make: Callable[[NDArray[np.uint8]], Made],
    value: Any,
    policy: MediaPolicy,
    max_frames: int,
    size: Size = None,
    clip: Clip | None = None,
) -> list[Made]:
    """What `make` makes of each frame of [height, width, 3], one after the other."""
    from headrace.fetch.media.video import each_frame

    return each_frame(make, open_media(value, policy, "video"), max_frames, size, policy, clip)


def load_audio(value: Any, policy: MediaPolicy, sample_rate: int, clip: Clip | None = None) -> NDArray[np.float32]:
    """[samples]"""
    from headrace.fetch.media.audio import decode_audio

    if isinstance(value, Mapping) and value.get("array") is not None:
        return decode_audio(value, sample_rate, policy, clip)
    return decode_audio(open_media(value, policy, "audio"), sample_rate, policy, clip)


def _encoded(value: Any, policy: MediaPolicy, kind: Kind) -> Any:
    """The bytes that a value holds or names; PIL images and arrays as they are."""
    if isinstance(value, _HOLDERS) or hasattr(value, "__fspath__"):
        return open_media(value, policy, kind)
    return value

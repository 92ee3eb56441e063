"""What processors of Hugging Face, and callables like them, make of sounds and pictures."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from headrace.errors import DataError, SpecError

if TYPE_CHECKING:
    import numpy as np
    import torch
    from numpy.typing import NDArray
    from PIL.Image import Image

MASKS = ("attention_mask", "padding_mask", "input_features_mask")
"""Under which names extractors say what is sound and what is padding."""


def features(processor: Any, wave: NDArray[np.float32], sample_rate: int, most: int) -> torch.Tensor:
    """The `input_features` of a sound, at most so many frames, or else its `input_values`, which are not cut.

    An extractor may pad, as Whisper's does to 30 seconds. What its mask calls padding is taken off again: a batch is
    padded when it is put together, and says where. The mask is asked for where an extractor takes
    `return_attention_mask`; without one, all is taken for sound, and frames are along the last axis. Values that are
    not numbers are an error: of samples that are very large, the sums of an extractor overflow.
    """
    import torch

    asked = {"return_attention_mask": True} if _takes_mask(processor) else {}
    made = processor(wave, sampling_rate=sample_rate, return_tensors="pt", **asked)
    framed = made.get("input_features")
    found = torch.as_tensor((made["input_values"] if framed is None else framed)[0])
    axis = found.ndim - 1
    mask = next((torch.as_tensor(made[name][0]) for name in MASKS if made.get(name) is not None), None)
    if mask is not None and mask.ndim == 1 and len(mask) in found.shape:
        axis = axis if found.shape[axis] == len(mask) else found.shape.index(len(mask))
        if not mask.all():
            found = found.index_select(axis, mask.nonzero()[:, 0])
    found = found if framed is None else found.narrow(axis, 0, min(most, found.shape[axis]))
    found = _apart(found)
    if not _is_finite(found):
        raise DataError(
            f"the voice processor made values that are not numbers (NaN or infinite) of a sound whose samples reach "
            f"{abs(wave).max():g}"
        )
    return found


def gives_samples(processor: Any) -> bool:
    """Whether it is an extractor that says of itself that it gives `input_values`."""
    return "input_values" in getattr(processor, "model_input_names", ())


def _takes_mask(processor: Any) -> bool:
    try:
        return "return_attention_mask" in inspect.signature(processor).parameters
    except (TypeError, ValueError):  # what is not written in Python may not tell
        return False


@cache
def _colours_last(kind: type[Any]) -> dict[str, str]:
    """Processors of Transformers 4 guess where a picture has its colours, wrongly if it is one or three pixels high."""
    try:
        asked = "input_data_format" in inspect.signature(kind.preprocess).parameters
    except (AttributeError, TypeError, ValueError):
        return {}
    return {"input_data_format": "channels_last"} if asked else {}


def pixels(processor: Any, image: Image, size: int) -> torch.Tensor:
    """The `pixel_values` of a picture, which is told to become a square of `size`."""
    import torch

    square = {"height": size, "width": size}
    made = processor(image, return_tensors="pt", size=square, **_colours_last(processor.__class__))
    found = made["pixel_values"] if isinstance(made, Mapping) else made.pixel_values
    values = _apart(torch.as_tensor(found[0]))
    if not _is_finite(values):
        raise SpecError(
            f"the image processor made values that are not numbers (NaN or infinite) of a picture of {image.width} x "
            f"{image.height} pixels; look at its image_std, and at what it divides by"
        )
    return values


def _is_finite(values: torch.Tensor) -> bool:
    return not values.is_floating_point() or bool(values.isfinite().all())


def _apart(part: torch.Tensor) -> torch.Tensor:
    """The same, in memory of its own where it is a part of more, all of which would stay with it."""
    return part.clone() if part.untyped_storage().nbytes() > part.numel() * part.element_size() else part

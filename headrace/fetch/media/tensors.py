"""Pixels to a tensor: resized, and normalised.

By torch, which resizes bytes several times as fast as Pillow does. The two differ by one level of 255 at most.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch
    from numpy.typing import NDArray
    from PIL.Image import Image


_MOST_BETWEEN = 1 << 24
"""Pixels of a picture that is as wide as the result and as high as it was; beyond, it is made low first."""


def image_tensor(
    picture: NDArray[np.uint8] | Image,
    size: int,
    *,
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5),
    std: tuple[float, float, float] = (0.5, 0.5, 0.5),
    out: torch.Tensor | None = None,
) -> torch.Tensor:
    """A float32 tensor [3, size, size]: the whole picture, stretched to a square, as (x / 255 - mean) / std.

    `out`: such a tensor, which is written to and given back.
    """
    import torch

    found = torch.empty(3, size, size, dtype=torch.float32, device="cpu") if out is None else out
    # In numpy, channel by channel: each is still at hand when it comes to the next step.
    channels = _resized(_pixels(picture), size)[:3].numpy()
    for plane, levels, (scale, shift) in zip(found.numpy(), channels, _normalizer(mean, std), strict=True):
        plane[...] = levels
        plane *= scale
        plane += shift
    return found


def _pixels(picture: NDArray[np.uint8] | Image) -> torch.Tensor:
    """[height, width, 3 or 4]; a fourth channel means nothing."""
    import torch

    if isinstance(picture, np.ndarray):
        return torch.from_numpy(np.require(picture, requirements=["C", "W"]))
    import pyarrow as pa
    from torch.utils.dlpack import from_dlpack

    try:
        shared = pa.array(picture).flatten()  # as Pillow has it, four bytes each
    except (TypeError, ValueError):  # it has large pictures in several pieces, and older ones cannot share
        return torch.from_numpy(np.array(picture))
    return from_dlpack(shared).view(picture.height, picture.width, -1)


def _resized(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """[channels, size, size]"""
    from torch.nn.functional import interpolate

    planes = pixels.permute(2, 0, 1)
    height, width = planes.shape[1:]
    if (height, width) == (size, size):
        return planes
    if width < size < height and height * size > _MOST_BETWEEN:
        # It is made wide before it is made low, and would be huge in between.
        planes = interpolate(planes[None], (size, width), mode="bilinear", antialias=True)[0]
    return interpolate(planes[None], (size, size), mode="bilinear", antialias=True)[0]


@cache
def _normalizer(mean: tuple[float, ...], std: tuple[float, ...]) -> list[tuple[np.float32, np.float32]]:
    return [(np.float32(1 / (255 * s)), np.float32(-m / s)) for m, s in zip(mean, std, strict=True)]

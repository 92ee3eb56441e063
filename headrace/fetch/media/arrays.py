"""Pictures that come as numbers: any usual shape and type becomes height x width x 3 of uint8."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import DataError, shown
from headrace.fetch.media.budget import Budget

if TYPE_CHECKING:
    from numpy.typing import NDArray

    U8 = NDArray[np.uint8]

_DEPTHS = (1, 2, 3, 4)


def picture_of_array(value: Any, budget: Budget) -> U8:
    """HWC, CHW or HW; uint8, 16 bits, whole numbers up to 255, or fractions up to 1 (or 255 where one is above 1).

    With 2 or 4 channels the last is opacity: the picture is laid on white.
    """
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"the image is a list of rows that are not of one length ({shown(error)})") from error
    if array.dtype.kind not in "buif":
        raise DataError(f"the image is an array of {array.dtype}, not of numbers")
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3:
        raise DataError(f"the image is an array of shape {array.shape}; height x width, or with channels, is expected")
    if array.shape[2] not in _DEPTHS and array.shape[0] in _DEPTHS:
        array = array.transpose(1, 2, 0)
    height, width, depth = array.shape
    if depth not in _DEPTHS or not array.size:
        raise DataError(f"the image is an array of shape {array.shape}, in which no 1 to 4 channels are to be found")
    budget.require("max_pixels", height * width, "the number of pixels")
    return flat(bytes_of(array))


def bytes_of(array: NDArray[Any]) -> U8:
    """The same values as uint8."""
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype.kind == "u" and array.dtype.itemsize == 2:  # in either order of bytes
        return (array >> 8).astype(np.uint8)
    low, high = array.min(), array.max()
    if not (low >= 0 and high <= 255):  # also when one is not a number
        raise DataError(f"the image has values from {low} to {high}; 0 to 255, or 0 to 1, are expected")
    if array.dtype.kind == "f" and high <= 1:
        array = array * 255
    return np.rint(array).astype(np.uint8) if array.dtype.kind == "f" else array.astype(np.uint8)


def flat(array: U8) -> U8:
    """Three channels out of one to four."""
    depth = array.shape[2]
    if depth in (2, 4):
        opacity = array[:, :, -1:].astype(np.uint32)
        color = array[:, :, :-1].astype(np.uint32)
        array = ((color * opacity + 255 * (255 - opacity) + 127) // 255).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(array, (*array.shape[:2], 3)))

"""Colours are what the standards say that a frame's numbers mean, in every version of PyAV."""

from __future__ import annotations

from typing import Any

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from headrace.fetch.media.budget import DEFAULT
from headrace.fetch.media.frames import rgb
from headrace.fetch.media.video import _pixels

LUMA = {"BT.709": (0.2126, 0.0722), "BT.601": (0.299, 0.114), "BT.2020": (0.2627, 0.0593), "not said": (0.299, 0.114)}
"""The weights of red and blue in a matrix."""
MATRIX = {"BT.709": 1, "not said": 2, "BT.601": 6, "BT.2020": 9}
"""Their numbers in a stream."""
RANGE = {"not said": 0, "limited": 1, "full": 2}


def flat(levels: tuple[int, int, int], matrix: str, spread: str, form: str) -> av.VideoFrame:
    """A frame of one colour."""
    frame: Any = av.VideoFrame(64, 48, form)
    for plane, level in zip(frame.planes, levels, strict=True):
        plane.update(bytes([level]) * plane.buffer_size)
    frame.colorspace, frame.color_range = MATRIX[matrix], RANGE[spread]
    return frame  # type: ignore[no-any-return]


def meant(levels: tuple[int, int, int], matrix: str, is_full: bool) -> NDArray[np.float64]:
    y, blue, red = float(levels[0]), levels[1] - 128.0, levels[2] - 128.0
    if not is_full:
        y, blue, red = (y - 16) * 255 / 219, blue * 255 / 224, red * 255 / 224
    kr, kb = LUMA[matrix]
    r, b = y + 2 * (1 - kr) * red, y + 2 * (1 - kb) * blue
    found: NDArray[np.float64] = np.clip(np.array([r, (y - kr * r - kb * b) / (1 - kr - kb), b]), 0, 255)
    return found


@pytest.mark.parametrize("form", ["yuv420p", "yuvj420p", "yuv444p"])
@pytest.mark.parametrize("spread", RANGE)
@pytest.mark.parametrize("matrix", MATRIX)
def test_a_color_is_what_its_numbers_mean(matrix: str, spread: str, form: str) -> None:
    is_full = spread == "full" or form == "yuvj420p"
    for levels in ((100, 90, 200), (180, 140, 100), (60, 128, 128)):
        frame = flat(levels, matrix, spread, form)
        for pixels in (rgb(frame), _pixels(frame, None, DEFAULT), _pixels(frame, (20, 30), DEFAULT)):
            assert (
                np.abs(pixels - meant(levels, matrix, is_full)).max() < 3
            )  # another matrix or range is 10 or more off


def test_a_frame_leaves_no_colors_behind_for_the_next() -> None:
    kinds = [(m, s, f) for m in MATRIX for s in RANGE for f in ("yuv420p", "yuvj420p")]
    frames = [flat((100, 90, 200), *kind) for kind in kinds]
    first = [rgb(frame) for frame in frames]
    for frame, pixels in [*zip(frames, first, strict=True)][::-1]:
        assert np.array_equal(rgb(frame), pixels)

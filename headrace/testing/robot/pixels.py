"""Frames that say in their pixels which ones they are, so clearly that lossy coding does not blur it.

A frame is a grid of 4 by 8 blocks, each bright or dark. The first block is bright, the second dark, the others are
bits: 9 for the episode, 13 for the frame, 4 for the camera, 4 to check.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace import rng
from headrace.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

ROWS, COLUMNS = 4, 8


class FrameIdentity(NamedTuple):
    """Which frame this is: the numbers of its episode, of the frame in it, and of the camera."""

    episode: int
    frame: int
    camera: int


def frame_identity(pixels: Any) -> FrameIdentity:
    """Who the frame is, from a picture or a depth map: a tensor or an array, channels first, last or absent."""
    import numpy as np

    plane = np.asarray(pixels).astype(np.float64)
    if plane.ndim == 3:
        plane = plane.mean(axis=0 if plane.shape[0] in (1, 3) else 2)
    if plane.ndim != 2:
        raise DataError(f"a frame has two axes and channels, not the shape {plane.shape}; give one frame at a time")
    levels = np.array([[_middle(plane, row, column) for column in range(COLUMNS)] for row in range(ROWS)]).ravel()
    bright, dark = levels[0], levels[1]
    clear = np.abs(levels - (bright + dark) / 2) > (bright - dark) / 4
    bits = levels > (bright + dark) / 2
    word = int("".join("01"[int(bit)] for bit in bits[2:]), 2)
    number, check = word >> 4, word & 15
    if bright <= dark or not clear.all() or check != _check(number):
        raise DataError("the frame's pixels do not say which frame it is: it was not made here, or it is spoilt")
    return FrameIdentity(number >> 17, (number >> 4) & 0x1FFF, number & 15)


def draw_frames(identity: FrameIdentity, count: int, height: int, width: int, seed: int) -> NDArray[np.uint8]:
    """RGB frames [count, height, width, 3], numbered from that of `identity`. Every seed and camera has its colours."""
    import numpy as np

    tint = rng.draw_block(rng.key("robot colours", seed, identity.camera), 0, 6, 48).astype(np.int64)
    ramp = np.arange(width) * 12 // width + np.arange(height)[:, None] * 12 // height
    dark, bright = (16 + tint[:3] + ramp[..., None]), (176 + tint[3:] + ramp[..., None])
    mask = _blocks(identity, count, height, width)
    return np.where(mask[..., None], bright, dark).astype(np.uint8)


def draw_depth(identity: FrameIdentity, count: int, height: int, width: int, seed: int) -> NDArray[np.uint16]:
    """Depth maps [count, height, width] in millimetres."""
    import numpy as np

    near = 300 + rng.draw(rng.key("robot depth", seed, identity.camera), 0, 300)
    ramp = np.arange(width) * 3 + np.arange(height)[:, None] * 2
    mask = _blocks(identity, count, height, width)
    return np.where(mask, 6 * near + ramp, near + ramp).astype(np.uint16)


def _blocks(identity: FrameIdentity, count: int, height: int, width: int) -> NDArray[np.bool_]:
    import numpy as np

    grids = np.array(
        [_bits(identity._replace(frame=identity.frame + i)) for i in range(count)], dtype=np.bool_
    ).reshape(count, ROWS, COLUMNS)
    rows, columns = np.arange(height) * ROWS // height, np.arange(width) * COLUMNS // width
    found: NDArray[np.bool_] = grids[:, rows][:, :, columns]
    return found


def _bits(identity: FrameIdentity) -> list[bool]:
    number = identity.episode << 17 | identity.frame << 4 | identity.camera
    word = number << 4 | _check(number)
    return [True, False, *(bool(word >> i & 1) for i in range(29, -1, -1))]


def _check(number: int) -> int:
    check = 5
    while number:
        check ^= number & 15
        number >>= 4
    return check


def _middle(plane: NDArray[np.float64], row: int, column: int) -> float:
    """The mean of a block's inner half: its edges are where coding smears."""
    height, width = plane.shape
    top, bottom = (4 * row + 1) * height // (4 * ROWS), (4 * row + 3) * height // (4 * ROWS)
    left, right = (4 * column + 1) * width // (4 * COLUMNS), (4 * column + 3) * width // (4 * COLUMNS)
    return float(plane[top : max(bottom, top + 1), left : max(right, left + 1)].mean())

"""Frames to RGB, with the same pixels in every version of PyAV that we take.

Before version 17 PyAV takes no notice of the matrix and the range of colours that a frame says it has, so that BT.709
comes out tinted and full range with too much contrast; and a reformatter that has seen a full range keeps it. What
a version can do is found out by trying it on a small frame.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from av.video.frame import VideoFrame

_MATRICES = {1: 1, 4: 4, 7: 7, 9: 9, 10: 9}
"""From numbers of matrices in streams (BT.709, FCC, SMPTE 240M, BT.2020) to those of swscale; any other is BT.601."""
_BT601, _OTHER = 5, 0
_LIMITED, _FULL = 1, 2


def to_rgb_options(frame: VideoFrame) -> dict[str, Any]:
    """What `reformat` of a frame is given for RGB: the frame's own colours, where PyAV would not look at them."""
    form = frame.format
    if not _ignores_colours() or form.is_rgb or len(form.components) < 3:
        return one_thread()
    is_full = frame.color_range == _FULL or form.name.startswith("yuvj")
    return {
        **one_thread(),
        "src_colorspace": _MATRICES.get(int(frame.colorspace), _BT601),
        "dst_colorspace": _OTHER,  # RGB has none; PyAV applies the first only if it differs from this one
        "src_color_range": _FULL if is_full else _LIMITED,
        "dst_color_range": _FULL,
    }


@cache
def one_thread() -> dict[str, int]:
    """What keeps `reformat` on the thread that calls it: nothing in versions that have no other."""
    try:
        _small().reformat(format="rgb24", threads=1)
    except TypeError:
        return {}
    return {"threads": 1}


@cache
def _ignores_colours() -> bool:
    plain, tinted = _small(), _small()
    tinted.colorspace = 1
    return bytes(plain.reformat(format="rgb24").planes[0]) == bytes(tinted.reformat(format="rgb24").planes[0])


def _small() -> Any:
    """A grey square with a little red in it."""
    import av

    frame: Any = av.VideoFrame(16, 16, "yuv420p")
    for plane, level in zip(frame.planes, (100, 90, 200), strict=True):
        plane.update(bytes([level]) * plane.buffer_size)
    return frame

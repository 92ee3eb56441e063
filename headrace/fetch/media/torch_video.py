"""Videos by torchcodec, where it is installed: the same frames, by another decoder.

It takes bytes, and finds out by itself what they are; so they are looked at here first, and only files whose first
bytes leave no doubt get through. It does not tell which frames it made up where data is damaged, so that such frames
come as they are; `backend="pyav"` refuses them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import DataError, HeadraceError, SpecError, shown
from headrace.fetch.media.budget import Budget, Clock
from headrace.fetch.media.clip import Clip
from headrace.fetch.media.ffmpeg import opened, prepare
from headrace.fetch.media.images import open_image
from headrace.fetch.media.video import Size, index_frames, video_stream

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

AT_ONCE = 4
"""Frames of full size that are held at a time."""


def decode_by_torchcodec(
    data: bytes, max_frames: int, size: Size, budget: Budget, clip: Clip | None = None
) -> NDArray[np.uint8]:
    """See `decode_video`."""
    import numpy as np

    decoders = _torchcodec()
    clock = Clock(budget)
    with opened(data, "video", clock) as container:
        stream = video_stream(container)
        prepare(stream, budget)
        index = index_frames(container, stream, clock)
        budget.require("max_pixels", stream.width * stream.height, "the number of pixels of a frame")
    try:
        decoder = decoders.VideoDecoder(data, dimension_order="NHWC", num_ffmpeg_threads=1)
        count = min(index.num_frames, len(decoder))
        wanted = [number for number in index._replace(num_frames=count).chosen(max_frames, clip) if number < count]
        found: list[NDArray[np.uint8]] = []
        for at in range(0, len(wanted), AT_ONCE):
            clock.check()
            frames = decoder.get_frames_at(wanted[at : at + AT_ONCE]).data.numpy()
            found.extend(_resized(frame, size, budget) for frame in frames)
    except (HeadraceError, MemoryError):
        raise
    except Exception as error:  # a decoder may fail in any way when bytes are wrong
        raise DataError(f"the video cannot be decoded: {shown(error)}") from error
    if not found:
        raise DataError("the video has no frames that can be decoded")
    return np.stack(found)


def _resized(frame: NDArray[np.uint8], size: Size, budget: Budget) -> NDArray[np.uint8]:
    import numpy as np
    from PIL import Image

    if size is None:
        return frame
    height, width = (size, size) if isinstance(size, int) else size
    return np.array(open_image(frame, budget).resize((width, height), Image.Resampling.BILINEAR))


def _torchcodec() -> Any:
    try:
        from torchcodec import decoders
    except (ImportError, OSError, RuntimeError) as error:
        raise SpecError(
            f"backend='torchcodec': it is not installed, or does not find its libraries ({shown(error)}); "
            f"pip install torchcodec, with FFmpeg on the system, or take backend='pyav'"
        ) from error
    return decoders

"""Real mp4s: each episode is encoded on its own, and appended to the others by copying its packets."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Sequence
from contextlib import ExitStack
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.testing.robot.pixels import FrameIdentity, draw_depth, draw_frames
from headrace.testing.robot.plan import Camera

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

DEPTH_MIN, DEPTH_MAX, DEPTH_SHIFT = 0.01, 10.0, 3.5
"""Metres: what the codes 0 and 4095 mean, and what is added before the logarithm."""
DEPTH_CODES = 4095

ENCODERS: dict[str, tuple[str, dict[str, str]]] = {
    "av1": ("libsvtav1", {"crf": "30", "preset": "8", "svtav1-params": "lp=1"}),
    "h264": ("libx264", {"crf": "23", "threads": "1", "mbtree": "0"}),
    "hevc": ("libx265", {"crf": "23", "x265-params": "log-level=none:pools=none:frame-threads=1"}),
    "vp9": ("libvpx-vp9", {"crf": "30", "b": "0", "deadline": "realtime", "cpu-used": "8", "threads": "1"}),
}
"""Our names of codecs: the encoder and its options. One thread each, so that equal frames give equal bytes; x264's
macroblock tree gives others in one of 2,000 runs on a busy machine. The quicker presets of SVT-AV1 lose whole blocks of
frames that are flat and change at once, as these do."""


@lru_cache(maxsize=1024)
def encoded_episode(camera: Camera, identity: FrameIdentity, count: int, fps: int, seed: int) -> bytes:
    """An mp4 of one episode: `count` frames, `identity` the first. Its index lies at the end, as LeRobot writes it."""
    import av

    # SVT-AV1 writes its settings to stderr, and takes its log level from the environment alone.
    os.putenv("SVT_LOG", "1")
    name, options = ENCODERS[camera.stored_codec]
    options = options | {"g": str(camera.gop)} | dict(camera.options)
    if camera.depth:
        options["x265-params"] += ":lossless=1"
        options.pop("crf")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream(name, rate=fps, options=options)
        stream.width, stream.height = camera.width, camera.height
        stream.pix_fmt = "gray12le" if camera.depth else "yuv420p"
        for pixels in frames_of(camera, identity, count, seed):
            if camera.depth:
                frame = av.VideoFrame.from_ndarray(depth_codes(pixels), format="gray12le")
            else:
                frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def frames_of(camera: Camera, identity: FrameIdentity, count: int, seed: int) -> NDArray[Any]:
    """The frames before they are encoded: RGB [count, H, W, 3], or millimetres of depth [count, H, W]."""
    draw = draw_depth if camera.depth else draw_frames
    return draw(identity, count, camera.height, camera.width, seed)


def depth_codes(millimetres: NDArray[np.uint16]) -> NDArray[np.uint16]:
    """Depth in 12 bits, evenly spaced in the logarithm of the shifted depth."""
    import numpy as np

    low, high = math.log(DEPTH_MIN + DEPTH_SHIFT), math.log(DEPTH_MAX + DEPTH_SHIFT)
    part = (np.log(millimetres.astype(np.float64) / 1000 + DEPTH_SHIFT) - low) / (high - low)
    return np.clip(np.rint(part * DEPTH_CODES), 0, DEPTH_CODES).astype(np.uint16)


def write_video(path: Path, episodes: Sequence[bytes], counts: Sequence[int], fps: int) -> None:
    """An mp4 of these episodes, of so many frames each; the index lies in front when there are several."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    flags = {"movflags": "faststart"} if len(episodes) > 1 else {}
    with ExitStack() as opened:
        parts: list[Any] = [opened.enter_context(av.open(io.BytesIO(data), "r", format="mp4")) for data in episodes]
        template = parts[0].streams.video[0]
        step = int(1 / (fps * template.time_base))
        shown = []
        for part, before in zip(parts, accumulate([0, *counts[:-1]]), strict=True):
            packets = [packet for packet in part.demux(video=0) if packet.pts is not None]
            shown += [(packet.pts // step + before, packet) for packet in packets]
        out = opened.enter_context(av.open(str(path), "w", format="mp4", options=flags))
        target = out.add_stream_from_template(template, opaque=True)
        target.time_base = template.time_base
        # Encoders begin with different delays; one delay for the whole file keeps its clock even.
        delay = max(number - frame for number, (frame, _) in enumerate(shown))
        for number, (frame, packet) in enumerate(shown):
            packet.pts, packet.dts, packet.stream = frame * step, (number - delay) * step, target
            out.mux(packet)

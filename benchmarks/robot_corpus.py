"""A robot data set for the benchmarks, as LeRobot writes them: AV1, a key frame every other frame, some noise."""

from __future__ import annotations

import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from headrace.testing import Camera, Dirt, RobotPlan
from headrace.testing.robot.meta import write_meta
from headrace.testing.robot.table import write_data

FPS = 30
CLIP = 300
"""Frames that are encoded for a camera. Each episode begins at another one of them."""
SMALL, LARGE = "observation.images.wrist", "observation.images.top"
ENCODER = {"crf": "30", "preset": "12", "g": "2", "svtav1-params": "lp=1"}
"""As LeRobot's, on one thread."""


def robots(folder: Path, episodes: int, *, clip: int = CLIP) -> Path:
    """Two cameras, 240 x 320 and 480 x 640, whose files end at different episodes; episodes of 100 to 300 frames."""
    if not (folder / "meta/info.json").exists():
        plan = RobotPlan(
            episodes=[clip // 3 + 67 * number % (2 * clip // 3 - 1) for number in range(episodes)],
            fps=FPS,
            cameras={
                SMALL: Camera(height=240, width=320, episodes_per_file=5),
                LARGE: Camera(height=480, width=640, episodes_per_file=3),
            },
            extra_features={"next.reward": ("float32", (1,)), "next.done": ("bool", (1,))},
            episodes_per_data_file=6,
            dirt=Dirt(no_stats=True),  # nobody reads them, and they take longest
        )
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        write_meta(part, plan)
        write_data(part, plan)
        for key, camera in plan.videos.items():
            clips = _clip(camera, clip)
            for chunk, file, numbers in plan.files(camera.episodes_per_file):
                path = part / plan.video_path.format(video_key=key, chunk_index=chunk, file_index=file)
                _write_video(path, clips, [(14 * number % clip, plan.episodes[number]) for number in numbers])
        part.rename(folder)
    return folder


def _clip(camera: Camera, count: int) -> bytes:
    import av

    os.putenv("SVT_LOG", "1")  # it writes its settings to stderr, and takes its log level from there alone
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libsvtav1", rate=FPS, options=ENCODER)
        stream.width, stream.height, stream.pix_fmt = camera.width, camera.height, "yuv420p"
        for pixels in _scene(camera.height, camera.width, count):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def _write_video(path: Path, clip: bytes, episodes: list[tuple[int, int]]) -> None:
    """One mp4 of episodes, each of them a first frame in the clip, which goes round, and a number of frames."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        av.open(io.BytesIO(clip), "r") as source,
        av.open(str(path), "w", format="mp4", options={"movflags": "faststart"}) as out,
    ):
        template = source.streams.video[0]
        packets = [packet for packet in source.demux(video=0) if packet.pts is not None]
        assert [packet.is_keyframe for packet in packets] == [i % 2 == 0 for i in range(len(packets))]
        target: Any = out.add_stream_from_template(template, opaque=True)
        assert template.time_base is not None
        step, number = int(1 / (FPS * template.time_base)), 0
        for first, length in episodes:
            for i in range(length):
                old = packets[(first + i) % len(packets)]
                new: Any = av.Packet(bytes(old))
                new.pts, new.dts, new.duration = number * step, number * step, step
                new.time_base, new.is_keyframe, new.stream = template.time_base, old.is_keyframe, target
                out.mux(new)
                number += 1


def _scene(height: int, width: int, count: int) -> Iterator[Any]:
    """A thing that moves over a background, both of many grains, and the noise of a camera."""
    draws = np.random.default_rng(height)
    back, thing = (_texture(draws, *size) for size in ((height, width), (height // 3, width // 4)))
    for i in range(count):
        frame = back.copy()
        top = int((height - thing.shape[0]) * (0.5 + 0.4 * np.sin(i / 17)))
        left = int((width - thing.shape[1]) * (0.5 + 0.45 * np.cos(i / 23)))
        frame[top : top + thing.shape[0], left : left + thing.shape[1]] = thing
        yield np.clip(frame + 2 * draws.normal(size=(height, width, 1)), 0, 255).astype(np.uint8)


def _texture(draws: np.random.Generator, height: int, width: int) -> Any:
    found = np.zeros((height, width, 3))
    for grain in (4, 8, 16, 32, 64):
        coarse = draws.normal(size=(height // grain + 1, width // grain + 1, 3))
        found += np.kron(coarse, np.ones((grain, grain, 1)))[:height, :width] * grain**0.5
    for axis in (0, 1):
        found = (np.roll(found, 1, axis) + found + np.roll(found, -1, axis)) / 3
    return 20 + 200 * (found - found.min()) / (found.max() - found.min())

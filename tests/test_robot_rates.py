"""Cameras whose videos have another rate than the data set: their frames are found by time, as LeRobot finds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from robots import EPISODES, FPS, NUM_FRAMES, SMALL, small_set

from headrace import StreamingLeRobotDataset
from headrace.errors import DataError
from headrace.testing import frame_identity
from headrace.testing.robot.pixels import FrameIdentity
from headrace.testing.robot.plan import RobotPlan
from headrace.testing.robot.video import encoded_episode, write_video

TOP, FAST = "observation.images.top", "observation.images.fast"


def with_rate(folder: Path, fps: int, counts: list[int]) -> Path:
    """A second camera at `fps`, with so many frames of each episode."""
    camera = SMALL[TOP]
    folder = small_set(folder, cameras={TOP: camera, FAST: camera})
    plan = RobotPlan(episodes=EPISODES, fps=FPS)
    for chunk, file, episodes in plan.files(camera.episodes_per_file):
        own = [counts[e] for e in episodes]
        identities = [FrameIdentity(e, 0, 1) for e in episodes]
        parts = [encoded_episode(camera, who, n, fps, 0) for who, n in zip(identities, own, strict=True)]
        write_video(folder / f"videos/{FAST}/chunk-{chunk:03d}/file-{file:03d}.mp4", parts, own, fps)
    return folder


def shown(item: dict[str, Any], key: str, at: int = 0) -> FrameIdentity:
    pixels = item[key] if item[key].ndim == 3 else item[key][at]
    return frame_identity((pixels.permute(1, 2, 0) * 255).round().byte().numpy())


@pytest.mark.parametrize("times", [2, 3])
def test_a_camera_of_several_times_the_rate(tmp_path: Path, times: int) -> None:
    folder = with_rate(tmp_path / "set", times * FPS, [times * n for n in EPISODES])
    windows = {FAST: [-2 / FPS, 0.0, 1 / FPS]}
    data = StreamingLeRobotDataset("r", root=folder, delta_timestamps=windows, cache_dir=tmp_path / "cache")
    count = 0
    for item in data:
        count += 1
        episode, frame = int(item["episode_index"]), int(item["frame_index"])
        assert shown(item, TOP) == FrameIdentity(episode, frame, 0)
        near = [max(frame - 2, 0), frame, min(frame + 1, EPISODES[episode] - 1)]
        assert [shown(item, FAST, i) for i in range(3)] == [FrameIdentity(episode, times * n, 1) for n in near]
    assert count == NUM_FRAMES


def test_a_slower_camera_is_refused_with_both_rates_unless_the_nearest_will_do(tmp_path: Path) -> None:
    folder = with_rate(tmp_path / "set", FPS // 2, [-(-n // 2) for n in EPISODES])
    data = StreamingLeRobotDataset("r", root=folder, episodes=[0], shuffle=False, cache_dir=tmp_path / "cache")
    with pytest.raises(DataError, match=r"has 5 frames a second, and the data set 10 .* raise tolerance_s"):
        list(data)
    data = StreamingLeRobotDataset("r", root=folder, episodes=[0], tolerance_s=0.101, cache_dir=tmp_path / "cache")
    for item in data:
        frame = int(item["frame_index"])
        assert shown(item, FAST).frame in {frame // 2, -(-frame // 2)}

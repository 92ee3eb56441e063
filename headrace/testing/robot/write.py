"""A writer of LeRobot data sets of version 3, small and with real videos."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.testing.robot.meta import write_meta
from headrace.testing.robot.pixels import FrameIdentity
from headrace.testing.robot.plan import RobotPlan
from headrace.testing.robot.table import write_data
from headrace.testing.robot.video import encoded_episode, write_video


def write_robot_dataset(folder: str | Path, **options: Any) -> Path:
    """A data set of `RobotPlan(**options)` in `folder`, byte for byte the same for the same options."""
    plan, folder = RobotPlan(**options), Path(folder)
    write_meta(folder, plan)
    write_data(folder, plan)
    for key, camera in plan.videos.items():
        for chunk, file, episodes in plan.files(camera.episodes_per_file):
            counts = [plan.frames(e) for e in episodes]
            parts = [
                encoded_episode(camera, FrameIdentity(e, 0, plan.number(key)), count, plan.fps, plan.seed)
                for e, count in zip(episodes, counts, strict=True)
            ]
            path = folder / plan.video_path.format(video_key=key, chunk_index=chunk, file_index=file)
            write_video(path, parts, counts, plan.fps)
    return folder

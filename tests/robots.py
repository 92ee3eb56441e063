"""What the tests of robot data sets share."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from headrace.testing import Camera, write_robot_dataset

FPS = 10
EPISODES = (7, 12, 5, 9, 11, 6)
NUM_FRAMES = sum(EPISODES)
CAMERAS = {
    "observation.images.top": Camera(codec="h264", episodes_per_file=(2, 4)),
    "observation.images.wrist": Camera(episodes_per_file=(3, 1, 2)),
    "observation.images.still": Camera(kind="image"),
    "observation.depth": Camera(depth=True),
    "observation.depth_still": Camera(depth=True, kind="image"),
}
SMALL = {"observation.images.top": Camera(height=32, width=64, episodes_per_file=(2, 1, 3))}


def small_set(folder: Path, **more: Any) -> Path:
    """One small camera, episodes of all lengths, several data files."""
    options: dict[str, Any] = {"episodes": EPISODES, "fps": FPS, "cameras": SMALL, "episodes_per_data_file": 2, **more}
    return write_robot_dataset(folder, **options)


def assert_same(item: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert set(item) == set(wanted)
    for name, value in wanted.items():
        if isinstance(value, torch.Tensor):
            assert isinstance(item[name], torch.Tensor), name
            assert (item[name].dtype, item[name].shape) == (value.dtype, value.shape), name
            assert torch.equal(item[name], value), name
        else:
            assert (type(item[name]), item[name]) == (type(value), value), name


def numbers(items: Any) -> list[int]:
    """The global numbers of frames."""
    return [int(item["index"]) for item in items]

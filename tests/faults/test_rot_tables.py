"""T9 for robots: the tables of episodes in the cache are cut, changed or taken away while a run reads them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from robots import EPISODES, NUM_FRAMES
from test_rot import HARMS

from headrace import StreamingLeRobotDataset
from headrace.lerobot import table
from headrace.testing import LocalHub, write_robot_dataset


def states(items: Any) -> dict[int, list[float]]:
    return {int(item["index"]): item["observation.state"].tolist() for item in items}


@pytest.mark.filterwarnings("ignore:.*episodes for .* consumers")
@pytest.mark.parametrize("resting", [False, True], ids=["open", "closed meanwhile"])
@pytest.mark.parametrize("harm", HARMS)
def test_tables_that_are_harmed_during_a_run_are_noticed_and_come_again(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, harm: Callable[[Path], None], resting: bool
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setattr(table, "KEPT_BYTES", 0)
    monkeypatch.setattr(table, "MOST_OPEN", 1 if resting else 100)
    folder = write_robot_dataset(tmp_path / "set", episodes=EPISODES, cameras={}, episodes_per_data_file=3)
    hub.push("me/robot", folder, branch="refs/tags/v3.0")
    options: dict[str, Any] = {"episode_pool_size": 1, "shuffle": False, "streaming": False}
    wanted = states(StreamingLeRobotDataset("r", root=folder, cache_dir=tmp_path / "a", **options))
    data = StreamingLeRobotDataset("me/robot", cache_dir=tmp_path / "b", **options)
    items = iter(data)
    found = states(next(items) for _ in range(12))  # episodes of the first file are not all read
    harmed = [path for path in (tmp_path / "b").rglob("file-*.parquet") if "data" in path.parts]
    for path in harmed:
        harm(path)
    found |= states(items)
    assert found == wanted
    assert len(found) == NUM_FRAMES
    assert harmed
    for path in [path for path in (tmp_path / "b").rglob("file-*.parquet") if "data" in path.parts and path.is_file()]:
        harm(path)
    assert states(data) == wanted, "the next epoch of the same run"

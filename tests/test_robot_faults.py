"""Frames that cannot be read are left out where asked: each once, bounded, named, and true to the state."""

from __future__ import annotations

import itertools
import json
import logging
from pathlib import Path
from typing import Any

import pytest
from robots import EPISODES, NUM_FRAMES, numbers, small_set
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace import StreamingLeRobotDataset, merge_states
from headrace.errors import DataError, SpecError, StateError
from headrace.make.describe import Faults
from headrace.run import Run
from headrace.serve.verify import verify
from headrace.testing import Dirt

TOP = "videos/observation.images.top/chunk-000"
STARTS = [sum(EPISODES[:i]) for i in range(len(EPISODES) + 1)]
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*episodes for .* consumers"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


def frames_of(*episodes: int) -> set[int]:
    return {n for e in episodes for n in range(STARTS[e], STARTS[e + 1])}


def no_video(folder: Path) -> set[int]:
    (folder / TOP / "file-001.mp4").unlink()
    return frames_of(2)


def damaged_video(folder: Path) -> set[int]:
    (folder / TOP / "file-002.mp4").write_bytes(b"nothing")
    return frames_of(3, 4, 5)


def damaged_table(folder: Path) -> set[int]:
    path = folder / "data/chunk-000/file-001.parquet"
    path.write_bytes(path.read_bytes()[:-20] + b"\0" * 20)
    return frames_of(2, 3)


HARMS = [no_video, damaged_video, damaged_table]


def stream(folder: Path, **options: Any) -> StreamingLeRobotDataset:
    options = {"faults": Faults(policy="skip"), "episode_pool_size": 3, "cache_dir": folder.parent / "cache", **options}
    return StreamingLeRobotDataset("org/robot", root=folder, **options)


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize(("ranks", "workers"), [(1, 0), (1, 2), (2, 0), (2, 2)])
def test_all_other_frames_come_once(tmp_path: Path, harm: Any, ranks: int, workers: int) -> None:
    folder = small_set(tmp_path / "set")
    lost = harm(folder)
    listed: set[str] = set()
    for _ in range(2):
        seen = []
        for rank in range(ranks):
            data = stream(folder, rank=rank, world_size=ranks)
            loader = DataLoader(data, batch_size=None, num_workers=workers) if workers else data
            seen += numbers(loader)
            listed |= set(data.faults)
        assert sorted(seen) == sorted(set(range(NUM_FRAMES)) - lost)
    assert len(listed) == len(lost)


@pytest.mark.parametrize("harm", HARMS)
def test_by_default_the_run_ends_there(tmp_path: Path, harm: Any) -> None:
    folder = small_set(tmp_path / "set")
    harm(folder)
    with pytest.raises((DataError, FileNotFoundError)):
        numbers(stream(folder, faults=None))


def test_what_is_left_out_is_told_with_its_address(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = small_set(tmp_path / "set", dirt=Dirt(missing_frames={5: 1}))
    data = stream(folder)
    with caplog.at_level(logging.WARNING, "headrace"):
        for _ in range(2):
            assert len(numbers(data)) == NUM_FRAMES - 1
    assert list(data.faults) == ["data/chunk-000/file-002.parquet:16"]
    assert "shorter than meta/episodes says" in next(iter(data.faults.values()))
    assert "left out (1 of at most 100): org/robot epoch 0 data/chunk-000/file-002.parquet:16" in caplog.text


def test_more_than_the_budget_ends_the_run(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    lost = no_video(folder)
    assert len(numbers(stream(folder, faults=Faults(policy="skip", budget=len(lost))))) == NUM_FRAMES - len(lost)
    data = stream(folder, faults=Faults(policy="skip", budget=len(lost) - 1))
    with pytest.raises(DataError, match=f"{len(lost) - 1} frames were left out before it"):
        numbers(data)
    assert len(data.faults) == len(lost) - 1


@pytest.mark.parametrize("harm", HARMS)
def test_a_state_at_every_item_goes_on_exactly(tmp_path: Path, harm: Any) -> None:
    folder = small_set(tmp_path / "set")
    lost = harm(folder)
    data = stream(folder)
    run = numbers(data)
    data = stream(folder)
    items = iter(data)
    for count in range(len(run) + 1):
        state = json.loads(json.dumps(data.state_dict()))
        if count % 4 == 0 or count > len(run) - 3:
            again = stream(folder)
            again.load_state_dict(state)
            found = numbers(again)
            if count < len(run):
                assert found == run[count:]
            else:
                assert sorted(found) in ([], sorted(set(range(NUM_FRAMES)) - lost))
            assert verify(state, run=Run.here(cache_dir=folder.parent / "cache")).is_reachable
        next(items, None)


def test_ranks_are_joined_and_dealt_anew(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    lost = damaged_table(folder)
    for count in (3, 9):
        parts, seen = [], []
        for rank in range(2):
            data = stream(folder, rank=rank, world_size=2)
            items = iter(data)
            seen += numbers(itertools.islice(items, count))
            parts.append(data.state_dict())
        state = merge_states(parts)
        for rank in range(3):
            data = stream(folder, rank=rank, world_size=3)
            data.load_state_dict(state)
            seen += numbers(data)
        assert sorted(seen) == sorted(set(range(NUM_FRAMES)) - lost)


@pytest.mark.parametrize("count", [1, 4, 7])
def test_a_stateful_loader_goes_on(tmp_path: Path, count: int) -> None:
    folder = small_set(tmp_path / "set")
    damaged_table(folder)
    loader = StatefulDataLoader(stream(folder), batch_size=3, num_workers=2)
    batches = iter(loader)
    first = [n for batch in itertools.islice(batches, count) for n in batch["index"].tolist()]
    state = loader.state_dict()
    rest = [n for batch in batches for n in batch["index"].tolist()]
    again = StatefulDataLoader(stream(folder), batch_size=3, num_workers=2)
    again.load_state_dict(state)
    assert [n for batch in again for n in batch["index"].tolist()] == rest
    assert len(set(first) | set(rest)) == len(first) + len(rest)


def test_what_cannot_be_exact_is_refused(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set", cameras={})
    data = stream(folder)
    with pytest.raises(StateError, match="does not say which frames were left out"):
        data.load_state_dict({"batches_consumed": 3, "batch_size": 2})
    with pytest.raises(SpecError, match="no frame of them can be left out"):
        data.loader(4)
    with pytest.raises(SpecError, match="counts frames before they are read"):
        stream(folder, tail="drop")
    with pytest.raises(SpecError, match="is not of type Faults"):
        stream(folder, faults="skip")

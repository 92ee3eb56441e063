"""`TrueStreamingDataset` under a plain DataLoader: workers come and go, and those after them go on there."""

from __future__ import annotations

import gc
import json
import time
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from streaming import World, named
from torch.utils.data import DataLoader

from headrace import collate_fn
from headrace.errors import StateError
from headrace.serve.streaming import TrueStreamingDataset

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def saved(dataset: TrueStreamingDataset, folder: Path) -> str:
    dataset._save_streaming_state(folder / "state.json")
    return str(folder / "state.json")


ROWS = [[10] * 6]
EPOCHS = {"max_per_epoch": 20, "sample_repeat": 1, "max_per_dataset": 20}


def plain(dataset: TrueStreamingDataset, workers: int, **more: Any) -> DataLoader[Any]:
    return DataLoader(dataset, batch_size=1, num_workers=workers, collate_fn=collate_fn, **more)


@pytest.mark.parametrize("stay", [False, True])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("cut", [1, 2, 3, 5])
def test_after_a_break_workers_go_on_with_their_own_rows(world: World, workers: int, cut: int, stay: bool) -> None:
    """What was on its way is lost to a plain DataLoader, but nothing comes twice."""
    dataset = world.memory({"a": named("a")}, ROWS).make(**EPOCHS)
    batches = plain(dataset, workers, persistent_workers=stay)
    given = iter(batches)
    names = world.names_of(islice(given, cut))
    del given
    rest = world.names_of(batches)
    names += rest + world.names_of(batches)
    assert len(set(names)) == len(names)
    assert 20 - cut - 4 * workers <= len(rest) <= 20 - cut


@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_epochs_of_a_plain_data_loader_go_on_with_the_sources(world: World, workers: int, method: str) -> None:
    dataset = world.make(["code"], max_per_epoch=3, sample_repeat=1)
    batches = plain(dataset, workers, multiprocessing_context=method)
    names = [name for _ in range(2) for name in world.names_of(batches)]
    assert sorted(names) == [f"code {i}" for i in range(6)]
    assert dataset._streaming_state["unique_samples"] == 0
    assert dataset._streaming_state["epoch"] == 2
    assert dataset._streaming_state["dataset_positions"] == {"code": 6}


@pytest.mark.parametrize("then", [0, 1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2])
def test_whoever_comes_after_a_plain_data_loader_goes_on_there(
    world: World, tmp_path: Path, workers: int, then: int
) -> None:
    """The same dataset, its loader, or another one with its state, and any number of workers."""
    make = partial(world.memory({"a": named("a")}, ROWS).make, **EPOCHS)
    wanted, epochs = 60, 2
    if then == 3:  # lanes of which some begin anew before others have ended
        wanted, epochs = 40, 1
    for way in ("itself", "loader", "file"):
        dataset = make()
        names = world.names_of(plain(dataset, workers))
        path = saved(dataset, tmp_path)
        assert json.loads(Path(path).read_text())["epoch"] == 1
        if way == "loader":
            with dataset.loader(batch_size=1, num_workers=then) as loader:
                names += world.names_of(batch for _ in range(epochs) for batch in loader)
        else:
            other = dataset if way == "itself" else make(resume_state_path=path)
            names += world.names_of(batch for _ in range(epochs) for batch in plain(other, then))
        assert len(names) == len(set(names)) == wanted, way


def test_the_state_of_a_plain_data_loader_in_the_midst_is_near(world: World, tmp_path: Path) -> None:
    def slow(row: Any, tokens: Any) -> Any:
        time.sleep(0.02)
        return {"text": row["output"]}

    make = partial(world.memory({"a": named("a")}, ROWS).make, functions={"code": slow}, **EPOCHS)
    dataset = make()
    batches = iter(plain(dataset, 2, prefetch_factor=1))
    names = world.names_of(islice(batches, 14))
    state = dataset._streaming_state
    assert 1 <= state["total_yields"] <= 14 + 4
    path = saved(dataset, tmp_path)
    del batches
    rest = world.names(make(functions={"code": slow}, resume_state_path=path))
    assert len(rest) == 20 - state["total_yields"]
    assert len(set(names) & set(rest)) <= max(0, 14 - state["total_yields"])


def test_a_worker_that_was_killed_leaves_no_state_to_go_by(world: World, tmp_path: Path) -> None:
    dataset = world.memory({"a": named("a")}, ROWS).make(**EPOCHS)
    assert len(list(plain(dataset, 2))) == 20
    folder = dataset._log._folder
    (folder / "2-1.json").unlink()
    with pytest.raises(StateError, match="ended without a word"):
        dataset._save_streaming_state(tmp_path / "state.json")
    del dataset
    gc.collect()
    assert not folder.exists()

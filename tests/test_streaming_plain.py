"""`TrueStreamingDataset` under a plain DataLoader: workers come and go, and those after them go on there."""

from __future__ import annotations

import copy
import gc
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from streaming import World, named, saved
from torch.utils.data import DataLoader

from headrace import collate_fn
from headrace.errors import StateError
from headrace.serve.streaming import TrueStreamingDataset

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


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


@pytest.mark.alone
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


MANY = [[10] * 40]


@pytest.mark.parametrize("turns", [(3, 2, 3, 2), (1, 2, 4, 1), (2, 0, 2, 0, 3)], ids=str)
def test_the_number_of_workers_may_change_with_each_epoch(world: World, turns: tuple[int, ...]) -> None:
    dataset = world.memory({"a": named("a")}, MANY).make(**EPOCHS)
    names = [name for workers in turns for name in world.names_of(plain(dataset, workers))]
    assert len(names) == len(set(names)) == 20 * len(turns)
    assert dataset._streaming_state["dataset_positions"] == {"a": 20 * len(turns)}


@pytest.mark.parametrize("cut", [2, 18, 19])
def test_what_a_break_left_of_an_epoch_comes_first(world: World, tmp_path: Path, cut: int) -> None:
    """Also where one worker was done with it and another not: they stay together."""
    dataset = world.memory({"a": named("a")}, MANY).make(**{**EPOCHS, "max_per_epoch": 21, "max_per_dataset": 21})
    given = iter(plain(dataset, 2))
    names = world.names_of(islice(given, cut))
    del given
    if dataset._streaming_state["epoch"] == 0:
        names += world.names_of(plain(dataset, 2))
    assert len(names) <= 21
    for epoch in (1, 2):
        assert json.loads(Path(saved(dataset, tmp_path)).read_text())["epoch"] == epoch
        names += world.names_of(plain(dataset, 2))
        assert dataset._streaming_state["dataset_positions"]["a"] == 21 * (epoch + 1)
    assert len(set(names)) == len(names)


def test_a_loader_and_data_loaders_take_turns(world: World, tmp_path: Path) -> None:
    dataset = world.memory({"a": named("a")}, MANY).make(**EPOCHS)
    stay = plain(dataset, 2, persistent_workers=True)
    with dataset.loader(batch_size=2) as loader:
        names = world.names_of(loader)
    for batches in (stay, plain(dataset, 1), stay):
        names += world.names_of(batches)
        path = saved(dataset, tmp_path)
        assert dataset._streaming_state["dataset_positions"] == {"a": len(names)}
    other = world.memory({"a": named("a")}, MANY).make(**EPOCHS, resume_state_path=path)
    again = copy.deepcopy(dataset)
    rest = world.names(dataset)
    assert len(set(names + rest)) == 100
    assert rest == world.names(other) == world.names(again)
    with pytest.raises(StateError, match="make a new DataLoader"):
        list(stay)
    stay._iterator._shutdown_workers()  # type: ignore[union-attr]
    del stay, batches
    gc.collect()  # not in a process that is forked later


KILLED = """
import json, os, signal, sys, time
from itertools import islice
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from streaming import World, named
from torch.utils.data import DataLoader
from headrace import collate_fn
from headrace.serve.logbook import SHARE, Round

write, times = Round._write, Path(sys.argv[1], "times")
def timed(self, state, page):
    began = time.monotonic()
    write(self, state, page)
    with times.open("a") as file:
        file.write(f"{time.monotonic() - began}\\n")
Round._write = timed

world = World(Path(sys.argv[1]))
rows = world.memory({"a": named("a")}, [[10] * 40])
dataset = rows.make(max_per_epoch=300, max_per_dataset=300, sample_repeat=1)
batches = DataLoader(dataset, batch_size=1, num_workers=2, collate_fn=collate_fn)
given = iter(batches)
names = []
for batch in islice(given, 100):
    names += world.names_of([batch])
    time.sleep(0.02)
longest = max(map(float, times.read_text().split()))
signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # torch would raise at whatever line it hears of it
os.kill(given._workers[1].pid, signal.SIGKILL)
del given
known = dataset._streaming_state["dataset_positions"]["a"]
# A page is written now and then, so that writing takes a part of the time: how often, the disk decides. Each worker
# gives one sample in two pauses of the trainer, and a few are on their way.
most = SHARE * longest / 0.04 + 6
print(json.dumps([names, known, world.names_of(batches), most]))
"""


def test_a_worker_that_was_killed_gives_little_again(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path), str(Path(__file__).parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    names, known, rest, most = json.loads(done.stdout)
    assert known + len(rest) == 300
    assert len(rest) == len(set(rest))
    assert len(set(names) & set(rest)) <= most


def test_a_worker_that_never_began_gave_nothing(world: World) -> None:
    dataset = world.memory({"a": named("a")}, ROWS).make(**EPOCHS)
    given = iter(plain(dataset, 2))
    names = world.names_of(islice(given, 2))
    del given
    for path in dataset._log._folder.glob("*.worker-1.json"):
        path.unlink()
    rest = world.names_of(plain(dataset, 3))
    mine, others = {f"a {i}" for i in range(30)}, {f"a {i}" for i in range(30, 60)}
    assert set(names) & set(rest) <= others
    assert len(set(rest) & mine) + len(set(names) & mine) <= 20


def test_a_seed_that_is_set_anew_does_not_make_two_rounds_one(world: World) -> None:
    dataset = world.memory({"a": named("a")}, ROWS).make(**EPOCHS)
    names = []
    for _ in range(3):
        torch.manual_seed(7)
        names += world.names_of(plain(dataset, 2))
    assert sorted(names) == sorted(f"a {i}" for i in range(60))


@pytest.mark.parametrize("workers", [1, 2])
def test_ranks_keep_their_lanes_from_epoch_to_epoch(
    world: World, tmp_path: Path, as_rank: Callable[[int, int], None], workers: int
) -> None:
    """Also where they began in the midst of another's epoch, at an odd step."""
    make = partial(world.memory({"a": named("a")}, MANY).make, **EPOCHS)
    loader = make().loader(batch_size=1, lanes=4)
    names = world.names_of(islice(loader, 5))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    for rank in range(2):
        as_rank(rank, 2)
        dataset = make(resume_state_path=str(tmp_path / "state.json"))
        names += [name for _ in range(3) for name in world.names_of(plain(dataset, workers))]
        names += world.names(dataset)
    assert len(names) == len(set(names)) == 80


def test_the_folder_goes_with_the_dataset(world: World) -> None:
    dataset = world.memory({"a": named("a")}, ROWS).make(**EPOCHS)
    folder = dataset._log._folder
    assert not folder.exists()
    for _ in range(4):
        list(plain(dataset, 2))
    assert len(list(folder.iterdir())) <= 6
    del dataset
    gc.collect()
    assert not folder.exists()

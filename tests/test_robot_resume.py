"""Every frame once, and resume at every point: with workers and ranks, inside epochs and across them."""

from __future__ import annotations

import copy
import itertools
import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from robots import EPISODES, NUM_FRAMES, numbers, small_set
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace import Loader, StreamingLeRobotDataset, merge_states
from headrace.errors import StateError
from headrace.serve.consumers import dealt
from headrace.testing import write_robot_dataset

BATCH = 4
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*episodes for .* consumers"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Without cameras, so that many epochs take no time."""
    return written(tmp_path_factory.mktemp("robots"), 1)


@pytest.fixture(scope="module")
def one_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("robots"), 1000)


def written(target: Path, per_file: int) -> Path:
    return write_robot_dataset(target / "set", episodes=EPISODES, fps=10, cameras={}, episodes_per_data_file=per_file)


def stream(folder: Path, **options: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset("org/robot", root=folder, episode_pool_size=3, cache_dir=folder / "cache", **options)


def batches(loader: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in loader]


def flat(parts: list[list[int]]) -> list[int]:
    return [number for part in parts for number in part]


# --- every frame once


@pytest.mark.parametrize(
    ("workers", "ranks", "files"),
    [
        *((workers, ranks, "many") for workers in (0, 1, 2, 3) for ranks in (1, 2, 3)),
        *((workers, ranks, "one") for workers, ranks in ((0, 1), (0, 3), (2, 1), (2, 2), (3, 3))),
    ],
)
def test_every_frame_once_in_every_epoch_and_epochs_differ(
    folder: Path, one_file: Path, workers: int, ranks: int, files: str
) -> None:
    where = folder if files == "many" else one_file
    data = [stream(where, rank=rank, world_size=ranks) for rank in range(ranks)]
    loaders = [DataLoader(one, batch_size=BATCH, num_workers=workers) for one in data]
    epochs = []
    for _ in range(2):
        per_rank = [flat(batches(loader)) for loader in loaders]
        assert sorted(flat(per_rank)) == list(range(NUM_FRAMES))
        epochs.append(per_rank)
    assert epochs[0] != epochs[1]
    for one in data:
        one.set_epoch(0)
    assert [flat(batches(loader)) for loader in loaders] == epochs[0], "an epoch repeats"


def test_the_same_seed_gives_the_same_run(folder: Path) -> None:
    runs = [[numbers(data), numbers(data)] for data in (stream(folder), stream(folder))]
    assert runs[0] == runs[1]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_epochs_are_the_same_however_workers_live(folder: Path, persistent: bool, method: str) -> None:
    whole = DataLoader(stream(folder), batch_size=BATCH, num_workers=2)
    wanted = [flat(batches(whole)) for _ in range(2)]
    options: dict[str, Any] = {"persistent_workers": persistent, "multiprocessing_context": method}
    loader: Any = DataLoader(stream(folder), batch_size=BATCH, num_workers=2, **options)
    assert [flat(batches(loader)) for _ in range(2)] == wanted


def test_an_episode_belongs_to_one_consumer_and_shares_are_balanced(folder: Path) -> None:
    owners: dict[int, set[int]] = {}
    sizes = []
    for rank in range(2):
        items = list(stream(folder, rank=rank, world_size=2))
        sizes.append(len(items))
        for item in items:
            owners.setdefault(int(item["episode_index"]), set()).add(rank)
    assert all(len(ranks) == 1 for ranks in owners.values())
    assert abs(sizes[0] - sizes[1]) <= max(EPISODES)


def test_seeds_and_generators(folder: Path) -> None:
    first = numbers(stream(folder, seed=1))
    assert first == numbers(stream(folder, seed=1))
    assert first != numbers(stream(folder, seed=2))
    drawn = [numbers(stream(folder, rng=np.random.default_rng(seed))) for seed in (5, 5, 6)]
    assert drawn[0] == drawn[1] != drawn[2]


def test_the_pool_holds_as_many_episodes_as_asked(folder: Path) -> None:
    """With one episode in the pool, an episode's frames come together; in another order than they lie."""
    data = StreamingLeRobotDataset("org/robot", root=folder, episode_pool_size=1, cache_dir=folder / "cache")
    seen = [int(item["episode_index"]) for item in data]
    changes = sum(a != b for a, b in itertools.pairwise(seen))
    assert changes == len(EPISODES) - 1
    wide = [int(item["episode_index"]) for item in stream(folder)]
    assert sum(a != b for a, b in itertools.pairwise(wide)) > NUM_FRAMES // 3


def test_data_files_are_mixed_all_or_a_few_at_a_time(tmp_path: Path) -> None:
    target = write_robot_dataset(tmp_path / "set", episodes=[4] * 12, cameras={}, episodes_per_data_file=3)
    narrow = StreamingLeRobotDataset("r", root=target, max_num_shards=1, episode_pool_size=2, cache_dir=tmp_path)
    files = [int(item["episode_index"]) // 3 for item in narrow]
    firsts = [files.index(file) for file in range(4)]
    lasts = [len(files) - 1 - files[::-1].index(file) for file in range(4)]
    by_first = sorted(zip(firsts, lasts, strict=True))
    assert all(last - first < 24 for first, last in by_first), "a file is done before the one after the next begins"
    assert sorted(numbers(narrow)) == list(range(48))
    wide = StreamingLeRobotDataset("r", root=target, episode_pool_size=2, cache_dir=tmp_path)
    assert [int(item["episode_index"]) // 3 for item in wide] != files


# --- what a trainer knows


@pytest.mark.parametrize(
    ("workers", "drop_last"), [(0, False), (0, True), (1, False), (2, False), (3, False), (3, True)]
)
def test_every_point_of_two_epochs_by_batches_consumed(folder: Path, workers: int, drop_last: bool) -> None:
    def loader(data: StreamingLeRobotDataset) -> DataLoader[dict[str, Any]]:
        return DataLoader(data, batch_size=BATCH, num_workers=workers, drop_last=drop_last)

    whole = loader(stream(folder))
    run = [batch for _ in range(4) for batch in batches(whole)]
    first = len(batches(loader(stream(folder))))
    points = range(2 * first + 1) if workers == 0 else (1, first - 2, first - 1, first, first + 5)
    for consumed in points:
        data = stream(folder)
        data.load_state_dict({"batches_consumed": consumed, "batch_size": BATCH, "drop_last": drop_last})
        resumed = loader(data)
        found = batches(resumed)
        found += batches(resumed)
        assert found == run[consumed : consumed + len(found)], consumed
        assert len(found) > first


@pytest.mark.parametrize(("workers", "ranks"), [(0, 3), (2, 2)])
def test_one_state_serves_every_rank(folder: Path, workers: int, ranks: int) -> None:
    for rank in range(ranks):
        options = {"rank": rank, "world_size": ranks}
        whole = DataLoader(stream(folder, **options), batch_size=BATCH, num_workers=workers)
        run = [*batches(whole), *batches(whole)]
        for consumed in (1, 3):
            data = stream(folder, **options)
            data.load_state_dict({"batches_consumed": consumed, "batch_size": BATCH})
            resumed = DataLoader(data, batch_size=BATCH, num_workers=workers)
            found = [*batches(resumed), *batches(resumed)]
            assert found[: len(run) - consumed] == run[consumed:]


def test_persistent_workers_go_on_where_they_are_told(folder: Path) -> None:
    data = stream(folder)
    loader: Any = DataLoader(data, batch_size=BATCH, num_workers=2, persistent_workers=True)
    run = [*batches(loader), *batches(loader)]
    data.load_state_dict({"batches_consumed": 5, "batch_size": BATCH})
    assert batches(loader) == run[5 : len(run) // 2]
    assert batches(loader) == run[len(run) // 2 :]


def test_an_epoch_that_was_left_early_is_followed_by_the_next(folder: Path) -> None:
    data = stream(folder)
    wanted = [numbers(data) for _ in range(2)]
    data = stream(folder)
    for _ in data:
        break
    assert numbers(data) == wanted[1]
    data.set_epoch(0)
    assert numbers(data) == wanted[0]
    data.set_epoch(1)
    assert numbers(data) == wanted[1]


@pytest.mark.parametrize(("tail", "workers"), [("drop", 2), ("wrap", 0), ("wrap", 2)])
def test_consumers_end_together_where_asked(folder: Path, tail: str, workers: int) -> None:
    runs = []
    for rank in range(2):
        options = {"rank": rank, "world_size": 2, "tail": tail}
        loader = DataLoader(stream(folder, **options), batch_size=BATCH, num_workers=workers)
        runs.append([*batches(loader), *batches(loader)])
        for consumed in (2, len(runs[0]) // 2 - 1):
            data = stream(folder, **options)
            data.load_state_dict({"batches_consumed": consumed, "batch_size": BATCH})
            resumed = DataLoader(data, batch_size=BATCH, num_workers=workers)
            assert [*batches(resumed), *batches(resumed)][: len(runs[-1]) - consumed] == runs[-1][consumed:]
    assert [len(batch) for batch in runs[0]] == [len(batch) for batch in runs[1]]
    once = flat(runs[0][: len(runs[0]) // 2]) + flat(runs[1][: len(runs[1]) // 2])
    if tail == "drop":
        assert len(set(once)) == len(once)
    else:
        assert set(once) == set(range(NUM_FRAMES))


def test_turns_are_dealt_as_a_loader_takes_them() -> None:
    rng = np.random.default_rng(0)
    for _ in range(2000):
        sizes = rng.integers(0, 6, size=int(rng.integers(1, 5))).tolist()
        for count in range(sum(sizes) + 1):
            given, at, left = [0] * len(sizes), 0, count
            while left:
                if given[at % len(sizes)] < sizes[at % len(sizes)]:
                    given[at % len(sizes)] += 1
                    left -= 1
                at += 1
            while given != sizes and given[at % len(sizes)] >= sizes[at % len(sizes)]:
                at += 1
            assert dealt(sizes, count) == (given, at % len(sizes) if given != sizes else 0)


# --- exact states


def test_a_state_at_every_item_goes_on_exactly(folder: Path) -> None:
    data = stream(folder)
    states, run = [], []
    for item in data:
        run.append(int(item["index"]))
        states.append(json.loads(json.dumps(data.state_dict())))
    run += numbers(data)
    for at, state in enumerate(states, start=1):
        resumed = stream(folder)
        resumed.load_state_dict(state)
        assert resumed.state_dict() == state
        first = numbers(resumed)
        assert first + (numbers(resumed) if at < NUM_FRAMES else []) == run[at:][: 2 * NUM_FRAMES]
        assert len(json.dumps(state)) < 4000


@pytest.mark.parametrize("ranks", [2, 3])
def test_states_of_ranks_are_joined_and_dealt_anew(folder: Path, ranks: int) -> None:
    parts, seen = [], []
    for rank in range(ranks):
        data = stream(folder, rank=rank, world_size=ranks)
        items = iter(data)
        seen += [int(next(items)["index"]) for _ in range(3)]
        parts.append(data.state_dict())
    whole = merge_states(parts)
    for others in (1, 2, 4):
        rest = []
        for rank in range(others):
            data = stream(folder, rank=rank, world_size=others)
            data.load_state_dict(whole)
            rest += numbers(data)
        assert sorted(seen + rest) == list(range(NUM_FRAMES)), (ranks, others)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_resumes_at_every_batch(folder: Path, workers: int) -> None:
    loader: Any = StatefulDataLoader(stream(folder), batch_size=BATCH, num_workers=workers)
    run, states = [], []
    for batch in loader:
        run.append(batch["index"].tolist())
        states.append(copy.deepcopy(loader.state_dict()))
    for at in range(0, len(states) - 1, 1 if not workers else 4):
        resumed: Any = StatefulDataLoader(stream(folder), batch_size=BATCH, num_workers=workers)
        resumed.load_state_dict(states[at])
        assert batches(resumed) == run[at + 1 :], at


# --- the loader


def loader_of(folder: Path, **options: Any) -> Loader:
    ranks = {name: options.pop(name) for name in ("rank", "world_size") if name in options}
    return stream(folder, **ranks).loader(batch_size=3, **options)


def given(loader: Loader, most: int = 1000) -> Iterator[list[int]]:
    for n, batch in enumerate(loader, start=1):
        if not batch.pad:
            yield batch["index"].tolist()
        if n == most:
            return


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_the_loader_goes_on_at_any_step_on_any_number_of_workers(folder: Path, workers: int) -> None:
    with loader_of(folder, lanes=2, num_workers=workers) as loader:
        run = list(given(loader))
    assert sorted(flat(run)) == list(range(NUM_FRAMES))
    for steps in range(0, len(run), 4):
        with loader_of(folder, lanes=2) as first:
            seen = list(given(first, steps)) if steps else []
            state = first.state_dict()
        with loader_of(folder, num_workers=workers) as second:
            second.load_state_dict(state)
            assert seen + list(given(second)) == run


def test_the_loader_deals_anew_for_other_ranks(folder: Path) -> None:
    with loader_of(folder, lanes=2) as loader:
        seen = flat(list(given(loader, 6)))
        state = loader.state_dict()
    rest = []
    for rank in range(3):
        with loader_of(folder, rank=rank, world_size=3) as other:
            other.load_state_dict(state)
            rest += flat(list(given(other)))
    assert sorted(seen + rest) == list(range(NUM_FRAMES))


def test_batches_of_the_loader_are_stacked(tmp_path: Path) -> None:
    data = StreamingLeRobotDataset("r", root=small_set(tmp_path / "set"), cache_dir=tmp_path)
    with data.loader(batch_size=4, num_workers=1) as loader:
        batch = next(iter(loader))
    assert batch["observation.images.top"].shape == (4, 3, 32, 64)
    assert batch["action"].dtype == torch.float32
    assert batch["action"].shape[0] == 4
    assert len(batch["task"]) == 4
    assert [address.source for address in batch.addresses] == ["r"] * 4


# --- states that do not fit


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"batches_consumed": -1, "batch_size": 4}, "batches_consumed"),
        ({"batches_consumed": 1.5, "batch_size": 4}, "batches_consumed"),
        ({"batches_consumed": True, "batch_size": 4}, "batches_consumed"),
        ({"batches_consumed": 10**30, "batch_size": 4}, "batches_consumed"),
        ({"batches_consumed": 3}, "batch_size"),
        ({"batches_consumed": 3, "batch_size": 0}, "batch_size"),
        ({"batches_consumed": 3, "batch_size": 4, "__class__": "x"}, "__class__"),
        ({"batches_consumed": 3, "batch_size": 4, "drop_last": 1}, "drop_last"),
        ({}, "state"),
        ({"of": "x"}, "state of a worker"),
        ([1], "mapping"),
    ],
)
def test_a_state_that_cannot_be_is_refused_at_once(folder: Path, state: Any, said: str) -> None:
    data = stream(folder)
    with pytest.raises(StateError, match=said):
        data.load_state_dict(state)
    assert numbers(data) == numbers(stream(folder)), "nothing was changed"


def test_a_state_of_other_data_is_refused(folder: Path, tmp_path: Path) -> None:
    data = stream(folder)
    next(iter(data))
    state = data.state_dict()
    others = {
        "revision": write_robot_dataset(tmp_path / "set", episodes=[5, 6], cameras={}),
        "seed": folder,
    }
    other = StreamingLeRobotDataset("org/robot", root=others["revision"], episode_pool_size=3, cache_dir=tmp_path)
    other.load_state_dict(state)
    with pytest.raises(Exception, match="revision|source"):
        next(iter(other))
    seeded = stream(folder, seed=7)
    seeded.load_state_dict(state)
    with pytest.raises(StateError, match="seed"):
        next(iter(seeded))
    chosen = stream(folder, episodes=[1, 2])
    chosen.load_state_dict(state)
    with pytest.raises(Exception, match="revision|source"):
        next(iter(chosen))


@pytest.mark.parametrize("changed", [{"seed": 7}, {"episodes": [1, 2, 3]}], ids=["seed", "episodes"])
def test_a_state_of_a_worker_of_other_data_is_refused(folder: Path, changed: dict[str, Any]) -> None:
    loader: Any = StatefulDataLoader(stream(folder), batch_size=BATCH, num_workers=1)
    next(iter(loader))
    other: Any = StatefulDataLoader(stream(folder, **changed), batch_size=BATCH, num_workers=1)
    other.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="of another recipe, other data, or another number of ranks"):
        next(iter(other))


def test_a_data_set_can_be_copied(folder: Path) -> None:
    data = stream(folder)
    wanted = numbers(data)
    assert numbers(pickle.loads(pickle.dumps(stream(folder)))) == wanted  # noqa: S301 - our own
    assert numbers(copy.deepcopy(stream(folder))) == wanted

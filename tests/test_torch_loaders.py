"""Batches under loaders of others: torch's DataLoader, torchdata's StatefulDataLoader, and wrappers around ours."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data
from serving import ALL_TOKENS, KINDS, UIDS, loader_of, seen, tokens_in, uids_in, write_rows
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace.batch import Batch
from headrace.errors import SpecError, StateError
from headrace.serve.loader import Loader
from headrace.testing import write_parquet

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata still calls it
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes:UserWarning"),  # on two cores
]

WHOLE: dict[str, Any] = {"rows": UIDS, "tokens": ALL_TOKENS}


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def wanted(pattern: str) -> dict[str, list[list[Any]]]:
    """For each kind, two epochs of our own loader."""
    found = {}
    for kind in KINDS:
        loader = loader_of(kind, pattern)
        found[kind] = [[seen(batch) for batch in loader] for _ in range(2)]
    return found


def whole(kind: str, batches: list[Batch]) -> Any:
    return sorted(uids_in(batches)) if kind == "rows" else sorted(tokens_in(batches))


def plain(loader: Loader, num_workers: int, **options: Any) -> torch.utils.data.DataLoader[Batch]:
    return torch.utils.data.DataLoader(loader.dataset, batch_size=None, num_workers=num_workers, **options)


def stateful(loader: Loader, num_workers: int, **options: Any) -> Any:
    return StatefulDataLoader(loader.dataset, batch_size=None, num_workers=num_workers, **options)


@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", list(WHOLE))
def test_a_plain_dataloader_gives_the_whole_epoch_in_our_order(
    pattern: str, wanted: dict[str, list[list[Any]]], kind: str, num_workers: int
) -> None:
    batches = list(plain(loader_of(kind, pattern), num_workers))
    assert all(type(batch) is Batch for batch in batches)
    assert whole(kind, batches) == WHOLE[kind]
    found = [seen(batch) for batch in batches]
    if num_workers <= 1:
        assert found == wanted[kind][0]
    else:  # a worker whose lanes are over is asked no more, so at the very end those of others move up
        assert sorted(found) == sorted(wanted[kind][0])
        assert found[:24] == wanted[kind][0][:24]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_dataloader_goes_through_an_endless_run(
    pattern: str, wanted: dict[str, list[list[Any]]], num_workers: int
) -> None:
    batches = iter(plain(loader_of("endless", pattern, steps_per_epoch=48), num_workers))
    assert [seen(batch) for batch in batches] == [batch for epoch in wanted["endless"] for batch in epoch]


@pytest.mark.parametrize("persistent", [False, True])
def test_an_epoch_comes_again_until_another_one_is_set(
    pattern: str, wanted: dict[str, list[list[Any]]], persistent: bool
) -> None:
    loader = loader_of("rows", pattern)
    state = loader.state_dict()
    dataset = loader.dataset
    options: dict[str, Any] = {"num_workers": 1, "persistent_workers": True} if persistent else {}
    batches = torch.utils.data.DataLoader(dataset, batch_size=None, **options)
    for _ in range(2):
        assert [seen(batch) for batch in batches] == wanted["rows"][0]
    dataset.set_epoch(1)
    for _ in range(2):
        assert [seen(batch) for batch in batches] == wanted["rows"][1]
    dataset.set_epoch(0)
    assert [seen(batch) for batch in batches] == wanted["rows"][0]
    with pytest.raises(SpecError, match="set_epoch"):
        dataset.set_epoch(-1)
    assert loader.state_dict() == state


@pytest.mark.parametrize("make", [plain, stateful])
def test_workers_that_do_not_divide_the_lanes_are_refused_with_the_way_out(pattern: str, make: Any) -> None:
    loader = loader_of("rows", pattern, lanes=4)
    with pytest.raises(SpecError, match=r"num_workers=3 does not divide the 4 lanes.*lanes=3 or a multiple"):
        list(make(loader, 3))


def test_a_dataset_begins_where_its_loader_is(pattern: str, wanted: dict[str, list[list[Any]]]) -> None:
    loader = loader_of("rows", pattern)
    batches = iter(loader)
    found = [seen(next(batches)) for _ in range(7)]
    assert found + [seen(batch) for batch in plain(loader, 1)] == wanted["rows"][0]


def test_ranks_have_a_part_each(pattern: str) -> None:
    batches: list[Batch] = []
    for rank in range(2):
        loader = loader_of("rows", pattern, lanes=4, rank=rank, world_size=2)
        batches += list(plain(loader, 2))
    assert sorted(uids_in(batches)) == UIDS


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("tail", ["drop", "pad", "wrap"])
@pytest.mark.parametrize("kind", list(WHOLE))
def test_a_dataset_gives_nothing_that_only_fills_a_step(pattern: str, kind: str, tail: str, num_workers: int) -> None:
    with loader_of(kind, pattern, tail=tail, batch_size=4) as loader:
        wanted = sorted(seen(batch) for batch in loader)
    found = list(plain(loader_of(kind, pattern, tail=tail, batch_size=4), num_workers))
    assert not any(batch.pad for batch in found)
    if tail == "drop":  # a lane that ends early does not end the others here
        assert {batch.m for batch in found} >= {batch[0] for batch in wanted}
        assert all(len(batch.addresses) == 4 for batch in found)
    else:
        assert sorted(map(seen, found)) == wanted


# --- StatefulDataLoader


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("kind", list(WHOLE))
def test_a_stateful_dataloader_goes_on_exactly_from_its_state(pattern: str, kind: str, num_workers: int) -> None:
    first = stateful(loader_of(kind, pattern), num_workers)
    whole_run = [seen(batch) for batch in first]
    assert len(whole_run) > 30
    for cut in (1, 6, 17, len(whole_run) - 1):
        loader = stateful(loader_of(kind, pattern), num_workers)
        batches = iter(loader)
        for _ in range(cut):
            next(batches)
        state = loader.state_dict()
        again = stateful(loader_of(kind, pattern), num_workers)
        again.load_state_dict(state)
        assert [seen(batch) for batch in again] == whole_run[cut:]
        assert [seen(batch) for batch in again] == whole_run, "the epoch after it is not whole"


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_chain_of_states_of_a_stateful_dataloader_ends_where_one_run_ends(pattern: str, num_workers: int) -> None:
    wanted = [seen(batch) for batch in stateful(loader_of("tokens", pattern), num_workers)]
    found: list[Any] = []
    state: Any = None
    for steps in (3, 5, 0, 8, 1, 1000):
        loader = stateful(loader_of("tokens", pattern), num_workers)
        if state is not None:
            loader.load_state_dict(state)
        for n, batch in enumerate(loader):
            if n == steps:
                break
            found.append(seen(batch))
            if n + 1 == steps:
                state = loader.state_dict()
                break
    assert found == wanted


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_after_the_end_begins_the_next_epoch(pattern: str, num_workers: int) -> None:
    loader = stateful(loader_of("rows", pattern), num_workers)
    wanted = [seen(batch) for batch in loader]
    again = stateful(loader_of("rows", pattern), num_workers)
    again.load_state_dict(loader.state_dict())
    for _ in range(2):
        assert [seen(batch) for batch in again] == wanted


@pytest.mark.parametrize(
    "changed",
    [{"lanes": 6}, {"batch_size": 4}, {"seed": 1}, {"rank": 1, "world_size": 2}],
    ids=["lanes", "batch size", "seed", "ranks"],
)
def test_a_workers_state_is_refused_by_another_dataset(pattern: str, changed: dict[str, Any]) -> None:
    dataset = loader_of("rows", pattern).dataset
    batches = iter(dataset)
    next(batches)
    state = dataset.state_dict()
    other = loader_of("rows", pattern, **changed).dataset
    other.load_state_dict(state)
    with pytest.raises(StateError, match=r"another recipe, other data, or another number"):
        iter(other)


def test_a_workers_state_is_refused_when_the_data_changed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[30, 30]])
    pattern = f"{tmp_path}/in/*.parquet"
    dataset = loader_of("rows", pattern).dataset
    next(iter(dataset))
    state = dataset.state_dict()
    write_parquet(tmp_path / "in", [[30, 31]])
    other = loader_of("rows", pattern).dataset
    other.load_state_dict(state)
    with pytest.raises(StateError, match="other data"):
        iter(other)


@pytest.mark.parametrize(
    "state",
    [None, [], {}, {"format": 2}, {"format": 1, "of": "x", "epoch": 0, "m": -1, "lanes": "{}"}]
    + [{"format": 1, "of": "x", "epoch": 0, "m": 0, "lanes": text} for text in ("", "[]", '{"a": "{}"}', '{"1": "2"}')],
)
def test_what_is_no_state_of_a_worker_is_refused_and_changes_nothing(pattern: str, state: Any) -> None:
    dataset = loader_of("rows", pattern).dataset
    batches = iter(dataset)
    before = [seen(next(batches)) for _ in range(3)]
    with pytest.raises(StateError, match="not the state of a worker"):
        dataset.load_state_dict(state)
    assert sorted(uid for _, _, items, *_ in before + [seen(b) for b in batches] for uid in dict(items)["uid"]) == UIDS


def test_a_workers_state_is_plain_json_that_asking_for_does_not_change(pattern: str) -> None:
    dataset = loader_of("tokens", pattern).dataset
    fresh = dataset.state_dict()
    assert dataset.state_dict() == fresh
    batches = iter(dataset)
    assert dataset.state_dict() == fresh
    for _ in range(5):
        next(batches)
        state = dataset.state_dict()
        assert dataset.state_dict() == state == json.loads(json.dumps(state))
        assert state.keys() == fresh.keys()
        other = loader_of("tokens", pattern).dataset
        other.load_state_dict(state)
        assert other.state_dict() == state
        iter(other)
        assert other.state_dict() == state


# --- wrappers that read ahead


class HoldsOneBack:
    """As Accelerate does: the trainer has a batch only when the next one was taken from the loader."""

    def __init__(self, loader: Loader) -> None:
        self.loader = loader
        self.m = loader.state_dict()["m"]

    def __iter__(self) -> Iterator[Batch]:
        held = None
        for batch in self.loader:
            if held is not None:
                self.m = held.m + 1
                yield held
            held = batch
        if held is not None:
            self.m = held.m + 1
            yield held

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict(at=self.m)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", ["tokens", "endless"])
def test_a_wrapper_that_reads_ahead_asks_for_the_state_of_what_it_gave(
    pattern: str, wanted: dict[str, list[list[Any]]], kind: str, num_workers: int
) -> None:
    for cut in (1, 5, 20):
        wrapper = HoldsOneBack(loader_of(kind, pattern, num_workers=num_workers))
        batches = iter(wrapper)
        found = [seen(next(batches)) for _ in range(cut)]
        state = wrapper.state_dict()
        assert wrapper.loader.state_dict()["m"] == state["m"] + 1 == cut + 1
        wrapper.loader.close()
        with loader_of(kind, pattern, num_workers=num_workers) as loader:
            loader.load_state_dict(state)
            assert found + [seen(batch) for batch in loader] == wanted[kind][0]


def test_a_state_of_too_long_ago_is_an_error_that_says_what_is_kept(pattern: str) -> None:
    with loader_of("endless", pattern, steps_per_epoch=200) as loader:
        batches = iter(loader)
        for _ in range(100):
            next(batches)
        with pytest.raises(StateError, match=r"at=35.*from m=36 to m=100"):
            loader.state_dict(at=35)
        with pytest.raises(StateError, match="at=101"):
            loader.state_dict(at=101)
        assert loader.state_dict(at=36)["m"] == 36

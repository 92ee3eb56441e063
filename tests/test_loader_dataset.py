"""`loader.dataset` keeps what the loader promises, or says in one sentence that it cannot."""

from __future__ import annotations

import copy
import json
import pickle
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.utils.data
from near import NearPeers, NearVote, Votes
from serving import ALL_TOKENS, UIDS, loader_of, seen, tokens_in, uids_in, write_rows
from streaming import World
from torchdata.stateful_dataloader import StatefulDataLoader

import headrace
from headrace.batch import Batch
from headrace.errors import DataError, SpecError, StateError
from headrace.serve.dataset import LaneDataset
from headrace.serve.lane import Lane
from headrace.serve.loader import Loader

pytestmark = [
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata still calls it
    pytest.mark.filterwarnings("ignore:This DataLoader will create 3 worker processes:UserWarning"),  # on two cores
]

REFUSED = "a second loop over an endless run in the workers of a DataLoader cannot go on"


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("corpus"))


def plain(loader: Loader, num_workers: int = 0, **options: Any) -> Any:
    return torch.utils.data.DataLoader(loader.dataset, batch_size=None, num_workers=num_workers, **options)


def batches_of(loader: Any, most: int = 1000) -> list[Any]:
    return [seen(batch) for _, batch in zip(range(most), loader, strict=False)]


def endless(pattern: str, steps: int | None = 7, **options: Any) -> Loader:
    return loader_of("endless", pattern, **{"steps_per_epoch": steps, **options})


# --- endless runs


@pytest.fixture(scope="module")
def wanted(pattern: str) -> list[Any]:
    loader = endless(pattern)
    return [batch for _ in range(5) for batch in batches_of(loader)]


def test_epochs_of_steps_end_and_the_next_loop_goes_on(pattern: str, wanted: list[Any]) -> None:
    loader = endless(pattern)
    torchs = plain(loader)
    loops = [batches_of(torchs) for _ in range(3)]
    loops.append(batches_of(plain(loader)))  # the loader has not moved, so this is the same dataset
    loader.dataset.set_epoch(9)
    loops.append(batches_of(torchs))
    assert [len(loop) for loop in loops] == [7] * 5
    assert [batch for loop in loops for batch in loop] == wanted


def test_a_loop_that_is_left_goes_on_where_it_was(pattern: str, wanted: list[Any]) -> None:
    torchs = plain(endless(pattern))
    loops = [batches_of(torchs, most) for most in (3, 2, 100, 100, 0, 6, 100)]
    assert [len(loop) for loop in loops] == [3, 2, 2, 7, 0, 6, 1]
    assert [batch for loop in loops for batch in loop] == wanted[:21]


def test_a_run_without_epochs_goes_on_too(pattern: str, wanted: list[Any]) -> None:
    dataset = endless(pattern, None).dataset
    found: list[Any] = []
    for steps in (1, 4, 0, 9, 8):
        batches = iter(dataset)
        found += [seen(next(batches)) for _ in range(steps)]
        dataset.set_epoch(len(found))
    assert found == wanted[:22]


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_workers_end_with_the_epoch_and_a_second_loop_over_them_is_refused(
    pattern: str, wanted: list[Any], context: str, persistent: bool
) -> None:
    loader = endless(pattern)
    workers = 2 if context == "fork" else 1  # torch cannot bear an error of one while another is still being spawned
    torchs = plain(loader, workers, multiprocessing_context=context, persistent_workers=persistent)
    assert batches_of(torchs) == wanted[:7]
    with pytest.raises(SpecError, match=REFUSED):
        batches_of(torchs)
    loader.dataset.set_epoch(1)
    for again in (plain(loader, 2), plain(loader, 0)):
        with pytest.raises(SpecError, match=REFUSED):
            batches_of(again)


def test_workers_go_on_after_a_loop_without_them(pattern: str, wanted: list[Any]) -> None:
    loader = endless(pattern)
    found = batches_of(plain(loader)) + batches_of(plain(loader, 0), 0)
    assert found + batches_of(plain(loader, 1)) == wanted[:14]
    other = endless(pattern)
    batches_of(plain(other))
    sent: LaneDataset = pickle.loads(pickle.dumps(other.dataset))  # noqa: S301 - our own
    assert batches_of(sent) == wanted[7:14]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stateful_dataloader_goes_on_in_its_epoch(pattern: str, wanted: list[Any], num_workers: int) -> None:
    for cut in (1, 3, 6):
        first = StatefulDataLoader(endless(pattern).dataset, batch_size=None, num_workers=num_workers)
        batches = iter(first)
        for _ in range(cut):
            next(batches)
        state = first.state_dict()
        again = StatefulDataLoader(endless(pattern).dataset, batch_size=None, num_workers=num_workers)
        again.load_state_dict(state)
        assert batches_of(again) == wanted[cut:7]
        if not num_workers:
            assert batches_of(again) == wanted[7:14]
            later = again.state_dict()
            third = StatefulDataLoader(endless(pattern).dataset, batch_size=None)
            third.load_state_dict(later)
            assert batches_of(third) + batches_of(third) == wanted[14:21]


# --- several ranks


def ranks_of(kind: str, pattern: str, count: int, **options: Any) -> list[Loader]:
    loaders = [loader_of(kind, pattern, rank=rank, world_size=count, **options) for rank in range(count)]
    votes = Votes()
    for loader in loaders:
        loader._peers = NearPeers(votes, count)  # type: ignore[assignment]
    return loaders


def together(parts: list[Any]) -> list[list[Batch]]:
    """In step, as trainers go: all have as many."""
    iterators: list[Iterator[Batch]] = [iter(part) for part in parts]
    found: list[list[Batch]] = []
    while True:
        step = [next(iterator, None) for iterator in iterators]
        some = [batch for batch in step if batch is not None]
        assert len(some) in (0, len(step)), "some ranks ended before others"
        if not some:
            return found
        found.append(some)


@pytest.mark.parametrize("num_workers", [0, 1, 2])
@pytest.mark.parametrize("tail", ["drop", "pad", "wrap"])
@pytest.mark.parametrize("count", [2, 3])
def test_ranks_have_the_loaders_steps(pattern: str, count: int, tail: str, num_workers: int) -> None:
    options: dict[str, Any] = {"tail": tail, "batch_size": 9}
    wanted = together(ranks_of("rows", pattern, count, **options))
    found = together([plain(loader, num_workers) for loader in ranks_of("rows", pattern, count, **options)])
    assert [[seen(batch) for batch in step] for step in found] == [[seen(batch) for batch in step] for step in wanted]
    if tail == "pad":
        assert sorted(uids_in([batch for step in found for batch in step])) == UIDS


@pytest.mark.parametrize("tail", ["drop", "pad", "wrap"])
def test_ranks_that_must_agree_do_so_in_this_process(pattern: str, tail: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.serve.epoch.group_is_up", lambda: True)
    wanted = together(ranks_of("tokens", pattern, 3, tail=tail))
    found = together([plain(loader) for loader in ranks_of("tokens", pattern, 3, tail=tail)])
    assert [[seen(batch) for batch in step] for step in found] == [[seen(batch) for batch in step] for step in wanted]
    if tail == "pad":
        assert sorted(tokens_in([batch for step in found for batch in step])) == ALL_TOKENS


class WaitingPeers(NearPeers):
    """Of a rank that has a thread of its own: an answer is waited for, as it is over a network."""

    def ask(self, number: int) -> NearVote:
        return WaitingVote(*super().ask(number))


class WaitingVote(NearVote):
    def answer(self) -> int:
        deadline = time.monotonic() + 30
        while len(self.asked) < self.ranks and time.monotonic() < deadline:
            time.sleep(0.001)
        return super().answer()


def in_threads(loaders: list[Loader], run: Callable[[Loader, int], Any]) -> list[Any]:
    """What `run` gives for each rank; each has a thread of its own."""
    votes = Votes()
    votes.asked = [[] for _ in range(1000)]  # there before threads come
    for loader in loaders:
        loader._peers = WaitingPeers(votes, len(loaders))  # type: ignore[assignment]
    with ThreadPoolExecutor(len(loaders)) as threads:
        return list(threads.map(run, loaders, range(len(loaders))))


def some(batches: Any, steps: int = 1000) -> list[Any]:
    """So many batches: the number of each, whether it only fills a step, and what is in it."""
    return [(batch.m, batch.pad, seen(batch)) for _, batch in zip(range(steps), batches, strict=False)]


def stop_after(steps: int, loader: Loader, rank: int) -> None:
    assert len(some(loader, steps)) == steps


KINDS = [("tokens", tail, ranks) for tail in ("drop", "pad", "wrap") for ranks in (1, 3)]
KINDS += [("rows", tail, ranks) for tail in ("drop", "pad") for ranks in (1, 3)]


@pytest.mark.parametrize(("kind", "tail", "ranks"), KINDS)
def test_a_dataset_that_resumes_has_as_many_steps_as_one_that_was_not_stopped(
    pattern: str, kind: str, tail: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each rank has a state of its own lanes only: what the others said before it was saved, they say again. In a later
    epoch too, wherever the dataset stands that gets the state."""
    monkeypatch.setattr("headrace.serve.epoch.group_is_up", lambda: True)

    def loaders() -> list[Loader]:
        return ranks_of(kind, pattern, ranks, tail=tail, lanes=6)

    def whole(loader: Loader, rank: int) -> list[list[Any]]:
        found = []
        for epoch in range(3):
            loader.dataset.set_epoch(epoch)
            found.append(some(loader.dataset))
        return found

    epochs = in_threads(loaders(), whole)
    steps = [len(given) for given in epochs[0]]
    cuts = [(0, 1), *((0, cut) for cut in range(steps[0] - 6, steps[0])), (1, 1), (1, 5), (1, steps[1] - 2)]
    for epoch, cut in cuts:

        def begin(loader: Loader, rank: int, epoch: int = epoch, cut: int = cut) -> tuple[list[Any], Any]:
            for before in range(epoch):
                some(loader.dataset)
                loader.dataset.set_epoch(before + 1)
            torchs = StatefulDataLoader(loader.dataset, batch_size=None)
            return some(torchs, cut), torchs.state_dict()

        begun = in_threads(loaders(), begin)
        for stands in (0, epoch, 3) if epoch else (0,):

            def go_on(loader: Loader, rank: int, stands: int = stands, begun: list[Any] = begun) -> list[Any]:
                loader.dataset.set_epoch(stands)
                torchs = StatefulDataLoader(loader.dataset, batch_size=None)
                torchs.load_state_dict(begun[rank][1])
                return [*begun[rank][0], *some(torchs)]

            assert in_threads(loaders(), go_on) == [given[epoch] for given in epochs], (epoch, cut, stands)


def test_a_dataset_of_other_lanes_refuses_a_state_of_lanes_that_were_dealt_anew(pattern: str) -> None:
    (loader,) = ranks_of("rows", pattern, 1, lanes=4)
    assert len(some(loader, 12)) == 12
    fresh, dealt = (ranks_of("rows", pattern, 3)[0] for _ in range(2))
    dealt.load_state_dict(loader.state_dict())  # 3 ranks do not divide 4 lanes
    torchs = StatefulDataLoader(dealt.dataset, batch_size=None)
    wanted = some(torchs)
    assert some(torchs, 3) == wanted[:3]
    state = torchs.state_dict()
    torchs.load_state_dict(state)
    assert some(torchs) == wanted[3:]
    begun = dealt.dataset
    for epoch in (1, 0):  # its lanes have the whole epoch before them, and begin at the same micro-batch by chance
        begun.set_epoch(epoch)
    for other in (fresh.dataset, begun):
        torchs = StatefulDataLoader(other, batch_size=None)
        torchs.load_state_dict(state)
        with pytest.raises(StateError, match="dealt anew for another number of ranks; load the state of the headrace"):
            next(iter(torchs))


@pytest.mark.parametrize("tail", ["drop", "pad"])
@pytest.mark.parametrize("what", ["a copy", "a dataset"])
def test_what_is_taken_of_a_loader_in_the_middle_ends_at_the_same_step_on_every_rank(
    pattern: str, what: str, tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank knows then where its own lanes are, and where those of others were when it resumed."""
    monkeypatch.setattr("headrace.serve.epoch.group_is_up", lambda: True)

    def loaders() -> list[Loader]:
        return ranks_of("tokens", pattern, 3, tail=tail, lanes=6)

    whole = in_threads(loaders(), lambda loader, rank: some(loader))
    steps = len(whole[0])
    for cut in range(steps - 5, steps):
        stopped = loaders()
        in_threads(stopped, partial(stop_after, cut))
        state = headrace.merge_states([loader.state_dict(gather=False) for loader in stopped])
        for more in range(1, steps - cut):

            def run(loader: Loader, rank: int, state: Any = state, more: int = more) -> list[Any]:
                loader.load_state_dict(state)
                found = some(loader, more)
                peers, loader._peers = loader._peers, None
                copied = copy.deepcopy(loader)
                loader._peers = copied._peers = peers
                return [*found, *some(copied if what == "a copy" else loader.dataset)]

            assert in_threads(loaders(), run) == [given[cut:] for given in whole], (cut, more, steps)


def test_what_fills_a_slot_and_fails_is_tried_again_and_counts_once(
    pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.serve.epoch.group_is_up", lambda: True)
    whole = in_threads(ranks_of("tokens", pattern, 3, lanes=6), lambda loader, rank: some(loader.dataset))
    real, failed = Lane._filler, set[Any]()

    def filler(self: Lane) -> Batch:
        if (self.number, self._given) in failed:
            return real(self)
        failed.add((self.number, self._given))
        raise DataError("not now")

    def run(loader: Loader, rank: int) -> list[Any]:
        batches = iter(loader.dataset)
        found: list[Any] = []
        while True:
            try:
                batch = next(batches)
            except DataError:
                continue
            except StopIteration:
                return [found, loader.dataset.state_dict()]
            found.append((batch.m, batch.pad, seen(batch)))

    monkeypatch.setattr(Lane, "_filler", filler)
    runs = in_threads(ranks_of("tokens", pattern, 3, lanes=6), run)
    assert [found for found, _ in runs] == whole
    lanes = [json.loads(lane) for _, state in runs for lane in json.loads(state["lanes"]).values()]
    assert len(failed) == sum(lane["z"] for lane in lanes) == sum(pad for found in whole for _, pad, _ in found) > 0


def test_ranks_that_must_agree_and_cannot_are_told(pattern: str) -> None:
    loaders = ranks_of("tokens", pattern, 3)
    with pytest.raises(SpecError, match="init_process_group first"):
        iter(plain(loaders[0]))
    with pytest.raises(SpecError, match="which the workers of a DataLoader cannot; iterate over the loader itself"):
        next(iter(plain(loaders[1], 2)))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_epochs_of_steps_have_as_many_on_every_rank(pattern: str, num_workers: int) -> None:
    wanted = together(ranks_of("endless", pattern, 3, steps_per_epoch=7))
    found = together([plain(one, num_workers) for one in ranks_of("endless", pattern, 3, steps_per_epoch=7)])
    assert len(found) == 7
    assert [[seen(batch) for batch in step] for step in found] == [[seen(batch) for batch in step] for step in wanted]


# --- one rank


@pytest.mark.parametrize("tail", ["drop", "pad", "wrap"])
@pytest.mark.parametrize("kind", ["rows", "tokens"])
def test_one_rank_in_one_process_gives_what_the_loader_gives(pattern: str, kind: str, tail: str) -> None:
    options: dict[str, Any] = {"tail": tail, "batch_size": 4}
    wanted = batches_of(loader_of(kind, pattern, **options))
    for num_workers in (0, 1):
        assert batches_of(plain(loader_of(kind, pattern, **options), num_workers)) == wanted


@pytest.mark.parametrize("num_workers", [2, 3])
def test_the_tail_of_rows_is_dropped_by_workers_as_the_loader_drops_it(
    pattern: str, num_workers: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"tail": "drop", "batch_size": 4}
    wanted = batches_of(loader_of("rows", pattern, **options))
    assert batches_of(plain(loader_of("rows", pattern, **options), num_workers)) == wanted


# --- epochs that are set


@pytest.mark.parametrize("context", ["fork", "spawn"])
def test_persistent_workers_go_to_the_epoch_that_is_set(pattern: str, context: str) -> None:
    loader = loader_of("rows", pattern)
    wanted = [sorted(batches_of(loader)) for _ in range(4)]
    loader = loader_of("rows", pattern)
    options: dict[str, Any] = {"persistent_workers": True, "multiprocessing_context": context}
    torchs = plain(loader, 2, **options)
    other = plain(loader, 1)
    for epoch in (0, 0, 1, 3, 1, 2):
        loader.dataset.set_epoch(epoch)
        assert sorted(batches_of(other)) == wanted[epoch], "workers that start now"
        assert sorted(batches_of(torchs)) == wanted[epoch], "workers that were there before"


@pytest.mark.parametrize("num_workers", [0, 1])
@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_a_schedule_acts_at_the_same_micro_batches_as_in_the_loader(
    pattern: str, tmp_path: Path, lanes: int, num_workers: int
) -> None:
    def made() -> Loader:
        parts = [headrace.Part(source=f"parquet:{pattern}", name=name, weight=weight) for name, weight in weights]
        mix = headrace.Mix(schedule=(headrace.Change(at=110, weights={"a": 1, "b": 9}),))
        return headrace.load(parts, batch_size=4, lanes=lanes, mix=mix, cache_dir=tmp_path)

    weights = [("a", 9), ("b", 1)]
    loader = made()
    wanted = [batches_of(loader) for _ in range(4)]
    assert 80 < len(wanted[0]) < 110 < wanted[1][-1][0]
    dataset = made().dataset
    torchs = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=num_workers)
    for epoch in (0, 1, 2, 0, 3, 1):
        dataset.set_epoch(epoch)
        assert batches_of(torchs) == wanted[epoch]
    fresh = made().dataset
    fresh.set_epoch(2)
    assert batches_of(fresh) == wanted[2], "the epochs before it count as given"


def test_a_late_epoch_is_found_soon_and_is_the_one_that_steps_lead_to(pattern: str) -> None:
    walked, starts = loader_of("rows", pattern, lanes=3).dataset, []
    for epoch in range(12):
        walked.set_epoch(epoch)
        starts.append(seen(next(iter(walked))))
        jumped = loader_of("rows", pattern, lanes=3).dataset
        jumped.set_epoch(epoch)
        assert seen(next(iter(jumped))) == starts[-1]
    assert starts[3][0] > 0
    jumped.set_epoch(3 * 10**7)
    assert next(iter(jumped)).m == starts[3][0] * 10**7


def test_samples_go_on_with_their_sources_or_are_refused(tmp_path: Path) -> None:
    def made() -> Loader:
        return world.make(["code", "conversation"], max_per_epoch=6, max_per_dataset=3, sample_repeat=1).loader(2)

    world = World(tmp_path)
    loader = made()
    wanted = [[batch["input_ids"].tolist() for batch in loader] for _ in range(2)]
    assert wanted[0] != wanted[1]
    dataset = made().dataset
    with pytest.raises(SpecError, match=r"set_epoch\(1\): the sources go on from epoch to epoch"):
        dataset.set_epoch(1)
    for epoch in wanted:
        assert [batch["input_ids"].tolist() for batch in dataset] == epoch
        dataset.set_epoch(1)


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("kind", ["rows", "tokens"])
def test_epochs_that_are_set_are_the_loaders_on_all_ranks(
    pattern: str, kind: str, ranks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.serve.epoch.group_is_up", lambda: True)
    loaders = ranks_of(kind, pattern, ranks)
    wanted = [[[seen(batch) for batch in step] for step in together(loaders)] for _ in range(3)]
    datasets = [loader.dataset for loader in ranks_of(kind, pattern, ranks)]
    for epoch in range(3):
        for dataset in datasets:
            dataset.set_epoch(epoch)
        assert [[seen(batch) for batch in step] for step in together(datasets)] == wanted[epoch]


def test_an_epoch_whose_start_is_not_known_is_refused_where_numbers_matter(pattern: str) -> None:
    skipped = loader_of("tokens", pattern, skip=headrace.Skip(steps=(60,))).dataset
    with pytest.raises(SpecError, match=r"set_epoch\(1\): .*is not known before it is read.*headrace.Loader itself"):
        skipped.set_epoch(1)
    assert list(skipped), "after a whole epoch in this process it is known"
    skipped.set_epoch(1)
    dataset = loader_of("tokens", pattern).dataset
    dataset.set_epoch(1)
    assert sorted(tokens_in(dataset)) == ALL_TOKENS


def test_what_workers_gave_is_not_taken_for_nothing(pattern: str) -> None:
    loader = loader_of("rows", pattern)
    assert loader.dataset.state_dict()["m"] == 0
    torchs = plain(loader, 1)
    next(iter(torchs))
    with pytest.raises(StateError, match=r"the workers of a DataLoader give the batches.*StatefulDataLoader"):
        loader.dataset.state_dict()
    loader.dataset.set_epoch(1)
    assert loader.dataset.state_dict()["epoch"] == 1
    next(iter(loader.dataset))
    assert loader.dataset.state_dict()["m"] > 1

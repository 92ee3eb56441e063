"""Loaders over sources in memory, all ranks and workers of a run in this process, and a ledger that knows by itself
what every row and every token is."""

from __future__ import annotations

import json
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from headrace import merge_states
from headrace.batch import Batch
from headrace.catalog.source import Source
from headrace.fetch.block import RowBlock
from headrace.fetch.plan import Coordinate
from headrace.make.prepare import Samples
from headrace.make.sample import Sample
from headrace.recipe import Order, Pack, Part, Recipe
from headrace.run import Run
from headrace.serve.loader import Loader, Serving
from headrace.serve.pipeline import Pipeline
from headrace.serve.worker import Job, Made, Maker
from headrace.stage import State
from headrace.testing.memory import MemorySource

APART = 1_000_000
"""The numbers of a source's rows and tokens lie so far from those of the next."""


class Data:
    """A source whose every row and token has a number of its own: a batch says by itself what is in it.

    Row n (counted over all shards) has `lengths[n % len(lengths)]` tokens, numbered on from those of row n - 1.
    """

    def __init__(
        self,
        number: int,
        groups: Sequence[Sequence[int]],
        lengths: Sequence[int] = (5,),
        coordinate: Coordinate = "rows",
    ) -> None:
        self.spec = f"txt:data{number}:text"
        self.groups = [list(sizes) for sizes in groups]
        self.num_rows = sum(map(sum, groups))
        self.row_starts = np.cumsum([0, *(sum(sizes) for sizes in groups)]).tolist()
        sizes = np.resize(np.array(lengths, dtype=np.int64), self.num_rows)
        self.first = number * APART + 1  # 0 is padding
        self.ends = (self.first + np.cumsum(sizes)).tolist()
        self.starts = [self.first, *self.ends][: self.num_rows]
        self.num_tokens = int(sizes.sum())
        self.rows: dict[tuple[int, int], dict[str, Any]] = {}
        self.memory = MemorySource(self.spec, self.groups, self.row, coordinate)

    def row(self, shard: int, number: int) -> dict[str, Any]:
        """The same dict each time, so a test may spoil a row and mend it."""
        if (shard, number) not in self.rows:
            n = self.row_starts[shard] + number
            self.rows[shard, number] = {"uid": self.first + n, "text": list(range(self.starts[n], self.ends[n]))}
        return self.rows[shard, number]

    def uid(self, shard: str, row: int) -> int:
        return int(self.first + self.row_starts[int(shard.removeprefix("shard-"))] + row)

    def tokens(self, shard: str, row: int) -> NDArray[np.int64]:
        n = self.uid(shard, row) - self.first
        return np.arange(self.starts[n], self.ends[n])

    def every(self, packed: bool) -> NDArray[np.int64]:
        """What a whole pass gives: every token, or every row's number."""
        return self.first + np.arange(self.num_tokens if packed else self.num_rows)


def several(
    groups: Sequence[Sequence[Sequence[int]]],
    lengths: Sequence[Sequence[int]] = ((5,),),
    coordinate: Coordinate = "rows",
) -> list[Data]:
    return [Data(i, shape, lengths[i % len(lengths)], coordinate) for i, shape in enumerate(groups)]


def recipe_of(data: Sequence[Data], *, shuffle: bool = True, seed: int = 0, pool: int = 3, **fields: Any) -> Recipe:
    """Parts are made here unless they are given."""
    parts = fields.pop("parts", None) or [part(one) for one in data]
    order = Order(shuffle=shuffle, seed=seed, pool_chunks=pool if shuffle else None)
    return Recipe.of(parts, order=order, **fields)


def part(data: Data, **fields: Any) -> Part:
    return Part(source=Source.parse(data.spec), **fields)


def loader_of(recipe: Recipe, data: Sequence[Data], *, rank: int = 0, world_size: int = 1, **serving: Any) -> Loader:
    opened = {one.spec: one.memory for one in data}
    run = Run(rank=rank, world_size=world_size)
    return Loader(Pipeline(recipe, run, opener=lambda source, run, revision: opened[str(source)]), Serving(**serving))


# --- ranks and workers without processes


class NearWorker:
    """A worker in this process. Like a real one it makes batches ahead, which the trainer may never take."""

    def __init__(self, pipeline: Pipeline, number: int, ahead: int, start_method: str | None) -> None:
        self.number, self._pipeline, self._ahead = number, pipeline, ahead
        self._maker: Maker | None = None

    def begin(self, job: Job) -> None:
        self.dismiss()
        self._maker = Maker(self._pipeline, job)
        self._made: deque[Made] = deque()
        self._error: Exception | None = None

    def take(self, m: int, stall_seconds: float) -> Made:
        assert self._maker is not None
        try:
            while len(self._made) < self._ahead and self._error is None and (made := self._maker.make()):
                self._made.append(made)
        except Exception as error:
            self._error = error  # it comes after the batches before it
        if self._error is not None and not self._made:
            raise self._error
        return self._made.popleft()

    def dismiss(self) -> None:
        if self._maker is not None:
            self._maker.close()
            self._maker = None

    def end(self, deadline: float) -> None:
        self.dismiss()


class Votes:
    """What ranks ask each other at each step."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []
        self.counted: list[list[list[int]]] = []

    def of(self, step: int, number: int) -> list[int]:
        self.asked += [[] for _ in range(step + 1 - len(self.asked))]
        self.asked[step].append(number)
        return self.asked[step]


class NearPeers:
    """The peers of one rank, in this process."""

    def __init__(self, votes: Votes, ranks: int) -> None:
        self._votes, self._ranks, self._step, self._tallies = votes, ranks, 0, 0

    def ask(self, number: int) -> NearVote:
        self._step += 1
        return NearVote(self._votes.of(self._step - 1, number), self._ranks)

    def tally(self, counts: Sequence[int]) -> NearTally:
        """Read when all ranks have said theirs."""
        self._tallies += 1
        self._votes.counted += [[] for _ in range(self._tallies - len(self._votes.counted))]
        self._votes.counted[self._tallies - 1].append(list(counts))
        return NearTally(self._votes.counted[self._tallies - 1], self._ranks)


class NearVote(NamedTuple):
    asked: list[int]
    ranks: int

    def answer(self) -> int:
        assert len(self.asked) == self.ranks, "a vote was read before all ranks had voted"
        return max(self.asked)


class NearTally(NamedTuple):
    counted: list[list[int]]
    ranks: int

    def answer(self) -> list[int]:
        assert len(self.counted) == self.ranks, "a tally was read before all ranks had said theirs"
        return [max(counts) for counts in zip(*self.counted, strict=True)]


@pytest.fixture
def near(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers and the votes of ranks stay in this process."""
    monkeypatch.setattr("headrace.serve.crew.Worker", NearWorker)
    monkeypatch.setattr("headrace.serve.epoch.group_is_up", lambda: True)


class Ranks:
    """All ranks of a run, in step. `topology`: (ranks, workers of each)."""

    def __init__(
        self,
        recipe: Recipe,
        data: Sequence[Data],
        topology: tuple[int, int] = (1, 0),
        state: State | None = None,
        **serving: Any,
    ) -> None:
        ranks, workers = topology
        votes = Votes()
        self.loaders = [
            loader_of(recipe, data, rank=rank, world_size=ranks, num_workers=workers, **serving)
            for rank in range(ranks)
        ]
        for loader in self.loaders:
            loader._peers = NearPeers(votes, ranks)  # type: ignore[assignment]
            if state is not None:
                loader.load_state_dict(state)
        self._iterators: list[Iterator[Batch]] = []

    def step(self) -> list[Batch]:
        """One batch of each rank; none at the end, which is the same step for all."""
        self._iterators = self._iterators or [iter(loader) for loader in self.loaders]
        found = [next(iterator, None) for iterator in self._iterators]
        batches = [batch for batch in found if batch is not None]
        assert len(batches) in (0, len(found)), f"some ranks ended before others: {found}"
        first = batches[0].m if batches else 0
        assert [batch.m for batch in batches] == list(range(first, first + len(batches)))
        if not batches:
            self._iterators = []
        return batches

    def steps(self, most: int = 10_000) -> list[Batch]:
        """The batches of the next steps, in the order of the run."""
        found: list[Batch] = []
        for _ in range(most):
            batches = self.step()
            if not batches:
                return found
            found += batches
        assert most < 10_000, "this run does not end"
        return found

    def state(self) -> State:
        """Through JSON, as a checkpoint would take it."""
        if len(self.loaders) == 1:
            return through_json(self.loaders[0].state_dict())
        return through_json(merge_states([loader.state_dict(gather=False) for loader in self.loaders]))

    def close(self) -> None:
        for loader in self.loaders:
            loader.close()


def through_json(state: State) -> State:
    back: State = json.loads(json.dumps(state))
    return back


# --- what makes rows ready


class Whole:
    """One sample of each row, with its tokens as they are."""

    columns: list[str] | None = ["text"]  # noqa: RUF012 - a protocol's attribute
    arrays = None

    def __call__(self, block: RowBlock) -> list[Samples]:
        return [self.samples(np.array(ids, dtype=np.int32)) for ids in block.columns["text"]]

    def samples(self, ids: Any) -> Samples:
        return [Sample(ids)] if len(ids) else []


def prepared(monkeypatch: pytest.MonkeyPatch, prepare: Whole) -> None:
    monkeypatch.setattr(Pipeline, "_prepare", lambda self, i: prepare)


# --- what was delivered


class Ledger:
    """Everything that was delivered, each batch checked against what its addresses say must be in it."""

    def __init__(self, data: Sequence[Data], packed: bool) -> None:
        self.data = {one.spec: one for one in data}
        self.packed = packed
        self.seen: dict[tuple[str, int], list[NDArray[np.int64]]] = {}
        """(source, pass) -> numbers of tokens, or of rows."""

    def add(self, batches: Sequence[Batch]) -> Ledger:
        for batch in batches:
            if not batch.pad:
                self._add_packed(batch) if self.packed else self._add_rows(batch)
        return self

    def _add_rows(self, batch: Batch) -> None:
        for address, uid in zip(batch.addresses, batch["uid"], strict=True):
            assert uid == self.data[address.source].uid(address.shard, address.row), address
            self._note(address.source, address.epoch, np.array([uid]))

    def _add_packed(self, batch: Batch) -> None:
        ids, numbers = batch["input_ids"].numpy(), batch.document_ids.numpy()
        for sequence, documents, spans in zip(ids, numbers, batch.spans, strict=True):
            assert documents.max() == len(spans)
            for number, span in enumerate(spans, 1):
                found = sequence[documents == number]
                stop, new = span.stop, span.stop - span.start
                wanted = self.data[span.address.source].tokens(span.address.shard, span.address.row)
                assert 0 < new <= len(found)
                assert found.tolist() == wanted[stop - len(found) : stop].tolist(), span
                self._note(span.address.source, span.address.epoch, found[-new:])

    def _note(self, source: str, epoch: int, numbers: NDArray[np.int64]) -> None:
        self.seen.setdefault((source, epoch), []).append(numbers)

    def copy(self) -> Ledger:
        other = Ledger(list(self.data.values()), self.packed)
        other.seen = {place: list(found) for place, found in self.seen.items()}
        return other

    def numbers(self, source: str, epoch: int) -> NDArray[np.int64]:
        """In order of size; one that was delivered twice is there twice."""
        return np.sort(np.concatenate(self.seen.get((source, epoch), [np.zeros(0, np.int64)])))

    def assert_passes(self, *epochs: int) -> None:
        """Each of these passes was given whole: everything in it exactly once."""
        for spec, data in self.data.items():
            for epoch in epochs:
                found, wanted = self.numbers(spec, epoch), data.every(self.packed)
                assert np.array_equal(found, wanted), f"{spec} pass {epoch}: {difference(found, wanted)}"

    def assert_only(self, *epochs: int) -> None:
        self.assert_passes(*epochs)
        assert {epoch for _, epoch in self.seen} <= set(epochs)

    def assert_nothing_twice(self) -> None:
        for spec, epoch in self.seen:
            found = self.numbers(spec, epoch)
            assert len(np.unique(found)) == len(found), f"{spec} pass {epoch}: {difference(found, np.unique(found))}"

    def is_whole(self, *epochs: int) -> bool:
        return all(
            sum(map(len, self.seen.get((spec, epoch), []))) >= len(data.every(self.packed))
            for spec, data in self.data.items()
            for epoch in epochs
        )


def difference(found: NDArray[np.int64], wanted: NDArray[np.int64]) -> str:
    have, want = Counter(found.tolist()), Counter(wanted.tolist())
    return f"lost {sorted((want - have).elements())[:20]}, too many {sorted((have - want).elements())[:20]}"


def key(batch: Batch) -> tuple[Any, ...]:
    """All that a batch is, to compare."""
    content = batch["input_ids"].numpy().tobytes() if batch.packed else tuple(batch["uid"])
    return batch.m, batch.pad, content, batch._pieces or batch._rows


def keys(batches: Sequence[Batch]) -> list[tuple[Any, ...]]:
    """Of the batches that have something to learn in them."""
    return [key(batch) for batch in batches if not batch.pad]


def packed(seq_len: int = 16, **fields: Any) -> Pack:
    return Pack(seq_len=seq_len, **fields)

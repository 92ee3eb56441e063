"""A mixer and a packer, saved and restored between any two rows or rounds, beside twins that are left alone."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import machines
import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.make.prepare import Ready
from headrace.make.sample import Sample
from headrace.mix.mixer import Mixer
from headrace.mix.weights import scaled
from headrace.sequence.describe import Pack
from headrace.sequence.pack import PACKERS, Packer

MIXERS, PACKINGS = 450, 450


def ready(source: int, position: int, lengths: Sequence[int]) -> Ready:
    samples = [
        Sample(np.arange(n, dtype=np.int32) + 100_000 * source + 1000 * position + 100 * i)
        for i, n in enumerate(lengths)
    ]
    return Ready(source, 0, position, "s", position, samples)


class Rows:
    """A feed that has so many rows, or (`lengths` again and again) any number of them."""

    def __init__(self, source: int, lengths: Sequence[int], count: int | None, taken: int = 0) -> None:
        self.source, self.lengths, self.count, self.taken = source, lengths, count, taken

    def has_more(self) -> bool:
        return self.count is None or self.taken < self.count

    def next(self) -> Ready | None:
        if not self.has_more():
            return None
        self.taken += 1
        n = self.lengths[(self.taken - 1) % len(self.lengths)]
        return ready(self.source, self.taken - 1, [n] if n else [])

    def copy(self) -> Rows:
        return Rows(self.source, self.lengths, self.count, self.taken)


class Mixing(RuleBasedStateMachine):
    @initialize(
        lengths=st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4).filter(any), min_size=1, max_size=4),
        weights=st.lists(st.sampled_from([1.0, 0.3, 2.5, 7.0, 100.0]), min_size=4, max_size=4),
        counts=st.lists(st.none() | st.integers(0, 12), min_size=4, max_size=4),
        quotas=st.lists(st.none() | st.integers(1, 40), min_size=4, max_size=4),
        stop=st.sampled_from(["first_exhausted", "all_exhausted", "loop"]),
        by_tokens=st.booleans(),
        lane=st.integers(0, 3),
    )
    def begin(
        self,
        lengths: list[list[int]],
        weights: list[float],
        counts: list[int | None],
        quotas: list[int | None],
        stop: Any,
        by_tokens: bool,
        lane: int,
    ) -> None:
        n = len(lengths)
        self.weights, self.stop, self.by_tokens, self.lane = scaled(weights[:n]), stop, by_tokens, lane
        self.quotas = quotas[:n]
        self.feeds = [Rows(i, one, counts[i]) for i, one in enumerate(lengths)]
        self.mixer = self.made(self.feeds)
        self.twin = self.made([feed.copy() for feed in self.feeds])
        self.given: list[tuple[int, int]] = []
        self.cost: Counter[int] = Counter()
        self.is_over = False

    def made(self, feeds: list[Rows]) -> Mixer:
        return Mixer(
            feeds,
            lambda m: self.weights,
            stop=self.stop,
            by_tokens=self.by_tokens,
            lane=self.lane,
            lanes=4,
            quotas=self.quotas,
        )

    @rule(count=st.integers(1, 8), m=st.integers(0, 3))
    def take(self, count: int, m: int) -> None:
        for _ in range(count):
            row, other = self.mixer.take(m), self.twin.take(m)
            assert (row is None) == (other is None)
            if row is None or other is None:
                assert not self.mixer.has_more()
                self.is_over = True
                return
            assert not self.is_over, "it went on after its end"
            assert (row.source, row.position) == (other.source, other.position)
            self.given.append((row.source, row.position))
            self.cost[row.source] += sum(len(s.tokens) for s in row.samples) if self.by_tokens else 1

    @rule()
    def save_and_load(self) -> None:
        state = json.loads(json.dumps(self.mixer.state_dict()))
        self.feeds = [feed.copy() for feed in self.feeds]
        self.mixer = self.made(self.feeds)
        self.mixer.load_state_dict(state)
        assert self.mixer.state_dict() == state == self.twin.state_dict()

    @invariant()
    def each_source_is_in_its_own_order(self) -> None:
        for source in range(len(self.feeds)):
            positions = [position for one, position in self.given if one == source]
            assert positions == sorted(set(positions))

    @invariant()
    def nobody_is_far_from_its_share(self) -> None:
        """As long as nobody has ended, no source is more than one row of each other source from its part."""
        state = self.mixer.state_dict()
        if state["off"] or len(self.feeds) == 1:
            return
        total, weight = self.cost.total(), sum(self.weights)
        most = 9 if self.by_tokens else 1
        for source, own in enumerate(self.weights):
            assert abs(self.cost[source] - total * own / weight) <= most * len(self.feeds)

    @invariant()
    def what_is_owed_adds_up(self) -> None:
        assert sum(self.mixer.state_dict()["mix"]) == 0


class Packing(RuleBasedStateMachine):
    @initialize(
        lengths=st.lists(st.lists(st.integers(1, 40), min_size=1, max_size=3), max_size=30),
        method=st.sampled_from(["best_fit", "concat", "none"]),
        size=st.integers(3, 20),
        overlap=st.integers(0, 2),
        slack=st.integers(0, 4),
        batch=st.integers(1, 4),
    )
    def begin(self, lengths: list[list[int]], method: Any, size: int, overlap: int, slack: int, batch: int) -> None:
        self.pack, self.batch = Pack(method=method, seq_len=size, overlap=overlap, slack=slack), batch
        self.rows = [ready(0, i, one) for i, one in enumerate(lengths)]
        self.packer, self.twin = self.made(), self.made()
        self.taken, self.twins = 0, 0
        self.rounds = 0
        self.learned: Counter[int] = Counter()
        self.cut_off = 0

    def made(self) -> Packer:
        return PACKERS[self.pack.method](self.pack, self.batch)

    def take(self) -> Ready | None:
        self.taken += 1
        return self.rows[self.taken - 1] if self.taken <= len(self.rows) else None

    def twin_takes(self) -> Ready | None:
        self.twins += 1
        return self.rows[self.twins - 1] if self.twins <= len(self.rows) else None

    @rule(count=st.integers(1, 4))
    def make(self, count: int) -> None:
        for _ in range(count):
            out, other = self.packer.make(self.take, self.rounds), self.twin.make(self.twin_takes, self.rounds)
            self.rounds += 1
            assert [[piece[:7] for piece in sequence] for sequence in out] == [
                [piece[:7] for piece in sequence] for sequence in other
            ]
            assert len(out) <= self.batch
            for sequence in out:
                assert 0 < sum(len(piece.tokens) for piece in sequence) <= self.pack.seq_len
                for piece in sequence:
                    self.learned.update(piece.tokens[piece.context :].tolist())

    @rule()
    def save_and_load(self) -> None:
        state = json.loads(json.dumps(self.packer.state_dict()))
        self.cut_off += self.packer.truncated
        self.packer = self.made()
        self.packer.load_state_dict(state, lambda places: [self.rows[position] for _, _, position in places])
        assert self.packer.state_dict() == state

    @invariant()
    def no_token_comes_twice(self) -> None:
        assert max(self.learned.values(), default=1) == 1

    def teardown(self) -> None:
        if not hasattr(self, "learned"):
            return
        while not (self.packer.is_empty and self.taken >= len(self.rows)):
            self.make(1)
        size = self.pack.seq_len if self.pack.method == "none" else 1 << 30
        every = [token for row in self.rows for sample in row.samples for token in sample.tokens[:size].tolist()]
        assert self.learned == Counter(every)
        assert self.cut_off + self.packer.truncated == self.twin.truncated


@pytest.mark.timeout(120 * machines.TIMES)
def test_a_mixer_that_is_restored_at_any_row_goes_on_as_one_that_was_left_alone() -> None:
    machines.run(Mixing, MIXERS, 15)


@pytest.mark.timeout(120 * machines.TIMES)
def test_a_packer_that_is_restored_after_any_round_gives_every_token_once() -> None:
    machines.run(Packing, PACKINGS, 12)

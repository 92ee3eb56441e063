from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.sequence.fit import best_subset, fill

CAPACITY = 50
many = st.lists(st.integers(1, CAPACITY), max_size=60)


def by_trying_every_subset(sizes: list[int], space: int) -> int:
    return max(sum(some) for n in range(len(sizes) + 1) for some in combinations(sizes, n) if sum(some) <= space)


def test_a_small_example_by_hand() -> None:
    # The 6 goes with a 4, the older of the two; the 5 with the other 4 and the 1; the 3 is left.
    assert fill([4, 6, 1, 3, 5, 4], 10, 2) == ([[0, 1], [2, 4, 5]], [3])
    assert fill([4, 6, 6], 10, 9) == ([[0, 1], [2]], [])
    assert fill([], 10, 3) == ([], [])
    assert fill([10, 10], 10, 1) == ([[0]], [1])
    # Best fit by size alone would put the 5 with the 6 and leave 1 of 12 empty.
    assert fill([6, 5, 3, 3], 12, 1) == ([[0, 2, 3]], [1])


@settings(max_examples=300)
@given(many, st.integers(0, 12), st.booleans())
def test_every_piece_is_in_one_bin_or_left_and_no_bin_is_too_full(
    lengths: list[int], most: int, oldest_first: bool
) -> None:
    bins, left = fill(lengths, CAPACITY, most, oldest_first)
    assert sorted([*(i for b in bins for i in b), *left]) == list(range(len(lengths)))
    assert all(0 < sum(lengths[i] for i in b) <= CAPACITY for b in bins)
    assert len(bins) == most or not left
    assert all(b == sorted(b) for b in [*bins, left])


@given(st.lists(st.integers(1, 30), max_size=9), st.integers(0, 40))
def test_no_subset_comes_nearer_to_the_space(sizes: list[int], space: int) -> None:
    found = best_subset(sizes, space)
    assert found == sorted(set(found))
    assert sum(sizes[i] for i in found) == by_trying_every_subset(sizes, space)


def test_where_there_is_a_choice_the_older_pieces_go() -> None:
    assert best_subset([3, 2, 5, 5, 1, 4], 5) == [0, 1]
    assert best_subset([9, 2, 2, 2], 4) == [1, 2]


@given(st.lists(st.lists(st.integers(1, CAPACITY - 1), max_size=8), min_size=1, max_size=30), st.randoms())
def test_full_bins_cut_up_are_packed_again_into_few_more(cuts: list[list[int]], shuffler: random.Random) -> None:
    lengths = []
    for marks in cuts:
        edges = [0, *sorted(set(marks)), CAPACITY]
        lengths += [b - a for a, b in pairwise(edges)]
    shuffler.shuffle(lengths)
    best = len(cuts)
    assert sum(lengths) == best * CAPACITY
    assert best <= len(fill(lengths, CAPACITY, len(lengths))[0]) <= math.floor(11 / 9 * best + 1)


def test_the_oldest_piece_goes_first_when_it_is_its_turn() -> None:
    lengths = [3, 9, 10, 8]
    assert fill(lengths, 10, 2, oldest_first=False) == ([[2], [1]], [0, 3])
    assert fill(lengths, 10, 2, oldest_first=True) == ([[0], [2]], [1, 3])


class Rounds:
    """Packing rounds as a lane makes them, on numbers: (sample, length) for a piece."""

    def __init__(self, samples: Iterator[int], rows: int, seq_len: int, slack: int) -> None:
        self.samples, self.rows, self.seq_len, self.most = samples, rows, seq_len, (rows + slack) * seq_len
        self.held: list[tuple[int, int]] = []
        self.rest: tuple[int, int] | None = None
        self.drawn = self.count = 0
        self.waits: list[int] = []
        self._since: dict[tuple[int, int], int] = {}

    def next(self) -> list[list[tuple[int, int]]]:
        full: list[list[tuple[int, int]]] = []
        while len(full) < self.rows and sum(n for _, n in self.held) + len(full) * self.seq_len < self.most:
            number, length = self.rest or (self.drawn, next(self.samples))
            self.drawn += self.rest is None
            while length >= self.seq_len and len(full) < self.rows:
                full.append([(number, self.seq_len)])
                length -= self.seq_len
            self.rest = (number, length) if length and len(full) == self.rows else None
            if length and self.rest is None:
                self.held.append((number, length))
                self._since[number, length] = self.count
        lengths = [n for _, n in self.held]
        taken, left = fill(lengths, self.seq_len, self.rows - len(full), self.count % 32 == 31)
        out = [[self.held[i] for i in b] for b in taken]
        self.waits += [self.count - self._since.pop(piece) for b in out for piece in b]
        self.held = [self.held[i] for i in left]
        self.count += 1
        return full + out


@pytest.mark.parametrize(
    ("median", "spread", "least"),
    [
        (380, 1.15, 0.995),  # about 730 tokens on average, as web pages have
        (600, 1.2, 0.995),
        (600, 1.0, 0.995),
        (600, 0.6, 0.995),  # hardly any short pieces to fill the gaps with
    ],
)
def test_rounds_of_eight_sequences_are_full_and_lose_nothing(median: int, spread: float, least: float) -> None:
    draw = random.Random(7)
    lengths: list[int] = []

    def samples() -> Iterator[int]:
        while True:
            lengths.append(max(1, round(draw.lognormvariate(math.log(median), spread))))
            yield lengths[-1]

    rounds = Rounds(samples(), rows=8, seq_len=2048, slack=4)
    held: list[int] = []
    given_out: Counter[int] = Counter()
    for _ in range(600):
        batch = rounds.next()
        assert len(batch) == 8
        assert all(sum(n for _, n in sequence) <= 2048 for sequence in batch)
        for sequence in batch:
            given_out.update(Counter(dict(sequence)))
        held.append(len(rounds.held))
    assert given_out.total() / (600 * 8 * 2048) >= least
    assert sum(held) / len(held) < 30
    assert max(rounds.waits) < 100
    for number, n in [*rounds.held, *([rounds.rest] if rounds.rest else [])]:
        given_out[number] += n
    assert given_out == Counter(dict(enumerate(lengths)))


def test_packing_is_quick() -> None:
    draw = random.Random(1)

    def best(work: Callable[[], object]) -> float:
        times = []
        for _ in range(20):
            start = time.perf_counter()
            work()
            times.append(time.perf_counter() - start)
        return min(times)

    lengths = [min(2047, max(1, round(draw.lognormvariate(6.4, 1)))) for _ in range(1000)]
    assert best(lambda: fill(lengths[:30], 2048, 8)) < 1e-3
    assert best(lambda: fill(lengths, 2048, 8)) < 30e-3

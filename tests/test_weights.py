from __future__ import annotations

import json
import random
from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.catalog.source import Source
from headrace.errors import SpecError
from headrace.mix.describe import Change, Mix, Part
from headrace.mix.weights import SCALE, pick, scaled, settle, tempered, weights_at

positive = st.floats(min_value=5e-324, max_value=1.7e308, allow_nan=False, allow_infinity=False)


def part(name: str, weight: float = 1.0) -> Part:
    return Part(source=Source(kind="txt", path=name), name=name, weight=weight)


class Machine:
    """The mixer's decisions, with nothing around them."""

    def __init__(self, weights: list[int], lane: int = 0, credit: list[int] | None = None) -> None:
        self.weights, self.lane = weights, lane
        self.credits = credit or [0] * len(weights)
        self.active = list(range(len(weights)))

    def step(self, cost: int) -> int:
        return self.step_of(lambda _: cost)

    def step_of(self, costs: object) -> int:
        i = pick(self.credits, self.weights, self.active, self.lane)
        self.credits = settle(self.credits, self.weights, self.active, i, costs(i))  # type: ignore[operator]
        return i


# --- integer weights


@given(st.lists(st.integers(1, 1000), min_size=1, max_size=50))
def test_small_whole_weights_keep_their_proportions_exactly(weights: list[int]) -> None:
    out = scaled([float(w) for w in weights])
    assert {Fraction(o, w) for o, w in zip(out, weights, strict=True)} == {Fraction(out[0], weights[0])}
    assert SCALE // 2 < sum(out) <= SCALE


def test_what_was_written_counts_not_its_binary_value() -> None:
    for weights, proportions in (([0.7, 0.3], [7, 3]), ([0.1, 0.2], [1, 2]), ([1e-3, 2.5], [1, 2500])):
        out = scaled(weights)
        assert out[0] * proportions[1] == out[1] * proportions[0]


@given(st.lists(positive, min_size=1, max_size=30))
def test_any_weights_become_integers_within_a_millionth_of_their_shares(weights: list[float]) -> None:
    out = scaled(weights)
    assert min(out) >= 1
    assert SCALE // 2 < sum(out) <= SCALE + len(weights)
    total = sum(map(Fraction, weights))
    for w, o in zip(weights, out, strict=True):
        assert abs(Fraction(w) / total - Fraction(o, sum(out))) <= Fraction(len(weights) + 1, SCALE)


def test_a_weight_too_small_to_count_is_still_read() -> None:
    assert scaled([1e300, 1e-300]) == [SCALE - 1, 1]


def test_temperature_one_is_by_size_and_a_high_one_is_even() -> None:
    sizes = [1_000_000, 10_000, 100]
    assert tempered(sizes, 1.0) == pytest.approx([1, 0.01, 0.0001], rel=1e-15)
    assert tempered(sizes, 2.0) == pytest.approx([1, 0.1, 0.01], rel=1e-15)
    assert tempered(sizes, 1e9) == pytest.approx([1, 1, 1], rel=1e-6)


def test_sizes_are_tempered_to_the_same_digits_on_every_machine() -> None:
    assert tempered([123_456_789, 3_141_592, 271], 1.7) == [1.0, 0.11538201542537485, 0.00046929260844250705]


@pytest.mark.parametrize("temperature", [5e-324, 1e-9, 1.0, 1.7e308])
def test_no_temperature_and_no_size_breaks_the_weights(temperature: float) -> None:
    mix = Mix(temperature=temperature)
    out = weights_at([part("a", 5e-324), part("b"), part("c", 1.7e308)], mix, 0, [0, 1, 2**63])
    assert min(out) >= 1
    assert sum(out) <= SCALE + 3


# --- schedules


def test_a_change_holds_from_its_micro_batch_until_the_next() -> None:
    parts = [part("a"), part("b"), part("c", 2.0)]
    mix = Mix(schedule=(Change(at=10, weights={"a": 3}), Change(at=20, weights={"b": 5, "c": 1})))
    proportions = {m: weights_at(parts, mix, m) for m in (0, 9, 10, 19, 20, 10**9)}
    assert proportions[0] == proportions[9] == tuple(scaled([1, 1, 2]))
    assert proportions[10] == proportions[19] == tuple(scaled([3, 1, 2]))
    assert proportions[20] == proportions[10**9] == tuple(scaled([1, 5, 1]))


def test_a_temperature_multiplies_the_weights_of_the_moment() -> None:
    parts = [part("a"), part("b")]
    mix = Mix(temperature=2.0, schedule=(Change(at=5, weights={"b": 10}),))
    assert weights_at(parts, mix, 0, [10_000, 100]) == tuple(scaled([10, 1]))
    assert weights_at(parts, mix, 5, [10_000, 100]) == tuple(scaled([1, 1]))


def test_a_temperature_without_sizes_says_what_it_needs() -> None:
    with pytest.raises(SpecError, match=r"mix\.temperature=2\.0 needs the rows of every part"):
        weights_at([part("a")], Mix(temperature=2.0), 0, None)


def test_round_robin_takes_one_of_each_in_turn_whatever_is_active() -> None:
    weights = list(weights_at([part("a"), part("b"), part("c")], Mix(order="round_robin"), 0))
    machine = Machine(weights, lane=1)
    assert [machine.step(1) for _ in range(7)] == [1, 2, 0, 1, 2, 0, 1]
    machine.active = [0, 2]
    assert [machine.step(1) for _ in range(4)] == [2, 0, 2, 0]


# --- credits


def test_ties_go_to_the_first_source_from_the_lane_on() -> None:
    assert [pick([0] * 4, [1] * 4, range(4), lane) for lane in range(9)] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
    assert [pick([0] * 4, [1] * 4, [0, 2], lane) for lane in range(4)] == [0, 2, 2, 0]
    assert pick([0, 5, 5, 1], [1] * 4, range(4), 3) == 1


@settings(max_examples=150)
@given(
    st.lists(st.integers(1, 2**20), min_size=1, max_size=8),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=200),
    st.integers(0, 100),
    st.data(),
)
def test_credits_add_up_to_the_same_and_stay_bounded(
    weights: list[int], costs: list[int], lane: int, data: st.DataObject
) -> None:
    machine = Machine(weights, lane)
    bound = len(weights) * sum(weights) * max(costs)
    for cost in costs:
        machine.step(cost)
        assert sum(machine.credits) == 0
        assert all(-sum(weights) * max(costs) <= c <= bound for c in machine.credits)
    ended = data.draw(st.integers(0, len(weights) - 1))
    if len(weights) > 1:
        frozen = machine.credits[ended]
        machine.active.remove(ended)
        for cost in costs:
            assert machine.step(cost) != ended
        assert machine.credits[ended] == frozen
        assert sum(machine.credits) == 0
        assert max(map(abs, machine.credits)) <= 3 * bound


def test_a_row_of_no_cost_changes_nothing() -> None:
    assert settle([5, -5, 0], [1, 2, 3], [0, 1, 2], 0, 0) == [5, -5, 0]


@pytest.mark.parametrize("weights", [[0.7, 0.3], [1.0, 2.0, 3.0, 10.0], [0.001, 0.999], [1 / 3, 1 / 7, 1 / 11]])
def test_shares_of_rows_are_never_a_row_or_two_off(weights: list[float]) -> None:
    whole = scaled(weights)
    machine, given = Machine(whole), Counter[int]()
    for n in range(1, 20_001):
        given[machine.step(1)] += 1
        if n % 997 == 0:
            assert all(abs(given[i] - n * w / sum(whole)) < len(weights) for i, w in enumerate(whole))


@pytest.mark.parametrize("sigma", [0.5, 1.5])
def test_shares_of_tokens_are_met_with_documents_of_very_different_lengths(sigma: float) -> None:
    rng = random.Random(7)
    weights = [0.5, 0.3, 0.15, 0.05]
    typical = [6.0, 7.5, 5.0, 8.0]
    machine, tokens = Machine(scaled(weights)), [0] * 4
    lengths: list[int] = []

    def cost(i: int) -> int:
        lengths.append(max(int(rng.lognormvariate(typical[i], sigma)), 1))
        return lengths[-1]

    for _ in range(100_000):
        tokens[machine.step_of(cost)] += lengths[-1]
    shares = [t / sum(tokens) for t in tokens]
    assert max(abs(share - weight) for share, weight in zip(shares, weights, strict=True)) < 0.001


@given(st.integers(0, 300), st.integers(0, 7))
def test_credits_alone_carry_a_mix_on(stop: int, lane: int) -> None:
    costs = [random.Random(i).randrange(1, 5000) for i in range(400)]
    whole, first = Machine([7, 2, 5], lane), Machine([7, 2, 5], lane)
    picked = [whole.step(cost) for cost in costs]
    assert [first.step(cost) for cost in costs[:stop]] == picked[:stop]
    again = Machine([7, 2, 5], lane, json.loads(json.dumps(first.credits)))
    assert [again.step(cost) for cost in costs[stop:]] == picked[stop:]

"""Several sources in one run: shares, limits, ends; and none of them moves another's rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
from near import Data, Ledger, Ranks, keys, loader_of, near, packed, part, recipe_of, several

from headrace.batch import Batch
from headrace.errors import HeadraceError
from headrace.recipe import Change, Mix, Recipe
from headrace.stage import State

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

A, B, C = "txt:data0:text", "txt:data1:text", "txt:data2:text"
LOOP = Mix(stop="loop")


def two(*rows: int, lengths: Sequence[Sequence[int]] = ((5,), (9, 2))) -> list[Data]:
    return several([[[n]] for n in rows], lengths)


def rows_given(batches: Iterable[Batch]) -> list[tuple[str, int, int]]:
    """(source, pass, number) of each row, in order."""
    return [
        (address.source, address.epoch, uid)
        for batch in batches
        if not batch.pad
        for address, uid in zip(batch.addresses, batch["uid"], strict=True)
    ]


def tokens_given(batches: Iterable[Batch]) -> Counter[str]:
    found: Counter[str] = Counter()
    for span in [span for batch in batches for spans in batch.spans for span in spans]:
        found[span.address.source] += span.stop - span.start
    return found


def some(recipe: Recipe, data: list[Data], count: int, **serving: Any) -> list[Batch]:
    return list(islice(loader_of(recipe, data, **serving), count))


# --- shares


@pytest.mark.parametrize("weights", [(7.0, 3.0), (0.7, 0.3), (1.0, 1.0), (100.0, 1.0)])
@pytest.mark.parametrize("lanes", [1, 3])
def test_shares_by_rows_hold_after_every_row_of_a_lane(weights: tuple[float, float], lanes: int) -> None:
    data = two(50, 31)
    recipe = recipe_of(
        data, parts=[part(d, weight=w) for d, w in zip(data, weights, strict=True)], mix=LOOP, batch_size=1
    )
    batches = some(recipe, data, 400, lanes=lanes)
    for lane in range(lanes):
        names = [source for source, _, _ in rows_given(batches[lane::lanes])]
        share = np.cumsum([name == A for name in names]) / (1 + np.arange(len(names)))
        exact = weights[0] / sum(weights)
        assert (np.abs(share - exact) * (1 + np.arange(len(names))) <= 1).all(), "never more than a row off"


def test_three_sources_have_their_shares() -> None:
    data = two(20, 30, 40)
    parts = [part(d, weight=w) for d, w in zip(data, (5, 3, 2), strict=True)]
    found = Counter(s for s, _, _ in rows_given(some(recipe_of(data, parts=parts, mix=LOOP, batch_size=10), data, 100)))
    assert found == {A: 500, B: 300, C: 200}


@pytest.mark.parametrize("weights", [(3.0, 1.0), (1.0, 4.0)])
def test_shares_by_tokens_hold_whatever_the_documents_lengths(weights: tuple[float, float]) -> None:
    data = two(40, 40, lengths=((30, 2), (3, 7, 1)))
    parts = [part(d, weight=w) for d, w in zip(data, weights, strict=True)]
    recipe = recipe_of(data, parts=parts, mix=Mix(by="tokens"), batch_size=2, pack=packed(method="concat"))
    for count in (50, 150, 300):
        found = tokens_given(some(recipe, data, count))
        exact = found.total() * weights[0] / sum(weights)
        assert abs(found[A] - exact) <= 2 * 30, "no more than two documents off"


@pytest.mark.parametrize(("temperature", "power"), [(1.0, 1.0), (2.0, 0.5), (1e9, 0.0)])
def test_a_temperature_bends_shares_between_size_and_even(temperature: float, power: float) -> None:
    data = two(90, 10)
    recipe = recipe_of(data, mix=Mix(stop="loop", temperature=temperature), batch_size=10)
    found = Counter(source for source, _, _ in rows_given(some(recipe, data, 100)))
    assert abs(found[A] - 1000 * 90**power / (90**power + 10**power)) <= 1


@pytest.mark.parametrize("lanes", [1, 2])
def test_a_schedule_changes_the_shares_with_the_micro_batch_it_names(lanes: int) -> None:
    data = two(30, 30)
    changes = (Change(at=20, weights={A: 1.0, B: 3.0}), Change(at=40, weights={B: 1e-6}))
    recipe = recipe_of(data, mix=Mix(stop="loop", schedule=changes), batch_size=4)
    batches = some(recipe, data, 60, lanes=lanes)
    shares = [Counter(s for s, _, _ in rows_given(batches[at : at + 20])) for at in (0, 20, 40)]
    assert shares[0] == {A: 40, B: 40}
    assert abs(shares[1][A] - 20) <= lanes
    assert shares[2][B] <= lanes


@pytest.mark.parametrize("lanes", [1, 2])
@pytest.mark.parametrize("at", range(1, 7))
def test_after_a_change_of_weights_nobody_owes_anybody_anything(lanes: int, at: int) -> None:
    """What comes is what comes where these weights hold from the start."""
    data = two(30, 30)

    def sources(parts: Sequence[Any], *changes: Change) -> list[list[str]]:
        recipe = recipe_of(data, parts=parts, mix=Mix(stop="loop", schedule=changes), batch_size=3)
        return [[s for s, _, _ in rows_given([batch])] for batch in some(recipe, data, 24, lanes=lanes)]

    changed = sources([part(data[0]), part(data[1])], Change(at=at * lanes, weights={A: 2.0, B: 5.0}))
    fresh = sources([part(data[0], weight=2.0), part(data[1], weight=5.0)])
    assert changed[at * lanes :] == fresh[: 24 - at * lanes]


def test_round_robin_takes_one_row_of_each_in_turn_and_goes_on_with_who_is_left() -> None:
    data = two(3, 9, 6)
    names = [s for s, _, _ in rows_given(some(recipe_of(data, mix=Mix(order="round_robin"), batch_size=1), data, 99))]
    assert names == [A, B, C] * 3 + [B, C] * 3 + [B] * 3


def test_lanes_do_not_all_begin_with_the_same_source() -> None:
    data = two(30, 30, 30)
    first = rows_given(some(recipe_of(data, mix=Mix(order="round_robin"), batch_size=1), data, 3, lanes=3))
    assert {source for source, _, _ in first} == {A, B, C}


# --- ends


@pytest.mark.parametrize("topology", [(1, 0), (1, 3), (2, 0), (3, 1)])
def test_a_row_limit_counts_over_all_passes_and_lanes(topology: tuple[int, int]) -> None:
    data = two(10, 17)
    recipe = recipe_of(data, parts=[part(data[0], limit=26), part(data[1])], mix=LOOP, batch_size=2)
    given = Counter((s, epoch) for s, epoch, _ in rows_given(Ranks(recipe, data, topology).steps(90)) if s == A)
    assert given == {(A, 0): 10, (A, 1): 10, (A, 2): 6}


def test_a_row_limit_holds_through_a_change_of_lanes() -> None:
    data = two(10, 17)
    recipe = recipe_of(data, parts=[part(data[0], limit=26), part(data[1])], mix=LOOP, batch_size=2)
    for steps in range(0, 20, 3):
        run = Ranks(recipe, data, (1, 2))
        before = run.steps(steps)
        other = Ranks(recipe, data, (3, 0), run.state())
        given = rows_given([*before, *other.steps(60)])
        assert Counter(epoch for s, epoch, _ in given if s == A) == {0: 10, 1: 10, 2: 6}
        assert len(set(given)) == len(given)


@pytest.mark.parametrize("topology", [(1, 0), (1, 3), (2, 0)])
def test_a_token_limit_is_reached_to_the_token_and_never_exceeded(topology: tuple[int, int]) -> None:
    data = two(20, 20, lengths=((5, 11), (7,)))
    recipe = recipe_of(data, parts=[part(data[0], tokens=300), part(data[1])], batch_size=2, pack=packed(slack=1))
    assert tokens_given(Ranks(recipe, data, topology).steps(200))[A] == 300


def test_a_token_limit_holds_through_changes_of_lanes() -> None:
    data = two(20, 20, lengths=((5, 11), (7,)))
    recipe = recipe_of(data, parts=[part(data[0], tokens=300), part(data[1])], batch_size=2, pack=packed(slack=1))
    state, batches = None, []
    for topology, steps in (((1, 2), 9), ((3, 0), 5), ((2, 1), 4), ((1, 0), 300)):
        run = Ranks(recipe, data, topology, state)
        batches += run.steps(steps)
        state = run.state()
    assert tokens_given(batches)[A] == 300


@pytest.mark.parametrize("topology", [(1, 0), (1, 2), (2, 2), (3, 0)])
def test_a_cap_on_passes_gives_so_many_whole_ones(topology: tuple[int, int]) -> None:
    data = two(12, 19)
    recipe = recipe_of(data, parts=[part(data[0], passes=2), part(data[1])], batch_size=1, pack=packed(slack=1))
    batches = Ranks(recipe, data, topology).steps(150)
    ledger = Ledger(data[:1], packed=True)
    ledger.data[B] = data[1]
    ledger.add(batches)
    del ledger.data[B]
    ledger.assert_passes(0, 1)
    assert not ledger.seen.get((A, 2))


def test_the_pass_ends_with_the_first_source_or_with_the_last() -> None:
    data = two(5, 20)
    first = rows_given(loader_of(recipe_of(data, mix=Mix(stop="first_exhausted"), batch_size=1), data))
    assert [source for source, _, _ in first] == [A, B] * 5, (
        "it is over as soon as the next turn would be the ended one's"
    )
    both = rows_given(loader_of(recipe_of(data, mix=Mix(stop="all_exhausted"), batch_size=1), data))
    assert Counter(source for source, _, _ in both) == {A: 5, B: 20}
    assert rows_given(loader_of(recipe_of(data, batch_size=1), data)) == both, "for one pass that is the default"


@pytest.mark.parametrize("topology", [(1, 3), (2, 0), (3, 1)])
def test_a_pass_until_the_first_source_ends_resumes_exactly_on_several_lanes(topology: tuple[int, int]) -> None:
    data = two(23, 40)
    recipe = recipe_of(data, mix=Mix(stop="first_exhausted"), batch_size=2)
    whole = Ranks(recipe, data, topology).steps()
    given = Counter(source for source, _, _ in rows_given(whole))
    assert given[A] == 23
    assert given[B] <= 23 + 2 * topology[0] * max(topology[1], 1)
    run = Ranks(recipe, data, topology)
    for at in range(0, len(whole), topology[0]):
        other = Ranks(recipe, data, topology, run.state())
        assert keys(other.steps()) == keys(whole[at:])
        run.step()


def test_a_loop_begins_each_source_again_when_it_ends() -> None:
    data = two(5, 20)
    given = rows_given(some(recipe_of(data, mix=LOOP, batch_size=1), data, 80))
    assert Counter((source, epoch) for source, epoch, _ in given) == {
        **{(A, epoch): 5 for epoch in range(8)},
        **{(B, epoch): 20 for epoch in range(2)},
    }
    passes = [[uid for s, e, uid in given if (s, e) == (A, epoch)] for epoch in range(8)]
    assert all(sorted(one) == data[0].every(False).tolist() for one in passes)
    assert len({tuple(one) for one in passes}) > 4, "in another order each time"


def test_the_end_of_all_sources_of_an_endless_run_is_an_error_that_names_them() -> None:
    data = two(5, 6)
    recipe = recipe_of(data, parts=[part(data[0], limit=7), part(data[1], passes=1)], mix=LOOP, batch_size=1)
    loader = loader_of(recipe, data)
    batches = iter(loader)
    given = rows_given(islice(batches, 13))
    for _ in range(2):
        with pytest.raises(HeadraceError, match=f"no source left: {A}, {B} ended"):
            next(batches)
    assert Counter(source for source, _, _ in given) == {A: 7, B: 6}


# --- sources stay out of each other's way


def own_order(batches: Iterable[Batch], source: str) -> list[tuple[str, int, int]]:
    return [row for row in rows_given(batches) if row[0] == source]


def test_a_source_gives_its_rows_in_the_same_order_alone_and_in_any_mix() -> None:
    data = two(40, 25, 10)
    alone = some(recipe_of(data[:1], mix=LOOP, batch_size=1), data, 160, lanes=2)
    for parts in ([part(data[1]), part(data[0])], [part(data[0], weight=5.0), part(data[2]), part(data[1])]):
        batches = some(recipe_of(data, parts=parts, mix=LOOP, batch_size=1), data, 160, lanes=2)
        for lane in range(2):
            mixed = own_order(batches[lane::2], A)
            assert 30 < len(mixed) < 80
            assert mixed == own_order(alone[lane::2], A)[: len(mixed)]


@pytest.mark.parametrize("fields", [{"mix": LOOP}, {"pack": packed(method="concat")}])
def test_adding_a_source_does_not_move_the_others_cursors(fields: dict[str, Any]) -> None:
    data = two(40, 25, 10)
    before, after = recipe_of(data[:2], batch_size=2, **fields), recipe_of(data, batch_size=2, **fields)
    run = Ranks(before, data, (1, 2))
    run.steps(9)
    state = run.state()
    positions = [[one["src"][i] for i in range(2)] for one in lanes_of(state)]
    other = Ranks(after, data, (1, 2), state)
    assert [one["src"][:2] for one in lanes_of(other.state())] == positions
    assert [one["mix"] for one in lanes_of(other.state())] == [[0, 0, 0]] * 2, "nobody has to catch up"
    went_on, mixed = places(run.steps(60)), places(other.steps(90))
    for source in (A, B):
        shared = min(len(went_on[source]), len(mixed[source]))
        assert shared > 10
        assert mixed[source][:shared] == went_on[source][:shared]
    assert len(mixed[C]) > 10


def lanes_of(state: State) -> list[Any]:
    found: list[Any] = json.loads(state["lanes"])
    return found


def places(batches: Sequence[Batch]) -> dict[str, list[Any]]:
    """Of the first lane of two: the rows, or the pieces of rows, of each source in order."""
    found: dict[str, list[Any]] = {}
    for batch in batches:
        if batch.m % 2 == 0:
            nested = batch.addresses if batch.packed else [batch.addresses]
            for address in [address for addresses in nested for address in addresses]:
                place = (address.epoch, address.shard, address.row)
                if found.setdefault(address.source, [])[-1:] != [place]:
                    found[address.source].append(place)
    return found


def test_two_parts_of_one_source_are_two_streams_with_one_name_each() -> None:
    data = two(23)
    recipe = recipe_of(data, parts=[part(data[0]), part(data[0], weight=2.0)], batch_size=1)
    run = Ranks(recipe, data, (2, 0))
    batches = run.steps(4)
    state = run.state()
    assert len(state["resume_state"]["datasets"]) == 2
    assert sum(entry["row_offset"] for entry in state["resume_state"]["datasets"]) == 8
    rest = Ranks(recipe, data, (1, 3), state).steps()
    assert keys(rest) == keys(run.steps())
    assert Counter(uid for _, _, uid in rows_given([*batches, *rest])) == dict.fromkeys(
        data[0].every(False).tolist(), 2
    )


def test_shares_hold_through_changes_of_lanes_at_every_step() -> None:
    data = two(50, 31)
    parts = [part(data[0], weight=1.0), part(data[1], weight=3.0)]
    recipe = recipe_of(data, parts=parts, mix=LOOP, batch_size=1)
    state, given = None, []
    for ranks in [2, 3] * 20:
        run = Ranks(recipe, data, (ranks, 0), state)
        given += rows_given(run.steps(1))
        state = run.state()
    assert len(given) == 100
    assert abs(Counter(source for source, _, _ in given)[A] - 25) <= 3

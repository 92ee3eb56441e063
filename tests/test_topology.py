"""Another number of ranks or workers at every kind of place: nothing is lost, nothing comes twice, to the token; and
where the ranks divide the lanes, the micro-batches are those of a run that was never stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from near import Data, Ledger, Ranks, keys, near, packed, recipe_of, several

from headrace import merge_states, rng
from headrace.errors import StateError
from headrace.fetch.plan import Coordinate
from headrace.recipe import Mix, Recipe
from headrace.serve.state import stamped
from headrace.stage import State

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

TOPOLOGIES = [(ranks, workers) for ranks in (1, 2, 3, 4) for workers in (0, 1, 2, 3)]

PRIME = [[[50, 7], [100], [], [0], [100]]]
"""257 rows, two shards without any."""
GIANT = [[[257]]]
TWO_SHARDS = [[[300, 9], [200]]]
"""509 rows, fewer shards than ranks."""
THREE = [[[31, 0, 10]], [[7], [], [22, 8]], [[19]]]
MIXED = ((3, 9, 1, 30, 4), (12, 2), (1, 40, 5))
"""Tokens per row: some documents are longer than a sequence."""


@dataclass(frozen=True)
class Case:
    shapes: Sequence[Sequence[Sequence[int]]]
    fields: dict[str, Any]
    positions: int = 1
    """Each pair of topologies is tried at so many places of the pass."""
    half: int | None = None
    """0 or 1: only every second pair is, the even or the odd ones; another case has the rest."""
    passes: int = 1
    coordinate: Coordinate = "rows"

    def made(self) -> tuple[Recipe, list[Data]]:
        data = several(self.shapes, MIXED, self.coordinate)
        return recipe_of(data, **self.fields), data


BEST_FIT: dict[str, Any] = {"batch_size": 2, "pack": packed(), "epochs": 1}
CONCAT: dict[str, Any] = {"batch_size": 2, "pack": packed(method="concat", overlap=3), "epochs": 1}

EXACT = {
    "rows": Case(PRIME, {"batch_size": 12}, positions=3),
    "rows in file order": Case(PRIME, {"batch_size": 9, "shuffle": False}, half=0),
    "rows of one giant shard": Case(GIANT, {"batch_size": 12}, half=1),
    "rows of fewer shards than ranks": Case(TWO_SHARDS, {"batch_size": 24}, half=0),
    "fewer rows than lanes": Case([[[2], [3]]], {"batch_size": 1}, half=1),
    "rows of three sources": Case(THREE, {"batch_size": 5}),
    "rows that are not counted before they are read": Case(PRIME, {"batch_size": 16}, half=0, coordinate="windows"),
    "best fit": Case(PRIME, {**BEST_FIT, "batch_size": 7}),
    "best fit of three sources, in file order": Case(
        THREE, {**BEST_FIT, "shuffle": False, "mix": Mix(by="tokens")}, half=1
    ),
    "best fit, two passes": Case(THREE[:2], {**BEST_FIT, "batch_size": 4, "epochs": 2}, half=0, passes=2),
    "concat": Case(GIANT, {**CONCAT, "batch_size": 6}, half=1),
    "concat of two sources": Case(THREE[:2], CONCAT),
    "none": Case([[[53], [50]]], {"batch_size": 4, "pack": packed(64, method="none"), "epochs": 1}, half=1),
}


class Past(NamedTuple):
    """A run that was stopped."""

    state: State
    ledger: Ledger
    rest: list[Any]
    """What it would have given."""


def pasts(case: Case, topology: tuple[int, int], num: int) -> list[Past]:
    """A run stopped at `num` places of its pass, from the first step to the last but one."""
    recipe, data = case.made()
    whole = Ranks(recipe, data, topology).steps()
    run, ledger, out = Ranks(recipe, data, topology), Ledger(data, recipe.pack is not None), []
    steps, done = len(whole) // topology[0], 0
    for k in range(num):
        at = (steps - 1) * (2 * k + 1) // (2 * num)
        ledger.add(run.steps(at - done))
        done = at
        out.append(Past(run.state(), ledger.copy(), keys(whole[at * topology[0] :])))
    run.close()
    return out


@pytest.mark.parametrize("name", EXACT)
def test_every_change_of_topology_gives_every_token_exactly_once(name: str) -> None:
    case = EXACT[name]
    recipe, data = case.made()
    changes = same = 0
    for i, old in enumerate(TOPOLOGIES):
        # Pairs that are tried at one place only are not all tried at the same one.
        places = pasts(case, old, 4)
        for j, new in enumerate(TOPOLOGIES):
            for k in range(case.positions if case.half in (None, (i + j) % 2) else 0):
                past = places[(i + j + k) % len(places)]
                run = Ranks(recipe, data, new, past.state)
                divides = past.state["L"] % new[0] == 0
                if divides and case.passes == 1:
                    assert run.state() == past.state, "restoring changed the state"
                batches = run.steps()
                past.ledger.copy().add(batches).assert_only(*range(case.passes))
                if divides:
                    assert keys(batches) == past.rest, f"{old} to {new} at m={past.state['m']}"
                    same += 1
                run.close()
                changes += 1
    assert changes == 256 * case.positions // (1 if case.half is None else 2)
    assert same > changes // 3


@pytest.mark.parametrize("tail", ["drop", "wrap"])
def test_a_tail_is_dropped_or_filled_up_whatever_the_topology_was(tail: str) -> None:
    size = 7
    case = Case(PRIME, {"batch_size": size, "tail": tail})
    recipe, data = case.made()
    for i, old in enumerate(TOPOLOGIES):
        places = pasts(case, old, 3)
        for j, new in list(enumerate(TOPOLOGIES))[(i + (tail == "drop")) % 2 :: 2]:
            past = places[(i + j) % len(places)]
            run = Ranks(recipe, data, new, past.state)
            batches = run.steps()
            assert {len(batch["uid"]) for batch in batches} <= {size}
            assert not any(batch.pad for batch in batches)
            found = past.ledger.copy().add(batches)
            lanes = run.loaders[0].state_dict(gather=False)["L"]
            given = len(found.numbers(data[0].spec, 0))
            if tail == "drop":
                found.assert_nothing_twice()
                assert 257 - given <= (lanes + new[0]) * size
            else:
                assert set(found.numbers(data[0].spec, 0)) == set(data[0].every(False))
                assert given - 257 <= (lanes + new[0]) * size
            if past.state["L"] % new[0] == 0 and new[0] == old[0]:
                assert keys(batches) == past.rest
            run.close()


@pytest.mark.parametrize("fields", [BEST_FIT, CONCAT, {"batch_size": 3, "coordinate": "windows"}])
def test_a_resume_among_the_batches_that_fill_a_tail_up_goes_on_with_the_same_ones(fields: dict[str, Any]) -> None:
    fields = {**fields, "tail": "wrap"}
    data = several([[[5], [40], [3]]], MIXED, fields.pop("coordinate", "rows"))
    recipe = recipe_of(data, **fields)
    whole = Ranks(recipe, data, (2, 0), lanes=4).steps()
    run, fillers = Ranks(recipe, data, (2, 0), lanes=4), set()
    for at in range(len(whole) // 2):
        other = Ranks(recipe, data, (2, 0), run.state())
        found = other.steps()
        assert keys(found)[: len(whole) - 2 * at] == keys(whole[2 * at :]), "the end may be found a little later"
        fillers |= {lane["z"] for lane in json.loads(run.state()["lanes"])}
        run.step()
    assert max(fillers) > 1


# With little slack few pieces wait long for company, and a pass is whole early.
ENDLESS: dict[str, dict[str, Any]] = {
    "best fit": {"batch_size": 3, "pack": packed(slack=0)},
    "best fit in file order": {"batch_size": 4, "pack": packed(slack=0), "shuffle": False},
    "concat by tokens": {"batch_size": 2, "pack": packed(method="concat"), "mix": Mix(by="tokens")},
    "rows": {"batch_size": 3, "mix": Mix(stop="loop")},
}


def run_until_whole(run: Ranks, ledger: Ledger, passes: int) -> None:
    for _ in range(1_000):
        if ledger.is_whole(*range(passes)):
            break
        ledger.add(run.step())
    ledger.assert_passes(*range(passes))
    ledger.assert_nothing_twice()


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_run_gives_every_pass_whole_whatever_the_topology_was(name: str) -> None:
    data = several([[[7, 0], [4]], [[9]]], MIXED)
    recipe = recipe_of(data, **ENDLESS[name])
    for i, old in enumerate(TOPOLOGIES):
        run, ledger, places = Ranks(recipe, data, old), Ledger(data, recipe.pack is not None), []
        for _ in range(3):
            ledger.add(run.steps(3))
            places.append((run.state(), ledger.copy()))
        for j, new in enumerate(TOPOLOGIES):
            state, before = places[(i + j) % len(places)]
            after = Ranks(recipe, data, new, state)
            run_until_whole(after, before.copy(), passes=1)
            after.close()
        run.close()


def around_all_pairs(count: int) -> list[int]:
    """A walk that takes every way from each of `count` places to each other exactly once."""
    ways = {a: [b for b in range(count) if b != a] for a in range(count)}
    walk, stack = [], [0]
    while stack:
        if ways[stack[-1]]:
            stack.append(ways[stack[-1]].pop())
        else:
            walk.append(stack.pop())
    return walk


def test_one_run_goes_through_every_change_of_topology_one_after_the_other() -> None:
    data = several(THREE[:2], MIXED)
    recipe = recipe_of(data, batch_size=1, pack=packed())
    ledger, state = Ledger(data, packed=True), None
    walk = around_all_pairs(len(TOPOLOGIES))
    assert len(set(pairwise(walk))) == 240
    for n, number in enumerate(walk):
        run = Ranks(recipe, data, TOPOLOGIES[number], state)
        ledger.add(run.steps(n % 3))
        state = run.state()
        run.close()
    last = Ranks(recipe, data, (1, 0), state)
    run_until_whole(last, ledger, passes=3)
    assert ledger.is_whole(0, 1, 2)


@pytest.mark.parametrize("name", EXACT)
def test_chains_of_five_changes_end_with_everything_given_once(name: str) -> None:
    case = EXACT[name]
    recipe, data = case.made()
    for chain in range(5):
        stream = rng.key("chain", name, chain)
        ledger, state = Ledger(data, recipe.pack is not None), None
        for link in range(6):
            topology = TOPOLOGIES[rng.draw(stream, 2 * link, len(TOPOLOGIES))]
            steps = 10_000 if link == 5 else rng.draw(stream, 2 * link + 1, 4)
            run = Ranks(recipe, data, topology, state)
            batches = run.steps(steps)
            ledger.add(batches)
            state = run.state()
            run.close()
            if len(batches) < steps * topology[0]:  # the end came; what the state says now is the next epoch
                break
        ledger.assert_only(*range(case.passes))


def test_the_micro_batches_follow_from_recipe_and_lanes_alone() -> None:
    for fields in ({"batch_size": 3}, BEST_FIT, CONCAT):
        data = several(THREE, MIXED)
        recipe = recipe_of(data, **fields)
        wanted = keys(Ranks(recipe, data, (1, 0), lanes=12).steps())
        for topology in TOPOLOGIES:
            run = Ranks(recipe, data, topology, lanes=12)
            assert keys(run.steps()) == wanted, topology
            run.close()


@pytest.mark.parametrize("topology", TOPOLOGIES)
def test_without_shuffle_each_lane_gives_its_share_in_file_order(topology: tuple[int, int]) -> None:
    data = several(PRIME)
    run = Ranks(recipe_of(data, batch_size=4, shuffle=False), data, topology)
    lanes = run.loaders[0].state_dict(gather=False)["L"]
    shares: dict[int, list[int]] = {}
    for batch in run.steps():
        if not batch.pad:
            shares.setdefault(batch.m % lanes, []).extend(batch["uid"])
    assert [uid for lane in sorted(shares) for uid in shares[lane]] == data[0].every(False).tolist()


@pytest.mark.parametrize("topology", [(1, 3), (2, 0), (3, 2), (4, 1)])
def test_no_pass_after_the_first_is_lost_in_a_re_deal(topology: tuple[int, int]) -> None:
    data = several(PRIME)
    recipe = recipe_of(data, batch_size=8)
    run = Ranks(recipe, data, (1, 2))
    for epoch in range(3):
        ledger = Ledger(data, packed=False).add(run.steps(5))
        other = Ranks(recipe, data, topology, run.state())
        ledger.copy().add(other.steps()).assert_only(epoch)
        Ledger(data, packed=False).add(other.steps()).assert_only(epoch + 1)
        ledger.add(run.steps()).assert_only(epoch)


@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
def test_what_only_fills_a_step_is_marked_and_teaches_nothing(method: str) -> None:
    data = several([[[9, 3], [20]]], ((3, 9, 2, 30),))
    run = Ranks(recipe_of(data, batch_size=2, pack=packed(method=method), epochs=1), data, (3, 2))
    batches = run.steps()
    teaching = [bool((batch["labels"] != -100).any()) for batch in batches]
    assert teaching == [not batch.pad for batch in batches]
    assert not all(teaching)


@pytest.mark.parametrize("name", ENDLESS)
def test_what_was_dealt_of_passes_to_come_is_dealt_again_before_anybody_has_entered_them(name: str) -> None:
    """Lanes of a small source are passes apart, and the lanes change twice without a step in between."""
    data = several([[[7, 0], [4]], [[5]]], MIXED)
    recipe = recipe_of(data, **ENDLESS[name])
    run, ledger = Ranks(recipe, data, (1, 3)), Ledger(data, recipe.pack is not None)
    apart = False
    for _ in range(12):
        ledger.add(run.step())
        state = Ranks(recipe, data, (2, 0), run.state()).state()
        apart = apart or any(len(source["x"]) > 1 for source in json.loads(state["lanes"])[0]["src"])
        after = Ranks(recipe, data, (3, 0), state)
        run_until_whole(after, ledger.copy(), passes=2)
        after.close()
    assert apart, "nothing was dealt of a pass to come"
    run.close()


def test_one_rank_has_no_batch_without_rows_and_len_counts_those_it_has() -> None:
    for rows in (1, 2, 3, 5, 11):
        data = several([[[rows]]])
        for tail in ("pad", "wrap"):
            run = Ranks(recipe_of(data, batch_size=2, tail=tail), data, (1, 3))
            for epoch in range(4):
                wanted = len(run.loaders[0])
                batches = run.steps()
                assert len(batches) == wanted
                assert not any(batch.pad for batch in batches)
                assert {row for batch in batches for row in batch["uid"]} == set(data[0].every(False).tolist()), epoch


@pytest.mark.parametrize("topology", [(1, 0), (1, 3), (2, 0), (3, 2), (4, 1)])
@pytest.mark.parametrize("coordinate", ["rows", "windows"])
def test_what_wraps_around_fills_every_batch_however_few_rows_there_are(
    topology: tuple[int, int], coordinate: Coordinate
) -> None:
    for shape in ([[1]], [[2], [1]], [[0], [1], [9]]):
        data = several([shape], coordinate=coordinate)
        batches = Ranks(recipe_of(data, batch_size=4, tail="wrap"), data, topology).steps()
        assert {len(batch["uid"]) for batch in batches} == {4}
        assert {uid for batch in batches for uid in batch["uid"]} == set(data[0].every(False).tolist())


@pytest.mark.parametrize("tail", ["pad", "wrap", "drop"])
@pytest.mark.parametrize("topology", TOPOLOGIES[4:])
def test_len_is_the_number_of_steps_of_every_rank(topology: tuple[int, int], tail: str) -> None:
    data = several(THREE)
    run = Ranks(recipe_of(data, batch_size=3, tail=tail), data, topology)
    for _ in range(2):
        wanted = {len(loader) for loader in run.loaders}
        assert wanted == {len(run.steps()) // topology[0]}


# --- the parts of ranks


def parts_of(steps: int) -> tuple[Recipe, list[Data], list[State]]:
    data = several(PRIME)
    recipe = recipe_of(data, batch_size=4)
    run = Ranks(recipe, data, (3, 2))
    run.steps(steps)
    return recipe, data, [loader.state_dict(gather=False) for loader in run.loaders]


def test_the_parts_of_all_ranks_are_one_state_in_any_order() -> None:
    recipe, data, parts = parts_of(5)
    whole = merge_states(parts)
    assert merge_states(parts[::-1]) == whole
    assert merge_states([*parts, parts[1]]) == whole
    for topology in ((1, 0), (3, 0), (2, 2), (1, 5)):
        assert Ranks(recipe, data, topology, whole).state() == whole


@pytest.mark.parametrize("kept", [[0], [0, 2], [1, 1, 2]])
def test_a_state_that_lacks_a_rank_is_refused(kept: list[int]) -> None:
    recipe, data, parts = parts_of(5)
    with pytest.raises(StateError, match="the state has no lanes"):
        merge_states([parts[i] for i in kept])
    with pytest.raises(StateError, match="one rank's part"):
        Ranks(recipe, data, (1, 0), parts[0])


def test_parts_of_different_steps_are_refused() -> None:
    _, _, early = parts_of(4)
    _, _, late = parts_of(5)
    with pytest.raises(StateError, match="m: part 2 has 15, part 0 has 12"):
        merge_states([early[0], early[1], late[2]])
    odd = stamped({**late[2], "m": early[2]["m"], "lanes": late[2]["lanes"]})
    with pytest.raises(StateError, match="comes in two parts with two states"):
        merge_states([*early, odd])

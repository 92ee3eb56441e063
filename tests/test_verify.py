"""States that a run can have verify; a state in which one thing is off is found out, and the thing is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from near import Data, Ledger, Ranks, near, packed, part, recipe_of, several, through_json
from states import Edit, at, changed, edited, numbers, opened, verified

from headrace.errors import StateError
from headrace.recipe import Change, Mix, Recipe, Skip
from headrace.stage import State
from headrace.testing.memory import MemorySource

__all__ = ["near"]  # a fixture

SMALL, LARGE = [[2, 1]], [[7, 5], [11], [0], [30, 3]]
LENGTHS = ((5, 3, 40, 1, 9), (2, 7), (0, 0, 6))


class Windows(Data):
    """A source whose rows are not counted before it is read."""

    def opened(self) -> MemorySource:
        return MemorySource(self.spec, self.groups, self.row, "windows")


def check_reachable(state: State, data: Sequence[Data]) -> None:
    report = verified(state, data)
    assert report.is_reachable, report.all_problems()
    lanes = state["L"]
    assert [(check.source, check.lane) for check in report.checks] == [
        (one.spec, lane) for one in data for lane in range(lanes)
    ]


ONE, TWO = partial(several, [LARGE], LENGTHS), partial(several, [LARGE, SMALL], LENGTHS)
RECIPES: dict[str, tuple[Callable[[], list[Data]], dict[str, Any]]] = {
    "rows": (ONE, {}),
    "rows in file order": (ONE, {"shuffle": False}),
    "rows, tails dropped": (ONE, {"tail": "drop"}),
    "rows, tails wrapped": (ONE, {"tail": "wrap"}),
    "rows, two passes": (ONE, {"epochs": 2}),
    "rows, a large pool": (ONE, {"pool": 24}),
    "two sources of rows": (TWO, {}),
    "until the first ends": (TWO, {"mix": Mix(stop="first_exhausted")}),
    "round robin for ever": (TWO, {"mix": Mix(order="round_robin", stop="loop")}),
    "by size": (TWO, {"mix": Mix(temperature=2.0)}),
    "rows left out": (ONE, {"skip": Skip(addresses=("txt:data0:text|shard-0|3",), steps=(2, 5))}),
    "uncounted": (lambda: [Windows(0, LARGE, LENGTHS[0])], {}),
    "packed": (ONE, {"pack": packed()}),
    "packed one after the other": (TWO, {"pack": packed(method="concat")}),
    "one document each": (TWO, {"pack": packed(method="none")}),
    "packed, one pass": (TWO, {"pack": packed(overlap=3), "epochs": 1}),
    "packed by tokens": (TWO, {"pack": packed(), "mix": Mix(by="tokens")}),
    "packed and uncounted": (lambda: [Windows(0, LARGE, LENGTHS[0])], {"pack": packed()}),
    "rows without tokens": (partial(several, [LARGE], [LENGTHS[2]]), {"pack": packed()}),
    "a small source goes round and round": (partial(several, [SMALL], LENGTHS), {"pack": packed()}),
}


def recipe_for(name: str) -> tuple[Recipe, list[Data]]:
    make, fields = RECIPES[name]
    data = make()
    return recipe_of(data, batch_size=2, **fields), data


@pytest.mark.parametrize("name", RECIPES)
def test_every_state_of_a_run_is_reachable(name: str) -> None:
    recipe, data = recipe_for(name)
    ranks = Ranks(recipe, data, lanes=3)
    for step in range(45):
        if step % 3 < 2:
            check_reachable(ranks.state(), data)
        ranks.step()
    ranks.close()


@pytest.mark.parametrize("name", RECIPES)
def test_states_are_reachable_through_a_chain_of_other_numbers_of_ranks(name: str, near: None) -> None:
    recipe, data = recipe_for(name)
    state: State | None = None
    for number, topology in enumerate([(1, 4), (3, 1), (2, 2), (5, 1), (1, 2)]):
        ranks = Ranks(recipe, data, topology, state)
        for _ in range(number + 2):
            check_reachable(ranks.state(), data)
            ranks.step()
        state = ranks.state()
        check_reachable(state, data)
        ranks.close()


def test_states_of_a_later_epoch_are_dealt_anew_and_reachable(near: None) -> None:
    data = ONE()
    recipe, ledger = recipe_of(data, batch_size=2), Ledger(data, packed=False)
    ranks = Ranks(recipe, data, lanes=2)
    ranks.steps()
    ledger.add(ranks.steps(5))
    for topology in ((3, 1), (2, 2)):
        ranks = Ranks(recipe, data, topology, ranks.state())
        check_reachable(ranks.state(), data)
        ledger.add(ranks.steps(2))
    ledger.add(ranks.steps()).assert_only(1)


def test_a_part_with_a_limit_or_few_passes_is_reachable() -> None:
    data = TWO()
    parts = [part(data[0], limit=60), part(data[1], passes=2, tokens=9)]
    recipe = recipe_of(data, batch_size=2, pack=packed(), parts=parts)
    ranks = Ranks(recipe, data, lanes=2)
    for _ in range(12):
        check_reachable(ranks.state(), data)
        ranks.step()


# --- a recipe that changed on the way


def test_a_source_that_is_added_reaches_lanes_that_were_over() -> None:
    data = several([[[4]], [[9, 9]]])
    recipe, ledger = recipe_of(data[:1], batch_size=3), Ledger(data, packed=False)
    ranks = Ranks(recipe, data[:1], lanes=3)
    ledger.add(ranks.steps(2))
    lanes = json.loads(ranks.state()["lanes"])
    assert [lane["o"] for lane in lanes] == [1, 1, 0]
    again = Ranks(recipe_of(data, batch_size=3), data, state=ranks.state(), lanes=3)
    check_reachable(again.state(), data)
    ledger.add(again.steps()).assert_only(0)


def test_a_source_that_is_added_in_a_later_epoch_begins_with_that_epoch() -> None:
    data = TWO()
    ranks = Ranks(recipe_of(data[:1], batch_size=2), data[:1], lanes=2)
    ranks.steps()
    ledger = Ledger(data, packed=False).add(ranks.steps(3))
    again = Ranks(recipe_of(data, batch_size=2), data, state=ranks.state(), lanes=2)
    check_reachable(again.state(), data)
    ledger.add(again.steps(4))
    check_reachable(again.state(), data)
    ledger.add(again.steps()).assert_only(1)


def test_one_more_pass_reaches_lanes_that_were_over() -> None:
    data = several([[[4]]])
    ranks = Ranks(recipe_of(data, batch_size=3), data, lanes=3)
    ledger = Ledger(data, packed=False).add(ranks.steps(2))
    again = Ranks(recipe_of(data, batch_size=3, epochs=2), data, state=ranks.state(), lanes=3)
    check_reachable(again.state(), data)
    ledger.add(again.steps(1))
    check_reachable(again.state(), data)
    ledger.add(again.steps()).assert_only(0, 1)


def test_other_weights_batches_and_sequences_stay_reachable() -> None:
    data = TWO()
    ranks = Ranks(recipe_of(data, batch_size=2, pack=packed()), data, lanes=2)
    changes: list[dict[str, Any]] = [
        {"batch_size": 5, "pack": packed(24)},
        {"batch_size": 1, "pack": packed(method="concat")},
        {"batch_size": 2, "pack": packed(), "parts": [part(data[0], weight=3.0), part(data[1])]},
        {"batch_size": 2, "mix": Mix(stop="loop")},
    ]
    for fields in changes:
        ranks.steps(3)
        ranks = Ranks(recipe_of(data, **fields), data, state=ranks.state(), lanes=2)
        check_reachable(ranks.state(), data)


# --- one thing is off


def add(where: Any, key: Any, by: int = 1) -> State | None:
    where[key] += by
    return None


def swap(lanes: list[State], *path: Any) -> None:
    """What lies there in the first two lanes."""
    one, two = lanes[:2]
    for key in path[:-1]:
        one, two = one[key], two[key]
    one[path[-1]], two[path[-1]] = two[path[-1]], one[path[-1]]


def never_drawn(lanes: list[State]) -> None:
    """A piece of the last position of the lane's share, which it has still to read."""
    lanes[0]["held"][0][:3] = [0, lanes[0]["src"][0]["e"], 27]


@pytest.fixture(scope="module")
def mixed() -> tuple[State, list[Data]]:
    """In the middle of the second pass over the large source: slots are open, and pieces are held."""
    data = TWO()
    recipe = recipe_of(data, batch_size=2, pack=packed(), parts=[part(data[0], weight=9.0), part(data[1])])
    ranks = Ranks(recipe, data, lanes=2)
    ranks.steps(30)
    state = ranks.state()
    lane = json.loads(state["lanes"])[0]
    assert lane["src"][0]["e"]
    assert len(lane["src"][0]["s"]) > 1
    assert len(lane["held"]) > 1
    return state, data


PLANTED: dict[str, tuple[Edit, str]] = {
    "a slot is one further": (lambda s, lanes, f: add(lanes[0]["src"][0]["s"][0], 0, -1), r"lane 0: s \(slots\)"),
    "a slot has one row less": (lambda s, lanes, f: add(lanes[1]["src"][0]["s"][0], 1, -1), r"lane 1: s \(slots\)"),
    "a slot is gone": (lambda s, lanes, f: lanes[0]["src"][0]["s"].pop(), r"lane 0: s \(slots\)"),
    "slots in another order": (lambda s, lanes, f: lanes[0]["src"][0]["s"].reverse(), r"lane 0: s \(slots\)"),
    "less was admitted": (lambda s, lanes, f: add(lanes[0]["src"][0], "c", -1), r"lane 0: c \(admitted\)"),
    "more was admitted than there is": (lambda s, lanes, f: add(lanes[0]["src"][0], "c", 9), "lane 0: .* share of 28"),
    "the digest is off": (lambda s, lanes, f: add(lanes[1]["src"][1], "d", -1), r"data1:text, lane 1: d \(digest\)"),
    "one draw more": (lambda s, lanes, f: add(lanes[0]["src"][0], "k"), r"data0:text, lane 0: s \(slots\)"),
    "more draws than rows": (lambda s, lanes, f: add(lanes[0]["src"][0], "k", 99), "lane 0: k: draw .* fewer rows"),
    "a pass further": (lambda s, lanes, f: add(lanes[0]["src"][1], "e"), "data1:text, lane 0: "),
    "a pass that nobody reaches": (lambda s, lanes, f: add(lanes[0]["src"][1], "e", 1 << 40), "lane 0: e: pass"),
    "lanes are swapped": (lambda s, lanes, f: lanes.reverse(), "data1:text, lane 1: .* a share of 1"),
    "sources of lanes are swapped": (lambda s, lanes, f: swap(lanes, "src", 0), r"data0:text, lane 0: d \(digest\)"),
    "pieces of lanes are swapped": (lambda s, lanes, f: swap(lanes, "held"), "lane 0: held: position .* never drawn"),
    "a piece that was never drawn": (lambda s, lanes, f: never_drawn(lanes), "lane 0: held: position 27 of pass 1 was"),
    "a piece twice": (lambda s, lanes, f: lanes[0]["held"].append(lanes[0]["held"][0]), "waits twice, in lane 0"),
    "a piece in two lanes": (lambda s, lanes, f: lanes[1]["rest"].append(lanes[0]["held"][0]), "in the lanes 0 and 1"),
    "a piece that is too long": (
        lambda s, lanes, f: add(lanes[0]["held"][0], 5),
        r"lane 0: the state holds tokens \d+ to \d+ of sample",
    ),
    "a piece of no sample": (
        lambda s, lanes, f: add(lanes[0]["held"][0], 3),
        r"lane 0: the state holds tokens \d+ to \d+ of sample",
    ),
    "m is off": (lambda s, lanes, f: add(s, "m"), "lane 0: n: it gave 15 micro-batches, and from m_plan=0 to m=31 16"),
    "m_plan is off": (lambda s, lanes, f: add(s, "m_plan"), "lane 0: n: it gave 15 micro-batches"),
    "n is off": (lambda s, lanes, f: add(lanes[1], "n", -1), "lane 1: n: it gave 14 micro-batches"),
    "a credit is off": (lambda s, lanes, f: add(lanes[0]["mix"], 1), "mix: the credits"),
    "a source is said to have ended": (lambda s, lanes, f: lanes[0]["off"].append(1), "lane 0: off: txt:data1:text"),
    "a lane is said to be over": (lambda s, lanes, f: add(lanes[0], "o"), "lane 0: o: it is said to be over"),
    "passes without a sample": (lambda s, lanes, f: add(lanes[0]["src"][0], "y", 9), "lane 0: y: 9 passes without"),
    "another generation": (lambda s, lanes, f: add(lanes[0]["src"][0], "g"), "data0:text: f, g, x: the lanes follow"),
    "another start of the plan": (lambda s, lanes, f: add(f[0], "epoch"), "data0:text: f, g, x: "),
    "another digest of the plan": (lambda s, lanes, f: add(f[0], "digest"), "data0:text: f, g, x: "),
    "another seed": (lambda s, lanes, f: add(s["recipe"]["order"], "seed"), "recipe: it is not the one that its"),
    "another pool": (lambda s, lanes, f: add(s, "K"), r"lane 0: s \(slots\)"),
    "other chunks": (lambda s, lanes, f: f[0].update(chunk_rows=2), "data0:text, lane 0: "),
}


@pytest.mark.parametrize("name", PLANTED)
def test_what_is_off_in_a_state_is_found_and_named(name: str, mixed: tuple[State, list[Data]]) -> None:
    state, data = mixed
    check_reachable(state, data)
    edit, said = PLANTED[name]
    report = verified(edited(state, edit), data)
    assert not report.is_reachable
    assert any(re.search(said, problem) for problem in report.all_problems()), report.all_problems()


@pytest.fixture(scope="module")
def dealt() -> tuple[State, list[Data]]:
    """Just dealt anew: nothing was drawn since, and only digests vouch for the ranges."""
    data = TWO()
    recipe = recipe_of(data, batch_size=2, pack=packed())
    ranks = Ranks(recipe, data, lanes=2)
    ranks.steps(8)
    return Ranks(recipe, data, (3, 1), ranks.state()).state(), data


def test_what_was_dealt_is_vouched_for_by_digests(dealt: tuple[State, list[Data]]) -> None:
    state, data = dealt
    check_reachable(state, data)

    parts = opened(state)
    paths = [path for path in numbers(parts) if path[0] == "lanes" and path[2] == "src" and path[4] in ("x", "g", "f")]
    paths += [("sources", i, name) for i in range(2) for name in ("digest", "epoch")]
    assert sum(len(path) == 9 for path in paths) > 10, "there are few ranges"
    for path in paths:
        for by in (-1, 1):
            if at(parts, path) + by >= 0:
                found = verified(changed(state, path, at(parts, path) + by), data)
                assert not found.is_reachable, (path, by)
    for i in range(2):
        found = verified(edited(state, lambda s, lanes, f: [add(lane["src"][i], "g") for lane in lanes]), data)  # noqa: B023
        assert not found.is_reachable, "another generation in all lanes"


def test_a_position_that_was_dealt_to_two_lanes_is_named(dealt: tuple[State, list[Data]]) -> None:
    state, data = dealt

    def copy(s: State, lanes: list[State], f: list[State]) -> None:
        ranges = [lane["src"][0]["x"] for lane in lanes]
        full = next(one for one in ranges if any(pairs for _, pairs in one))
        next(lane for lane in lanes if lane["src"][0]["x"] is not full)["src"][0]["x"] = full

    found = verified(edited(state, copy), data).all_problems()
    assert any(re.search(r"data0:text: x: position \d+ of pass \d was dealt to two lanes", one) for one in found), found


def test_credits_of_lanes_that_were_dealt_anew_under_a_schedule_add_up() -> None:
    data = TWO()
    first, second = (part(one) for one in data)
    changes = (Change(at=12, weights={first.name: 5.0, second.name: 1.0}), Change(at=40, weights={first.name: 1.0}))
    recipe = recipe_of(data, batch_size=2, parts=[first, second], mix=Mix(stop="loop", schedule=changes))
    state = None
    for ranks in (4, 3, 5, 2, 3):
        run = Ranks(recipe, data, (ranks, 1), state)
        for _ in range(4):
            run.step()
            state = run.state()
            check_reachable(state, data)
            assert all(sum(lane["mix"]) == 0 for lane in json.loads(state["lanes"]))
        run.close()


def test_a_changed_state_is_checked_only_where_that_is_asked_for(mixed: tuple[State, list[Data]]) -> None:
    state, data = mixed
    changed_since = {**state, "m": state["m"] + 1}
    with pytest.raises(StateError, match="checksum: the state is not as it was saved"):
        verified(changed_since, data)
    assert not verified(changed_since, data, force=True).is_reachable


# --- what cannot be checked


def test_a_part_of_a_state_is_not_enough() -> None:
    data = ONE()
    ranks = Ranks(recipe_of(data, batch_size=2), data, (2, 1), lanes=4)
    ranks.steps(2)
    with pytest.raises(StateError, match="it is one rank's part; join the parts"):
        verified(through_json(ranks.loaders[0].state_dict(gather=False)), data)
    check_reachable(ranks.state(), data)


def test_another_recipe_is_checked_against_that_of_the_state(mixed: tuple[State, list[Data]]) -> None:
    state, data = mixed
    recipe = recipe_of(data, batch_size=7, pack=packed())
    assert verified(state, data, recipe=recipe).is_reachable
    with pytest.raises(StateError, match=r"order.seed: the state was made with 0, here it is 3; order.shuffle: .*True"):
        verified(state, data, recipe=recipe_of(data, batch_size=2, pack=packed(), seed=3, shuffle=False))
    with pytest.raises(StateError, match="sources: the state has txt:data0:text, txt:data1:text, the recipe txt:data0"):
        verified(state, data, recipe=recipe_of(data[:1], batch_size=2, pack=packed()))


def test_a_replay_tells_how_far_it_is() -> None:
    data = ONE()
    ranks = Ranks(recipe_of(data, batch_size=2), data, lanes=2)
    ranks.steps(10)
    told: list[tuple[int, int]] = []
    verified(ranks.state(), data, progress=lambda done, total: told.append((done, total)))
    assert told == sorted(told)
    assert told[-1] == (20, 20)

"""Parts of states that do not go together, and checkpoints that only count: refused, or they lead where they should."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from copy import deepcopy
from functools import cache
from typing import Any

import pytest
from near import Ranks, loader_of, recipe_of, several, through_json
from states import at, numbers, refused, restamped, stream

from headrace import merge_states
from headrace.errors import HeadraceError, StateError
from headrace.recipe import Mix
from headrace.serve.loader import Loader
from headrace.stage import State

pytestmark = pytest.mark.timeout(60)

SHAPES = [[[9, 4], [8], [0], [12, 3]], [[2, 3]]]


# --- parts of ranks


@cache
def rank_parts() -> tuple[State, ...]:
    data = several(SHAPES)
    ranks = Ranks(recipe_of(data, batch_size=2), data, (3, 1), lanes=6)
    ranks.steps(2)
    return tuple(through_json(loader.state_dict(gather=False)) for loader in ranks.loaders)


def test_parts_that_are_missing_are_named_and_parts_that_come_again_are_not_counted_twice() -> None:
    one, two, three = rank_parts()
    whole = merge_states([one, two, three])
    assert merge_states([three, one, two, one])["lanes"] == whole["lanes"]
    assert merge_states([one, one, two, three]) == whole
    assert merge_states([whole]) == whole
    assert "no lanes 2, 5 of 6" in refused(lambda: merge_states([one, two]))
    assert "no lanes 1, 2, 4, 5 of 6: it is one rank's part; join" in refused(lambda: merge_states([one, one]))
    data = several(SHAPES)
    loader = loader_of(recipe_of(data, batch_size=2), data)
    assert "no lanes 0, 2, 3, 5 of 6" in refused(lambda: loader.load_state_dict(two))
    assert "the parts of all ranks are expected" in refused(lambda: merge_states([]))


def with_fact(state: State, **fields: Any) -> None:
    """Have its first source say something else."""
    first, *others = json.loads(state["sources"])
    state["sources"] = json.dumps([{**first, **fields}, *others], sort_keys=True, separators=(",", ":"))


PARTS: dict[str, tuple[Callable[[State], object], str]] = {
    "a source of another name": (lambda s: with_fact(s, name="x"), "sources: part 1 has x, .*, part 0 has "),
    "other data": (lambda s: with_fact(s, revision="x"), "facts: .*: part 1 has .*; parts of one step, of ranks that"),
    "another step": (lambda s: s.update(m=s["m"] + 3), "m: part 1 has 9, part 0 has 6; parts of one step"),
    "another epoch": (lambda s: s.update(epoch=1), "epoch: part 1 has 1, part 0 has 0"),
    "another plan": (lambda s: s.update(m_plan=1), "m_plan: part 1 has 1, part 0 has 0"),
    "another pool": (lambda s: s.update(K=5), r"size: part 1 has PoolSize\(chunks=5"),
    "another recipe": (lambda s: s.update(fingerprint="\x1b[31m"), r"fingerprint: part 1 has \\x1b\[31m, part 0 has"),
    "a lane too few": (lambda s: s.update(L=5, lanes=json.dumps(json.loads(s["lanes"])[:5])), "part 1 is of 5 lanes"),
    "a lane again": (lambda s: s.update(lanes=json.dumps(["x", *json.loads(s["lanes"])[1:]])), "lane 0 is 'x', not a"),
    "another state of a lane": (
        lambda s: s.update(lanes=json.dumps([{**json.loads(s["lanes"])[1], "n": 1}, *json.loads(s["lanes"])[1:]])),
        "lane 0 comes in two parts with two states",
    ),
    "no offsets": (lambda s: s.update(resume_state=None), "resume_state.datasets: an entry for each source"),
    "offsets of one source": (lambda s: s["resume_state"]["datasets"].pop(), "resume_state.datasets: an entry for"),
    "offsets that are none": (lambda s: s["resume_state"].update(datasets=[1, 2]), "the entry of a source is a dict"),
}


@pytest.mark.parametrize("name", PARTS)
def test_parts_that_do_not_go_together_are_named(name: str) -> None:
    one, two, three = deepcopy(rank_parts())
    spoil, said = PARTS[name]
    spoil(two)
    assert re.search(said, refused(lambda: merge_states([one, restamped(two), three])))


@pytest.mark.parametrize("value", ["7", None, [], {}, -1, math.nan, 1 << 70])
def test_offsets_for_people_that_are_none_change_no_lane(value: Any) -> None:
    one, two, three = deepcopy(rank_parts())
    for path in numbers(two["resume_state"]):
        broken = deepcopy(two)
        at(broken["resume_state"], path[:-1])[path[-1]] = value
        assert "checksum" in refused(lambda: merge_states([one, broken, three]))  # noqa: B023
        with suppress(StateError):  # where it cannot be joined
            assert merge_states([one, restamped(broken), three])["lanes"] == merge_states([one, two, three])["lanes"]


# --- checkpoints that only count


def counts(loader: Loader, state: Any) -> str:
    return refused(lambda: loader.load_state_dict(state), HeadraceError)


COUNTS: list[tuple[Any, str]] = [
    *[({"batches_consumed": n, "batch_size": 2}, "batches_consumed: a whole number") for n in (-1, True, "7", 1 << 60)],
    ({"batches_consumed": math.nan, "batch_size": 2}, "batches_consumed: a whole number"),
    ({"batches_consumed": 1}, "batch_size: a whole number"),
    ({"batches_consumed": 1, "batch_size": 3}, "the checkpoint counts batches of 3, here they have 2"),
    *[({"sample_index": n}, "sample_index: a whole number") for n in (-1, False, 1.0, 1 << 62)],
    *[({name: None}, f"the checkpoint has {name}: null, so it") for name in ("sample_index", "resume_state")],
    *[({"resume_state": value}, "resume_state.datasets: a list of entries") for value in ({}, {"datasets": [1]})],
    ({"resume_state": {"datasets": []}}, "resume_state.datasets has no entry for txt:data0:text"),
    *[
        ({"resume_state": {"datasets": [{"spec": "txt:data0", "row_offset": n}]}}, said)
        for n, said in (
            (-1, "row_offset: a whole"),
            ("7", "row_offset: a whole"),
            (99, "99 rows .* are fewer"),
        )
    ],
    ({"resume_state": {"datasets": [{"spec": "txt:data0", "per_lane": []}]}}, "different numbers of lanes"),
    ({"resume_state": {"datasets": [{"spec": "txt:data0", "per_lane": [1, 2]}]}}, "row_offset: a whole number"),
    ({"resume_state": {"datasets": [{"spec": "txt:data0", "shuffled": 1}]}}, "cannot place a shuffled run"),
]


@pytest.mark.parametrize(("state", "said"), COUNTS, ids=str)
def test_counts_that_cannot_be_are_refused(state: Any, said: str) -> None:
    data = several([[[5, 2]]])
    loader = loader_of(recipe_of(data, batch_size=2, shuffle=False), data, lanes=2)
    assert re.search(said, counts(loader, state))
    assert stream(loader)


def test_counts_of_an_endless_run_or_of_no_data_end_too() -> None:
    data = several([[[5, 2]]])
    endless = loader_of(recipe_of(data, batch_size=2, shuffle=False, mix=Mix(stop="loop")), data)
    assert "too many to be made once more" in counts(endless, {"batches_consumed": 1 << 39, "batch_size": 2})
    rows = {"resume_state": {"datasets": [{"spec": "txt:data0", "row_offset": 1 << 39}]}}
    assert "there are fewer" in counts(endless, rows)
    nothing = several([[[0]]])
    empty = loader_of(recipe_of(nothing, batch_size=2), nothing)
    assert "1 more batches were consumed than the data gives" in counts(empty, {"batches_consumed": 1, "batch_size": 2})


@pytest.mark.parametrize("lanes", [1, 3, 4])
@pytest.mark.parametrize(
    "fields", [{}, {"tail": "drop"}, {"epochs": 2}, {"shuffle": False}, {"mix": Mix(stop="loop")}], ids=str
)
def test_a_count_of_batches_leads_to_where_these_batches_lead(lanes: int, fields: dict[str, Any]) -> None:
    """Over the ends of epochs, where lanes end apart, and at once however many epochs there were."""
    data = several([[[5, 2], [4]], [[3]]])
    recipe = recipe_of(data, batch_size=2, **fields)
    loader = loader_of(recipe, data, lanes=lanes)
    found: list[Any] = []
    while len(found) < 60:
        found += stream(loader, 60 - len(found))
    for count in (1, 4, 6, 7, 8, 14, 21, 40, 49):
        again = loader_of(recipe, data, lanes=lanes)
        again.load_state_dict({"batches_consumed": count, "batch_size": 2})
        assert (stream(again, 1) or stream(again, 1)) == [found[count]], count
    far = loader_of(recipe, data, lanes=lanes)
    if recipe.mix.stop is None:
        far.load_state_dict({"batches_consumed": 1 << 39, "batch_size": 2})
        assert far.state_dict()["m"] >= 1 << 39

"""A lane of many sources is written by columns: another text for the same state."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from near import Ledger, Ranks, near, packed, recipe_of, several
from states import closed, opened, verified

from headrace.errors import StateError
from headrace.recipe import Mix, Recipe
from headrace.serve import lane_state
from headrace.serve.lane_state import MANY_SOURCES, canonical, columns_of, in_full, lane_of
from headrace.serve.state import Saved
from headrace.stage import State

__all__ = ["near"]  # a fixture

SHAPES = [[[31, 12], [20]], [[9, 4]], [[50]]]
LENGTHS = ((1, 2, 15, 40, 1), (13, 2), (5,))
FIELDS: dict[str, dict[str, Any]] = {
    "rows": {"batch_size": 2},
    "packed": {"batch_size": 2, "pack": packed(16, slack=3), "epochs": 1},
    "packed, in file order": {"batch_size": 2, "pack": packed(16, slack=3), "epochs": 1, "shuffle": False},
    "endless": {"batch_size": 2, "pack": packed(16, slack=1), "mix": Mix(stop="loop")},
}


@pytest.fixture(name="by_columns")
def _by_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lane_state, "MANY_SOURCES", 1)


def made(name: str) -> tuple[Recipe, list[Any]]:
    data = several(SHAPES, LENGTHS)
    return recipe_of(data, **FIELDS[name]), data


def states_of(name: str, steps: int) -> list[State]:
    run = Ranks(*made(name), lanes=2)
    found = []
    for _ in range(steps):
        run.steps(1)
        found.append(run.state())
    return found


@pytest.mark.parametrize("name", FIELDS)
def test_both_forms_are_the_same_state(name: str, near: None, monkeypatch: pytest.MonkeyPatch) -> None:
    long = states_of(name, 12)
    monkeypatch.setattr(lane_state, "MANY_SOURCES", 1)
    wide = states_of(name, 12)
    pieces: set[int] = set()
    for one, other in zip(long, wide, strict=True):
        assert [type(lane["src"]) for lane in json.loads(one["lanes"])] == [list] * 2
        assert [type(lane["src"]) for lane in json.loads(other["lanes"])] == [dict] * 2
        assert [in_full(lane) for lane in json.loads(other["lanes"])] == json.loads(one["lanes"])
        assert Saved.from_state(one).lanes == Saved.from_state(other).lanes
        assert {**other, "lanes": "", "checksum": ""} == {**one, "lanes": "", "checksum": ""}
        for lane in json.loads(other["lanes"]):
            text = json.dumps(lane).encode()
            assert canonical(lane_of(text)) == json.dumps(lane, sort_keys=True, separators=(",", ":")).encode()
            columns, waiting = columns_of(text)
            full = in_full(lane)
            assert [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)] == full["src"]
            assert waiting == [*full["held"], *full["rest"]]
            pieces |= {len(piece) for piece in lane["held"]}
    assert name == "rows" or pieces == {3, 6}, "pieces that can be shortened, and others"


@pytest.mark.parametrize("name", ["packed", "packed, in file order"])
def test_a_run_written_by_columns_resumes_and_is_dealt_anew_without_loss(
    name: str, near: None, by_columns: None
) -> None:
    recipe, data = made(name)
    for steps in range(0, len(Ranks(recipe, data, lanes=2).steps()), 3):
        run = Ranks(recipe, data, lanes=2)
        ledger = Ledger(data, packed=True).add(run.steps(steps))
        state = run.state()
        assert Ranks(recipe, data, (1, 0), state).state() == state
        ledger.copy().add(Ranks(recipe, data, (1, 0), state).steps()).assert_only(0)
        ledger.add(Ranks(recipe, data, (3, 0), state).steps()).assert_only(0)
        assert not steps or verified(state, data).is_reachable


def test_sources_of_a_lane_that_is_read_have_no_list_in_common(by_columns: None) -> None:
    first = json.loads(states_of("rows", 1)[0]["lanes"])[0]
    assert first["src"]["x"] == [[]]
    for source in in_full(first)["src"]:
        source["x"].append(7)
        assert source["x"] == [7]


def test_only_a_lane_of_many_sources_is_written_by_columns() -> None:
    source: State = {**dict.fromkeys("eckfgyd", 0), "s": [], "x": []}
    for count, kind in ((MANY_SOURCES, list), (MANY_SOURCES + 1, dict)):
        lane = {"src": [source] * count, "held": [], "rest": [], "tok": [0] * count}
        assert type(json.loads(canonical(lane))["src"]) is kind
        assert lane_of(canonical(lane)) == lane


DAMAGE: dict[str, Callable[[State], object]] = {
    "a value too few": lambda lane: lane["src"]["d"].pop(),
    "a field less": lambda lane: lane["src"].pop("k"),
    "a field more": lambda lane: lane["src"].update(q=[0]),
    "no list": lambda lane: lane["src"].update(e=0),
    "no counts": lambda lane: lane.update(tok=None),
    "nothing held": lambda lane: lane.update(held=7),
    "a piece of no source": lambda lane: lane["held"].append([3, 1, 1]),
    "half a piece": lambda lane: lane["held"].append([0, 1]),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_columns_that_do_not_fit_are_refused(name: str, near: None, by_columns: None) -> None:
    recipe, data = made("packed")
    run = Ranks(recipe, data, lanes=2)
    run.steps(3)
    parts = opened(run.state())
    DAMAGE[name](parts["lanes"][1])
    with pytest.raises(StateError, match="lane"):
        Ranks(recipe, data, (1, 0), closed(parts))

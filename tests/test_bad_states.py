"""Bad states: refused in a sentence that names what is wrong, and nothing was changed; or found out by `verify`.

Never another exception, never a hang, and nothing that stands in a state is opened or run.
"""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from near import Data, Ranks, loader_of, packed, part, recipe_of, several, through_json
from states import Path as Place
from states import at, changed, closed, edited, everywhere, fit_to_show, numbers, opened, refused, stream, verified

from headrace import merge_states
from headrace.errors import Changed, HeadraceError, StateError
from headrace.outside_json import MOST_VALUES
from headrace.recipe import Mix, Recipe, Skip
from headrace.serve import state_file
from headrace.serve.loader import Loader
from headrace.serve.state import CHECKSUM, FORMAT, Saved, stamped
from headrace.serve.state import KEYS as FIELDS
from headrace.stage import State

pytestmark = pytest.mark.timeout(60)

SHAPES = [[[9, 4], [8], [0], [12, 3]], [[2, 3]]]
LENGTHS = (range(1, 40), range(3, 13))
"""Each row is as long as no other: a piece of another row is noticed."""


class Scene(NamedTuple):
    """A state, with the recipe and the data that it was made with."""

    name: str
    recipe: Recipe
    data: list[Data]
    state: State

    def loader(self, ranks: int = 1) -> Loader:
        """On three ranks its two lanes are dealt anew."""
        return loader_of(self.recipe, self.data, world_size=ranks, lanes=2 if ranks == 1 else None)


@cache
def scene(name: str) -> Scene:
    data = several(SHAPES, LENGTHS)
    if name == "rows":  # one lane is over, the other is not
        data = several([[[5, 2]]])
        ranks = Ranks(recipe_of(data, batch_size=2), data, lanes=2)
        ranks.steps(3)
    elif name == "endless rows":
        ranks = Ranks(recipe_of(data, batch_size=2, mix=Mix(stop="loop")), data, lanes=2)
        ranks.steps(25)
    elif name == "packed":
        ranks = Ranks(recipe_of(data, batch_size=2, pack=packed(slack=1), parts=_weighted(data)), data, lanes=2)
        ranks.steps(40)
    else:
        recipe = recipe_of(data, batch_size=2, pack=packed(24, slack=1), parts=_weighted(data))
        ranks = Ranks(recipe, data, lanes=3)
        ranks.steps(10)
        ranks = Ranks(recipe, data, (2, 1), ranks.state())
        ranks.steps(1)
    return Scene(name, ranks.loaders[0]._pipeline.recipe, data, ranks.state())


def _weighted(data: list[Data]) -> list[Any]:
    return [part(data[0], weight=5.0), part(data[1])]


SCENES = ("rows", "endless rows", "packed", "dealt anew")


# --- it is not as it was saved


@pytest.mark.parametrize("name", SCENES)
def test_a_state_whose_checksum_is_missing_or_another_is_refused(name: str) -> None:
    case = scene(name)
    without = {key: value for key, value in case.state.items() if key != CHECKSUM}
    for state in (without, {**case.state, CHECKSUM: None}, {**case.state, CHECKSUM: "0" * 32}):
        with pytest.raises(StateError, match="not as it was saved"):
            case.loader().load_state_dict(state)


@pytest.mark.parametrize("name", SCENES)
def test_a_state_that_calls_itself_format_1_and_has_a_checksum_is_refused(name: str) -> None:
    """States of format 1 had none, so one number alone would switch the check off."""
    case = scene(name)
    damaged = {**case.state, "format": 1}
    for state in (damaged, {**damaged, CHECKSUM: None}, stamped(damaged)):
        loader = case.loader()
        with pytest.raises(StateError, match="format 1 has no checksum, and this one has"):
            loader.load_state_dict(state)
        assert loader._place is None, "something was changed"


@pytest.mark.parametrize("name", SCENES)
def test_the_checksum_is_over_every_field_and_every_number_in_it(name: str) -> None:
    """Also where another check would find out: not every one of them knows what was there before."""
    state = scene(name).state
    assert set(state) - {CHECKSUM} == FIELDS
    parts = opened(state)
    damaged = [changed(state, path, at(parts, path) + 1) for path in numbers(parts)]
    damaged += [{**state, key: f"{state[key]} "} for key in FIELDS]
    assert [one for one in damaged if stamped(one)[CHECKSUM] == state[CHECKSUM]] == []


# --- one thing is off, anywhere


@pytest.fixture(autouse=True, scope="module")
def _told() -> Iterator[None]:
    """With the lines that say where a run resumes: they look into the state, too."""
    log, before = logging.getLogger("headrace"), logging.getLogger("headrace").level
    log.setLevel(logging.INFO)
    yield
    log.setLevel(before)


def outcome(case: Scene, state: State) -> str:
    """What becomes of a state: refused when loaded, refused when used, found out by `verify`, or it is as good."""
    loader = case.loader()
    try:
        loader.load_state_dict(state)
    except HeadraceError as error:
        fit_to_show(error)
        assert loader._place is None, "something was changed"
        return "refused"
    try:
        found = stream(loader)
    except HeadraceError:
        return "refused when used"
    finally:
        loader.close()
    try:
        report = verified(state, case.data)
    except HeadraceError:
        return "found out"
    if not report.is_reachable:
        return "found out"
    assert found == good_stream(case.name), "another stream, and nobody noticed"
    return "as good"


@cache
def good_stream(name: str) -> list[Any]:
    loader = scene(name).loader()
    loader.load_state_dict(scene(name).state)
    return stream(loader)


def is_inside_a_row(path: Place) -> bool:
    """Where in a row a piece begins is known to nobody who does not tokenize the rows before it."""
    return path[0] == "lanes" and path[2] in ("held", "rest") and path[-1] == 4


ODD: tuple[Any, ...] = (-1, math.nan, True, "7", None, [], 1 << 70, 0.5)


@pytest.mark.parametrize("name", SCENES)
def test_a_number_that_is_off_by_one_is_noticed_wherever_it_stands(name: str) -> None:
    case = scene(name)
    assert verified(case.state, case.data).is_reachable
    parts = opened(case.state)
    for path in numbers(parts):
        for by in (-1, 1):
            if not is_inside_a_row(path):
                outcome(case, changed(case.state, path, at(parts, path) + by))


@pytest.mark.parametrize("name", SCENES)
def test_what_is_no_number_is_noticed_wherever_it_stands(name: str) -> None:
    case = scene(name)
    for n, path in enumerate(numbers(opened(case.state))):
        for value in (1 << 40, ODD[n % len(ODD)]):
            if not is_inside_a_row(path) or type(value) is not int:
                outcome(case, changed(case.state, path, value))


@pytest.mark.parametrize("name", ["packed", "dealt anew"])
def test_where_a_piece_begins_can_only_be_checked_for_sense(name: str) -> None:
    case = scene(name)
    parts = opened(case.state)
    for path in [path for path in numbers(parts) if is_inside_a_row(path)]:
        for start in (at(parts, path) + 1, 1 << 30):
            loader = case.loader()
            try:
                loader.load_state_dict(changed(case.state, path, start))
                stream(loader)
            except StateError:
                continue
            assert start != 1 << 30


KEYS: list[Place] = [
    (),
    ("lanes", 0),
    ("lanes", 0, "src", 0),
    ("sources", 0),
]


@pytest.mark.parametrize("path", KEYS, ids=str)
def test_a_field_that_is_missing_or_new_is_named(path: Place) -> None:
    case = scene("packed")
    for key in at(opened(case.state), path):
        broken = opened(case.state)
        del at(broken, path)[key]
        assert (
            outcome(case, {**closed(broken), "checksum": ""} if key == "checksum" else closed(broken)) == "refused"
        ), key
    more = opened(case.state)
    at(more, path)["__class__"] = {"format": 2}
    if path and path[-2:-1] != ("src",):
        assert "__class__" in refused(lambda: case.loader().load_state_dict(closed(more)))


@pytest.mark.parametrize("name", ["lanes", "sources", "recipe", "fingerprint"])
@pytest.mark.parametrize("value", [None, 7, [], "", "[", "[" * 100_000, "[NaN]", "{}", '"x"', "[1]", "1" * 5000])
def test_a_text_that_is_no_text_or_no_json_is_refused(name: str, value: Any) -> None:
    case = scene("packed")
    broken = {**case.state, name: value}
    if name in ("lanes", "sources") or not isinstance(value, str):
        assert outcome(case, broken) == "refused"
        assert name in refused(lambda: case.loader().load_state_dict(broken))
    else:  # of another recipe, for all that is known
        assert outcome(case, broken) in ("refused", "found out")


def test_a_checkpoints_own_fields_beside_the_state_are_left_alone() -> None:
    case = scene("packed")
    own = {"my.trainer": {"step": 3}, "a/b": None, "step": 3, "model": {"w": object()}}
    assert outcome(case, {**own, **case.state}) == "as good"


@pytest.mark.parametrize(
    "value", [None, 5, "state", [], [{}], b"{}", {}, {"lanes": "[]"}, {"format": 1}, {"format": "1"}]
)
def test_what_is_no_state_is_refused(value: Any) -> None:
    refused(lambda: scene("packed").loader().load_state_dict(value))
    refused(lambda: merge_states([value]))


@pytest.mark.parametrize(
    "text", [{}, {"state": None}, {"state": 7}, {"state": {"m": 1}}, {"state": "{"}, {"state": "[]"}]
)
def test_what_is_no_state_as_text_is_refused_where_one_is_expected(text: Any) -> None:
    """For example a state that was not made a text of."""
    loader = scene("packed").loader()
    before = loader.state_dict()
    with pytest.raises(StateError):
        loader.stateful.load_state_dict(text)
    assert loader.state_dict() == before


@pytest.mark.parametrize("number", [FORMAT + 1, 5])
def test_a_state_of_a_newer_version_says_to_upgrade(number: int) -> None:
    case = scene("packed")
    newer = {**case.state, "format": number, "clock": 7}
    said = f"written by a newer version (format {number}, this one reads up to 2); upgrade headrace"
    assert said in refused(lambda: case.loader().load_state_dict(newer))
    assert said in refused(lambda: merge_states([newer]))
    assert said in refused(lambda: verified(newer, case.data))


# --- of something else


def test_a_state_of_other_data_names_what_differs() -> None:
    data = several(SHAPES, LENGTHS)
    ranks = Ranks(recipe_of(data, batch_size=2), data, lanes=2)
    ranks.steps(3)
    state = ranks.state()

    def loading(**fields: Any) -> str:
        loader = loader_of(recipe_of(data, batch_size=2, **fields), data)
        return refused(lambda: loader.load_state_dict(state), HeadraceError)

    both = loading(seed=7, shuffle=False, parts=[part(data[0], limit=9), part(data[1])])
    for said in ("order.seed: the state was made with 0, here it is 7", "order.shuffle: the state was made with True"):
        assert said in both
    assert "limit of txt:data0:text: the state was made with None, here it is 9" in both
    others = several([[[3]]] * 4)[2:]
    other = loader_of(recipe_of(others, batch_size=2), others)
    said = "made with txt:data0:text, txt:data1:text, here the sources are txt:data2:text, txt:data3:text: none"
    assert said in refused(lambda: other.load_state_dict(state))
    renamed = recipe_of(data, batch_size=2, parts=[part(data[1], name="txt:data0:text"), part(data[0], name="b")])
    said = "the state was made with the source txt:data0:text, here it is txt:data1:text; give the new source another"
    assert said in refused(lambda: loader_of(renamed, data).load_state_dict(state))


def test_a_state_of_another_commit_names_both() -> None:
    case = scene("rows")
    moved = edited(case.state, lambda s, lanes, facts: facts[0].update(revision="0" * 40))
    said = refused(lambda: case.loader().load_state_dict(moved), Changed)
    assert f"txt:data0:text: revision: the state was made on {'0' * 40}, here it is memory" in said


def test_credits_of_the_first_format_that_add_up_to_nothing_only_together_are_settled() -> None:
    """So it wrote those of lanes that were dealt anew. Of other lanes, and since then, a number is wrong."""
    case = scene("dealt anew")
    state = owing(case.state, 1)
    assert outcome(case, state) == "as good"
    loader = case.loader()
    loader.load_state_dict(state)
    assert credits_in(loader.state_dict()) == credits_in(case.state) != credits_in(state)
    for name, number in (("dealt anew", 2), ("packed", 1)):
        case = scene(name)
        wrong = owing(case.state, number)
        assert "mix: the credits of its sources add up to 5, not to 0" in refused(
            lambda: case.loader().load_state_dict(wrong)  # noqa: B023
        )


def owing(state: State, number: int) -> State:
    """In the format of this number, with something that the first lane is owed by the last."""

    def owe(state: State, lanes: list[State], facts: list[State]) -> None:
        lanes[0]["mix"][0] += 5
        lanes[-1]["mix"][0] -= 5
        state["format"] = number

    found = edited(state, owe)
    return found if number > 1 else {key: value for key, value in found.items() if key != CHECKSUM}


def credits_in(state: State) -> list[list[int]]:
    return [lane["mix"] for lane in json.loads(state["lanes"])]


def test_passes_that_do_not_go_together_with_the_epoch_are_named() -> None:
    data = several([[[5, 2]]])
    ranks = Ranks(recipe_of(data, batch_size=2), data, lanes=2)
    ranks.steps()
    ranks.steps(2)
    other = loader_of(recipe_of(data, batch_size=2, epochs=3), data)
    said = "the state is in epoch 1, which has the passes 3 to 5 of its sources, and this one began with pass 1; were"
    assert said in refused(lambda: other.load_state_dict(ranks.state()))


def test_more_passes_than_a_part_may_have_are_named() -> None:
    data = several(SHAPES, LENGTHS)
    ranks = Ranks(recipe_of(data, batch_size=2, pack=packed()), data, lanes=2)
    ranks.steps(60)
    fewer = recipe_of(data, batch_size=2, pack=packed(), parts=[part(data[0]), part(data[1], passes=1)])
    said = refused(lambda: loader_of(fewer, data).load_state_dict(ranks.state()))
    assert re.search(
        r"lane 0: txt:data1:text: the state is in pass \d+, with this recipe the source ends after pass 0;", said
    )


# --- when


@pytest.mark.parametrize("name", SCENES)
def test_after_a_refused_load_the_loader_goes_on_as_before(name: str) -> None:
    case = scene(name)
    whole, loader = case.loader(), case.loader()
    for one in (whole, loader):
        one.load_state_dict(case.state)
        stream(one, 1)
        one.close()
    before = loader.state_dict()
    states: list[State] = [
        {**case.state, "format": 9},
        {**case.state, "m": -1},
        edited(case.state, lambda s, lanes, facts: lanes[0]["src"][0].update(c=1 << 50)),
        edited(case.state, lambda s, lanes, facts: lanes[-1]["src"][-1].update(s=[[1 << 40, 1]])),
        edited(case.state, lambda s, lanes, facts: facts[0].update(revision="moved")),
        {"batches_consumed": 3, "batch_size": 77},
        {"resume_state": {"datasets": []}},
    ]
    for broken in states:
        refused(lambda: loader.load_state_dict(broken), HeadraceError)  # noqa: B023
        assert loader.state_dict() == before
    assert stream(loader) == stream(whole)


def test_a_state_is_not_loaded_under_a_live_iterator() -> None:
    case = scene("packed")
    loader = case.loader()
    batches = iter(loader)
    next(batches)
    said = refused(lambda: loader.load_state_dict(case.state))
    assert "load_state_dict while an iterator over this loader is in use" in said
    assert next(batches).m == 1
    loader.close()
    loader.load_state_dict(case.state)
    assert next(iter(loader)).m == case.state["m"]


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("fields", [{}, {"pack": packed(), "epochs": 1}, {"pack": packed()}], ids=str)
def test_states_from_the_very_start_and_the_end_of_an_epoch_work(lanes: int, fields: dict[str, Any]) -> None:
    data = several([[[5, 2]]])
    recipe = recipe_of(data, batch_size=2, **fields)
    loader = loader_of(recipe, data, lanes=lanes)
    states = [through_json(loader.state_dict())]
    first = stream(loader, 1000 if recipe.epochs or not recipe.pack else 5)
    states.append(through_json(loader.state_dict()))
    loader.close()
    for state, wanted in zip(states, (first, stream(loader)), strict=True):
        again = loader_of(recipe, data, lanes=lanes)
        again.load_state_dict(state)
        assert again.state_dict() == state
        assert stream(again, len(wanted)) == wanted
        assert verified(state, data).is_reachable


@pytest.mark.parametrize("groups", [[[0]], [[], [0, 0]]], ids=str)
def test_a_state_of_data_without_a_row_works(groups: list[list[int]]) -> None:
    data = several([groups])
    recipe = recipe_of(data, batch_size=2)
    loader = loader_of(recipe, data, lanes=2)
    for _ in range(2):
        assert list(loader) == []
        state = through_json(loader.state_dict())
        assert verified(state, data).is_reachable
        again = loader_of(recipe, data, lanes=2)
        again.load_state_dict(state)
        assert list(again) == []


# --- anything anywhere


ANYTHING = st.one_of(
    st.integers(-3, 60),
    st.sampled_from([1 << 31, 1 << 62, 1 << 64, -(1 << 63), 0.5, math.nan, math.inf, True, None, "", "x", "\x1b[31m"]),
    st.sampled_from([[], {}, [[]], [[0, 0, 0, 0, 0, -1]], [0], {"e": 0}]),
)


@cache
def places(name: str) -> list[Place]:
    return [path for path, _ in everywhere(opened(scene(name).state)) if path[0] not in ("resume_state", "revisions")]


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@given(name=st.sampled_from(SCENES), ranks=st.sampled_from([1, 3]), draws=st.data())
def test_whatever_stands_in_a_state_it_is_refused_or_read(name: str, ranks: int, draws: st.DataObject) -> None:
    case = scene(name)
    broken = opened(case.state)
    for path in draws.draw(st.lists(st.sampled_from(places(name)), min_size=1, max_size=3)):
        value = draws.draw(ANYTHING)
        try:
            if draws.draw(st.booleans()):
                at(broken, path[:-1])[path[-1]] = value
            else:
                del at(broken, path[:-1])[path[-1]]
        except (KeyError, IndexError, TypeError):
            continue  # what is above it was changed first
    state = closed(broken)
    loader = case.loader(ranks)
    try:
        loader.load_state_dict(state)
        stream(loader, 3)
    except HeadraceError as error:
        fit_to_show(error)
    finally:
        loader.close()
    try:
        verified(state, case.data)
    except HeadraceError as error:
        fit_to_show(error)


def test_a_recipe_may_have_as_many_values_as_the_state_that_it_stands_in() -> None:
    """A long skip list, say: it is read once the recipe changed."""
    data = several([[[20]]], ((5,),))
    state = loader_of(recipe_of(data, batch_size=5), data).state_dict()
    many = recipe_of(data, batch_size=5, skip=Skip(addresses=(f"{data[0].spec}|{',' * MOST_VALUES}|3",)))
    saved = replace(Saved.from_state(state), recipe=json.dumps(many.to_dict()))
    assert saved.read_recipe() == many
    assert MOST_VALUES < state_file.MOST_VALUES

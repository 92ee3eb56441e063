"""How many lanes a run has, and what is said where they are not those that were asked for."""

from __future__ import annotations

import copy
import logging
import pickle
from pathlib import Path
from typing import Any

import pytest
from near import Ledger, Ranks, keys, loader_of, near, packed, recipe_of, several
from serving import UIDS, seen, uids_in, write_rows
from serving import loader_of as loader_of_files

import headrace
from headrace.serve.loader import Loader
from headrace.stage import State

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

SHAPES = [[[13, 0, 9], [17]], [[11], [8]]]
LENGTHS = ((3, 9, 1, 4, 21), (12, 2))
KINDS: dict[str, dict[str, Any]] = {
    "rows": {"batch_size": 2},
    "packed": {"batch_size": 1, "pack": packed(slack=1), "epochs": 1},
}


@pytest.mark.parametrize(
    ("asked", "ranks", "workers", "wanted"),
    [(12, 5, 0, 15), (12, 4, 0, 12), (1, 3, 0, 3), (7, 2, 3, 8), (None, 5, 0, 5), (None, 3, 2, 6), (12, 12, 4, 12)],
)
def test_lanes_of_a_new_run_are_rounded_up_to_what_the_ranks_divide(
    asked: int | None, ranks: int, workers: int, wanted: int, caplog: pytest.LogCaptureFixture
) -> None:
    data = several(SHAPES)
    recipe = recipe_of(data, batch_size=2)
    with caplog.at_level(logging.INFO, "headrace"):
        run = Ranks(recipe, data, (ranks, workers), lanes=asked)
        assert run.state()["L"] == wanted
    said = [record.message for record in caplog.records if record.message.startswith("lanes=")]
    assert said == ([] if asked in (None, wanted) else [said[0]] * ranks)
    if said:
        assert said[0] == f"lanes={asked}: {wanted} are used, the next number that {ranks} ranks divide"
    Ledger(data, packed=False).add(run.steps()).assert_only(0)


@pytest.mark.parametrize("kind", KINDS)
def test_an_elastic_job_goes_through_any_number_of_ranks(kind: str) -> None:
    """With one `lanes=`: where ranks do not divide those of the state, they are the next multiple of it."""
    data = several(SHAPES, LENGTHS)
    recipe = recipe_of(data, **KINDS[kind])
    ledger, state, found = Ledger(data, packed=kind == "packed"), None, []
    for ranks in (4, 5, 3, 1, 8, 7, 2):
        run = Ranks(recipe, data, (ranks, 0), state, lanes=12)
        ledger.add(run.steps(1))
        state = run.state()
        found.append(state["L"])
    assert found == [12, 15, 15, 15, 16, 14, 14]
    ledger.add(Ranks(recipe, data, (2, 0), state).steps()).assert_only(0)


def test_memory_is_counted_after_rounding(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr("headrace.serve.loader.check_memory", lambda pipeline, lanes, most: asked.append(lanes))
    data = several(SHAPES)
    recipe = recipe_of(data, batch_size=2)
    state = loader_of(recipe, data, rank=0, world_size=5, lanes=11).state_dict()
    assert (state["L"], asked) == (15, [3])
    again = loader_of(recipe, data, lanes=4)
    next(iter(again))
    loader_of(recipe, data, rank=0, world_size=3, lanes=11).load_state_dict(again.state_dict())
    assert asked == [3, 4, 4]


def test_lanes_that_a_state_overrules_are_told(caplog: pytest.LogCaptureFixture) -> None:
    data = several(SHAPES)
    recipe = recipe_of(data, batch_size=2)
    before = loader_of(recipe, data, lanes=4)
    next(iter(before))
    state: State = before.state_dict()
    rest = keys(list(before))

    def said(**serving: Any) -> list[str]:
        caplog.clear()
        loader = loader_of(recipe, data, **serving)
        loader.load_state_dict(state)
        assert loader.state_dict()["L"] == 4
        assert keys(list(loader)) == rest
        return [record.message for record in caplog.records if record.levelno >= logging.WARNING]

    assert said() == said(lanes=4) == said(num_workers=2) == []
    assert said(lanes=6) == [
        "lanes=6: the state has 4 lanes and keeps them, as 1 ranks divide them; lanes= is for a new run, or for ranks "
        "that do not"
    ]


# --- copies


def pickled(loader: Loader) -> Loader:
    found: Loader = pickle.loads(pickle.dumps(loader))  # noqa: S301 - our own
    return found


@pytest.mark.parametrize("steps", [None, 0, 3])
@pytest.mark.parametrize("kind", ["rows", "tokens", "endless"])
def test_a_pickled_loader_goes_on_where_it_is(kind: str, steps: int | None, tmp_path: Path) -> None:
    pattern = write_rows(tmp_path)
    loader = loader_of_files(kind, pattern)
    if steps is not None:
        batches = iter(loader)
        for _ in range(steps):
            next(batches)
    again = pickled(loader)
    third = copy.deepcopy(loader)
    assert again.state_dict() == third.state_dict() == loader.state_dict()
    wanted = [seen(batch) for batch in loader]
    assert [seen(batch) for batch in again] == [seen(batch) for batch in third] == wanted
    assert again.state_dict() == loader.state_dict()
    fresh = loader_of_files(kind, pattern)
    fresh.load_state_dict(again.state_dict())
    last = pickled(fresh)
    assert seen(next(iter(fresh))) == seen(next(iter(last)))


def test_a_loader_that_was_only_told_where_to_go_can_be_pickled(tmp_path: Path) -> None:
    pattern = write_rows(tmp_path)
    loader = loader_of_files("rows", pattern)
    loader.load_state_dict({"batches_consumed": 4, "batch_size": 5})
    again = pickled(loader)
    again.load_state_dict({"batches_consumed": 0, "batch_size": 5})
    assert sorted(uids_in(again)) == UIDS


def test_changes_of_weights_are_among_the_public_names() -> None:
    change = headrace.Change(at=10, weights={"a": 2.0})
    assert headrace.Mix(schedule=(change,)).schedule == (change,)

"""`headrace rows --state S --step N`: the rows of any step of a run, also of one before the state."""

from __future__ import annotations

from typing import Any

import pytest
from near import Data, Ranks, loader_of, near, packed, part, recipe_of, several

from headrace.batch import Batch
from headrace.errors import StateError
from headrace.recipe import Mix, Recipe, Skip
from headrace.run import Run
from headrace.serve.peek import Peek, peek
from headrace.serve.pipeline import Pipeline
from headrace.serve.state import Saved
from headrace.tools import rows as command

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

FIELDS: dict[str, dict[str, Any]] = {
    "rows": {"batch_size": 4},
    "endless rows": {"batch_size": 4, "mix": Mix(stop="loop")},
    "skipped rows": {"batch_size": 4, "skip": Skip(addresses=("txt:data0:text|shard-0|3",), steps=(4,))},
    "endless tokens": {"batch_size": 2, "pack": packed()},
    "tokens": {"batch_size": 2, "pack": packed(), "epochs": 1},
    "none": {"batch_size": 2, "pack": packed(method="none"), "epochs": 1},
}


def looked_up(recipe: Recipe, data: list[Data], state: Any, m: int) -> Peek:
    opened = {one.spec: one.memory for one in data}
    saved = Saved.from_state(state)
    pipeline = Pipeline(
        recipe, Run(), opener=lambda source, run, revision: opened[str(source)], kept=saved.facts, size=saved.size
    )
    return peek(saved, pipeline, m)


def assert_same(found: Peek, batch: Batch) -> None:
    if batch.packed:
        assert [list(spans) for spans in found.sequences] == [spans for spans in batch.spans if spans]
    else:
        assert list(found.rows) == batch.addresses


@pytest.mark.parametrize("kind", FIELDS)
@pytest.mark.parametrize("lanes", [1, 3])
def test_a_step_before_the_state_is_what_it_was(kind: str, lanes: int) -> None:
    data = several([[[9, 8]], [[13]]], [[5, 30], [7]])
    recipe = recipe_of(data, **FIELDS[kind])
    ranks = Ranks(recipe, data, lanes=lanes)
    given: dict[int, Batch] = {}
    for _ in range(3):
        given |= {batch.m: batch for batch in ranks.steps(12)}
        for m, batch in given.items():
            assert_same(looked_up(recipe, data, ranks.state(), m), batch)


def test_a_token_limit_counts_in_the_epochs_before(caplog: pytest.LogCaptureFixture) -> None:
    data = several([[[9]], [[12]]], [[11], [7]])
    recipe = recipe_of(data, parts=[part(data[0], tokens=150), part(data[1])], batch_size=1, epochs=1, pack=packed())
    ranks = Ranks(recipe, data, lanes=2)
    given = {batch.m: batch for _ in range(3) for batch in ranks.steps()}
    for m, batch in given.items():
        assert_same(looked_up(recipe, data, ranks.state(), m), batch)


def test_a_run_whose_lanes_were_dealt_anew_says_so() -> None:
    data = several([[[30]]])
    recipe = recipe_of(data, batch_size=2)
    first = Ranks(recipe, data, (1, 0), lanes=4)
    first.steps(5)
    ranks = Ranks(recipe, data, (3, 0), first.state())
    ranks.steps(1)
    with pytest.raises(StateError, match=r"micro-batch 2 was delivered before this state.*dealt anew at m=5"):
        looked_up(recipe, data, ranks.state(), 2)
    ranks.steps()
    ranks.steps(2)
    with pytest.raises(StateError, match="the lanes or the recipe were others then; ask a state from that time"):
        looked_up(recipe, data, ranks.state(), 2)


def test_what_takes_long_is_told_on_the_way(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "SECONDS_BETWEEN_LINES", 0.0)
    with command._progress() as progress:
        progress(3, 1200)
    assert capsys.readouterr().err == "3 of 1,200 micro-batches\n"


def test_a_lane_says_how_far_it_is() -> None:
    data = several([[[90]]])
    recipe = recipe_of(data, batch_size=2, pack=packed())
    with loader_of(recipe, data) as loader:
        for _, _ in zip(range(12), loader, strict=False):
            state = loader.state_dict()
    told: list[tuple[int, int]] = []
    opened = {one.spec: one.memory for one in data}
    saved = Saved.from_state(state)
    pipeline = Pipeline(
        recipe, Run(), opener=lambda source, run, revision: opened[str(source)], kept=saved.facts, size=saved.size
    )
    peek(saved, pipeline, 9, lambda done, total: told.append((done, total)))
    assert told == [(done, 9) for done in range(9)]

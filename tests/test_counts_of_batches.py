"""Checkpoints that count batches lead to where these batches lead, and soon."""

from __future__ import annotations

from typing import Any

import pytest
from near import Data, Ranks, keys, loader_of, near, packed, part, recipe_of, several

from headrace.batch import Batch
from headrace.recipe import Mix, Recipe
from headrace.serve.lane import Lane
from headrace.serve.loader import Loader
from headrace.stage import State

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

LENGTHS = ((3, 9, 1, 30, 4), (12, 2))
PACKED: dict[str, dict[str, Any]] = {
    "best fit": {"batch_size": 2, "pack": packed(slack=1), "epochs": 1},
    "concat": {"batch_size": 1, "pack": packed(method="concat"), "epochs": 1},
    "none": {"batch_size": 2, "pack": packed(40, method="none"), "epochs": 1},
    "until the first source ends": {"batch_size": 2, "mix": Mix(stop="first_exhausted")},
}


def counted(loader: Loader, batches: int, size: int) -> Loader:
    loader.load_state_dict({"batches_consumed": batches, "batch_size": size})
    return loader


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("tail", ["pad", "wrap", "drop"])
@pytest.mark.parametrize("kind", PACKED)
def test_a_count_leads_over_the_ends_of_epochs_that_cannot_be_counted(kind: str, tail: str, lanes: int) -> None:
    data = several([[[9, 4], [7]], [[6]]], LENGTHS)
    recipe = recipe_of(data, tail=tail, **PACKED[kind])
    loader, wanted = loader_of(recipe, data, lanes=lanes), list[Batch]()
    for _ in range(4):
        wanted += list(loader)
    for count in range(0, len(wanted), 3):
        again = counted(loader_of(recipe, data, lanes=lanes), count, recipe.batch_size)
        assert keys([next(iter(again))]) == keys(wanted[count : count + 1]), count


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("fields", [{"batch_size": 2, "pack": packed()}, {"batch_size": 3, "mix": Mix(stop="loop")}])
def test_a_count_leads_into_the_epoch_of_steps_that_it_is_in(fields: dict[str, Any], ranks: int) -> None:
    data = several([[[9, 4], [7]]], LENGTHS)
    recipe = recipe_of(data, **fields)
    run = Ranks(recipe, data, (ranks, 0), lanes=4, steps_per_epoch=5)
    wanted = [run.steps() for _ in range(4)]
    assert [len(epoch) for epoch in wanted] == [5 * ranks] * 4
    for count in (0, 1, 4, 5, 7, 10, 13):
        other = Ranks(recipe, data, (ranks, 0), lanes=4, steps_per_epoch=5)
        for loader in other.loaders:
            counted(loader, count, recipe.batch_size)
        epoch, done = divmod(count, 5)
        assert keys(other.steps()) == keys(wanted[epoch][done * ranks :])
        assert keys(other.steps()) == keys(wanted[epoch + 1])
        assert other.state()["epoch"] == epoch + 2


# --- in blocks

MANY: dict[str, tuple[list[Any], dict[str, Any]]] = {
    "one source": ([[[700, 50], [1500]]], {}),
    "in file order": ([[[700, 50], [1500]]], {"shuffle": False}),
    "a mix": ([[[700, 50], [900]], [[300]], [[1000]]], {"weights": [0.6, 0.25, 0.15]}),
    "a mix that repeats": ([[[400]], [[300]]], {"weights": [0.6, 0.4], "mix": Mix(stop="loop")}),
    "two passes": ([[[400]], [[300]]], {"epochs": 2}),
}


def many(name: str) -> tuple[Recipe, list[Data]]:
    shapes, fields = MANY[name]
    data = several(shapes)
    weights = dict(fields).pop("weights", [1.0] * len(data))
    parts = [part(one, weight=weight) for one, weight in zip(data, weights, strict=True)]
    rest = {key: value for key, value in fields.items() if key != "weights"}
    return recipe_of(data, parts=parts, batch_size=3, **rest), data


def watched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The micro-batches that were passed one by one."""
    found: list[int] = []
    true = Lane.pass_by

    def pass_by(lane: Lane, m: int) -> None:
        found.append(m)
        true(lane, m)

    monkeypatch.setattr(Lane, "pass_by", pass_by)
    return found


@pytest.mark.parametrize("topology", [(1, 1), (1, 4), (2, 4)], ids=str)
@pytest.mark.parametrize("name", MANY)
def test_rows_that_are_counted_in_blocks_lead_to_the_same_state(
    name: str, topology: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, data = many(name)
    ranks, lanes = topology
    one_by_one = watched(monkeypatch)
    run, at = Ranks(recipe, data, (ranks, 0), lanes=lanes), 0
    for count in (1, 40, 177, 233, 311):
        run.steps((count // ranks) - at)
        at = count // ranks
        other = Ranks(recipe, data, (ranks, 0), lanes=lanes)
        one_by_one.clear()
        for loader in other.loaders:
            counted(loader, at, 3)
        assert bare(other.state()) == bare(run.state())
    assert len(one_by_one) <= 64 * lanes * ranks + at // 2
    assert len(one_by_one) < at * ranks or lanes > 1


def bare(state: State) -> State:
    """What is for people left out."""
    return {key: value for key, value in state.items() if key != "resume_state"}


def test_most_of_a_large_source_is_passed_in_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    data = several([[[20_000, 20_000]]])
    recipe = recipe_of(data, batch_size=4)
    one_by_one = watched(monkeypatch)
    loader = counted(loader_of(recipe, data, lanes=4), 9_900, 4)
    assert len(one_by_one) < 200
    seen = [uid for batch in loader for uid in batch["uid"]]
    assert len(seen) == len(set(seen)) == 400

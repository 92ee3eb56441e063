"""Where an epoch ends: for all ranks at the same step, and for any number of ranks at the same micro-batch."""

from __future__ import annotations

from typing import Any

import pytest
from near import Data, Ledger, Ranks, keys, near, packed, recipe_of, several
from states import verified

from headrace.batch import Batch
from headrace.errors import DataError
from headrace.fetch.plan import Coordinate
from headrace.recipe import Mix, Recipe, Skip
from headrace.serve.crew import Crew
from headrace.serve.loader import Loader
from headrace.serve.steps import Slots
from headrace.stage import State

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

SHAPES = [[[31, 7], [40], [12]], [[9, 30]]]
LENGTHS = ((3, 9, 1, 30, 4), (12, 2))

COUNTED: dict[str, dict[str, Any]] = {
    "rows": {"batch_size": 3},
    "rows, two passes": {"batch_size": 5, "epochs": 2},
    "few rows": {"batch_size": 16},
}
NOT_COUNTED: dict[str, dict[str, Any]] = {
    "best fit": {"batch_size": 2, "pack": packed(slack=1), "epochs": 1},
    "concat": {"batch_size": 1, "pack": packed(method="concat", overlap=2), "epochs": 1},
    "none": {"batch_size": 3, "pack": packed(40, method="none"), "epochs": 1},
    "until the first source ends": {"batch_size": 2, "mix": Mix(stop="first_exhausted")},
    "windows": {"batch_size": 3, "coordinate": "windows"},
    "two passes of few tokens": {"batch_size": 6, "pack": packed(64), "epochs": 2},
    "skipped micro-batches": {
        "batch_size": 2,
        "pack": packed(slack=1),
        "epochs": 1,
        "skip": Skip(steps=(3, 30, 61, 77, 90, 120, 130, 150)),
    },
}


def made(fields: dict[str, Any], tail: str) -> tuple[Recipe, list[Data]]:
    fields = dict(fields)
    coordinate: Coordinate = fields.pop("coordinate", "rows")
    data = several(SHAPES, LENGTHS, coordinate)
    return recipe_of(data, tail=tail, **fields), data


def epochs(run: Ranks, count: int = 3) -> list[list[Batch]]:
    return [run.steps() for _ in range(count)]


def divisors(lanes: int) -> list[int]:
    return [ranks for ranks in range(1, lanes + 1) if lanes % ranks == 0]


# --- at the same step


def state_at(recipe: Recipe, data: list[Data], lanes: int, steps: int) -> tuple[State, list[Batch]]:
    """One rank alone, so m is any number."""
    run = Ranks(recipe, data, (1, 0), lanes=lanes)
    given = run.steps(steps)
    return run.state(), given


@pytest.mark.parametrize("tail", ["pad", "wrap", "drop"])
@pytest.mark.parametrize("kind", [*COUNTED, "best fit", "windows"])
def test_ranks_end_together_from_any_micro_batch_and_also_when_asked_again(kind: str, tail: str) -> None:
    """Resumed where the ranks do not divide m, they fill slots past the end; a new `iter()` there must see that."""
    recipe, data = made((COUNTED | NOT_COUNTED)[kind], tail)
    tried = 0
    for lanes in (4, 6):
        total = len(state_at(recipe, data, lanes, 10_000)[1])
        for m in sorted({0, 1, total // 2, total - 1, total - 2, total - 3} & set(range(total))):
            state, given = state_at(recipe, data, lanes, m)
            for ranks in divisors(lanes)[1:]:
                run = Ranks(recipe, data, (ranks, 0), state)
                found, then = run.steps(), run.steps()
                if tail == "pad":
                    Ledger(data, recipe.pack is not None).add([*given, *found]).assert_only(*range(recipe.epochs or 1))
                steps = len(found) // ranks
                for left in {steps - 1, steps} - {-1}:
                    other = Ranks(recipe, data, (ranks, 0), state)
                    before = other.steps(left)
                    other._iterators = []  # the trainer leaves its loop, and begins another one
                    after = other.steps()
                    assert keys([*before, *after]) == keys(found)
                    assert keys(other.steps()) == keys(then)
                    tried += 1
    assert tried > 4


@pytest.mark.parametrize("tail", ["pad", "wrap", "drop"])
@pytest.mark.parametrize("kind", ["best fit", "windows"])
def test_a_rank_whose_step_fails_and_is_tried_again_ends_with_the_others(
    kind: str, tail: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At every step another rank fails once, and the others do not know."""
    recipe, data = made(NOT_COUNTED[kind], tail)
    wanted = Ranks(recipe, data, (3, 0), lanes=6).steps()
    run = Ranks(recipe, data, (3, 0), lanes=6)
    failing: list[Loader] = []
    real = Slots._working

    def working(self: Slots, m: int) -> Crew:
        if self._loader in failing:
            failing.remove(self._loader)
            raise DataError("not now")
        return real(self, m)

    monkeypatch.setattr(Slots, "_working", working)
    found, failed = run.step(), 0
    while batches := run.step():
        found += batches
        rank = failed % 3
        failing.append(run.loaders[rank])
        try:
            next(run._iterators[rank])
        except DataError:
            failed += 1
        except StopIteration:
            failing.clear()  # it has nothing to make any more
    assert keys(found) == keys(wanted)
    assert failed > 3


@pytest.mark.parametrize("tail", ["pad", "wrap", "drop"])
@pytest.mark.parametrize("kind", [*COUNTED, *NOT_COUNTED, "last documents empty"])
def test_a_run_that_resumes_near_the_end_of_an_epoch_has_as_many_steps_as_one_that_was_not_stopped(
    kind: str, tail: str
) -> None:
    """The steps that only fill slots too: a trainer counts them, and makes a step of its optimizer for each."""
    data = several(SHAPES, ((9, 0, 0), (0, 0, 4)))
    recipe = recipe_of(data, tail=tail, batch_size=1, pack=packed(40, method="none"), epochs=1)
    if kind != "last documents empty":
        recipe, data = made((COUNTED | NOT_COUNTED)[kind], tail)
    for lanes, ranks in ((4, 2), (6, 3), (6, 6)):
        run = Ranks(recipe, data, (ranks, 0), lanes=lanes)
        states, steps = [run.state()], []
        while batches := run.step():
            steps.append([(batch.m, batch.pad) for batch in batches])
            states.append(run.state())
        then = keys(run.steps())
        for step in range(max(0, len(steps) - 2 * lanes // ranks - 3), len(steps) + 1):
            again = Ranks(recipe, data, (ranks, 0), states[step])
            found = [(batch.m, batch.pad) for batch in again.steps()]
            assert found == [place for one in steps[step:] for place in one], (lanes, ranks, step, len(steps))
            assert keys(again.steps()) == then


@pytest.mark.parametrize("tail", ["pad", "drop"])
def test_ranks_that_go_on_from_one_rank_and_are_stopped_again_have_as_many_steps(tail: str) -> None:
    """One rank passes by what only fills slots; the ranks after it do not."""
    data = several([[[9, 8, 7]]], ((9, 0, 0, 0),))
    recipe = recipe_of(data, tail=tail, batch_size=1, pack=packed(16), epochs=1)
    tried = 0
    for lanes in (4, 6, 12):
        total = len(state_at(recipe, data, lanes, 10_000)[1])
        for ranks in divisors(lanes)[1:]:
            for m in range(max(0, total - 4), total):
                run = Ranks(recipe, data, (ranks, 0), state_at(recipe, data, lanes, m)[0])
                states, steps = [run.state()], []
                while batches := run.step():
                    steps.append([(batch.m, batch.pad) for batch in batches])
                    states.append(run.state())
                for step, state in enumerate(states):
                    found = [(batch.m, batch.pad) for batch in Ranks(recipe, data, (ranks, 0), state).steps()]
                    assert found == [place for one in steps[step:] for place in one], (lanes, ranks, m, step)
                    tried += 1
    assert tried > 50


def test_a_lane_that_a_skipped_step_emptied_stays_empty_after_a_resume() -> None:
    """What it looked for and did not find is in the state of the batch after it, on one rank too."""
    data = several([[[5, 4]]], ((3,),))
    fields: dict[str, Any] = {"batch_size": 4, "pack": packed(16, slack=1), "epochs": 1, "shuffle": False}
    recipe = recipe_of(data, skip=Skip(steps=(0, 1, 4, 5)), **fields)
    straight = Ranks(recipe, data, (1, 0), lanes=3)
    states, given = [straight.state()], []
    while batches := straight.step():
        given += batches
        states.append(straight.state())
    assert given
    for step, state in enumerate(states):
        assert keys(Ranks(recipe, data, (1, 0), state).steps()) == keys(given[step:]), step
        assert verified(state, data).all_problems() == []


@pytest.mark.parametrize("tail", ["pad", "wrap", "drop"])
@pytest.mark.parametrize("kind", COUNTED)
def test_what_filled_slots_past_the_end_does_not_make_an_epoch_longer(kind: str, tail: str) -> None:
    recipe, data = made(COUNTED[kind], tail)
    for lanes, ranks in ((6, 2), (6, 3), (12, 4)):
        for m in (1, 2, 3, 5):
            state, _ = state_at(recipe, data, lanes, m)
            straight = epochs(Ranks(recipe, data, (ranks, 0), state))
            run = Ranks(recipe, data, (ranks, 0), state)
            run.steps(len(straight[0]) // ranks)
            at_the_end = run.state()
            assert verified(at_the_end, data).all_problems() == []
            for other in divisors(lanes):
                again = Ranks(recipe, data, (other, 0), at_the_end)
                left, then = again.steps(), epochs(again, 2)
                if tail == "pad":
                    assert left == [], "nothing is left of this epoch"
                else:  # what these ranks could not all have is there for others
                    assert len(left) < (ranks if tail == "drop" else lanes)
                assert_same(then, straight[1:], tail)


# --- at the same micro-batch


@pytest.mark.parametrize("tail", ["pad", "wrap", "drop"])
@pytest.mark.parametrize("kind", [*COUNTED, *NOT_COUNTED])
def test_all_epochs_have_the_same_micro_batches_on_any_number_of_ranks(kind: str, tail: str) -> None:
    recipe, data = made((COUNTED | NOT_COUNTED)[kind], tail)
    for lanes in (1, 12):
        wanted = epochs(Ranks(recipe, data, (1, 0), lanes=lanes))
        assert lanes == 12 or all(wanted)
        for ranks in divisors(lanes)[1:]:
            for workers in (0, 2) if ranks == 2 else (0,):
                assert_same(epochs(Ranks(recipe, data, (ranks, workers), lanes=lanes)), wanted, tail)


def assert_same(found: list[list[Batch]], wanted: list[list[Batch]], tail: str) -> None:
    """The same micro-batches in each epoch, but for those that only fill slots."""
    for here, there in zip(found, wanted, strict=True):
        one, two = keys(here), keys(there)
        if tail == "wrap":  # what fills slots is not marked: it comes after the lane's own
            numbers = {key[0] for key in one} & {key[0] for key in two}
            assert len(numbers) == min(len(one), len(two)), "of one rank, nothing only fills slots"
            one, two = ([key for key in keys if key[0] in numbers] for keys in (one, two))
        assert one == two


@pytest.mark.parametrize("tail", ["pad", "drop"])
@pytest.mark.parametrize("kind", ["best fit", "concat", "skipped micro-batches"])
def test_a_change_of_ranks_anywhere_does_not_move_the_epochs_after_it(kind: str, tail: str) -> None:
    recipe, data = made(NOT_COUNTED[kind], tail)
    lanes = 6
    wanted = [keys(epoch) for epoch in epochs(Ranks(recipe, data, (1, 0), lanes=lanes))]
    for steps in {0, 1, 2, 7, *range(len(wanted[0]) - 6, len(wanted[0]) + 1)}:
        state, given = state_at(recipe, data, lanes, steps)
        for ranks in (2, 3, 6):
            run = Ranks(recipe, data, (ranks, 0), state)
            left = max(0, 3 - run.loaders[0]._here.epoch)
            found = epochs(run, left)
            if steps == 0:
                assert [keys(epoch) for epoch in found] == wanted
            assert [keys(epoch) for epoch in found[1:]] == wanted[1:], (steps, ranks)
            whole = keys([*given, *found[0]])
            # Where their steps do not end with a round of all lanes, ranks cannot all have one of the last batches.
            assert whole == (wanted[0] if tail == "pad" else wanted[0][: len(whole)])
            assert len(wanted[0]) - len(whole) < (ranks if state["m"] % ranks else 1)


def test_what_ends_with_the_shortest_lane_has_few_batches_that_only_fill_a_step() -> None:
    recipe, data = made(NOT_COUNTED["best fit"], "drop")
    for ranks in (2, 3, 6):
        run = Ranks(recipe, data, (ranks, 0), lanes=6)
        for epoch in epochs(run):
            pads = [batch.m % 6 for batch in epoch if batch.pad]
            assert all(pads.count(lane) <= 4 for lane in set(pads))


def test_a_schedule_acts_at_the_same_rows_on_any_number_of_ranks() -> None:
    from headrace import Change

    data = several(SHAPES, LENGTHS)
    schedule = (Change(at=40, weights={data[0].spec: 5.0}), Change(at=95, weights={data[1].spec: 9.0}))
    for tail in ("pad", "drop"):
        recipe = recipe_of(
            data, tail=tail, batch_size=1, pack=packed(slack=1), epochs=1, mix=Mix(by="tokens", schedule=schedule)
        )
        wanted = [keys(epoch) for epoch in epochs(Ranks(recipe, data, (1, 0), lanes=12))]
        assert wanted[2][0][0] > 95
        for ranks in (2, 3, 4, 6, 12):
            assert [keys(epoch) for epoch in epochs(Ranks(recipe, data, (ranks, 0), lanes=12))] == wanted

"""The places a run can go on from: earlier steps, the middle and the ends of epochs, checkpoints that only count."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
from near import Data, Ledger, Ranks, key, keys, loader_of, near, packed, recipe_of, several, through_json

import headrace
from headrace import merge_states
from headrace.batch import Batch
from headrace.errors import SpecError, StateError
from headrace.recipe import Mix, Recipe
from headrace.serve.lane import Lane
from headrace.serve.loader import Loader
from headrace.stage import Stage, State
from headrace.testing import check_laws

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

SHAPES = [[[13, 0, 9], [], [17]], [[11], [8]]]
LENGTHS = ((3, 9, 1, 0, 4, 21), (12, 2))
ROWS: dict[str, Any] = {"batch_size": 2}
ENDLESS: dict[str, Any] = {"batch_size": 2, "pack": packed(slack=1)}
PASS: dict[str, Any] = {"batch_size": 1, "pack": packed(slack=1), "epochs": 1}
CONCAT: dict[str, Any] = {"batch_size": 1, "pack": packed(method="concat"), "epochs": 1}


def made(fields: dict[str, Any], sources: int = 2) -> tuple[Recipe, list[Data]]:
    data = several(SHAPES[:sources], LENGTHS)
    return recipe_of(data, **fields), data


# --- the laws of stages


class LoaderStage(Stage[Batch]):
    """One epoch of a loader."""

    def __init__(self, loader: Loader, steps: int) -> None:
        self.loader, self.steps = loader, steps
        self._batches: Iterator[Batch] | None = None

    def __next__(self) -> Batch:
        place = self.loader._here
        if place.epoch or place.m >= self.steps:
            raise StopIteration
        if self._batches is None:
            self._batches = iter(self.loader)
        return next(self._batches)

    def state_dict(self) -> State:
        return self.loader.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.close()
        self.loader.load_state_dict(state)

    def close(self) -> None:
        self._batches = None
        self.loader.close()


class LaneStage(Stage[Batch]):
    """What one lane of three has in an epoch."""

    def __init__(self, recipe: Recipe, data: list[Data]) -> None:
        pipeline = loader_of(recipe, data)._pipeline
        pipeline.fix(3)
        self.lane = Lane(pipeline, 1, 3)

    def __next__(self) -> Batch:
        if self.lane.is_over:
            raise StopIteration
        return self.lane.next(1 + 3 * self.lane.state_dict()["n"])

    def state_dict(self) -> State:
        return self.lane.state_dict()

    def load_state_dict(self, state: State) -> None:
        self.lane.load_state_dict(state)

    def close(self) -> None:
        self.lane.close()


@pytest.mark.parametrize("lanes", [1, 3])
@pytest.mark.parametrize("fields", [ROWS, ENDLESS, PASS, CONCAT])
def test_a_loader_keeps_the_laws_of_stages(fields: dict[str, Any], lanes: int) -> None:
    recipe, data = made(fields)
    items = check_laws(lambda: LoaderStage(loader_of(recipe, data, lanes=lanes), 30), key=key)
    assert len(items) > 10


@pytest.mark.parametrize("fields", [ROWS, PASS, CONCAT])
def test_a_lane_keeps_the_laws_of_stages(fields: dict[str, Any]) -> None:
    recipe, data = made(fields)
    assert len(check_laws(lambda: LaneStage(recipe, data), key=key)) > 5


def test_after_the_end_comes_the_start_of_the_next_epoch() -> None:
    recipe, data = made(ROWS)
    loader = loader_of(recipe, data, lanes=2)
    batches = iter(loader)
    first = list(batches)
    assert next(batches, None) is None, "the end of an iterator stays its end"
    state = through_json(loader.state_dict())
    assert state["epoch"] == 1
    other = loader_of(recipe, data, lanes=2)
    other.set_epoch(1)
    counted = {"m": 0, "m_plan": 0, "m_epoch": 0, "checksum": ""}
    assert {**other.state_dict(), **counted} == {**state, **counted}
    last = loader_of(recipe, data, lanes=2)
    last.load_state_dict(state)
    second = list(last)
    assert keys(second) == keys(list(loader))
    assert second[0].m >= first[-1].m + 1, "micro-batches are counted on"
    Ledger(data, packed=False).add([*first, *second]).assert_only(0, 1)


# --- earlier steps


@pytest.mark.parametrize("topology", [(1, 0), (1, 3), (2, 2), (3, 0)])
@pytest.mark.parametrize("fields", [ENDLESS, {**ROWS, "mix": Mix(stop="loop")}])
def test_the_states_of_the_last_64_steps_can_still_be_had(fields: dict[str, Any], topology: tuple[int, int]) -> None:
    recipe, data = made(fields)
    run = Ranks(recipe, data, topology)
    ranks, kept = topology[0], {0: run.state()}
    for _ in range(80):
        run.step()
        kept[run.loaders[0]._here.m] = run.state()
    now = 80 * ranks
    for m in range(now - 64 * ranks, now + 1, ranks):
        assert run_at(run, m) == kept[m]
    assert run.state() == kept[now], "looking back changed nothing"
    for m in (0, now - 65 * ranks, now + ranks):
        with pytest.raises(StateError, match=f"from m={now - 64 * ranks} to m={now}"):
            run.loaders[-1].state_dict(at=m, gather=False)
    back = Ranks(recipe, data, topology, run_at(run, now - 7 * ranks))
    back.steps(7)
    assert back.state() == run.state()


def run_at(run: Ranks, m: int) -> State:
    parts = [loader.state_dict(at=m, gather=False) for loader in run.loaders]
    return through_json(merge_states(parts) if len(parts) > 1 else parts[0])


@pytest.mark.parametrize("topology", [(1, 0), (1, 3), (2, 2), (3, 0)])
@pytest.mark.parametrize("fields", [ROWS, PASS, {**PASS, "tail": "drop"}, {**ENDLESS, "steps": 20}], ids=str)
def test_states_can_be_had_over_the_end_of_an_epoch(fields: dict[str, Any], topology: tuple[int, int]) -> None:
    """Who reads one batch ahead asks for the last one when the epoch is over for us."""
    serving = {"steps_per_epoch": fields["steps"]} if "steps" in fields else {}
    recipe, data = made({name: value for name, value in fields.items() if name != "steps"})
    run = Ranks(recipe, data, topology, **serving)
    kept, given = [run.state()], [run.step()]
    while given[-1]:
        kept, given = [*kept, run.state()], [*given, run.step()]
    now = run.state()
    assert now["epoch"] == 1
    assert {state["epoch"] for state in kept} == {0}
    for state in kept[-40:]:
        assert run_at(run, state["m"]) == state
    rest = keys(run.steps())
    for state in kept[-40:]:
        if state["m"] <= now["m"]:  # micro-batches that only filled slots share their numbers with those after them
            assert run_at(run, state["m"]) == state
    for at, state in list(enumerate(kept))[-5:]:
        again = Ranks(recipe, data, topology, state, **serving)
        assert keys(again.steps()) == keys([batch for step in given[at:] for batch in step])
        assert again.state() == now
        assert keys(again.steps()) == rest
    with pytest.raises(StateError, match=r"what is kept are the steps from m="):
        run.loaders[0].state_dict(at=100_000, gather=False)


def test_states_from_before_a_resume_are_gone() -> None:
    recipe, data = made(ROWS)
    loader = loader_of(recipe, data)
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    loader.close()
    loader.load_state_dict(loader.state_dict())
    with pytest.raises(StateError, match="from m=5 to m=5"):
        loader.state_dict(at=4)
    assert loader.state_dict(at=5) == loader.state_dict()


# --- iterators


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("topology", [(1, 0), (1, 2), (2, 1)])
@pytest.mark.parametrize("fields", [ROWS, PASS, CONCAT])
def test_a_new_iterator_goes_on_wherever_the_last_one_was_left(
    fields: dict[str, Any], topology: tuple[int, int], persistent: bool
) -> None:
    recipe, data = made(fields)
    wanted = keys(Ranks(recipe, data, topology).steps())
    # Left after each batch, after each second one, and so on.
    for length in (1, 2, 5):
        run = Ranks(recipe, data, topology, persistent_workers=persistent)
        found: list[Batch] = []
        while len(keys(found)) < len(wanted):
            found += run.steps(length)
            run._iterators = []
        assert keys(found) == wanted
        run.close()


def test_an_iterator_that_was_overtaken_says_so() -> None:
    recipe, data = made(ROWS)
    loader = loader_of(recipe, data)
    first = iter(loader)
    next(first)
    second = iter(loader)
    with pytest.raises(headrace.HeadraceError, match="a later iter\\(\\) took its place"):
        next(first)
    wanted = keys(list(loader_of(recipe, data)))
    assert keys(list(second)) == wanted[1:]


# --- epochs


def test_epochs_differ_and_repeat() -> None:
    recipe, data = made(ROWS)
    loader = loader_of(recipe, data, lanes=2)
    epochs = [[batch.addresses for batch in loader] for _ in range(4)]
    rows = [[address for addresses in epoch for address in addresses] for epoch in epochs]
    assert all(sorted(a[2:] for a in one) == sorted(a[2:] for a in rows[0]) for one in rows)
    assert len({tuple(a[2:] for a in one) for one in rows}) == 4
    for epoch in (2, 0, 3, 1, 1):
        loader.set_epoch(epoch)
        assert [batch.addresses for batch in loader] == epochs[epoch]
        fresh = loader_of(recipe, data, lanes=2)
        fresh.set_epoch(epoch)
        assert [batch.addresses for batch in fresh] == epochs[epoch]


def test_an_epoch_is_the_same_from_wherever_it_was_gone_to() -> None:
    recipe, data = made(ROWS)
    loader = loader_of(recipe, data, lanes=3)
    loader.set_epoch(2)
    wanted = [batch.addresses for batch in loader]
    for steps in range(7):
        loader = loader_of(recipe, data, lanes=3)
        for _, _ in zip(range(steps), loader, strict=False):
            pass
        loader.set_epoch(2)
        assert [batch.addresses for batch in loader] == wanted


def test_set_epoch_to_the_current_one_changes_nothing_and_needs_no_iterator_in_use() -> None:
    recipe, data = made(ROWS)
    loader = loader_of(recipe, data)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    loader.set_epoch(0)
    assert loader.state_dict() == state
    for wrong in (1, 5):
        with pytest.raises(StateError, match="set_epoch while an iterator"):
            loader.set_epoch(wrong)
    with pytest.raises(StateError, match="load_state_dict while an iterator"):
        loader.load_state_dict(state)
    for bad in (-1, True, 1.5, "1"):
        with pytest.raises(SpecError, match="a whole number from 0 on"):
            loader.set_epoch(bad)  # type: ignore[arg-type]
    del batches
    loader.set_epoch(1)
    assert loader.state_dict()["epoch"] == 1


@pytest.mark.parametrize("fields", [{"seq_len": 16, "batch_size": 2}, {"batch_size": 3}])
@pytest.mark.parametrize("ranks", [1, 2])
def test_steps_per_epoch_end_iterators_and_the_data_goes_on(fields: dict[str, Any], ranks: int) -> None:
    data = several(SHAPES[:1], LENGTHS)

    def load(rank: int, steps: int | None) -> Loader:
        return headrace.load(
            data[0].spec,
            rank=rank,
            world_size=ranks,
            steps_per_epoch=steps,
            mix=Mix(stop="loop"),
            opener=lambda source, run, revision: data[0].memory,
            **fields,
        )

    for rank in range(ranks):
        wanted = keys(list(islice(load(rank, None), 35)))
        loader = load(rank, 7)
        assert len(loader) == 7
        found: list[Batch] = []
        for epoch in range(5):
            assert loader._here.epoch == epoch
            found += list(loader)
            assert len(found) == 7 * (epoch + 1)
        assert keys(found) == wanted
        half = load(rank, 7)
        list(half)
        list(islice(half, 3))
        assert half._here.epoch == 1
        assert len(list(half)) == 4
        assert keys(list(half)) == wanted[14:21]


# --- checkpoints that only count


@pytest.mark.parametrize("topology", [(1, 0), (1, 3), (2, 0), (3, 2)])
@pytest.mark.parametrize(
    "fields", [ROWS, {**ROWS, "tail": "wrap"}, {**ROWS, "tail": "drop"}, {**ROWS, "mix": Mix(stop="loop")}, ENDLESS]
)
def test_a_count_of_batches_or_samples_goes_on_exactly(fields: dict[str, Any], topology: tuple[int, int]) -> None:
    recipe, data = made(fields)
    ranks = topology[0]
    run, steps, wanted = Ranks(recipe, data, topology), 0, []
    while steps < 50:
        batches = run.steps(50 - steps)
        wanted += batches
        steps = len(wanted) // ranks
    for consumed in (0, 1, 5, 13, 14, 15, 16, 29, 41):
        rest = keys(wanted[consumed * ranks : (consumed + 4) * ranks])
        size = recipe.batch_size
        for state in ({"batches_consumed": consumed, "batch_size": size}, {"sample_index": consumed * size * ranks}):
            other = Ranks(recipe, data, topology, state)
            found = other.steps(4)
            while len(found) < 4 * ranks:  # over the end of an epoch
                found += other.steps(4 - len(found) // ranks)
            assert keys(found) == rest, state


@pytest.mark.parametrize("fields", [PASS, CONCAT])
def test_a_count_over_a_pass_that_cannot_be_counted_is_made_once_more(fields: dict[str, Any]) -> None:
    recipe, data = made(fields)
    for workers in (0, 3):
        wanted = keys(Ranks(recipe, data, (1, workers)).steps())
        for consumed in range(0, len(wanted), 3):
            run = Ranks(recipe, data, (1, workers), {"batches_consumed": consumed, "batch_size": recipe.batch_size})
            assert keys(run.steps()) == wanted[consumed:]
    with pytest.raises(SpecError, match="resume from a whole state_dict"):
        Ranks(recipe, data, (2, 0), {"batches_consumed": 1, "batch_size": recipe.batch_size})


@pytest.mark.parametrize(
    ("state", "said"),
    [
        ({"batches_consumed": 3, "batch_size": 5}, "batch_size: the checkpoint counts batches of 5"),
        ({"batches_consumed": 3}, "batch_size: a whole number"),
        ({"batches_consumed": -1, "batch_size": 2}, "batches_consumed: a whole number"),
        ({"resume_state": {"datasets": []}}, "a shuffled run"),
        ({"resume_state": 5}, "resume_state.datasets: a list"),
    ],
)
def test_a_count_that_does_not_fit_is_refused(state: State, said: str) -> None:
    recipe, data = made(ROWS)
    loader = loader_of(recipe, data)
    with pytest.raises(StateError, match=said):
        loader.load_state_dict(state)


@pytest.mark.parametrize("workers", [0, 3])
@pytest.mark.parametrize("sources", [1, 2])
def test_row_offsets_alone_are_exact_for_rows_in_file_order(workers: int, sources: int) -> None:
    recipe, data = made({**ROWS, "shuffle": False}, sources)
    whole = Ranks(recipe, data, (1, workers)).steps()
    for steps in range(len(whole)):
        run = Ranks(recipe, data, (1, workers))
        before = run.steps(steps)
        state = {"resume_state": run.state()["resume_state"]}
        given = Ledger(data, packed=False).add(before)
        entries = state["resume_state"]["datasets"]
        assert [entry["row_offset"] for entry in entries] == [len(given.numbers(one.spec, 0)) for one in data]
        rest = Ranks(recipe, data, (1, workers), state).steps()
        given.add(rest).assert_only(0)
        if sources == 1 and not workers:
            uids = [uid for batch in [*before, *rest] for uid in batch["uid"]]
            assert uids == data[0].every(False).tolist()


def test_row_offsets_alone_of_a_run_that_was_dealt_anew_are_refused() -> None:
    recipe, data = made({**ROWS, "shuffle": False})
    run = Ranks(recipe, data, (1, 2))
    run.steps(5)
    other = Ranks(recipe, data, (3, 0), run.state())
    other.steps(2)
    with pytest.raises(StateError, match="whose lanes were dealt anew"):
        Ranks(recipe, data, (3, 0), {"resume_state": other.state()["resume_state"]})
    other.steps()
    other.steps(1)  # the next pass is cut by rule again
    Ranks(recipe, data, (3, 0), {"resume_state": other.state()["resume_state"]})

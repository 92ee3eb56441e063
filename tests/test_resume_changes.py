"""Another recipe, or something that went wrong: what was not delivered is, and what was is not delivered again."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from near import Data, Ledger, Ranks, Whole, loader_of, near, packed, prepared, recipe_of, several

from headrace.batch import Batch
from headrace.errors import StateError
from headrace.make.prepare import Samples
from headrace.make.sample import Sample
from headrace.recipe import Mix, Recipe, Skip
from headrace.stage import State

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

SHAPES = [[[13, 4], [0], [9]], [[17]], [[8, 6]]]
LENGTHS = ((3, 9, 1, 30, 4), (12, 2), (1, 40, 5))

Change = Callable[[Recipe], Recipe]


def packs(**fields: Any) -> Change:
    return lambda recipe: replace(recipe, pack=packed(**fields))


def sets(**fields: Any) -> Change:
    return lambda recipe: replace(recipe, **fields)


def weighs(*weights: float) -> Change:
    return lambda recipe: replace(
        recipe, parts=tuple(replace(p, weight=w) for p, w in zip(recipe.parts, weights, strict=True))
    )


CHANGES: dict[str, Change] = {
    "longer sequences": packs(seq_len=40),
    "shorter sequences": packs(seq_len=7),
    "another packer": packs(method="concat"),
    "another packer and length": packs(method="concat", seq_len=25, overlap=4),
    "an overlap": packs(overlap=6),
    "less slack": packs(slack=0),
    "larger batches": sets(batch_size=5),
    "smaller batches": sets(batch_size=1),
    "other weights": weighs(1.0, 5.0),
    "another way to mix": sets(mix=Mix(by="tokens")),
    "another tail": sets(tail="drop"),
    "a larger pool": lambda recipe: replace(recipe, order=replace(recipe.order, pool_chunks=9, shard_window=5)),
    "the other order of sources": lambda recipe: replace(recipe, parts=recipe.parts[::-1]),
}


def stopped(recipe: Recipe, data: list[Data], topology: tuple[int, int] = (1, 2)) -> list[tuple[State, Ledger, int]]:
    """A run stopped after each step: its state, what it gave, and its micro-batches."""
    run, ledger, out = Ranks(recipe, data, topology), Ledger(data, recipe.pack is not None), []
    out.append((run.state(), ledger.copy(), 0))
    while batches := run.step():
        ledger.add(batches)
        out.append((run.state(), ledger.copy(), len(out)))
    return out[:-1]  # the last is the end, and its state would be read as such


@pytest.mark.parametrize("topology", [(1, 0), (2, 1), (3, 0)])
@pytest.mark.parametrize("start", ["best_fit", "concat"])
@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_recipe_goes_on_with_what_was_not_delivered(name: str, start: Any, topology: tuple[int, int]) -> None:
    data = several(SHAPES[:2], LENGTHS)
    recipe = recipe_of(data, batch_size=2, epochs=1, pack=packed(method=start))
    changed = CHANGES[name](recipe)
    for state, ledger, _ in stopped(recipe, data)[:: 2 + topology[0]]:
        found = ledger.copy().add(Ranks(changed, data, topology, state).steps())
        if changed.tail == "drop":
            found.assert_nothing_twice()
        else:
            found.assert_only(0)


@pytest.mark.parametrize("topology", [(1, 0), (2, 1), (3, 0), (4, 0)])
@pytest.mark.parametrize("name", ["larger batches", "smaller batches", "other weights", "a larger pool"])
def test_rows_go_on_with_a_changed_recipe(name: str, topology: tuple[int, int]) -> None:
    data = several(SHAPES[:2])
    recipe = recipe_of(data, batch_size=2)
    for state, ledger, _ in stopped(recipe, data, (1, 4))[::2]:
        ledger.copy().add(Ranks(CHANGES[name](recipe), data, topology, state).steps()).assert_only(0)


@pytest.mark.parametrize("topology", [(1, 2), (3, 0)])
def test_a_run_of_rows_becomes_one_of_sequences_and_back(topology: tuple[int, int]) -> None:
    data = several(SHAPES[:2], LENGTHS)
    rows, sequences = recipe_of(data, batch_size=2), recipe_of(data, batch_size=2, epochs=1, pack=packed())
    every = {one.uid(f"shard-{s}", n) for one in data for s, sizes in enumerate(one.groups) for n in range(sum(sizes))}
    for steps in range(0, 12, 3):
        run = Ranks(rows, data, (1, 2))
        first = {uid for batch in run.steps(steps) for uid in batch["uid"]}
        middle = Ranks(sequences, data, (1, 2), run.state())
        given = pieces_of(middle.steps(steps // 2))
        sizes = {place: len(data[int(place[0][8])].tokens(*place[1:])) for place in given}
        whole = {data[int(p[0][8])].uid(*p[1:]) for p, tokens in given.items() if tokens == sizes[p]}
        last = [uid for b in Ranks(rows, data, topology, middle.state()).steps() if not b.pad for uid in b["uid"]]
        assert not first & whole
        assert sorted(last) == sorted(every - first - whole)


@pytest.mark.parametrize("topology", [(1, 2), (3, 0)])
@pytest.mark.parametrize("fields", [{"batch_size": 2}, {"batch_size": 2, "epochs": 1, "pack": packed()}])
def test_an_added_source_is_given_whole_and_the_others_go_on(fields: dict[str, Any], topology: tuple[int, int]) -> None:
    data = several(SHAPES, LENGTHS)
    before, after = recipe_of(data[:2], **fields), recipe_of([data[2], *data[:2]], **fields)
    for state, ledger, _ in stopped(before, data):
        run = Ranks(after, data, topology, state)
        ledger.copy().add(run.steps()).assert_only(0)


@pytest.mark.parametrize("topology", [(1, 2), (3, 0)])
@pytest.mark.parametrize("fields", [{"batch_size": 2}, {"batch_size": 2, "epochs": 1, "pack": packed()}])
def test_a_removed_source_is_left_where_it_is_and_the_others_go_on(
    fields: dict[str, Any], topology: tuple[int, int]
) -> None:
    data = several(SHAPES, LENGTHS)
    before, after = recipe_of(data, **fields), recipe_of([data[2], data[0]], **fields)
    for state, ledger, _ in stopped(before, data)[::3]:
        given = len(ledger.numbers(data[1].spec, 0))
        found = ledger.copy().add(Ranks(after, data, topology, state).steps())
        found.assert_nothing_twice()
        assert len(found.numbers(data[1].spec, 0)) == given
        del found.data[data[1].spec]
        found.assert_passes(0)


def test_other_weights_owe_nobody_anything() -> None:
    data = several(SHAPES[:2], LENGTHS)
    recipe = recipe_of(data, batch_size=1, mix=Mix(stop="loop"))
    run = Ranks(recipe, data, (1, 0))
    run.steps(7)
    assert credits_of(run) != [0, 0]
    other = Ranks(weighs(1.0, 9.0)(recipe), data, (1, 0), run.state())
    assert credits_of(other) == [0, 0]
    given = Counter(address.source for batch in other.steps(50) for address in batch.addresses)
    assert given == {data[0].spec: 5, data[1].spec: 45}


def credits_of(run: Ranks) -> list[int]:
    found: list[int] = json.loads(run.state()["lanes"])[0]["mix"]
    return found


# --- what makes rows ready


class Twice(Whole):
    """Another tokenizer: each token twice."""

    def samples(self, ids: Any) -> Samples:
        return [Sample(np.repeat(ids, 2))] if len(ids) else []


class Thirds(Whole):
    """Three samples of a row."""

    def samples(self, ids: Any) -> Samples:
        return [Sample(third) for third in np.array_split(ids, 3) if len(third)]


class Odd(Whole):
    """Another tokenizer, which finds nothing in rows with an even number of tokens."""

    def samples(self, ids: Any) -> Samples:
        return [Sample(ids)] if len(ids) % 2 else []


def pieces_of(batches: Sequence[Batch]) -> Counter[tuple[str, str, int]]:
    """Tokens given of each row."""
    found: Counter[tuple[str, str, int]] = Counter()
    for span in [span for batch in batches if not batch.pad for spans in batch.spans for span in spans]:
        found[span.address.source, span.address.shard, span.address.row] += span.stop - span.start
    return found


@pytest.mark.parametrize("topology", [(1, 2), (3, 0), (2, 1)])
@pytest.mark.parametrize("method", ["best_fit", "concat"])
def test_with_another_tokenizer_rows_that_were_not_wholly_given_are_read_again_from_their_start(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, method: Any, topology: tuple[int, int]
) -> None:
    data = several(SHAPES[:2], LENGTHS)
    recipe = recipe_of(data, batch_size=2, epochs=1, pack=packed(method=method))
    sizes = {
        (one.spec, f"shard-{shard}", row): len(one.tokens(f"shard-{shard}", row))
        for one in data
        for shard, groups in enumerate(one.groups)
        for row in range(sum(groups))
    }
    cut = 0
    for steps in range(1, 12, 2):
        prepared(monkeypatch, Whole())
        run = Ranks(recipe, data, (1, 2))
        before = pieces_of(run.steps(steps))
        prepared(monkeypatch, Twice())
        caplog.clear()
        after = pieces_of(Ranks(recipe, data, topology, run.state()).steps())
        partly = {row for row, tokens in before.items() if tokens < sizes[row]}
        whole = {row for row, tokens in before.items() if tokens == sizes[row]}
        assert after == {row: 2 * size for row, size in sizes.items() if row not in whole}
        assert f"{len(partly)} of them were partly delivered" in caplog.text
        cut += len(partly)
    assert cut, "some documents were cut where the run stopped"


def test_rows_of_which_another_tokenizer_makes_nothing_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    data = several(SHAPES[:2], LENGTHS)
    recipe = recipe_of(data, batch_size=2, epochs=1, pack=packed())
    for steps in range(8):
        prepared(monkeypatch, Whole())
        run = Ranks(recipe, data, (1, 2))
        given = pieces_of(run.steps(steps))
        prepared(monkeypatch, Odd())
        after = pieces_of(Ranks(recipe, data, (1, 2), run.state()).steps())
        assert all(tokens % 2 for tokens in after.values())
        assert not {row for row in after if given[row] == after[row]}


def test_rows_of_several_samples_lose_none_through_any_change(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared(monkeypatch, Thirds())
    data = several(SHAPES[:2], LENGTHS)
    recipe = recipe_of(data, batch_size=2, epochs=1, pack=packed(6))
    wanted = sorted([*data[0].every(True).tolist(), *data[1].every(True).tolist()])
    for steps in range(0, 9, 2):
        state, given = None, []
        for topology, pack in (((1, 2), {}), ((3, 0), {"method": "concat"}), ((2, 0), {"method": "best_fit"})):
            changed = replace(recipe, pack=packed(6, **pack))
            run = Ranks(changed, data, topology, state)
            given += run.steps(steps if topology[0] < 3 else 2)
            state = run.state()
        given += Ranks(recipe, data, (1, 1), state).steps()
        ids = np.concatenate([b["input_ids"][b.document_ids > 0].numpy() for b in given if not b.pad])
        assert sorted(ids.tolist()) == wanted


def test_a_row_whose_samples_wait_in_two_lanes_is_read_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = several([[[12]]], ((18,),))
    recipe = recipe_of(data, batch_size=1, epochs=1, pack=packed(17, slack=4))
    prepared(monkeypatch, Thirds())
    run = Ranks(recipe, data, (1, 0))
    given = run.steps(1)
    middle = Ranks(recipe, data, (2, 0), run.state())  # what was held in one lane is dealt to two
    given += middle.steps(1)
    before = pieces_of(given)
    prepared(monkeypatch, Twice())
    after = pieces_of(Ranks(recipe, data, (2, 0), middle.state()).steps())
    assert set(after.values()) == {36}
    assert len(after) == 12 - sum(tokens == 18 for tokens in before.values())


# --- the skip list


@pytest.mark.parametrize(
    "fields", [{}, {"pack": packed(), "epochs": 1}, {"pack": packed(method="concat"), "epochs": 1}]
)
def test_a_row_that_is_skipped_from_now_on_is_given_no_more_even_where_it_was_held(fields: dict[str, Any]) -> None:
    data = several(SHAPES[:1], ((3, 9, 1, 30, 4),))
    recipe = recipe_of(data, batch_size=1, **fields)
    run = Ranks(recipe, data, (1, 0))
    before = run.steps(4)
    ledger = Ledger(data, "pack" in fields).add(before)
    numbers = set(ledger.numbers(data[0].spec, 0).tolist())
    for row in range(17):
        changed = replace(recipe, skip=Skip(addresses=(f"{data[0].spec}|shard-0|{row}",)))
        after = Ledger(data, "pack" in fields).add(Ranks(changed, data, (1, 0), run.state()).steps())
        own = data[0].tokens("shard-0", row).tolist() if "pack" in fields else [data[0].uid("shard-0", row)]
        rest = set(data[0].every("pack" in fields).tolist()) - numbers - set(own)
        assert after.numbers(data[0].spec, 0).tolist() == sorted(rest)


# --- what cannot be changed


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda recipe: replace(recipe, order=replace(recipe.order, seed=1)), "order.seed: the state was made with 0"),
        (lambda recipe: replace(recipe, order=replace(recipe.order, shuffle=False)), "order.shuffle"),
        (lambda recipe: replace(recipe, parts=(replace(recipe.parts[0], limit=7), *recipe.parts[1:])), "limit of"),
    ],
)
def test_a_change_that_gives_positions_another_meaning_is_refused(change: Change, said: str) -> None:
    data = several(SHAPES[:2], LENGTHS)
    recipe = recipe_of(data, batch_size=2)
    run = Ranks(recipe, data, (1, 2))
    run.steps(3)
    other = loader_of(change(recipe), data)
    with pytest.raises(StateError, match=said):
        other.load_state_dict(run.state())
    assert other.state_dict()["m"] == 0, "nothing was changed"

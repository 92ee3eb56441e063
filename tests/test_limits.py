"""A limit of a part holds over the whole run: on any number of lanes and ranks, over epochs, resumes and re-deals."""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from near import Data, Ledger, Ranks, keys, near, packed, part, recipe_of, several

from headrace.batch import Batch
from headrace.errors import SpecError
from headrace.mix.mixer import share, within_shares
from headrace.recipe import Mix, Recipe

__all__ = ["near"]  # a fixture

pytestmark = pytest.mark.usefixtures("near")

A, B = "txt:data0:text", "txt:data1:text"


def tokens_given(batches: Iterable[Batch]) -> Counter[str]:
    found: Counter[str] = Counter()
    for span in [span for batch in batches if not batch.pad for spans in batch.spans for span in spans]:
        found[span.address.source] += span.stop - span.start
    return found


def rows_given(batches: Iterable[Batch]) -> list[tuple[str, int, int]]:
    return [
        (address.source, address.epoch, uid)
        for batch in batches
        if not batch.pad
        for address, uid in zip(batch.addresses, batch["uid"], strict=True)
    ]


def taken(state: Any) -> int:
    """Tokens of the first source that count as given."""
    return sum(lane["tok"][0] for lane in json.loads(state["lanes"]))


def counted_in(state: Any) -> dict[str, list[int]]:
    """Over all lanes: tokens that count as given, and what the mix owes each source."""
    lanes = json.loads(state["lanes"])
    return {key: [sum(values) for values in zip(*(lane[key] for lane in lanes), strict=True)] for key in ("tok", "mix")}


def waiting(state: Any) -> int:
    """Tokens of the first source that were taken and are held for a later sequence."""
    pieces = [piece for lane in json.loads(state["lanes"]) for piece in [*lane["held"], *lane["rest"]]]
    assert all(piece[5] >= 0 for piece in pieces if piece[0] == 0), "each says where it ends"
    return sum(piece[5] - piece[4] for piece in pieces if piece[0] == 0)


@pytest.mark.parametrize("lanes", [1, 8, 64])
@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
def test_documents_longer_than_a_lanes_share_are_cut_and_the_limit_is_given_exactly(lanes: int, method: str) -> None:
    data = several([[[200]]], [[500]])
    parts = [part(data[0], tokens=1000)]
    recipe = recipe_of(data, parts=parts, batch_size=2, epochs=1, pack=packed(512, method=method))
    ledger = Ledger(data, packed=True)
    batches = Ranks(recipe, data, lanes=lanes).steps()
    ledger.add(batches).assert_nothing_twice()
    assert tokens_given(batches) == {A: 1000}


@pytest.mark.parametrize("lanes", [1, 3, 8])
def test_a_token_limit_counts_over_all_epochs(lanes: int) -> None:
    data = several([[[4]], [[6]]], [[5], [7]])
    parts = [part(data[0], tokens=50), part(data[1])]
    ranks = Ranks(recipe_of(data, parts=parts, batch_size=1, epochs=1, pack=packed()), data, lanes=lanes)
    epochs = [tokens_given(ranks.steps()) for _ in range(4)]
    assert sum(found[A] for found in epochs) <= 50
    assert [found[B] for found in epochs] == [42] * 4
    if lanes == 1:
        assert [found[A] for found in epochs] == [20, 20, 10, 0]


def test_set_epoch_does_not_give_a_limit_back() -> None:
    data = several([[[40]], [[6]]], [[5], [7]])
    parts = [part(data[0], tokens=50), part(data[1])]
    ranks = Ranks(recipe_of(data, parts=parts, batch_size=1, epochs=1, pack=packed()), data)
    found = tokens_given(ranks.steps())
    for epoch in (7, 0):
        ranks.loaders[0].set_epoch(epoch)
        found += tokens_given(ranks.steps())
    assert found == {A: 50, B: 3 * 42}


def test_what_wrap_repeats_is_not_of_a_part_with_a_token_limit() -> None:
    data = several([[[30]], [[6]]], [[5], [7]])
    parts = [part(data[0], tokens=50), part(data[1])]
    recipe = recipe_of(data, parts=parts, batch_size=4, epochs=1, tail="wrap", pack=packed())
    ranks = Ranks(recipe, data, (2, 0), lanes=4)
    found = tokens_given([batch for _ in range(3) for batch in ranks.steps()])
    assert found[A] == 50
    assert found[B] > 3 * 42, "it is filled up with the other"


def test_a_run_whose_parts_are_all_limited_ends_with_empty_epochs() -> None:
    data = several([[[30]]], [[5]])
    for tail in ("pad", "drop", "wrap"):
        recipe = recipe_of(data, parts=[part(data[0], tokens=64)], batch_size=1, epochs=1, tail=tail, pack=packed())
        ranks = Ranks(recipe, data, lanes=2)
        assert tokens_given(ranks.steps())[A] <= 64
        assert [batch for batch in ranks.steps() if not batch.pad] == []


TOPOLOGIES = [(1, 0), (1, 2), (2, 0), (3, 0), (2, 2), (5, 0)]


@st.composite
def runs(draw: st.DrawFn) -> dict[str, Any]:
    return {
        "rows": draw(st.tuples(st.integers(1, 24), st.integers(3, 24))),
        "lengths": draw(st.lists(st.integers(3, 40), min_size=1, max_size=4)),
        "limit": draw(st.integers(1, 400)),
        "method": draw(st.sampled_from(["best_fit", "concat", "none"])),
        "by": draw(st.sampled_from(["rows", "tokens"])),
        "shuffle": draw(st.booleans()),
        "legs": draw(
            st.lists(st.tuples(st.sampled_from(TOPOLOGIES), st.integers(0, 9)), min_size=1, max_size=4),
        ),
    }


def recipe_and_data(run: dict[str, Any], **fields: Any) -> tuple[Recipe, list[Data]]:
    data = several([[[n]] for n in run["rows"]], [run["lengths"], [9, 3]])
    pack = (
        packed(16, method=run["method"], slack=1) if run["method"] == "best_fit" else packed(16, method=run["method"])
    )
    parts = [part(data[0], tokens=run["limit"]), part(data[1])]
    mix = Mix(by=run["by"])
    return recipe_of(data, parts=parts, shuffle=run["shuffle"], batch_size=2, mix=mix, pack=pack, **fields), data


@pytest.mark.parametrize("ranks", [3, 5, 7])
def test_a_re_deal_shares_out_all_that_was_counted(ranks: int) -> None:
    data = several([[[40]], [[40]]], [[5, 9, 14], [9, 3]])
    parts = [part(data[0], tokens=400), part(data[1])]
    recipe = recipe_of(data, parts=parts, batch_size=2, mix=Mix(by="tokens"), pack=packed(16, method="concat"))
    first, remainders = Ranks(recipe, data, (2, 0)), set()
    for _ in range(8):
        first.steps(1)
        state = first.state()
        remainders.add(taken(state) % ranks)
        dealt = Ranks(recipe, data, (ranks, 0), state).state()
        assert len(json.loads(dealt["lanes"])) == ranks
        assert counted_in(dealt) == counted_in(state)
    assert remainders != {0}, "none is left over, so rounding down would lose none"


@settings(max_examples=30, deadline=None)
@given(runs())
def test_a_token_limit_of_an_endless_run_holds_through_resumes_and_re_deals(run: dict[str, Any]) -> None:
    recipe, data = recipe_and_data(run)
    ledger, batches, state = Ledger(data, packed=True), [], None
    for topology, steps in [*run["legs"], ((1, 0), 80)]:
        ranks = Ranks(recipe, data, topology, state)
        batches += ranks.steps(steps)
        state = ranks.state()
        counted = [lane["tok"][0] for lane in json.loads(state["lanes"])]
        assert sum(counted) <= run["limit"]
        assert all(n <= share(run["limit"], lane, len(counted)) for lane, n in enumerate(counted))
    ledger.add(batches).assert_nothing_twice()
    found = tokens_given(batches)[A]
    assert found <= run["limit"]
    if run["method"] != "none":
        assert found + waiting(state) == run["limit"], "all of it is given in the end"


@settings(max_examples=30, deadline=None)
@given(runs())
def test_a_token_limit_of_a_run_with_epochs_holds_through_resumes_and_re_deals(run: dict[str, Any]) -> None:
    recipe, data = recipe_and_data(run, epochs=1)
    ledger, batches, state = Ledger(data, packed=True), [], None
    for topology, steps in [*run["legs"], ((1, 0), 0)]:
        ranks = Ranks(recipe, data, topology, state)
        batches += ranks.steps(steps)
        if steps % 3 == 0:  # to the end of the epoch, and into the next
            batches += ranks.steps()
            batches += ranks.steps(2)
        state = ranks.state()
    for _ in range(2):
        batches += ranks.steps()
    ledger.add(batches).assert_nothing_twice()
    assert tokens_given(batches)[A] <= run["limit"]


@settings(max_examples=30, deadline=None)
@given(runs())
def test_a_resume_on_the_same_ranks_gives_the_same_batches(run: dict[str, Any]) -> None:
    recipe, data = recipe_and_data(run, epochs=1)
    topology = run["legs"][0][0]
    one = Ranks(recipe, data, topology)
    for _ in range(3):
        state = one.state()
        other = Ranks(recipe, data, topology, state)
        assert other.state() == state
        whole = one.steps()
        half = other.steps(len(whole) // topology[0] // 2)
        again = Ranks(recipe, data, topology, other.state())
        assert keys([*half, *again.steps()]) == keys(whole)


def test_a_rank_that_gets_other_lanes_in_the_next_epoch_knows_what_they_gave() -> None:
    data = several([[[9]], [[12]]], [[11], [7]])
    parts = [part(data[0], tokens=150), part(data[1])]
    recipe = recipe_of(data, parts=parts, batch_size=1, epochs=1, pack=packed())
    for steps in (1, 3, 5):  # two ranks do not divide them: the lanes of a rank change with the epoch
        first = Ranks(recipe, data, (1, 0), lanes=4)
        batches = first.steps(steps)
        ranks = Ranks(recipe, data, (2, 0), first.state())
        for _ in range(4):
            batches += ranks.steps()
        assert tokens_given(batches)[A] <= 150


@pytest.mark.parametrize("rows", [1, 5, 26, 31])
def test_a_row_limit_and_a_number_of_passes_count_over_all_epochs_and_re_deals(rows: int) -> None:
    data = several([[[10]], [[17]]])
    for fields, most in ({"limit": rows}, rows), ({"passes": 2}, 20):
        recipe = recipe_of(data, parts=[part(data[0], **fields), part(data[1])], batch_size=2)
        for lanes in (1, 4):
            first = Ranks(recipe, data, (1, 0), lanes=lanes)
            batches = [*first.steps(), *first.steps(3)]
            ranks = Ranks(recipe, data, (3, 0), first.state())
            for _ in range(4):
                batches += ranks.steps()
            found = rows_given(batches)
            assert len(set(found)) == len(found)
            assert sum(source == A for source, _, _ in found) == min(most, 50)


# --- limits that change


def test_a_limit_that_is_lowered_below_what_was_given_ends_the_part_at_once() -> None:
    data = several([[[40]], [[40]]], [[5], [7]])

    def recipe(limit: int | None) -> Recipe:
        return recipe_of(data, parts=[part(data[0], tokens=limit), part(data[1])], batch_size=2, pack=packed())

    for topology in ((1, 0), (2, 0), (3, 0)):
        ranks = Ranks(recipe(100), data, (1, 2), lanes=4)
        before = ranks.steps(3)
        counted = taken(ranks.state())
        assert counted > 20
        lower = Ranks(recipe(20), data, topology, ranks.state())
        found = tokens_given([*before, *lower.steps(40)])[A]
        assert found + waiting(lower.state()) == taken(lower.state()) == counted, "what was taken is given, and no more"
        raised = Ranks(recipe(150), data, topology, lower.state())
        found += tokens_given(raised.steps(60))[A]
        assert found + waiting(raised.state()) == taken(raised.state()) == 150


def test_a_limit_that_is_removed_lets_the_part_go_on(caplog: pytest.LogCaptureFixture) -> None:
    data = several([[[40]], [[40]]], [[50], [7]])

    def recipe(limit: int | None) -> Recipe:
        return recipe_of(data, parts=[part(data[0], tokens=limit), part(data[1])], batch_size=2, pack=packed(64))

    ranks = Ranks(recipe(70), data)
    before = ranks.steps(1)
    free = Ranks(recipe(None), data, (1, 0), ranks.state())
    ledger = Ledger(data, packed=True).add([*before, *free.steps(20)])
    ledger.assert_nothing_twice()
    with caplog.at_level(logging.WARNING, "headrace"):
        Ranks(recipe(90), data, (1, 0), free.state())
    assert "tokens=90 counts from here on" in caplog.text


def test_counts_that_exceed_shares_are_moved_to_lanes_with_room() -> None:
    assert within_shares([1, 1, 2, 1, 2], 8) == [1, 2, 1, 1, 2], "shares are 1, 2, 1, 2, 2"
    assert within_shares([500, 0, 0, 0], 1000) == [250, 250, 0, 0]
    assert within_shares([600, 600], 1000) == [700, 500]
    for counts in ([0, 0, 0], [333, 333, 334], [9, 900, 3]):
        found = within_shares(counts, 1000)
        assert sum(found) == sum(counts)
        assert within_shares(found, 1000) == found


def test_a_share_below_one_sequence_is_told(caplog: pytest.LogCaptureFixture) -> None:
    data = several([[[40]]], [[50]])
    recipe = recipe_of(data, parts=[part(data[0], tokens=100)], batch_size=1, epochs=1, pack=packed(64))
    with caplog.at_level(logging.WARNING, "headrace"):
        Ranks(recipe, data, lanes=2).steps()
    assert "tokens=100 is shared by 2 lanes, about 50 each, which is less than one sequence of 64" in caplog.text


def test_a_data_loaders_epochs_cannot_count_tokens_and_say_so() -> None:
    data = several([[[40]]], [[50]])
    recipe = recipe_of(data, parts=[part(data[0], tokens=100)], batch_size=1, epochs=1, pack=packed(64))
    dataset = Ranks(recipe, data).loaders[0].dataset
    dataset.set_epoch(0)
    with pytest.raises(SpecError, match=r"limit in tokens, which counts over all epochs.*iterate over the headrace"):
        dataset.set_epoch(1)

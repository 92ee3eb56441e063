"""Bad rows that are left out, through re-deals, ranks and workers: all others exactly once, to the token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from near import Data, Ledger, Ranks, near, packed, recipe_of, several

from headrace import Faults, Mix, Recipe
from headrace.make.faults import places_in

__all__ = ["near"]

SHAPES = [[[13, 0, 9], [], [17]], [[11], [8, 3]]]
LENGTHS = ((3, 9, 1, 4, 21), (12, 2))
SPOILED = {(0, 0, 0), (0, 0, 5), (0, 2, 16), (1, 0, 3), (1, 1, 10)}
"""(source, shard, row)"""


def spoiled() -> list[Data]:
    data = several(SHAPES, LENGTHS)
    for source, shard, row in SPOILED:
        data[source].row(shard, row)["text"] = None
    return data


def check_whole(ledger: Ledger, data: Sequence[Data], *epochs: int) -> None:
    """Each pass was given whole, but for what was spoiled: every token exactly once."""
    for number, one in enumerate(data):
        bad = [one.tokens(f"shard-{shard}", row) for source, shard, row in SPOILED if source == number]
        wanted = np.setdiff1d(one.every(True), np.concatenate(bad))
        for epoch in epochs:
            assert np.array_equal(ledger.numbers(one.spec, epoch), wanted), (one.spec, epoch)


def recipe(data: Sequence[Data], shuffle: bool, **fields: Any) -> Recipe:
    fields = {"batch_size": 1, "pack": packed(slack=2), "epochs": 1, "faults": Faults(policy="skip"), **fields}
    return recipe_of(data, shuffle=shuffle, **fields)


def left_out(ranks: Ranks) -> set[str]:
    return {fault.address for loader in ranks.loaders for fault in loader.faults}


ADDRESSES = {f"txt:data{source}:text|shard-{shard}|{row}" for source, shard, row in SPOILED}


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("chain", [[(2, 1), (3, 0), (1, 2)], [(4, 0), (3, 2), (2, 0)], [(1, 0), (5, 0), (2, 3)]])
def test_any_chain_of_re_deals_gives_every_good_row_once(chain: list[tuple[int, int]], shuffle: bool) -> None:
    for first in range(1, 9):
        data = spoiled()
        made, ledger, state = recipe(data, shuffle), Ledger(data, packed=True), None
        for number, topology in enumerate(chain):
            ranks = Ranks(made, data, topology, state)
            ledger.add(ranks.steps(first if number < len(chain) - 1 else 10_000))
            known = left_out(ranks)
            state = ranks.state()
            ranks.close()
            ledger.assert_nothing_twice()
        check_whole(ledger, data, 0)
        assert known == ADDRESSES


@pytest.mark.usefixtures("near")
def test_a_re_deal_splits_what_was_counted_and_loses_none_of_it() -> None:
    data = spoiled()
    made = recipe(data, shuffle=True)
    ranks = Ranks(made, data, (2, 1))
    ranks.steps(12)
    before, state = left_out(ranks), ranks.state()
    ranks.close()
    assert len(before) > 2
    others = Ranks(made, data, (3, 0), state)
    dealt = [places_in_lanes(loader._here.lanes) for loader in others.loaders]
    assert dealt[0] == dealt[1] == dealt[2]
    assert sum(map(len, dealt[0])) == len(before)
    assert max(map(len, dealt[0])) - min(map(len, dealt[0])) <= 1
    assert left_out(others) == before
    others.close()


def places_in_lanes(lanes: Sequence[bytes]) -> list[Any]:
    import json

    return [places_in(json.loads(lane)) for lane in lanes]


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_ranks_and_workers_give_the_same_batches_round_bad_rows(ranks: int) -> None:
    data = spoiled()
    made = recipe(data, shuffle=True, mix=Mix(by="tokens"))
    runs = [Ranks(made, data, topology, lanes=4) for topology in ((1, 0), (ranks, 4 // ranks))]
    one, two = ([(batch.m, batch.spans) for batch in run.steps() if not batch.pad] for run in runs)
    assert one == two
    assert left_out(runs[0]) == left_out(runs[1]) == ADDRESSES
    for run in runs:
        run.close()


def test_a_row_that_becomes_bad_while_a_packer_holds_it_is_left_out_on_resume() -> None:
    data = spoiled()
    made = recipe(data, shuffle=False)
    ranks = Ranks(made, data)
    ledger = Ledger(data, packed=True).add(ranks.steps(4))
    state = ranks.state()
    ranks.close()
    import json

    (lane,) = json.loads(state["lanes"])
    source, _, position, sub, start, _ = next(piece for piece in lane["held"] if not piece[3] and not piece[4])
    assert (source, sub, start) == (source, 0, 0)
    row = data[source].row(*data_place(data[source], position))
    text, row["text"] = row["text"], None
    ranks = Ranks(made, data, state=state)
    ledger.add(ranks.steps())
    assert len(left_out(ranks)) == len(ADDRESSES) + 1
    ranks.close()
    ledger.assert_nothing_twice()
    found = np.concatenate([ledger.numbers(one.spec, 0) for one in data])
    assert not np.isin(text, found).any()
    one = replace(made, faults=Faults())  # and where rows may not be left out, it is an error that names it
    with pytest.raises(Exception, match=r"Skip\(addresses="):
        Ranks(one, data, state=state).steps()


def data_place(data: Data, position: int) -> tuple[int, int]:
    """In file order a position is the number of the row."""
    shard = int(np.searchsorted(data.row_starts, position, side="right")) - 1
    return shard, position - data.row_starts[shard]

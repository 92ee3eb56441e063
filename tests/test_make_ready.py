"""Rows that are made ready while nobody waits for them: neither what comes, nor any state, nor any error changes."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from headrace.errors import DataError
from headrace.fetch.block import RowBlock
from headrace.fetch.plan import Chunk, Orders, Rules
from headrace.fetch.pool import Pool, PoolSize
from headrace.make import feed as feeds
from headrace.make.describe import Faults
from headrace.make.faults import LaneFaults
from headrace.make.feed import Feed
from headrace.make.prepare import Samples
from headrace.make.sample import Sample
from headrace.mix.turns import Limits, Turns
from headrace.sequence.side_by_side import Helpers
from headrace.testing.memory import MemorySource

GROUPS = [[5, 9], [7], [12, 3]]


class Named:
    """A sample of each row, that knows its name."""

    columns: list[str] | None = None
    arrays = None

    def __init__(self, bad: str = "") -> None:
        self.bad, self.tried = bad, 0

    def __call__(self, block: RowBlock) -> list[Samples]:
        self.tried += self.bad in block.columns["name"]
        if self.bad in block.columns["name"]:
            raise DataError(f"{self.bad} is broken")
        return [[Sample(np.array([1], np.int32), None, {"name": name})] for name in block.columns["name"]]


class Far(MemorySource):
    """Of which only the first shard lies here."""

    def is_near(self, chunk: Chunk) -> bool:
        return chunk.shard == 0


class Uncounted(MemorySource):
    is_counted = False


def feed(
    kind: type[MemorySource] = MemorySource,
    *,
    shuffle: bool = True,
    bad: str = "",
    last: int | None = 2,
    groups: list[list[int]] = GROUPS,
) -> Feed:
    source = kind("txt:memory:text", groups, lambda shard, row: {"name": f"{shard}:{row}"})
    rules = Rules(seed=3, source="s", shuffle=shuffle, chunk_rows=4)
    pool = Pool(Orders(source, rules), PoolSize(chunks=3 if shuffle else 1), 0, 1, 0, last)
    return Feed(0, source, pool, Named(bad), LaneFaults(Faults(), ["s"]), first_rows=2)


def name(row: Any) -> str:
    return str(row.samples[0].extras["name"])


def all_ready(made: Feed, rows: int = 1000) -> None:
    while made.make_ready(rows):
        pass


def run(made: Feed, ahead: Callable[[int], int]) -> list[tuple[str, str]]:
    """Names and states. `ahead`: rows that are to be ready after each."""
    found: list[tuple[str, str]] = []
    while (row := made.next()) is not None:
        all_ready(made, ahead(len(found)))
        found.append((name(row), json.dumps(made.state_dict())))
    return found


@pytest.mark.parametrize("shuffle", [True, False])
def test_neither_rows_nor_states_change(shuffle: bool) -> None:
    plain = run(feed(shuffle=shuffle), lambda i: 0)
    assert len(plain) == 2 * 36
    for most in (1, 3, 20, 1000):
        assert run(feed(shuffle=shuffle), lambda i, most=most: most) == plain  # type: ignore[misc]
    assert run(feed(shuffle=shuffle), lambda i: i * 7 % 11) == plain


def test_every_state_on_the_way_goes_on() -> None:
    plain = run(feed(), lambda i: 0)
    for at, (_, state) in enumerate(run(feed(), lambda i: 9)):
        again = feed()
        again.load_state_dict(json.loads(state))
        assert [one for one, _ in run(again, lambda i: 5)] == [one for one, _ in plain[at + 1 :]]


def test_it_stops_when_enough_is_ready_and_where_the_data_ends() -> None:
    made = feed(last=1)
    assert not made.make_ready(10)  # nothing was asked for yet, and nothing is opened for it
    made.next()
    all_ready(made, 5)
    assert 5 <= len(made._ready) < 5 + 8
    for _ in range(35):
        all_ready(made)
        made.next()
    assert not made.make_ready(1000)
    assert made.next() is None


def test_large_rows_are_not_piled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeds, "AHEAD_BYTES", 6)  # a row counts as one
    made = feed(last=1)
    made.next()
    while made.make_ready(1000):
        assert len(made._ready) < 6 + 2 * 4
    small = feed(last=1, shuffle=False, groups=[[3, 1, 2]] * 40)  # each block uses a chunk up
    while small.next() is not None:
        all_ready(small)
        assert len(small._ready) < 6 + 3


def test_shards_of_rows_that_were_not_given_are_held() -> None:
    made = feed(last=1, shuffle=False, groups=[[3]] * 60)
    while (row := made.next()) is not None:
        all_ready(made)
        assert int(row.shard.removeprefix("shard-")) in set().union(*made._recent)


def test_who_would_have_to_ask_for_counts_does_not() -> None:
    made = feed(Uncounted)
    made.next()
    assert not made.make_ready(1000)


def test_rows_of_a_group_are_not_looked_for() -> None:
    made = feed()
    made.next()
    made._prepare.group_by = "name"  # type: ignore[attr-defined]
    assert not made.make_ready(1000)


def test_what_is_not_on_this_disk_is_not_waited_for() -> None:
    made = feed(Far, shuffle=False)
    rows = [made.next()]
    all_ready(made)
    assert {name(row).split(":")[0] for row in made._ready} == {"0"}
    assert len(made._ready) < 14
    while (row := made.next()) is not None:
        rows.append(row)
    assert len(rows) == 2 * 36


def test_a_bad_row_is_told_of_when_its_turn_comes_and_each_time() -> None:
    made = feed(shuffle=False, bad="0:9")
    for i in range(9):
        assert name(made.next()) == f"0:{i}"
        all_ready(made)
    for _ in range(2):
        with pytest.raises(DataError, match="0:9 is broken"):
            made.next()


def test_what_failed_is_not_tried_again_until_it_is_needed() -> None:
    made = feed(shuffle=False, bad="0:3")
    made.next()
    for _ in range(50):
        made.make_ready(1000)
    assert made._prepare.tried == 1  # type: ignore[attr-defined]


def test_an_interrupt_goes_through_and_changes_nothing() -> None:
    made = feed(shuffle=False)
    made.next()
    state, prepare = made.state_dict(), made._prepare

    def interrupted(block: RowBlock) -> list[Samples]:
        raise KeyboardInterrupt

    made._prepare = interrupted  # type: ignore[assignment]
    interrupted.columns = interrupted.arrays = None  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        all_ready(made)
    made._prepare = prepare
    assert made.state_dict() == state
    assert [one for one, _ in run(made, lambda i: 0)] == [one for one, _ in run(feed(shuffle=False), lambda i: 0)][1:]


def test_no_more_than_the_epoch_may_have() -> None:
    made = feed(last=None)
    limits = Limits(per_epoch=5, per_source=5)
    turns = Turns([made], ["a"], ["text"], (0, 1), limits, lambda places: [])
    found = 0
    while turns.take(0) is not None:
        found += 1
        while turns.make_ready(1000):
            assert len(made._ready) < 5 + 2 * 4
    assert found == 5
    assert not turns.make_ready(1000)


# --- who does it


def test_who_only_waits_does_something_else() -> None:
    helpers, go, began = Helpers(2), threading.Event(), threading.Event()
    steps: list[int] = []

    def meanwhile() -> bool:
        steps.append(len(steps))
        if len(steps) == 3:
            go.set()
        return len(steps) < 3

    def slow() -> str:
        began.set()
        assert go.wait(20)
        return "done"

    try:
        with helpers.jobs(meanwhile) as begin:
            wait = begin(slow)
            assert began.wait(20)
            assert wait() == "done"
    finally:
        helpers.close()
    assert steps == [0, 1, 2]


def test_who_has_jobs_to_do_does_these() -> None:
    helpers = Helpers(1)
    with helpers.jobs(lambda: pytest.fail("there was something to do")) as begin:
        assert [wait() for wait in [begin(lambda i=i: i) for i in range(3)]] == [0, 1, 2]  # type: ignore[misc]

"""A cursor draws ahead; its state is that of a pool from which the rows were drawn one at a time."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from counts import FakeCounts
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import rng
from headrace.errors import FetchError
from headrace.fetch.cursor import Cursor
from headrace.fetch.plan import Coordinate, Orders, Rules
from headrace.fetch.pool import Pool, PoolSize
from headrace.stage import State

if TYPE_CHECKING:
    from headrace.rng import I64

T = TypeVar("T")
shapes = st.lists(st.lists(st.integers(0, 9), max_size=3), min_size=1, max_size=4)
blocks = st.lists(st.integers(1, 12), min_size=1, max_size=6)
some_of = st.tuples(st.integers(0, 9), st.integers(1, 8)).map(lambda pair: (pair[0] % pair[1], pair[1]))
lanes_of = st.tuples(st.integers(0, 3), st.integers(1, 4)).map(lambda pair: (pair[0] % pair[1], pair[1]))


MANY = 20


def pool(
    shape: list[list[int]],
    lane: tuple[int, int] = (0, 1),
    *,
    k: int = 3,
    last: int | None = 3,
    shuffle: bool = True,
    coordinate: Coordinate = "rows",
) -> Pool:
    rules = Rules(seed=7, source="s", shuffle=shuffle, chunk_rows=4, coordinate=coordinate)
    return Pool(Orders(FakeCounts(shape), rules), PoolSize(chunks=k if shuffle else 1), *lane, 0, last)


@settings(max_examples=70, deadline=None)
@given(shapes, lanes_of, st.booleans(), st.sampled_from(["rows", "windows"]), st.integers(1, 4), blocks)
def test_the_state_is_that_of_a_pool_drawn_one_row_at_a_time(
    shape: list[list[int]], lane: tuple[int, int], shuffle: bool, coordinate: Coordinate, k: int, sizes: list[int]
) -> None:
    cursor = Cursor(pool(shape, lane, k=k, shuffle=shuffle, coordinate=coordinate))
    single = pool(shape, lane, k=k, shuffle=shuffle, coordinate=coordinate)
    assert cursor.state_dict() == single.state_dict()
    block = 0
    while cursor.ahead(sizes[block % len(sizes)]) is not None:
        block += 1
        cursor.ahead(sizes[block % len(sizes)])  # two blocks ahead, and all but one row of them taken
        while cursor.waiting > 1:
            cursor.take()
            cursor.sampled()
            single.draw(1)
            assert cursor.state_dict() == single.state_dict()
    while cursor.waiting:
        cursor.take()
        cursor.sampled()
        single.draw(1)
    assert cursor.state_dict() == single.state_dict()
    assert single.draw(1) is None
    assert not cursor.has_more()


@settings(max_examples=70, deadline=None)
@given(shapes, lanes_of, blocks, st.data())
def test_what_was_undone_is_drawn_again_and_a_look_changes_nothing(
    shape: list[list[int]], lane: tuple[int, int], sizes: list[int], data: st.DataObject
) -> None:
    whole, cursor = pool(shape, lane), Cursor(pool(shape, lane))
    wanted, found = [], []
    while (drawn := whole.draw(1)) is not None:
        wanted.append((drawn.epoch, int(drawn.positions[0])))
    while (ahead := cursor.ahead(data.draw(st.sampled_from(sizes)))) is not None:
        mark, done = ahead
        before = cursor.state_dict()
        if data.draw(st.booleans()):
            cursor.undo(mark)
            assert cursor.has_more()
            assert cursor.state_dict() == before
            continue
        found += [(done.epoch, p) for p in done.positions.tolist()]
        while cursor.waiting:
            assert cursor.has_more()
            cursor.take()
        cursor.sampled()
    assert found == wanted


class Flaky(FakeCounts):
    """Each shard's counts fail to come at the first time of asking."""

    def __init__(self, shards: list[list[int]]) -> None:
        super().__init__(shards)
        self.asked: set[int] = set()

    def groups(self, shard: int) -> tuple[I64, I64, I64]:
        if shard not in self.asked:
            self.asked.add(shard)
            raise FetchError(f"the footer of shard {shard} did not come")
        return super().groups(shard)


def again(work: Callable[[], T]) -> T:
    while True:
        try:
            return work()
        except FetchError:
            continue


@settings(max_examples=70, deadline=None)
@given(shapes, lanes_of, st.booleans(), st.integers(1, 4), st.integers(1, 5))
def test_counts_that_come_at_the_second_try_make_no_difference(
    shape: list[list[int]], lane: tuple[int, int], shuffle: bool, k: int, most: int
) -> None:
    """Neither a row nor a pass is lost where a footer could not be read for once."""

    def rows(counts: FakeCounts, ahead: bool) -> list[tuple[int, int]]:
        rules = Rules(seed=7, source="s", shuffle=shuffle, chunk_rows=4, coordinate="windows", shard_window=1)
        size = PoolSize(chunks=k if shuffle else 1)
        made = again(lambda: Pool(Orders(counts, rules), size, *lane, 0, 2))
        cursor = Cursor(made)
        found: list[tuple[int, int]] = []
        while True:
            drawn = again(lambda: cursor.ahead(most)) if ahead else again(lambda: made.draw(most))
            if drawn is None:
                return found
            done = drawn[1] if isinstance(drawn, tuple) else drawn
            found += [(done.epoch, p) for p in done.positions.tolist()]

    for ahead in (True, False):
        assert rows(Flaky(shape), ahead) == rows(FakeCounts(shape), ahead)


def drawn_to_the_end(cursor: Cursor, gives_sample: Callable[[int, int], bool]) -> list[tuple[int, int, State]]:
    """(pass, position, state after it) of each row, up to twenty or so; `gives_sample` of a shard and a row."""
    found: list[tuple[int, int, State]] = []
    while len(found) < MANY and not cursor.is_barren and (ahead := cursor.ahead(3)) is not None:
        _, done = ahead
        for position in done.positions.tolist():
            if cursor.is_barren:
                break
            cursor.take()
            if gives_sample(*cursor.pool.orders(done.epoch).row_of(position)):
                cursor.sampled()
            found.append((done.epoch, position, cursor.state_dict()))
    return found


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=2), min_size=1, max_size=3), some_of, st.integers(0, 50))
def test_a_source_that_gives_few_samples_ends_at_the_same_row_after_a_resume(
    shape: list[list[int]], lane: tuple[int, int], salt: int
) -> None:
    def gives_sample(shard: int, row: int) -> bool:
        return rng.draw(rng.key(salt, shard, row), 0, 3) == 0

    wanted = drawn_to_the_end(Cursor(pool(shape, lane, last=None)), gives_sample)
    for k, (_, _, state) in enumerate(wanted):
        cursor = Cursor(pool(shape, lane, last=None))
        cursor.load_state_dict(json.loads(json.dumps(state)))
        assert cursor.state_dict() == state
        rest = drawn_to_the_end(cursor, gives_sample)
        both = min(len(rest), len(wanted) - k - 1)
        assert rest[:both] == wanted[k + 1 :][:both]
        assert len(wanted) >= MANY or len(rest) == both == len(wanted) - k - 1


def test_a_source_is_barren_after_one_pass_more_than_there_are_lanes_without_a_sample() -> None:
    cursor = Cursor(pool([[2], [1]], (0, 2), last=None))
    found = drawn_to_the_end(cursor, lambda shard, row: (shard, row) == (0, 0))
    assert len(found) >= MANY, "a row of use keeps it alive"
    barren = Cursor(pool([[2], [1]], (0, 2), last=None))
    passes = [epoch for epoch, _, _ in drawn_to_the_end(barren, lambda shard, row: False)]
    assert barren.is_barren
    assert max(passes) == 4
    assert passes.count(4) == 1

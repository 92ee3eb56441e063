from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from counts import FakeCounts
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.fetch.plan import Coordinate, Order, Range, Rules, choose_coordinate, clamp_rows, cut, length, merge

shapes = st.lists(st.lists(st.integers(0, 25), max_size=4), max_size=7)
coordinates = st.sampled_from(["rows", "windows"])


def rules(shuffle: bool = True, coordinate: Coordinate = "rows", **more: Any) -> Rules:
    return Rules(seed=3, source="hf:a/b:train:text", shuffle=shuffle, coordinate=coordinate, **more)


def positions(order: Order, ranges: list[Range]) -> list[int]:
    """Every position of some ranges that has a row, found chunk by chunk."""
    out: list[int] = []
    for start, stop in ranges:
        while (chunk := order.first_chunk(start, stop)) is not None:
            first = max(start, chunk.start)
            start = min(stop, chunk.start + chunk.rows)
            out += range(first, start)
    return out


@settings(max_examples=150)
@given(shapes, st.booleans(), coordinates, st.integers(1, 9), st.integers(1, 3), st.integers(1, 4), st.integers(0, 2))
def test_every_row_has_exactly_one_position_in_exactly_one_lane(
    shape: list[list[int]], shuffle: bool, coordinate: Coordinate, chunk_rows: int, window: int, lanes: int, epoch: int
) -> None:
    counts = FakeCounts(shape)
    order = Order(counts, rules(shuffle, coordinate, chunk_rows=chunk_rows, shard_window=window), epoch)
    seen = [order.row_of(p) for lane in range(lanes) for p in positions(order, order.share(lane, lanes))]
    assert Counter(seen) == Counter(counts.all_rows())


@given(shapes, st.integers(1, 9), st.integers(1, 3), st.integers(0, 2))
def test_both_coordinates_give_the_same_order(shape: list[list[int]], chunk_rows: int, window: int, epoch: int) -> None:
    orders = [
        Order(FakeCounts(shape), rules(True, c, chunk_rows=chunk_rows, shard_window=window), epoch)
        for c in ("rows", "windows")
    ]
    rows = [[o.row_of(p) for p in positions(o, o.share(0, 1))] for o in orders]
    assert rows[0] == rows[1]


@given(shapes, st.integers(1, 7))
def test_shares_differ_by_one_row_at_most(shape: list[list[int]], lanes: int) -> None:
    order = Order(FakeCounts(shape), rules(), 0)
    sizes = [length(order.share(lane, lanes)) for lane in range(lanes)]
    assert sum(sizes) == order.num_rows
    assert max(sizes) - min(sizes) <= 1


def test_without_shuffle_the_order_is_as_listed() -> None:
    counts = FakeCounts([[3, 4], [], [5]])
    order = Order(counts, rules(shuffle=False, chunk_rows=2), epoch=4)
    assert [order.row_of(p) for p in range(order.num_rows)] == counts.all_rows()


@pytest.mark.parametrize("shape", [[[50, 50], [50], [50]], [[50] * 9], [[1]] * 20, [[50]]])
def test_epochs_differ_and_an_epoch_repeats(shape: list[list[int]]) -> None:
    """In the order of shards, of row groups and of rows: also where there is only one of the others."""
    counts = FakeCounts(shape)

    def epoch(e: int) -> list[tuple[int, int]]:
        order = Order(counts, rules(), e)
        return [order.row_of(p) for p in range(order.num_rows)]

    assert epoch(1) == epoch(1)
    assert epoch(0) != epoch(1)


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_source_smaller_than_the_lanes_reaches_every_lane_in_turn(shuffle: bool) -> None:
    counts = FakeCounts([[2]])
    reached = {lane for e in range(5) for lane in range(5) if Order(counts, rules(shuffle), e).share(lane, 5)}
    assert reached == set(range(5))


def test_slices_of_a_large_row_group_stay_in_file_order() -> None:
    order = Order(FakeCounts([[2500]]), rules(chunk_rows=1000), 0)
    chunks = [order.chunk_at(p) for p in (0, 900, 1700)]
    assert [(c.skip, c.rows) for c in chunks] == [(0, 834), (834, 834), (1668, 832)]


def test_slices_are_cut_by_bytes_as_well() -> None:
    order = Order(FakeCounts([[10], [3]], row_bytes=100), rules(shuffle=False, chunk_bytes=250), 0)
    assert [(order.chunk_at(p).skip, order.chunk_at(p).rows) for p in (0, 3, 6, 9)] == [(0, 3), (3, 3), (6, 3), (9, 1)]
    tiny = Order(FakeCounts([[10]], row_bytes=100), rules(shuffle=False, chunk_bytes=1), 0)
    assert tiny.chunk_at(9).rows == 1


def test_a_limit_is_cut_before_the_lanes() -> None:
    assert [clamp_rows(10, e, 25) for e in range(4)] == [10, 10, 5, 0]
    order = Order(FakeCounts([[10]]), Rules(seed=0, source="s", shuffle=True, limit=25), 2)
    assert sum(length(order.share(lane, 3)) for lane in range(3)) == 5


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 9)), max_size=8), st.integers(1, 6))
def test_cutting_ranges_loses_and_repeats_nothing(parts: list[tuple[int, int]], lanes: int) -> None:
    ranges, at = [], 0
    for gap, size in parts:
        ranges.append((at + gap, at + gap + size))
        at += gap + size
    shares = cut(merge(ranges), lanes)
    rows = [p for share in shares for a, b in share for p in range(a, b)]
    assert rows == [p for a, b in merge(ranges) for p in range(a, b)]
    sizes = [length(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


def test_ranges_that_overlap_are_a_bug() -> None:
    with pytest.raises(AssertionError, match="overlap"):
        merge([(0, 5), (4, 8)])


def test_the_coordinate_depends_on_the_listing_and_the_lanes_alone() -> None:
    assert choose_coordinate(512, 1) == "rows"
    assert choose_coordinate(513, 1) == "windows"
    assert choose_coordinate(1000, 125) == "windows"
    assert choose_coordinate(1000, 126) == "rows"

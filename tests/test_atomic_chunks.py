"""Chunks that no two lanes share, and draws over all rows of a pool: the plan of episodes."""

from __future__ import annotations

import json
from collections import Counter
from itertools import pairwise
from typing import Any

from counts import FakeCounts
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import rng
from headrace.fetch.lots import Lots
from headrace.fetch.plan import Order, Orders, Rules, length
from headrace.fetch.pool import Pool, PoolSize

shapes = st.lists(st.lists(st.integers(0, 25), max_size=5), max_size=5)


def rules(shuffle: bool = True, **more: Any) -> Rules:
    return Rules(seed=3, source="robots", shuffle=shuffle, chunk_rows=4, atomic=True, draw="row", **more)


def pool(shape: list[list[int]], lane: int = 0, lanes: int = 1, *, k: int = 4, shuffle: bool = True) -> Pool:
    size = PoolSize(chunks=k if shuffle else 1, nbytes=1 << 40)
    return Pool(Orders(FakeCounts(shape), rules(shuffle)), size, lane, lanes, 0, 2)


def drawn(p: Pool) -> list[tuple[int, int, int]]:
    out: list[tuple[int, int, int]] = []
    while (done := p.draw(7)) is not None:
        out += [(done.epoch, *p.order.row_of(x)) for x in done.positions.tolist()]
    return out


@settings(max_examples=150)
@given(shapes, st.booleans(), st.integers(1, 3), st.integers(1, 6), st.integers(0, 2))
def test_shares_are_cut_between_chunks_and_cover_all(
    shape: list[list[int]], shuffle: bool, window: int, lanes: int, epoch: int
) -> None:
    order = Order(FakeCounts(shape), rules(shuffle, shard_window=window), epoch)
    shares = sorted(r for lane in range(lanes) for r in order.share(lane, lanes))
    starts, at = {order.num_rows}, 0
    while at < order.num_rows:
        chunk = order.chunk_at(at)
        assert chunk.rows in shape[chunk.shard], "a chunk is a whole group"
        starts.add(at)
        at += chunk.rows
    edges = [edge for share in shares for edge in share]
    assert set(edges) <= starts
    assert length(shares) == order.num_rows
    assert all(stop == start for (_, stop), (start, _) in pairwise(shares))


def test_shares_are_balanced_by_rows_as_far_as_chunks_let_them() -> None:
    order = Order(FakeCounts([[30, 10, 20, 40], [25, 35, 15, 45]]), rules(), 0)
    for lanes in (2, 3, 4):
        sizes = [length(order.share(lane, lanes)) for lane in range(lanes)]
        assert max(sizes) - min(sizes) <= 45


@given(shapes, st.integers(1, 6), st.data())
def test_what_is_left_is_dealt_by_chunks(shape: list[list[int]], lanes: int, data: st.DataObject) -> None:
    order = Order(FakeCounts(shape), rules(), 0)
    left, at = [], 0
    while at < order.num_rows:  # of each chunk, what comes after some rows
        chunk = order.chunk_at(at)
        given_out = data.draw(st.integers(0, chunk.rows))
        if given_out < chunk.rows:
            left.append((at + given_out, at + chunk.rows))
        at += chunk.rows
    shares = order.cut(left, lanes)
    assert sorted(p for share in shares for a, b in share for p in range(a, b)) == [
        p for a, b in left for p in range(a, b)
    ]
    owners = [{order.chunk_at(p).start for a, b in share for p in range(a, b)} for share in shares]
    assert sum(len(one) for one in owners) == len(left), "each chunk has one owner"


@settings(max_examples=100)
@given(shapes, st.booleans(), st.integers(1, 5), st.integers(1, 4), st.data())
def test_every_row_once_and_a_state_goes_on_at_any_draw(
    shape: list[list[int]], shuffle: bool, k: int, lanes: int, data: st.DataObject
) -> None:
    rows = [drawn(pool(shape, lane, lanes, k=k, shuffle=shuffle)) for lane in range(lanes)]
    wanted = FakeCounts(shape).all_rows()
    assert Counter(r for lane in rows for r in lane) == Counter((e, *row) for e in range(2) for row in wanted)
    lane = data.draw(st.integers(0, lanes - 1))
    at = data.draw(st.integers(0, len(rows[lane])))
    first, second = pool(shape, lane, lanes, k=k, shuffle=shuffle), pool(shape, lane, lanes, k=k, shuffle=shuffle)
    first.skip(at)
    state = first.state_dict()
    second.load_state_dict(json.loads(json.dumps(state)))
    assert second.state_dict() == state
    assert drawn(second) == rows[lane][at:]


def test_the_first_draw_is_even_over_all_rows_of_the_pool() -> None:
    """A long chunk is drawn from more often than a short one, while more chunks are still to come."""
    hits: Counter[int] = Counter()
    for seed in range(3000):
        found = Rules(seed=seed, source="r", shuffle=False, atomic=True, draw="row")
        p = Pool(Orders(FakeCounts([[10, 30, 60, 50]]), found), PoolSize(chunks=3, nbytes=1 << 40), 0, 1, 0, 1)
        done = p.draw(1)
        assert done is not None
        hits[p.order.chunk_at(int(done.positions[0])).first] += 1
    assert abs(hits[0] - 300) < 75
    assert abs(hits[10] - 900) < 120
    assert abs(hits[40] - 1800) < 120
    assert set(hits) == {0, 10, 40}


@given(st.lists(st.integers(0, 9), min_size=1, max_size=70).filter(any), st.integers(0, 1000))
def test_lots_are_drawn_as_by_going_through_the_slots(counts: list[int], seed: int) -> None:
    lots, lefts = Lots(counts), list(counts)
    for word in (rng.mix64_block(seed, 0, sum(counts)) >> 32).tolist():
        r, i = (word * sum(lefts)) >> 32, 0
        while r >= lefts[i]:
            r -= lefts[i]
            i += 1
        lefts[i] -= 1
        assert lots.take(word) == i

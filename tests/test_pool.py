from __future__ import annotations

import json
from collections import Counter

import pytest
from counts import FakeCounts
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import rng
from headrace.errors import StateError
from headrace.fetch.draws import Draws
from headrace.fetch.plan import Coordinate, Orders, Rules
from headrace.fetch.pool import Pool, PoolSize

shapes = st.lists(st.lists(st.integers(0, 20), max_size=4), max_size=6)


def pool(
    shape: list[list[int]],
    *,
    shuffle: bool = True,
    k: int = 4,
    lane: int = 0,
    lanes: int = 1,
    first: int = 0,
    last: int | None = 2,
    coordinate: Coordinate = "rows",
    nbytes: int = 1 << 30,
) -> Pool:
    rules = Rules(seed=5, source="s", shuffle=shuffle, chunk_rows=6, coordinate=coordinate)
    size = PoolSize(chunks=k if shuffle else 1, nbytes=nbytes)
    return Pool(Orders(FakeCounts(shape), rules), size, lane, lanes, first, last)


def drawn(p: Pool, most: int = 7) -> list[tuple[int, int, int]]:
    out: list[tuple[int, int, int]] = []
    while (done := p.draw(most)) is not None:
        out += rows_of(p, done)
    return out


def rows_of(p: Pool, done: Draws) -> list[tuple[int, int, int]]:
    return [(done.epoch, *p.order.row_of(x)) for x in done.positions.tolist()]


@settings(max_examples=150)
@given(shapes, st.booleans(), st.sampled_from(["rows", "windows"]), st.integers(1, 5), st.integers(1, 3))
def test_each_epoch_gives_every_row_once(
    shape: list[list[int]], shuffle: bool, coordinate: Coordinate, k: int, lanes: int
) -> None:
    rows = [
        r
        for lane in range(lanes)
        for r in drawn(pool(shape, shuffle=shuffle, k=k, lane=lane, lanes=lanes, coordinate=coordinate))
    ]
    wanted = FakeCounts(shape).all_rows()
    assert Counter(rows) == Counter((e, *row) for e in range(2) for row in wanted)


@settings(max_examples=100)
@given(shapes, st.sampled_from(["rows", "windows"]), st.integers(1, 5), st.lists(st.integers(1, 30), min_size=1))
def test_where_a_block_ends_makes_no_difference(
    shape: list[list[int]], coordinate: Coordinate, k: int, blocks: list[int]
) -> None:
    whole, parts = pool(shape, k=k, coordinate=coordinate), pool(shape, k=k, coordinate=coordinate)
    out: list[tuple[int, int, int]] = []
    i = 0
    while (done := parts.draw(blocks[i % len(blocks)])) is not None:
        out += rows_of(parts, done)
        i += 1
    assert out == drawn(whole, 4096)
    assert parts.state_dict() == whole.state_dict()


@settings(max_examples=60)
@given(shapes, st.booleans(), st.sampled_from(["rows", "windows"]), st.integers(1, 5), st.data())
def test_a_state_at_any_draw_goes_on_exactly(
    shape: list[list[int]], shuffle: bool, coordinate: Coordinate, k: int, data: st.DataObject
) -> None:
    rows = drawn(pool(shape, shuffle=shuffle, k=k, coordinate=coordinate))
    at = data.draw(st.integers(0, len(rows)))
    first = pool(shape, shuffle=shuffle, k=k, coordinate=coordinate)
    first.skip(at)
    state = first.state_dict()
    second = pool(shape, shuffle=shuffle, k=k, coordinate=coordinate)
    second.load_state_dict(json.loads(json.dumps(state)))
    assert second.state_dict() == state
    assert drawn(second) == rows[at:]


@pytest.mark.parametrize(("lane", "lanes"), [(0, 1), (0, 2), (1, 2), (2, 3)])
@pytest.mark.parametrize("epoch", [0, 2])
def test_the_draws_are_those_of_the_specification(lane: int, lanes: int, epoch: int) -> None:
    """An independent, row by row reading of the rules, in plain Python."""
    shape, k = [[7, 3], [5], [2, 9]], 3
    p = pool(shape, k=k, lane=lane, lanes=lanes, first=epoch, last=epoch + 1)
    order = p.order
    waiting = []
    ((position, stop),) = order.share(lane, lanes)
    while (chunk := order.first_chunk(position, stop)) is not None:
        end = min(chunk.start + chunk.rows, stop)
        waiting.append([position, end - position])
        position = end
    slots: list[list[int]] = []
    stream, wanted, n = rng.key(5, "s", "pool", lane, 0, epoch), [], 0
    while waiting or slots:
        while waiting and len(slots) < k:
            slots.append(waiting.pop(0))
        if waiting:
            i = rng.draw(stream, n, len(slots))
        else:
            r, i = rng.draw(stream, n, sum(left for _, left in slots)), 0
            while r >= slots[i][1]:
                r -= slots[i][1]
                i += 1
        wanted.append((epoch, *order.row_of(slots[i][0])))
        slots[i] = [slots[i][0] + 1, slots[i][1] - 1]
        if not slots[i][1]:
            del slots[i]
        n += 1
    assert drawn(p) == wanted


def test_the_pool_is_bounded_by_bytes_but_holds_one_chunk_always() -> None:
    p = pool([[6] * 10], k=8, nbytes=3 * 60)
    p.draw(1)
    assert len(p.slots) == 3
    tight = pool([[6] * 10], k=8, nbytes=1)
    tight.draw(1)
    assert len(tight.slots) == 1
    assert len(drawn(pool([[6] * 10], k=8, nbytes=1))) == 120


def test_an_endless_source_without_rows_ends_instead_of_hanging() -> None:
    assert pool([[], [0]], last=None, lanes=3).draw(5) is None


def test_an_endless_source_goes_from_epoch_to_epoch() -> None:
    p = pool([[4], [3]], last=None)
    rows = [r for _ in range(30) if (done := p.draw(1)) for r in rows_of(p, done)]
    assert Counter(e for e, _, _ in rows) == {0: 7, 1: 7, 2: 7, 3: 7, 4: 2}


def test_explicit_ranges_come_before_the_epochs_cut_by_rule() -> None:
    p = pool([[10]], last=None)
    p.load_state_dict({"e": 0, "c": 0, "k": 0, "s": [], "f": 1, "x": [[0, [[2, 4], [7, 9]]]], "g": 1, "y": 0, "d": 1})
    first = [r for _ in range(4) if (done := p.draw(1)) for r in rows_of(p, done)]
    wanted = {(0, *p.order.row_of(x)) for x in (2, 3, 7, 8)}
    assert set(first) == wanted
    state = p.state_dict()
    assert state["c"] == 4
    later = {r[0] for _ in range(10) if (done := p.draw(1)) for r in rows_of(p, done)}
    assert later == {1}


def test_a_mark_brings_a_pool_back() -> None:
    for skipped in range(0, 50, 5):
        p = pool([[9, 9], [9]], k=2)
        p.skip(skipped)
        mark, state = p.mark(), p.state_dict()
        rest = drawn(p)
        p.go_to(mark)
        assert p.state_dict() == state
        assert drawn(p) == rest


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"e": -1}, "'e' is '-1'"),
        ({"k": True}, "'k' is 'True'"),
        ({"c": "7"}, "'c' is '7'"),
        ({"d": 1.5}, "'d' is '1.5'"),
        ({"s": [[3]]}, "not the state of a source"),
        ({"s": [[99, 1]]}, "position 99"),
        ({"s": [[0, 99]]}, "beyond the end"),
        ({"c": 99}, "99 positions"),
        ({"x": None}, "not the state of a source"),
    ],
)
def test_a_state_that_cannot_be_is_refused(change: dict[str, object], said: str) -> None:
    p = pool([[10]])
    with pytest.raises(StateError, match=said):
        p.load_state_dict({**p.state_dict(), **change})

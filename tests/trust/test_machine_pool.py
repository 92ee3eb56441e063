"""The plan and the pools of all lanes of one source, drawn from, saved, undone and dealt anew in any order."""

from __future__ import annotations

import json
from collections import Counter
from types import SimpleNamespace
from typing import Any

import machines
import pytest
from counts import FakeCounts
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from headrace.fetch.draws import Draws
from headrace.fetch.plan import Orders, Rules
from headrace.fetch.pool import Pool, PoolSize
from headrace.serve.redeal import left_of, redeal, rows_left

EXAMPLES = 450

shapes = st.lists(st.lists(st.integers(0, 9), max_size=4), max_size=5)


class Lanes(RuleBasedStateMachine):
    """Knows by itself which rows there are, and which were drawn."""

    pools: list[Pool]

    @initialize(
        shape=shapes,
        lanes=st.integers(1, 4),
        last=st.integers(1, 3),
        chunks=st.integers(1, 5),
        nbytes=st.sampled_from([1, 60, 1 << 30]),
        rules=st.fixed_dictionaries(
            {
                "seed": st.sampled_from([0, 5]),
                "shuffle": st.booleans(),
                "chunk_rows": st.integers(1, 6),
                "shard_window": st.integers(1, 3),
                "coordinate": st.sampled_from(["rows", "windows"]),
                "atomic": st.booleans(),
                "draw": st.sampled_from(["chunk", "row"]),
            }
        ),
    )
    def begin(
        self, shape: list[list[int]], lanes: int, last: int, chunks: int, nbytes: int, rules: dict[str, Any]
    ) -> None:
        rules["atomic"] = rules["atomic"] and rules["coordinate"] == "rows"
        self.counts, self.last = FakeCounts(shape), last
        self.orders = Orders(self.counts, Rules(source="s", **rules))
        self.size = PoolSize(chunks=chunks if rules["shuffle"] else 1, nbytes=nbytes)
        self.pools = [self.pool(lane, lanes) for lane in range(lanes)]
        self.drawn: Counter[tuple[int, int, int]] = Counter()

    def pool(self, lane: int, lanes: int) -> Pool:
        return Pool(self.orders, self.size, lane, lanes, 0, self.last)

    def note(self, pool: Pool, done: Draws) -> None:
        order = self.orders(done.epoch)
        self.drawn.update((done.epoch, *order.row_of(position)) for position in done.positions.tolist())

    @rule(lane=st.integers(0, 3), most=st.integers(1, 9))
    def draw(self, lane: int, most: int) -> None:
        pool = self.pools[lane % len(self.pools)]
        before = pool.state_dict()
        done = pool.draw(most)
        if done is None:
            assert pool.draw(most) is None, "the end did not stay the end"
            return
        assert 0 < done.count <= most
        assert pool.state_dict()["k"] == done.count + (before["k"] if before["e"] == done.epoch else 0)
        self.note(pool, done)

    @rule(lane=st.integers(0, 3))
    def save_and_load(self, lane: int) -> None:
        lane %= len(self.pools)
        state = json.loads(json.dumps(self.pools[lane].state_dict()))
        self.pools[lane] = self.pool(lane, len(self.pools))
        self.pools[lane].load_state_dict(state)
        assert self.pools[lane].state_dict() == state

    @rule(lane=st.integers(0, 3), most=st.integers(1, 9))
    def draw_and_take_back(self, lane: int, most: int) -> None:
        pool = self.pools[lane % len(self.pools)]
        before, mark = pool.state_dict(), pool.mark()
        pool.draw(most)
        pool.go_to(mark)
        assert pool.state_dict() == before

    @rule(lane=st.integers(0, 3), most=st.integers(1, 9), given=st.integers(0, 9))
    def save_inside_a_block(self, lane: int, most: int, given: int) -> None:
        """The state after some of the draws of a block is that of a pool which drew only those."""
        lane %= len(self.pools)
        pool = self.pools[lane]
        start = pool.state_dict()
        if not pool.fill():
            return
        mark = pool.mark()
        done = pool.draw(most)
        assert done is not None
        given = min(given, done.count)
        state = pool.state_after(mark, done, given, 0)
        self.note(pool, done)
        if not given:
            return
        other = self.pool(lane, len(self.pools))
        other.load_state_dict(start)
        found: list[int] = []
        while len(found) < given:
            more = other.draw(given - len(found))
            assert more is not None
            found += more.positions.tolist()
        assert found == done.positions.tolist()[:given]
        assert other.state_dict() == state

    @precondition(lambda self: sum(len(pool.explicit) for pool in self.pools) < 40)
    @rule(lanes=st.integers(1, 5))
    def deal_anew(self, lanes: int) -> None:
        pipeline: Any = SimpleNamespace(
            recipe=SimpleNamespace(parts=[SimpleNamespace(name="s", tokens=None)]),
            pool=lambda i, lane, count: self.pool(lane, count),
            samples=None,
            size=self.size,
        )
        empty: dict[str, Any] = {"mix": [0], "tok": [0], "held": [], "rest": []}
        states, _ = redeal(pipeline, [{"src": [pool.state_dict()], **empty} for pool in self.pools], lanes)
        assert len(states) == lanes
        self.pools = [self.pool(lane, lanes) for lane in range(lanes)]
        for pool, state in zip(self.pools, states, strict=True):
            pool.load_state_dict(json.loads(json.dumps(state["src"][0])))

    @invariant()
    def nothing_came_twice(self) -> None:
        assert not [row for row, times in self.drawn.items() if times > 1]

    @invariant()
    def what_is_left_is_counted(self) -> None:
        if self.orders.rules.coordinate == "rows":
            left = sum(rows_left(pool) for pool in self.pools)
            assert left + self.drawn.total() == self.last * len(self.counts.all_rows())

    @precondition(lambda self: self.orders.rules.atomic)
    @invariant()
    def no_chunk_is_shared(self) -> None:
        owners: dict[tuple[int, int], set[int]] = {}
        for lane, pool in enumerate(self.pools):
            for epoch in range(pool.epoch, self.last):
                order = self.orders(epoch)
                for start, stop in left_of(pool, order):
                    while start < stop:
                        chunk = order.chunk_at(start)
                        owners.setdefault((epoch, chunk.start), set()).add(lane)
                        start = chunk.start + chunk.rows
        assert max(map(len, owners.values()), default=1) == 1

    def teardown(self) -> None:
        if not hasattr(self, "drawn"):
            return
        for pool in self.pools:
            while (done := pool.draw(50)) is not None:
                self.note(pool, done)
        every = [(epoch, *row) for epoch in range(self.last) for row in self.counts.all_rows()]
        assert self.drawn == Counter(every)


@pytest.mark.timeout(120 * machines.TIMES)
def test_lanes_together_draw_every_row_of_every_pass_once_whatever_happens_to_them() -> None:
    machines.run(Lanes, EXAMPLES, 18)

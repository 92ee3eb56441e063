"""What the lanes of this process need of the cache: of the state that was returned last, and where they began."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from headrace.fetch.needs import Need, mark_of_shard
from headrace.fetch.plan import Range
from headrace.fetch.sources import cache_of
from headrace.lazy import cached_property
from headrace.serve.lane_state import lane_of
from headrace.stage import State

if TYPE_CHECKING:
    from headrace.serve.pipeline import Pipeline


class LaneNeeds:
    """Cheap enough to be asked at every step: only lanes that moved are looked at, and only a change is written."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._known: dict[int, tuple[bytes, frozenset[str]]] = {}
        """By lane: its state when it was looked at, and what that needs."""
        self._opened: dict[tuple[int, int], tuple[tuple[int, ...], frozenset[str]]] = {}
        """By source and lane: the chunks that are open, and what they need."""
        self._marks: dict[tuple[int, int, int], tuple[str, ...]] = {}
        """By source, shard and row group."""

    @cached_property
    def _fetched(self) -> list[int]:
        """The sources whose files are fetched into the cache and go again."""
        if self._pipeline.run.cleanup != "auto":
            return []
        return [i for i, source in enumerate(self._pipeline.sources) if source.is_fetched]

    def saved(self, lanes: Sequence[bytes | None]) -> None:
        """A state was returned with these lanes; None for those of other ranks."""
        if self._fetched:
            own = {number: lane for number, lane in enumerate(lanes) if lane}
            self._need.save(self._of(own, len(lanes)))

    def begin(self, reader: object, lanes: Mapping[int, bytes], num_lanes: int) -> None:
        """`reader` begins here, and opens its files as their turn comes."""
        if self._fetched:
            self._need.begin(reader, self._of(lanes, num_lanes))

    def end(self, reader: object) -> None:
        if self._fetched:
            self._need.end(reader)

    @cached_property
    def _need(self) -> Need:
        run, recipe = self._pipeline.run, self._pipeline.recipe
        specs = sorted(source.spec for source in self._pipeline.sources)
        text = "\n".join(["lanes", str(recipe.order.seed), str(recipe.order.shuffle), *specs])
        return cache_of(run).need(text, run.rank, run.world_size)

    def _of(self, lanes: Mapping[int, bytes], num_lanes: int) -> frozenset[str]:
        for number, lane in lanes.items():
            known = self._known.get(number)
            if known is None or known[0] is not lane:
                self._known[number] = lane, self._of_lane(lane_of(lane), number, num_lanes)
        return frozenset().union(*(self._known[number][1] for number in lanes))

    def _of_lane(self, state: State, number: int, num_lanes: int) -> frozenset[str]:
        marks: set[str] = set()
        for i in self._fetched:
            marks |= self._of_source(state["src"][i], i, number, num_lanes)
            waiting: dict[int, list[int]] = {}
            for piece in [*state["held"], *state["rest"]]:
                if piece[0] == i:
                    waiting.setdefault(piece[1], []).append(piece[2])
            for epoch, positions in waiting.items():
                marks |= self._at(i, epoch, positions)
        return frozenset(marks)

    def _of_source(self, source: State, i: int, number: int, num_lanes: int) -> frozenset[str]:
        """Of the chunks that are open, and of the one that comes next."""
        epoch, slots, admitted = source["e"], source["s"], source["c"]
        opened = epoch, admitted, *(p + left for p, left in slots)  # it stays while no chunk comes or goes
        known = self._opened.get((i, number))
        if known is None or known[0] != opened:
            if epoch < source["f"]:
                ranges: list[Range] = next(([(a, b) for a, b in r] for e, r in source["x"] if e == epoch), [])
            else:
                ranges = self._pipeline.orders[i](epoch).share(number, num_lanes)
            positions = [ranges[0][0] + p for p, _ in slots] + _next(ranges, admitted) if ranges else []
            known = self._opened[i, number] = opened, frozenset(self._at(i, epoch, positions))
        return known[1]

    def _at(self, i: int, epoch: int, positions: Sequence[int]) -> set[str]:
        found = self._pipeline.orders[i](epoch).groups_at(positions)
        return {mark for shard, group in found for mark in self._marks_of(i, shard, group)}

    def _marks_of(self, i: int, shard: int, group: int) -> tuple[str, ...]:
        key = i, shard, group
        if key not in self._marks:
            files = self._pipeline.sources[i].files_of(shard, group)
            self._marks[key] = tuple(mark_of_shard(file) for file in files)
        return self._marks[key]


def _next(ranges: Sequence[Range], admitted: int) -> list[int]:
    """The first position that was not admitted; none at the end."""
    for start, stop in ranges:
        if admitted < stop - start:
            return [start + admitted]
        admitted -= stop - start
    return []

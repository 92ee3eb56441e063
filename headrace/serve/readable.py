"""`resume_state`: how far each source has come, in the form that people and other programs read.

An entry says of one source: `row_offset`, the rows drawn in this pass; `shard` and `offset`, where the row of that
number lies; `revision`, the data that these numbers count. In file order it also has what is needed to resume from it
alone: `epoch` (the pass, where it is not the first) and `pending`, the rows that were drawn and are not delivered to
their end, each as `[row, sample, from_token, to_token]`, with the pass as a fifth number where it is an earlier one;
-1 means to the end of the row. Several lanes have no one row that comes next: `shard` is empty, and what is said of a
row stands in `per_lane`, where each lane counts the rows of its own share.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from headrace.errors import StateError, shown
from headrace.fetch.plan import Order, Range, clamp_rows, length
from headrace.serve.pipeline import Pipeline
from headrace.stage import State

log = logging.getLogger("headrace")

Entry: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[str, int]
"""The label of a shard, and the number of a row in it."""


def entries(pipeline: Pipeline, lanes: Sequence[State | None]) -> list[Entry]:
    """An entry for each source; `None` for lanes that this rank does not have."""
    return [source.entry() for source in _sources(pipeline, lanes)]


def log_places(pipeline: Pipeline, lanes: Sequence[State | None]) -> None:
    """One line for each source."""
    for source in _sources(pipeline, lanes):
        epoch, rows = source.drawn()
        shard, offset = source.place(epoch, rows)
        spec = shown(source.fact.spec, 1000)
        log.info("resume: spec=%s sample_row=%d shard=%s offset=%d", spec, rows, shard, offset)


def _sources(pipeline: Pipeline, lanes: Sequence[State | None]) -> Iterator[_Source]:
    pieces = [None if lane is None else _by_source(lane, len(pipeline.facts)) for lane in lanes]
    return (_Source(pipeline, i, lanes, pieces) for i in range(len(pipeline.facts)))


def _by_source(lane: State, sources: int) -> list[list[list[int]]]:
    """The pieces that wait in a lane, of each source."""
    found: list[list[list[int]]] = [[] for _ in range(sources)]
    for piece in lane["held"]:
        found[piece[0]].append(piece)
    for piece in lane["rest"]:
        found[piece[0]].append(piece)
    return found


class _Source:
    """One source in all lanes of a state."""

    def __init__(
        self,
        pipeline: Pipeline,
        i: int,
        lanes: Sequence[State | None],
        pieces: Sequence[list[list[list[int]]] | None],
    ) -> None:
        self.pipeline, self.i, self.num_lanes = pipeline, i, len(lanes)
        self.fact, self.orders = pipeline.facts[i], pipeline.orders[i]
        self.own = {number: lane["src"][i] for number, lane in enumerate(lanes) if lane is not None}
        self.pieces = {number: found[i] for number, found in enumerate(pieces) if found is not None}
        self.dense = self.fact.coordinate == "rows"
        self.dealt_anew = any(state["g"] for state in self.own.values())
        self.in_order = not pipeline.recipe.order.shuffle
        self.places_lanes = self.in_order and not self.dealt_anew and pipeline.samples is None
        """Whether the entry alone can say where each lane resumes."""

    def drawn(self) -> tuple[int, int]:
        """The pass that the slowest of these lanes is in, and the rows of it that they have drawn.

        Of all lanes together that is all of the pass but what is left, also where it was dealt anew in its middle.
        """
        low = min((state["e"] for state in self.own.values()), default=0)
        if not self.dense:
            return low, self._left(low)
        whole = len(self.own) == self.num_lanes
        rows = self._rows(low) if whole else sum(self._share(number, low) for number in self.own)
        return low, (rows or 0) - self._left(low)

    def entry(self) -> Entry:
        low, drawn = self.drawn()
        shard, offset = self.place(low, drawn) if self.num_lanes == 1 else ("", 0)
        found: Entry = {
            "spec": self.fact.spec,
            "revision": self.fact.revision,
            "shard": shard,
            "row_offset": drawn,
            "offset": offset,
        }
        if not self.in_order:
            found["shuffled"] = True
        if self.dealt_anew:
            found["dealt_anew"] = True
        if len(self.own) < self.num_lanes:
            found["pass"] = {"lanes": list(self.own), "epoch": low, "rows": self._rows(low), "left": self._left(low)}
        if self.places_lanes and self.num_lanes == 1:
            found |= self._lane(0)
        elif self.places_lanes:
            found["per_lane"] = self._per_lane()
        return found

    # --- rows of a pass

    def _rows(self, epoch: int) -> int | None:
        """Rows of a pass; None where they are not counted."""
        return clamp_rows(self.orders(epoch).num_rows, epoch, self.orders.rules.limit) if self.dense else None

    def _share(self, number: int, epoch: int) -> int:
        return length(self._ranges(number, epoch))

    def _ranges(self, number: int, epoch: int) -> list[Range]:
        """What a lane reads of a pass: by rule, or what was dealt to it when the lanes changed."""
        state = self.own[number]
        if epoch < state["f"]:
            return next(([(r[0], r[1]) for r in ranges] for e, ranges in state["x"] if e == epoch), [])
        return self.orders(epoch).share(number, self.num_lanes)

    def _left(self, epoch: int) -> int:
        """Rows of the pass that these lanes have still to draw; where rows are not counted, those that they drew."""
        here = [(number, state["k"]) for number, state in self.own.items() if state["e"] == epoch]
        if not self.dense:
            return sum(draws for _, draws in here)
        return sum(self._share(number, epoch) - draws for number, draws in here)

    # --- where a row lies

    def place(self, epoch: int, number: int) -> Place:
        """Of row `number` of a pass; at its end: behind the last. Unknown where rows are not counted."""
        order = self.orders(epoch)
        if not self.dense:
            return self._next_row(0) if self.in_order and self.num_lanes == 1 else ("", 0)
        if self.in_order:
            return self._places(order, [number])[0]
        if number < order.num_rows:
            shard, row = order.row_of(number)
            return self._label(shard), row
        return self._after_last(order)

    def _places(self, order: Order, positions: Sequence[int]) -> list[Place]:
        """In file order, of many positions at once."""
        import numpy as np

        rows = order.counts.shard_rows()
        ends = np.cumsum(rows)
        shards = ends.searchsorted(np.asarray(positions, dtype=np.int64), side="right").tolist()
        last = len(rows)
        return [
            self._after_last(order) if shard == last else (self._label(shard), int(p - ends[shard] + rows[shard]))
            for shard, p in zip(shards, positions, strict=True)
        ]

    def _after_last(self, order: Order) -> Place:
        if not len(order.shards):
            return "", 0
        shard = int(order.shards[-1])
        return self._label(shard), int(order.counts.shard_rows()[shard])

    def _label(self, shard: int) -> str:
        return self.pipeline.sources[self.i].label(shard)

    def _next_row(self, number: int) -> Place:
        """Where rows are not counted: what the pool of a lane comes to next, in file order."""
        pool = self.pipeline.pool(self.i, number, self.num_lanes)
        pool.last = None
        pool.load_state_dict(self.own[number])
        place = pool.next_place()
        if place is None:
            return "", 0
        chunk, position = place
        return self._label(chunk.shard), chunk.first + position - chunk.start

    # --- lanes

    def _lane(self, number: int) -> Entry:
        """What resumes a lane, beside its count of rows."""
        epoch = self.own[number]["e"]
        return {**({"epoch": epoch} if epoch else {}), "pending": self._pending(number)}

    def _per_lane(self) -> list[Entry]:
        if self.dense:
            places: dict[int, Place] = {}
            for epoch in {state["e"] for state in self.own.values()}:
                here = [number for number, state in self.own.items() if state["e"] == epoch]
                starts = [(self._ranges(number, epoch) or [(0, 0)])[0][0] for number in here]
                nexts = [start + self.own[number]["k"] for start, number in zip(starts, here, strict=True)]
                places |= dict(zip(here, self._places(self.orders(epoch), nexts), strict=True))
        else:
            places = {number: self._next_row(number) for number in self.own}
        return [
            {
                "lane": number,
                "lanes": self.num_lanes,
                "shard": places[number][0],
                "row_offset": state["k"],
                "offset": places[number][1],
                **self._lane(number),
            }
            for number, state in self.own.items()
        ]

    def _pending(self, number: int) -> list[list[int]]:
        now = self.own[number]["e"]
        found = []
        for _, epoch, position, *piece in self.pieces[number]:
            order, ranges = self.orders(epoch), self._ranges(number, epoch)
            row = row_number(order, ranges, position)
            found.append([row, *piece] if epoch == now else [row, *piece, epoch])
        return found


def row_number(order: Order, ranges: Sequence[Range], position: int) -> int:
    """The number of a row in a lane's share, in file order."""
    if order.rules.coordinate == "rows":
        return length((start, min(stop, position)) for start, stop in ranges if start < position)
    return sum(min(stop, position) - start for start, stop in _runs(order, ranges) if start < position)


def position_of(order: Order, ranges: Sequence[Range], row: int) -> int:
    """The position of row `row` of a lane's share, in file order."""
    runs: Iterable[Range] = ranges if order.rules.coordinate == "rows" else _runs(order, ranges)
    for start, stop in runs:
        if row < stop - start:
            return start + row
        row -= stop - start
    raise StateError(f"resume_state: pending: row {row} is beyond the end of its source; did the data change?")


def _runs(order: Order, ranges: Sequence[Range]) -> Iterable[Range]:
    """The positions that have a row, where not all have."""
    for start, stop in ranges:
        while (chunk := order.first_chunk(start, stop)) is not None:
            end = min(chunk.start + chunk.rows, stop)
            yield max(start, chunk.start), end
            start = end


# --- several ranks


def merged(parts: Sequence[Any]) -> list[Entry]:
    """The entries of all parts of a state as one list: those of a source together, each lane once and in order."""
    lists = [value.get("datasets") if isinstance(value, dict) else None for value in parts]
    if not all(isinstance(part, list) and len(part) == len(lists[0] or []) for part in lists):
        raise StateError("resume_state.datasets: an entry for each source is expected in each part")
    return [_merged_entry(list(of_source)) for of_source in zip(*lists, strict=True)]


def _merged_entry(parts: list[Any]) -> Entry:
    if not all(isinstance(entry, dict) for entry in parts):
        raise StateError("resume_state.datasets: the entry of a source is a dict")
    whole = next((entry for entry in parts if "pass" not in entry), None)
    if whole is not None:
        return dict(whole)
    first = {key: value for key, value in parts[0].items() if key != "pass"}
    found = {**first, "row_offset": _merged_rows(parts)}
    if "per_lane" in found:
        try:
            by_lane = {lane["lane"]: lane for entry in parts for lane in entry["per_lane"]}
            found["per_lane"] = [by_lane[number] for number in sorted(by_lane)]
        except (KeyError, TypeError) as error:
            raise StateError(f"resume_state.datasets: per_lane: it cannot be joined: {shown(error)}") from error
    return found


def _merged_rows(parts: Sequence[Entry]) -> int:
    """Rows of the pass that the slowest lane of all is in, drawn by all."""
    try:
        passes = list({tuple(one["lanes"]): one for one in map(_pass_of, parts)}.values())  # each part once
        low = min(one["epoch"] for one in passes)
        here = [one for one in passes if one["epoch"] == low]
        left = sum(one["left"] for one in here)
        return int(left if here[0]["rows"] is None else here[0]["rows"] - left)
    except (KeyError, TypeError, ValueError) as error:
        raise StateError(f"resume_state.datasets: pass: it cannot be joined: {shown(error)}") from error


def _pass_of(part: Entry) -> Entry:
    """What a part says of its pass; states of format 1 say it in another form."""
    found: Entry = part["pass"]
    if "of" not in found:
        return found
    left = sum(rows for epoch, rows in found["of"] if epoch == found["epoch"])
    return {**found, "lanes": [lane["lane"] for lane in part["per_lane"]], "left": left}

"""`resume_state`: how far each source has come, in the form that people and other programs read.

An entry says of one source: `row_offset`, the rows drawn in this pass; `shard` and `offset`, where the row of that
number lies; `revision`, the data that these numbers count. In file order it also has what is needed to resume from it
alone: `epoch` (the pass, where it is not the first) and `pending`, the rows that were drawn and are not delivered to
their end, each as `[row, sample, from_token, to_token]`, with the pass as a fifth number where it is an earlier one;
-1 means to the end of the row. Several lanes have no one row that comes next: `shard` is empty, and what is said of a
row stands in `per_lane`, where each lane counts the rows of its own share.
"""

from __future__ import annotations

import gc
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

from headrace.errors import StateError, shown
from headrace.fetch.plan import Order, Range, clamp_rows, length
from headrace.lazy import cached_property
from headrace.serve.lane_state import as_json, columns_of
from headrace.serve.pipeline import Pipeline
from headrace.stage import State

log = logging.getLogger("headrace")

Entry: TypeAlias = dict[str, Any]
Place: TypeAlias = tuple[str, int]
"""The label of a shard, and the number of a row in it."""


class Readable:
    """The entries of a pipeline's sources, made again only where a source moved since the last state.

    A step moves one lane, and few sources in it: of many lanes and sources nearly all entries stay as they were.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._lanes: dict[int, _Lane] = {}
        """The last lanes, by number."""
        self._of: tuple[Any, ...] = ()
        """What else the last entries were made from."""
        self._texts: dict[int, str] = {}
        """The last entries of sources that did not move since."""

    def __reduce__(self) -> Any:
        return Readable, (self._pipeline,)

    def entries(self, lanes: Sequence[bytes | None]) -> Entries:
        """An entry for each source; `None` for lanes that this rank does not have."""
        with _no_collections():
            made = [self._entry(source) for source in self._sources(lanes)]
        return Entries([entry for entry, _ in made], f"[{','.join(text for _, text in made)}]")

    def log_places(self, lanes: Sequence[bytes | None]) -> None:
        """One line for each source."""
        for source in self._sources(lanes):
            epoch, rows = source.drawn()
            shard, offset = source.place(epoch, rows)
            spec = shown(source.fact.spec, 1000)
            log.info("resume: spec=%s sample_row=%d shard=%s offset=%d", spec, rows, shown(shard, 1000), offset)

    def _entry(self, source: _Source) -> tuple[Entry, str]:
        """An entry that nobody else has, and its text, which is what is kept: one object instead of many."""
        text = self._texts.get(source.i)
        if text is not None:
            return json.loads(text), text
        entry = source.entry()
        self._texts[source.i] = text = as_json(entry)
        return entry, text

    def _sources(self, lanes: Sequence[bytes | None]) -> list[_Source]:
        """Each source in all lanes. Few receipts change from one step to the next, and only those are read."""
        facts = self._pipeline.facts
        own = {number: self._lane(number, lane) for number, lane in enumerate(lanes) if lane is not None}
        of = (len(lanes), *own, *[fact.spec for fact in facts], *[fact.revision for fact in facts])
        if of != self._of:
            self._texts.clear()
        self._lanes, self._of = own, of
        return [_Source(self._pipeline, i, len(lanes), own) for i in range(len(facts))]

    def _lane(self, number: int, text: bytes) -> _Lane:
        """A lane; entries of sources that moved in it are forgotten."""
        before = self._lanes.get(number)
        if before is not None and before.text == text:
            return before
        counted = [fact.coordinate == "rows" for fact in self._pipeline.facts]
        lane = _Lane(text, [i for i, dense in enumerate(counted) if not dense])
        if before is not None:
            for i in [i for i in self._texts if lane.has_moved(i, before)]:
                del self._texts[i]
        return lane


@contextmanager
def _no_collections() -> Iterator[None]:
    """Thousands of small objects at once, none of them garbage, would set off a search for garbage every 700 objects,
    and some of these go through all objects of the program: 200 ms and more in one state."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


class Entries(NamedTuple):
    """What a state says of its sources."""

    datasets: list[Entry]
    """The caller's own, to change as it likes."""
    text: str
    """The same as JSON."""

    @classmethod
    def of(cls, datasets: list[Entry]) -> Entries:
        return cls(datasets, as_json(datasets))


class _Lane:
    """What of a lane is told of each source, by its number."""

    def __init__(self, text: bytes, whole: Sequence[int]) -> None:
        """`whole`: sources of which all of the state is needed."""
        columns, pieces = columns_of(text)
        self.text = text
        self.passes: list[int] = columns["e"]
        self.drawn: list[int] = columns["k"]
        self.ruled_from: list[int] = columns["f"]
        self.explicit: list[Any] = columns["x"] if any(columns["x"]) else []
        self.dealt_anew: list[int] = columns["g"]
        self.digests: list[int] = columns["d"]
        self.whole: dict[int, State] = {i: {name: values[i] for name, values in columns.items()} for i in whole}
        self.pieces: dict[int, list[list[int]]] = {}
        """Those that wait, of sources that have some."""
        for piece in pieces:
            self.pieces.setdefault(piece[0], []).append(piece)

    def ranges(self, i: int, epoch: int) -> list[Range]:
        """What was dealt to it of a pass when the lanes changed."""
        explicit = self.explicit[i] if self.explicit else ()
        return next(([(r[0], r[1]) for r in ranges] for e, ranges in explicit if e == epoch), [])

    def has_moved(self, i: int, before: _Lane) -> bool:
        """Whether something else is told of a source than before."""
        return (
            self.digests[i] != before.digests[i]
            or self.drawn[i] != before.drawn[i]
            or self.passes[i] != before.passes[i]
            or self.ruled_from[i] != before.ruled_from[i]
            or self.dealt_anew[i] != before.dealt_anew[i]
            or self.pieces.get(i) != before.pieces.get(i)
            or self.explicit != before.explicit
        )


class _Source:
    """One source in all lanes of a state."""

    def __init__(self, pipeline: Pipeline, i: int, num_lanes: int, own: Mapping[int, _Lane]) -> None:
        """`own`: the lanes that are there."""
        self.pipeline, self.i, self.num_lanes, self.own = pipeline, i, num_lanes, own
        self.fact, self.orders = pipeline.facts[i], pipeline.orders[i]
        self.dense = self.fact.coordinate == "rows"
        self.in_order = not pipeline.recipe.order.shuffle

    @cached_property
    def dealt_anew(self) -> bool:
        return any(lane.dealt_anew[self.i] for lane in self.own.values())

    @property
    def places_lanes(self) -> bool:
        """Whether the entry alone can say where each lane resumes."""
        return self.in_order and not self.dealt_anew and self.pipeline.samples is None

    def drawn(self) -> tuple[int, int]:
        """The pass that the slowest of these lanes is in, and the rows of it that they have drawn.

        Of all lanes together that is all of the pass but what is left, also where it was dealt anew in its middle.
        """
        low = min(self._passes, default=0)
        if not self.dense:
            return low, self._left(low)
        whole = len(self.own) == self.num_lanes
        rows = self._rows(low) if whole else sum(map(length, self._ranges(low, self.own)))
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
            self._add_pieces(0, found)
        elif self.places_lanes:
            found["per_lane"] = self._per_lane()
        return found

    # --- rows of a pass

    def _rows(self, epoch: int) -> int | None:
        """Rows of a pass; None where they are not counted."""
        return clamp_rows(self.orders(epoch).num_rows, epoch, self.orders.rules.limit) if self.dense else None

    def _ranges(self, epoch: int, numbers: Iterable[int]) -> list[list[Range]]:
        """What lanes read of a pass: by rule, or what was dealt to them when the lanes changed."""
        order, found = self.orders(epoch), []
        for number in numbers:
            lane = self.own[number]
            if epoch < lane.ruled_from[self.i]:
                found.append(lane.ranges(self.i, epoch))
            else:
                found.append(order.share(number, self.num_lanes))
        return found

    @cached_property
    def _passes(self) -> dict[int, tuple[list[int], list[list[Range]]]]:
        """By pass: the lanes that are in it now, and what each of them reads of it."""
        lanes: dict[int, list[int]] = {}
        for number, lane in self.own.items():
            lanes.setdefault(lane.passes[self.i], []).append(number)
        return {epoch: (here, self._ranges(epoch, here) if self.dense else []) for epoch, here in lanes.items()}

    @cached_property
    def _shares(self) -> dict[int, list[Range]]:
        """What each lane reads of the pass that it is in, where rows are counted."""
        return {n: share for here, shares in self._passes.values() for n, share in zip(here, shares, strict=True)}

    def _left(self, epoch: int) -> int:
        """Rows of the pass that these lanes have still to draw; where rows are not counted, those that they drew."""
        here, shares = self._passes.get(epoch, ([], []))
        drawn: int = sum([self.own[number].drawn[self.i] for number in here])
        return sum([stop - start for share in shares for start, stop in share]) - drawn if self.dense else drawn

    # --- where a row lies

    def place(self, epoch: int, number: int) -> Place:
        """Of row `number` of a pass; at its end: behind the last. Unknown where rows are not counted, and in a state
        that was edited to have drawn more rows than there are."""
        if number < 0:
            return "", 0
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
        found = np.asarray(positions, dtype=np.int64)
        shards = ends.searchsorted(found, side="right")
        starts = np.append(ends - rows, 0)  # behind the last shard the offset is that of `_after_last`
        places = zip(shards.tolist(), (found - starts[shards]).tolist(), strict=True)
        labels = {shard: self._label(shard) for shard in set(shards.tolist()) if shard < len(rows)}
        return [(labels[shard], row) if shard in labels else self._after_last(order) for shard, row in places]

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
        pool.load_state_dict(self.own[number].whole[self.i])
        place = pool.next_place()
        if place is None:
            return "", 0
        chunk, position = place
        return self._label(chunk.shard), chunk.first + position - chunk.start

    # --- lanes

    def _add_pieces(self, number: int, found: Entry) -> Entry:
        """What resumes a lane, after what was found of its rows."""
        lane = self.own[number]
        if epoch := lane.passes[self.i]:
            found["epoch"] = epoch
        pieces = lane.pieces.get(self.i)
        found["pending"] = self._pending(number, epoch, pieces) if pieces else []
        return found

    def _per_lane(self) -> list[Entry]:
        if self.dense:
            starts = {number: ranges[0][0] if ranges else 0 for number, ranges in self._shares.items()}
            nexts = [start + self.own[number].drawn[self.i] for number, start in starts.items()]
            order = self.orders(min(self._passes, default=0))  # in file order all passes are alike
            places = dict(zip(starts, self._places(order, nexts), strict=True))
        else:
            places = {number: self._next_row(number) for number in self.own}
        lanes, found = self.num_lanes, []
        for number, lane in self.own.items():
            shard, offset = places[number]
            rows = lane.drawn[self.i]
            entry = {"lane": number, "lanes": lanes, "shard": shard, "row_offset": rows, "offset": offset}
            found.append(self._add_pieces(number, entry))
        return found

    def _pending(self, number: int, now: int, pieces: Sequence[list[int]]) -> list[list[int]]:
        found = []
        ranges = {now: self._shares[number]} if self.dense else {}
        for _, epoch, position, *piece in pieces:
            if epoch not in ranges:
                ranges[epoch] = self._ranges(epoch, [number])[0]
            row = row_number(self.orders(epoch), ranges[epoch], position)
            found.append([row, *piece] if epoch == now else [row, *piece, epoch])
        return found


def row_number(order: Order, ranges: Sequence[Range], position: int) -> int:
    """The number of a row in a lane's share, in file order."""
    if order.rules.coordinate == "rows":
        if len(ranges) == 1:
            return max(0, min(ranges[0][1], position) - ranges[0][0])
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

"""The order of rows, as arithmetic: positions, chunks, shares of lanes, ranges. No I/O of its own, no state.

A *position* is a row's number in an epoch's order. The order comes from the row counts and four rules:

1. shards are permuted by (seed, source, epoch);
2. row groups are permuted inside each window of `shard_window` shards by (seed, source, epoch, window);
3. a row group of more than `chunk_rows` rows or `chunk_bytes` bytes is cut into slices of even length, which stay in
   file order;
4. rows are permuted inside their chunk by (seed, source, epoch, shard, first row).

Without shuffle all of it is as listed. Two coordinates give the same order: "rows" numbers the rows densely and needs
every count; "windows" is (ordinal of the window) * 2**40 + (row's number in the window) and needs the counts of a
window only when it is opened, so a source of a hundred thousand shards starts at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

from headrace import rng
from headrace.lazy import cached_property

if TYPE_CHECKING:
    from headrace.rng import I64

Coordinate: TypeAlias = Literal["rows", "windows"]
Draw: TypeAlias = Literal["chunk", "row"]
Range: TypeAlias = tuple[int, int]

WINDOW_BITS = 40
LARGE = 512
"""A source of more shards than this is cut by the bytes of its listing, without reading all footers first."""
SHARDS_PER_LANE = 8
"""...where every lane gets at least this many shards; the shares then differ by a few percent only."""


KEPT_WINDOWS = 8
KEPT_CHUNKS = 1 << 20
"""Windows that were looked at last are kept: so many of them always, more while they have no more chunks than this."""
KEPT_ORDERS = 4


class Counts(Protocol):
    """What a plan must know about a source. `groups` may have to read a footer; the rest is known."""

    @property
    def num_shards(self) -> int: ...
    @property
    def shard_bytes(self) -> I64: ...
    def shard_rows(self) -> I64: ...
    def groups(self, shard: int) -> tuple[I64, I64, I64]:
        """Per row group: rows, bytes, and bytes of the columns that are read."""
        ...


@dataclass(frozen=True, kw_only=True)
class Rules:
    """Everything that, with the counts, fixes the order."""

    seed: int
    source: str
    shuffle: bool
    chunk_rows: int = 1000
    chunk_bytes: int = 16 * 2**20
    """Of all columns, read or not, so that the order does not depend on which are read."""
    shard_window: int = 1
    coordinate: Coordinate = "rows"
    limit: int | None = None
    """Rows of the source over all epochs; cut before lanes. Needs the "rows" coordinate."""
    atomic: bool = False
    """Row groups are chunks as they are, and no chunk is shared by two lanes. Needs the "rows" coordinate."""
    draw: Draw = "chunk"
    """What a pool draws evenly while there is more to come: one of its chunks, or one of all the rows in them."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """What is read in one go: a row group, or a slice of a large one."""

    start: int
    """The position of its first row."""
    rows: int
    shard: int
    group: int
    first: int
    """The number inside the shard of its first row in file order."""
    skip: int
    """Rows of the group before it."""
    nbytes: int


def choose_coordinate(num_shards: int, lanes: int) -> Coordinate:
    """A function of the listing and the lanes alone, so every rank and every restart chooses the same."""
    return "windows" if num_shards > LARGE and num_shards >= SHARDS_PER_LANE * lanes else "rows"


class Order:
    """The order of one epoch: where each position lies."""

    def __init__(self, counts: Counts, rules: Rules, epoch: int) -> None:
        import numpy as np

        self.counts, self.rules, self.epoch = counts, rules, epoch
        n = counts.num_shards
        self.num_windows = -(-n // rules.shard_window)
        stream = rng.key(rules.seed, rules.source, "shards", epoch)
        self.shards: I64 = rng.permutation(stream, n) if rules.shuffle else np.arange(n, dtype=np.int64)
        self._dense = rules.coordinate == "rows"
        if self._dense:
            rows = np.add.reduceat(counts.shard_rows()[self.shards], self._edges()) if n else np.zeros(0, np.int64)
            self._bases = np.concatenate([[0], np.cumsum(rows)])
        self._windows: dict[int, Window] = {}
        self._shares: dict[tuple[int, int], list[Range]] = {}

    @property
    def num_rows(self) -> int:
        """Positions of the epoch, before a limit. Only the "rows" coordinate knows."""
        return int(self._bases[-1])

    def base(self, window: int) -> int:
        return int(self._bases[window]) if self._dense else window << WINDOW_BITS

    def first_chunk(self, start: int, stop: int) -> Chunk | None:
        """The first chunk that has a position in [start, stop); windows without rows are passed over."""
        while start < stop:
            window = self._window_at(start)
            if window >= self.num_windows:
                return None
            chunks = self.window(window)
            if start < chunks.end:
                chunk = chunks.at(start)
                return chunk if chunk.start < stop else None
            start = self.base(window + 1)
        return None

    def chunk_at(self, position: int) -> Chunk:
        chunk = self.first_chunk(position, position + 1)
        if chunk is None or not chunk.start <= position < chunk.start + chunk.rows:
            raise IndexError(position)
        return chunk

    def rows_of(self, chunk: Chunk) -> I64:
        """The rows of a chunk in the order they are given out, as offsets from its first row in file order."""
        import numpy as np

        if not self.rules.shuffle:
            return np.arange(chunk.rows, dtype=np.int64)
        r = self.rules
        return rng.permutation(rng.key(r.seed, r.source, self.epoch, chunk.shard, chunk.first), chunk.rows)

    def row_of(self, position: int) -> tuple[int, int]:
        """(shard, row in the shard): a bijection between positions and rows."""
        chunk = self.chunk_at(position)
        return chunk.shard, chunk.first + int(self.rows_of(chunk)[position - chunk.start])

    def window_shards(self, start: int, stop: int) -> I64:
        """The shards of the windows that positions [start, stop) lie in, in order."""
        w = self.rules.shard_window
        return self.shards[self._window_at(start) * w : (self._window_at(stop - 1) + 1) * w]

    def groups_at(self, positions: Sequence[int]) -> set[tuple[int, int]]:
        """(shard, row group) of each position. Where counts would have to be fetched for it: all shards of its window,
        with the number of no row group, -1."""
        import numpy as np

        if not self._dense:
            opened = {position >> WINDOW_BITS for position in positions}
            return {(shard, -1) for w in opened for shard in self._shards_of(w).tolist()}
        found = np.unique(np.array(positions, dtype=np.int64))
        windows = self._bases.searchsorted(found, side="right") - 1
        pairs: set[tuple[int, int]] = set()
        for w in np.unique(windows[windows < self.num_windows]).tolist():
            pairs |= self.window(w).groups_at(found[windows == w])
        return pairs

    def _shards_of(self, window: int) -> I64:
        w = self.rules.shard_window
        return self.shards[window * w : (window + 1) * w]

    def window_bytes(self, window: int) -> int:
        """Of its shards, as they are listed; at least 1, so that a window always counts."""
        return max(1, int(self.counts.shard_bytes[self._shards_of(window)].sum()))

    def share(self, lane: int, lanes: int) -> list[Range]:
        """What lane `lane` reads of this epoch, when nobody has touched it: one run of positions.

        Runs are rotated over the lanes from epoch to epoch: a source with fewer rows than lanes reaches them all.
        """
        found = self._shares.get((lane, lanes))
        if found is None:
            found = self._shares[lane, lanes] = self._share(lane, lanes)
        return found.copy()

    def _share(self, lane: int, lanes: int) -> list[Range]:
        turn = lane
        if self._dense:
            n = clamp_rows(self.num_rows, self.epoch, self.rules.limit)
            if self.rules.shuffle or n < lanes:
                turn = (lane + self.epoch) % lanes
            found = (turn * n // lanes, (turn + 1) * n // lanes)
            if self.rules.atomic:
                found = (self._snapped(found[0], n), self._snapped(found[1], n))
        else:
            if self.rules.shuffle:
                turn = (lane + self.epoch) % lanes
            found = (self._cut(turn, lanes) << WINDOW_BITS, self._cut(turn + 1, lanes) << WINDOW_BITS)
        return [found] if found[0] < found[1] else []

    def cut(self, ranges: list[Range], parts: int) -> list[list[Range]]:
        """What is left of this epoch in `parts` consecutive shares of equal length, as far as chunks may be cut."""
        if not self.rules.atomic:
            return cut(ranges, parts)
        whole = [piece for start, stop in ranges for piece in self._at_chunks(start, stop)]
        total, before = length(ranges), 0
        shares: list[list[Range]] = [[] for _ in range(parts)]
        for start, stop in whole:
            shares[(2 * before + stop - start) * parts // (2 * total)].append((start, stop))  # where its middle lies
            before += stop - start
        return [merge(share) for share in shares]

    def _at_chunks(self, start: int, stop: int) -> list[Range]:
        """A range in pieces, each of one chunk."""
        first, last = self._starts.searchsorted([start + 1, stop]).tolist()
        edges = [start, *self._starts[first:last].tolist(), stop]
        return list(pairwise(edges))

    def _snapped(self, position: int, end: int) -> int:
        """The nearest position at which a chunk begins, or the end."""
        i = int(self._starts.searchsorted(position))
        after = min(int(self._starts[i]), end) if i < len(self._starts) else end
        before = int(self._starts[i - 1]) if i else 0
        return before if position - before < after - position else after

    @cached_property
    def _starts(self) -> I64:
        """Of all chunks of the epoch, the first positions."""
        import numpy as np

        return np.concatenate([np.zeros(0, np.int64), *(self.window(w).starts for w in range(self.num_windows))])

    def _cut(self, turn: int, lanes: int) -> int:
        """The first window of run `turn`, cut by the listing's bytes at window boundaries."""
        import numpy as np

        per_window = np.add.reduceat(np.maximum(self.counts.shard_bytes[self.shards], 1), self._edges())
        before = np.concatenate([[0], np.cumsum(per_window)])
        return int(before.searchsorted(int(before[-1]) * turn // lanes))

    def _edges(self) -> I64:
        import numpy as np

        return np.arange(0, self.counts.num_shards, self.rules.shard_window)

    def _window_at(self, position: int) -> int:
        if not self._dense:
            return position >> WINDOW_BITS
        return int(self._bases.searchsorted(position, side="right")) - 1

    def window(self, window: int) -> Window:
        """The chunks of a window; the last few are kept."""
        found = self._windows.pop(window, None) or self._window(window)
        self._windows[window] = found  # the newest is last
        while len(self._windows) > KEPT_WINDOWS and sum(map(len, self._windows.values())) > KEPT_CHUNKS:
            del self._windows[next(iter(self._windows))]
        return found

    def _window(self, window: int) -> Window:
        import numpy as np

        empty = np.zeros(0, np.int64)
        shards, groups, firsts, rows, sizes, reads = [empty], [empty], [empty], [empty], [empty], [empty]
        for shard in self._shards_of(window).tolist():
            r, nbytes, read = self.counts.groups(shard)
            shards.append(np.full(len(r), shard))
            groups.append(np.arange(len(r)))
            firsts.append(np.cumsum(r) - r)
            rows.append(r)
            sizes.append(nbytes)
            reads.append(read)
        table = np.stack([np.concatenate(column) for column in (shards, groups, firsts, rows, sizes, reads)])
        if self.rules.shuffle:
            stream = rng.key(self.rules.seed, self.rules.source, "groups", self.epoch, window)
            table = table[:, rng.permutation(stream, table.shape[1])]
        return Window(self.base(window), table, self.rules)


class Orders:
    """The orders of a source, epoch by epoch. The lanes of a process share them."""

    def __init__(self, counts: Counts, rules: Rules) -> None:
        self.counts, self.rules = counts, rules
        self._kept: dict[int, Order] = {}

    def __call__(self, epoch: int) -> Order:
        found = self._kept.pop(epoch, None) or Order(self.counts, self.rules, epoch)
        self._kept[epoch] = found
        if len(self._kept) > KEPT_ORDERS:
            del self._kept[next(iter(self._kept))]
        return found


class Window:
    """The chunks of a window of shards, in order, column-wise: a large text file has a hundred thousand of them."""

    def __init__(self, base: int, groups: I64, rules: Rules) -> None:
        import numpy as np

        self._groups = groups[:, groups[3] > 0]
        rows, nbytes = self._groups[3], self._groups[4]
        pieces = np.maximum(-(-rows // rules.chunk_rows), np.minimum(rows, -(-nbytes // rules.chunk_bytes)))
        if rules.atomic:
            pieces = np.minimum(pieces, 1)
        size = -(-rows // np.maximum(pieces, 1))
        pieces = -(-rows // size)  # even cuts may need fewer
        self._group = np.repeat(np.arange(len(rows)), pieces)
        nth = np.arange(len(self._group)) - np.repeat(np.cumsum(pieces) - pieces, pieces)
        self._skip = nth * size[self._group]
        self._rows = np.minimum(size[self._group], rows[self._group] - self._skip)
        ends = base + np.cumsum(self._rows)
        self.starts = ends - self._rows
        self.end = int(ends[-1]) if len(ends) else base
        """The first position behind the last chunk."""

    def __len__(self) -> int:
        return len(self.starts)

    def at(self, position: int) -> Chunk:
        """The chunk that holds a position before `end`; the first one for a position before the first."""
        i = max(0, int(self.starts.searchsorted(position, side="right")) - 1)
        shard, group, first, of, _, nbytes = self._groups[:, self._group[i]].tolist()
        skip, rows = int(self._skip[i]), int(self._rows[i])
        return Chunk(int(self.starts[i]), rows, shard, group, first + skip, skip, -(-nbytes * rows // of))

    def groups_at(self, positions: I64) -> set[tuple[int, int]]:
        """(shard, row group) of positions before `end`."""
        if not len(self.starts):
            return set()
        chunks = (self.starts.searchsorted(positions, side="right") - 1).clip(0)
        shards, groups = self._groups[:2, self._group[chunks]].tolist()
        return set(zip(shards, groups, strict=True))


def clamp_rows(num_rows: int, epoch: int, limit: int | None) -> int:
    """Positions of an epoch under a limit on the rows of all epochs."""
    return num_rows if limit is None else max(0, min(num_rows, limit - epoch * num_rows))


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Sorted, with touching ranges joined. Ranges that overlap would mean a row read twice."""
    out: list[Range] = []
    for start, stop in sorted(r for r in ranges if r[0] < r[1]):
        if out and start < out[-1][1]:
            raise AssertionError(f"ranges overlap: {out[-1]} and {(start, stop)}")
        if out and start == out[-1][1]:
            out[-1] = (out[-1][0], stop)
        else:
            out.append((start, stop))
    return out


def overlap(ranges: Iterable[Range]) -> int | None:
    """The first position that stands in two of them."""
    end = 0
    for start, stop in sorted(ranges):
        if start < end:
            return start
        end = stop
    return None


def in_order(ranges: list[Range]) -> list[Range]:
    """The same, where each has a position and begins behind the one before."""
    edges = [edge for pair in ranges for edge in pair]
    if edges != sorted(edges) or any(start == stop for start, stop in ranges):
        raise ValueError(f"these ranges are empty, overlap or are not in order: {ranges[:4]}")
    return ranges


def length(ranges: Iterable[Range]) -> int:
    return sum(stop - start for start, stop in ranges)


def cut(ranges: list[Range], parts: int) -> list[list[Range]]:
    """Ranges in `parts` consecutive shares of equal length, ±1."""
    total, out, queue = length(ranges), [], list(reversed(ranges))
    for j in range(parts):
        want, share = (j + 1) * total // parts - j * total // parts, []
        while want:
            start, stop = queue.pop()
            if stop - start > want:
                queue.append((start + want, stop))
                stop = start + want
            share.append((start, stop))
            want -= stop - start
        out.append(share)
    return out

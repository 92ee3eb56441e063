"""The chunks of a pool that are open, each read when the first row of it is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.fetch.beside import pays, read_beside
from headrace.fetch.chunk import NO_LIMIT, OpenChunk, in_place
from headrace.fetch.draws import Draws, Slot
from headrace.fetch.plan import Chunk, Order
from headrace.fetch.pool import Pool

if TYPE_CHECKING:
    from headrace.rng import I64


class Shelves(Protocol):
    """Where chunks come from: shards that are fetched, opened and let go as they are needed."""

    @property
    def side_by_side(self) -> bool:
        """Whether chunks of several shards may be opened at the same time, in two threads."""

    @property
    def is_counted(self) -> bool:
        """Whether rows can be drawn without waiting for anybody."""

    def is_near(self, chunk: Chunk) -> bool:
        """Whether it can be opened without waiting for anybody."""

    def plan(self, numbers: I64, cold: int) -> None: ...
    def want(self, chunks: Iterable[Chunk]) -> None: ...
    def open(self, chunk: Chunk, order: I64, epoch: int) -> OpenChunk: ...
    def finished(self, number: int) -> None: ...
    def keep_only(self, needed: set[int], saved: set[int]) -> None: ...
    def close(self) -> None: ...


class OpenChunks:
    def __init__(self, shelf: Shelves, label: Callable[[int], str], pool: Pool) -> None:
        self._shelf, self._label, self._pool = shelf, label, pool
        self._open: dict[Slot, OpenChunk] = {}
        self._reading: set[int] = set()
        """Shards that were read from, and may be again."""

    def __len__(self) -> int:
        return len(self._open)

    def is_near(self, done: Draws) -> bool:
        """Whether these rows are there without waiting for anybody."""
        return all(self._shelf.is_near(slot.chunk) for slot in self._missing(done))

    def want(self, done: Draws) -> None:
        """Have what these draws need fetched in the background; many files on disk are read at once."""
        self._shelf.want(slot.chunk for slot in done.slots if slot not in self._open)
        if not self._shelf.side_by_side:
            return
        missing = self._missing(done)
        if pays(missing):
            order = self._pool.order
            self._open.update(read_beside(missing, lambda slot: self.read(slot.chunk, order)))
            self._reading.update(slot.chunk.shard for slot in missing)

    def _missing(self, done: Draws) -> list[Slot]:
        return [slot for slot, _, count in done.parts() if count and slot not in self._open]

    def of(self, slot: Slot, slots: Iterable[Slot], order: Order) -> OpenChunk:
        """The chunk of a slot, out of all the slots that are held."""
        found = self._open.get(slot)
        if found is None:
            if slot.chunk.skip:
                # Slices of a row group are read in one pass, so those before this one come first.
                place = slot.chunk.shard, slot.chunk.group
                before = [s for s in slots if (s.chunk.shard, s.chunk.group) == place and s is not slot]
                for other in before[: sum(s.chunk.skip < slot.chunk.skip for s in before)]:
                    if other not in self._open:
                        self._open[other] = self.read(other.chunk, order)
            found = self._open[slot] = self.read(slot.chunk, order)
            self._reading.add(slot.chunk.shard)
            self._finish({s.chunk.shard for s in slots if s not in self._open} | self._pool.shards_ahead())
        return found

    @property
    def most_bytes(self) -> int:
        """What rows that are there at once may take as Python values."""
        return min((opened.most_bytes for opened in self._open.values()), default=NO_LIMIT)

    def python_bytes(self, slot: Slot) -> int:
        """What the rows of the chunk of a slot take as Python values, once that was found out."""
        opened = self._open.get(slot)
        return 0 if opened is None else opened.python_bytes

    def _finish(self, in_sight: set[int]) -> None:
        """Have the shards put by that nothing in sight will be read from."""
        for shard in self._reading - in_sight:
            self._shelf.finished(shard)
        self._reading &= in_sight

    def read(self, chunk: Chunk, order: Order) -> OpenChunk:
        with in_place(self._label(chunk.shard), chunk):
            return self._shelf.open(chunk, order.rows_of(chunk), order.epoch)

    def keep_only(self, slots: Iterable[Slot]) -> None:
        live = set(slots)
        for slot in [slot for slot in self._open if slot not in live]:
            self._open.pop(slot).close()

    def close(self) -> None:
        self.keep_only(())


class RowBytes(NamedTuple):
    """Bytes of a row, about."""

    file: int
    """As the file has it."""
    python: int
    """As Python values, as far as that is known; at least as in the file."""


def row_bytes(slots: Iterable[Slot], opened: OpenChunks | None) -> RowBytes:
    """Of a row of these chunks."""
    rows = in_file = in_python = 0
    for slot in slots:
        known = 0 if opened is None else opened.python_bytes(slot)
        rows, in_file = rows + slot.chunk.rows, in_file + slot.chunk.nbytes
        in_python += max(slot.chunk.nbytes, known)
    return RowBytes(in_file // max(rows, 1), in_python // max(rows, 1))

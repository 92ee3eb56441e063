"""The chunks of a pool that are open, each read when the first row of it is needed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

from headrace.fetch.chunk import OpenChunk, in_place
from headrace.fetch.plan import Chunk, Order
from headrace.fetch.pool import Draws, Slot

if TYPE_CHECKING:
    from headrace.rng import I64


MANY = 4
"""From so many chunks on it pays to read them side by side."""


class Shelves(Protocol):
    """Where chunks come from: shards that are fetched, opened and let go as they are needed."""

    @property
    def side_by_side(self) -> bool:
        """Whether chunks of different shards may be opened at the same time."""
        ...

    def plan(self, numbers: I64, cold: int) -> None: ...
    def want(self, chunks: Iterable[Chunk]) -> None: ...
    def open(self, chunk: Chunk, order: I64, epoch: int) -> OpenChunk: ...
    def keep_only(self, needed: set[int], saved: set[int]) -> None: ...
    def close(self) -> None: ...


class OpenChunks:
    def __init__(self, shelf: Shelves, label: Callable[[int], str]) -> None:
        self._shelf, self._label = shelf, label
        self._open: dict[Slot, OpenChunk] = {}

    def __len__(self) -> int:
        return len(self._open)

    def want(self, done: Draws) -> None:
        """Have what these draws need fetched in the background."""
        self._shelf.want(slot.chunk for slot in done.slots if slot not in self._open)

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
        return found

    def open_ahead(self, done: Draws, order: Order) -> None:
        """Read many chunks of these draws at once, where they lie in several shards: at a start, a pool has none open.

        What fails here is tried again when its turn comes, and fails there.
        """
        used = [slot for slot, _, count in done.parts() if count and slot not in self._open]
        shards = sorted({slot.chunk.shard for slot in used})
        if not self._shelf.side_by_side or len(used) < MANY or len(shards) < 2 or any(slot.chunk.skip for slot in used):
            return
        halves = [[slot for slot in used if (slot.chunk.shard in shards[::2]) == first] for first in (True, False)]
        found: dict[Slot, OpenChunk] = {}

        def read(slots: Iterable[Slot]) -> None:
            with suppress(Exception):
                for slot in slots:
                    found[slot] = self.read(slot.chunk, order)

        helper = threading.Thread(target=read, args=(halves[1],), name="headrace-read")
        helper.start()
        try:
            read(halves[0])
        finally:
            helper.join()
            self._open.update(found)

    def read(self, chunk: Chunk, order: Order) -> OpenChunk:
        with in_place(self._label(chunk.shard), chunk):
            return self._shelf.open(chunk, order.rows_of(chunk), order.epoch)

    def keep_only(self, slots: Iterable[Slot]) -> None:
        live = set(slots)
        for slot in [slot for slot in self._open if slot not in live]:
            self._open.pop(slot).close()

    def close(self) -> None:
        self.keep_only(())

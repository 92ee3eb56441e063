"""Many chunks at once: at a start a pool has none open, and its first rows need most of them. Two threads read them.

Reading is decompression for the most part, which needs no interpreter. Later chunks come one by one.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress

from headrace.fetch.chunk import OpenChunk
from headrace.fetch.draws import Slot

MANY = 4
"""From so many chunks on it pays."""


def pays(slots: Sequence[Slot]) -> bool:
    """Whether to read these side by side. Slices of a row group are read in one pass, so not those."""
    several = len(slots) >= MANY and len({slot.chunk.shard for slot in slots}) > 1
    return several and not any(slot.chunk.skip for slot in slots) and len(os.sched_getaffinity(0)) > 1


def read_beside(slots: Sequence[Slot], read: Callable[[Slot], OpenChunk]) -> dict[Slot, OpenChunk]:
    """The chunks of these slots. Each thread takes the next shard when it is done with one: where the other gets no
    processor, this one reads them all. What fails is left out: it is read again when it is asked for, and says then
    what is wrong."""
    shards: dict[int, list[Slot]] = {}
    for slot in slots:
        shards.setdefault(slot.chunk.shard, []).append(slot)
    waiting = deque(sorted(shards.values(), key=len, reverse=True))
    found: dict[Slot, OpenChunk] = {}

    def work() -> None:
        try:
            while True:
                for slot in waiting.popleft():
                    found[slot] = read(slot)
        except Exception:  # noqa: S110 - as said above; or there is none left
            pass

    other = threading.Thread(target=work, name="headrace-read")
    with suppress(RuntimeError):  # there may be no more threads here: then this one reads them all
        other.start()
    try:
        work()
    finally:
        waiting.clear()
        if other.ident is not None:
            other.join()
    return found

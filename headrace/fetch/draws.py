"""Rows that are drawn at once, out of the chunks that a pool holds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.fetch.plan import Chunk

if TYPE_CHECKING:
    from headrace.rng import I64


@dataclass(slots=True, eq=False)
class Slot:
    """A chunk in the pool; what is left of it is [position, position + left)."""

    chunk: Chunk
    position: int
    left: int

    @property
    def at(self) -> int:
        """Rows of the chunk before the next one."""
        return self.position - self.chunk.start


@dataclass(frozen=True, slots=True)
class Draws:
    """Draws made at once: for each the slot it came from. Each slot's rows come in its own order."""

    epoch: int
    slots: Sequence[Slot]
    firsts: Sequence[int]
    """Per slot, the rows of its chunk that were given before this block."""
    counts: Sequence[int]
    """Per slot, the rows it gave in this block."""
    picks: I64 | None
    """Per draw, a number into `slots`; None: all from slot 0."""
    count: int
    positions: I64
    """The position of each draw."""

    def parts(self) -> Iterator[tuple[Slot, int, int]]:
        """Per slot: the rows of its chunk given before, and those given now."""
        return zip(self.slots, self.firsts, self.counts, strict=True)


def positions_of(picks: I64 | None, counts: Sequence[int], starts: Sequence[int]) -> I64:
    """The position of each draw: a slot's draws take its positions one after the other."""
    import numpy as np

    if picks is None:
        return np.arange(starts[0], starts[0] + counts[0], dtype=np.int64)
    return dealt(picks, counts, starts)


def dealt(picks: I64, counts: Sequence[int], starts: Sequence[int]) -> I64:
    """For each draw, how far its slot has come: the slot's start, and one more for each draw from it before."""
    import numpy as np

    sizes = np.array(counts, dtype=np.int64)
    by_slot = np.arange(len(picks)) + np.repeat(np.array(starts, dtype=np.int64) - (np.cumsum(sizes) - sizes), sizes)
    out = np.empty(len(picks), dtype=np.int64)
    small = picks.astype(np.int16) if len(counts) < 1 << 15 else picks  # 16 bits are sorted by radix
    out[np.argsort(small, kind="stable")] = by_slot
    return out

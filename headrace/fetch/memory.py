"""How much memory the chunks of this process take, over all sources and lanes, and how much the next one may take."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from functools import partial
from itertools import count
from weakref import ref

from headrace.errors import DataError

_USES: dict[int, ref[MemoryUse]] = {}
"""All that count, by their numbers."""
_numbers = count()
_measuring = threading.RLock()
"""Held while an estimate is measured: who needs room meanwhile waits for it."""


def _after_fork() -> None:
    global _measuring
    _USES.clear()
    _measuring = threading.RLock()


os.register_at_fork(after_in_child=_after_fork)


class MemoryUse:
    """Some bytes that are in memory, or will be in a moment, until they are released or forgotten."""

    def __init__(self, nbytes: int = 0, unknown: int = 0) -> None:
        """`unknown`: how many more bytes it could be in the worst case, where it was not measured."""
        self.nbytes, self.unknown, number = nbytes, unknown, next(_numbers)
        self._measured: Callable[[int], int] | None = None
        # What is called when we are forgotten is C through and through. An interrupt that comes while Python code runs
        # there, or in a `__del__`, is swallowed.
        _USES[number] = ref(self, partial(_USES.pop, number))

    def change(self, nbytes: int, unknown: int = 0) -> None:
        self.nbytes, self.unknown = nbytes, unknown

    def measure_by(self, measured: Callable[[int], int]) -> None:
        """The bytes are an estimate, which may be high. `measured` says what they are, given the most that they can be.
        That takes some time: it is asked where something would be refused for want of room. What is only kept for later
        is let go then."""
        self._measured = measured

    @property
    def is_estimate(self) -> bool:
        return self._measured is not None

    def measure(self) -> None:
        """Count what it is instead of an estimate."""
        if (measured := self._measured) is not None:
            nbytes = measured(self.nbytes + self.unknown)
            if self._measured is not None:  # not released meanwhile
                self._measured, self.nbytes, self.unknown = None, nbytes, 0

    def release(self) -> None:
        self._measured = None
        self.nbytes = self.unknown = 0


class MemoryBudget:
    """What the chunks of a process may take. A single chunk may take half: while it is put in order, or becomes Python
    values, it exists twice."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def preferred(self) -> int:
        """What the next chunk takes if all are to stay within the budget."""
        return min(self.nbytes // 2, self.nbytes - self.in_use())

    def most(self, wanted: int) -> int:
        """What the next chunk takes at most."""
        return min(self.nbytes // 2, self.room(wanted))

    def room(self, wanted: int) -> int:
        """What is left. Pools are sized by footers, which count less than there is in memory, so all chunks together
        may take half more than the budget before one is refused. Estimates are measured until `wanted` fits."""
        while self._room() < wanted and _measure_largest():
            pass
        return self._room()

    def _room(self) -> int:
        return self.nbytes + self.nbytes // 2 - self.in_use()

    def in_use(self) -> int:
        return sum(use.nbytes for use in _uses())

    def unknown(self) -> int:
        """How much more than `in_use` could be in use, where chunks were not measured."""
        return sum(use.unknown for use in _uses())


def _uses() -> list[MemoryUse]:
    return [use for one in list(_USES.values()) if (use := one()) is not None]


def _measure_largest() -> bool:
    """Measure the largest estimate; False: there is none."""
    with _measuring:
        largest = max((use for use in _uses() if use.is_estimate), key=lambda use: use.nbytes, default=None)
        if largest is not None:
            largest.measure()
        return largest is not None


class NoRoom(DataError):
    """The memory budget is used up by other chunks. This is never counted as a bad row: it may fit later."""

"""How much memory the chunks of this process take, over all sources and lanes, and how much the next one may take."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from itertools import count
from weakref import ref

from headrace.errors import DataError

_USES: dict[int, ref[MemoryUse]] = {}
"""All that count, by their numbers."""
_numbers = count()

os.register_at_fork(after_in_child=_USES.clear)


class MemoryUse:
    """Some bytes that are in memory, or will be in a moment, until they are released or forgotten."""

    def __init__(self, nbytes: int = 0, unknown: int = 0) -> None:
        """`unknown`: how many more bytes it could be in the worst case, where it was not measured."""
        self.nbytes, self.unknown, number = nbytes, unknown, next(_numbers)
        self._measured: Callable[[], int] | None = None
        # What is called when we are forgotten is C through and through. An interrupt that comes while Python code runs
        # there, or in a `__del__`, is swallowed.
        _USES[number] = ref(self, partial(_USES.pop, number))

    def change(self, nbytes: int, unknown: int = 0) -> None:
        self.nbytes, self.unknown = nbytes, unknown

    def measure_by(self, measured: Callable[[], int]) -> None:
        """The bytes are an estimate, which may be high. `measured` says what they are, and takes some time to find out:
        it is asked when memory is short."""
        self._measured = measured

    def measure(self) -> None:
        """Count what it is instead of an estimate."""
        measured, self._measured = self._measured, None
        if measured is not None:
            self.nbytes, self.unknown = measured(), 0

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

    def most(self) -> int:
        """What the next chunk takes at most."""
        return min(self.nbytes // 2, self.room())

    def room(self) -> int:
        """What is left. Pools are sized by footers, which count less than there is in memory, so all chunks together
        may take half more than the budget before one is refused."""
        return self.nbytes + self.nbytes // 2 - self.in_use()

    def in_use(self) -> int:
        uses = _uses()
        if sum(use.nbytes for use in uses) > self.nbytes // 2:
            for use in uses:
                use.measure()
        return sum(use.nbytes for use in uses)

    def unknown(self) -> int:
        """How much more than `in_use` could be in use, where chunks were not measured."""
        return sum(use.unknown for use in _uses())


def _uses() -> list[MemoryUse]:
    return [use for one in list(_USES.values()) if (use := one()) is not None]


class NoRoom(DataError):
    """The memory budget is used up by other chunks. This is never counted as a bad row: it may fit later."""

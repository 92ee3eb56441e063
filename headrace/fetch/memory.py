"""How much memory the chunks of this process take, over all sources and lanes, and how much the next one may take."""

from __future__ import annotations

import os

_IN_USE: dict[int, int] = {}
"""Bytes by the object that counts them. Each change is a single step of the interpreter, so threads need no lock."""

os.register_at_fork(after_in_child=_IN_USE.clear)


class MemoryUse:
    """Some bytes that are in memory, or will be in a moment, until they are released."""

    def __init__(self, nbytes: int = 0) -> None:
        self.change(nbytes)

    def change(self, nbytes: int) -> None:
        _IN_USE[id(self)] = nbytes

    def release(self) -> None:
        _IN_USE.pop(id(self), None)

    def __del__(self, in_use: dict[int, int] = _IN_USE) -> None:
        in_use.pop(id(self), None)  # the default outlives this module's names when the interpreter ends


class MemoryBudget:
    """What the chunks of a process may take. A single chunk may take half: while it is put in order, or becomes Python
    values, it exists twice."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def preferred(self) -> int:
        """What the next chunk takes if all are to stay within the budget."""
        return min(self.nbytes // 2, self.nbytes - self.in_use())

    def most(self) -> int:
        """What the next chunk takes at most. Pools are sized by footers, which count less than there is in memory, so
        all chunks together may take half more than the budget before one is refused."""
        return min(self.nbytes // 2, self.nbytes + self.nbytes // 2 - self.in_use())

    def in_use(self) -> int:
        return sum(list(_IN_USE.values()))

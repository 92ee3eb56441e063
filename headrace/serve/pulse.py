"""When a worker last gave a sign of life: one number that it writes and its trainer reads.

It lies in memory that both share. So a worker never waits until it is heard, and a trainer that comes back from a long
step finds the last sign of life, not thousands of them.
"""

from __future__ import annotations

import mmap
import os
import time
from multiprocessing.reduction import DupFd
from typing import Any

from headrace.files import memory_file

_SIZE = 8


class Pulse:
    """The number, in one of the two processes."""

    def __init__(self, memory: int = -1) -> None:
        """`memory`: a descriptor by which it can be sent, and which is ours from now on; -1: forks alone share it."""
        self._memory = memory
        if memory >= 0:
            os.ftruncate(memory, _SIZE)
        self._map = mmap.mmap(memory, _SIZE)
        self._seconds = memoryview(self._map).cast("d")

    @classmethod
    def for_method(cls, start_method: str) -> Pulse:
        return cls() if start_method == "fork" else cls(memory_file("headrace-pulse"))

    def beat(self) -> None:
        self._seconds[0] = time.monotonic()

    def last(self) -> float:
        """When the last beat was, on the clock that all processes of a machine share; 0.0: there was none yet."""
        try:
            return self._seconds[0]
        except ValueError:  # another thread has closed it
            return 0.0

    def close(self) -> None:
        """The second time does nothing."""
        self._seconds.release()
        self._map.close()
        memory, self._memory = self._memory, -1
        if memory >= 0:
            os.close(memory)

    def __reduce__(self) -> tuple[Any, ...]:
        return _received, (DupFd(self._memory),)


def _received(memory: Any) -> Pulse:
    return Pulse(memory.detach())

"""A thread pool for reading several files at once. An interrupt or an error in the caller ends its waits."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from headrace.catalog.stop import Stop, current, lend


class Threads(ThreadPoolExecutor):
    """A thread pool. An error or an interrupt inside its `with` block ends the waits and reads of its threads at once.
    So does the `Stop` of the thread that made the pool; that `Stop` also gets the threads' signs of life."""

    def __init__(self, most: int, name: str, on_beat: Callable[[], None] | None = None) -> None:
        """`on_beat`: called in the pool's threads while they make progress; None: that of the thread that makes the
        pool."""
        self._stop = Stop(current())
        super().__init__(most, name, lend(self._stop, on_beat))

    def give_up(self) -> None:
        """End the threads at once; their results are not needed any more."""
        self._stop.set()
        self._stop.close()
        self.shutdown(cancel_futures=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None:
            self.shutdown()
            self._stop.close()
        else:
            self.give_up()

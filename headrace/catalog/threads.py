"""A few threads that read side by side, and whose waits end with whoever asked for them."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType

from headrace.catalog.stop import Stop, current, lend


class Threads(ThreadPoolExecutor):
    """A pool. An error or an interrupt in its `with` ends what its threads wait for and read; so does the `Stop` of
    the thread that makes it, which gets their signs of life."""

    def __init__(self, most: int, name: str, on_beat: Callable[[], None] | None = None) -> None:
        """`on_beat` is called in its threads while their work goes on; None: as in the thread that makes it."""
        self._stop = Stop(current())
        super().__init__(most, name, lend(self._stop, on_beat))

    def give_up(self) -> None:
        """End the threads at once: nobody wants what they do."""
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

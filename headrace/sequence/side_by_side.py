"""Work in a few threads of this process, side by side: decoders let go of the interpreter's lock."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from weakref import WeakSet

from headrace.catalog.stop import Stop, current, lend
from headrace.fetch.media.readable import crowded
from headrace.limits import starting

T = TypeVar("T")

MOST_THREADS = 4
"""Unless more are asked for. A worker process has one: there are more of these."""


def num_threads(asked: int | None) -> int:
    if asked is not None:
        return asked
    if multiprocessing.parent_process() is not None:
        return 1
    return min(MOST_THREADS, len(os.sched_getaffinity(0)))


class Begin(Protocol):
    def __call__(self, job: Callable[[], T], /) -> Callable[[], T]:
        """Have a job begun. What is given waits for what it gives or raises; whoever waits works too."""


class Helpers:
    """Threads that help the one that asks. They are made when there is something to do, and stay for the next time."""

    def __init__(self, threads: int) -> None:
        """`threads`: with the one that asks, so one less is made."""
        self.threads = threads
        self._begin_anew()
        _every.add(self)

    @contextmanager
    def jobs(self, meanwhile: Callable[[], bool] = lambda: False) -> Iterator[Begin]:
        """For jobs that are all done, or given up, when it ends. `meanwhile`: a little of something else to do, for who
        would only wait for others; False when there is none."""
        if self.threads < 2:
            yield lambda job: job
            return
        stop, user, process = Stop(current()), object(), os.getpid()
        start = lend(stop, None)
        every: list[_Task[Any]] = []
        waiting: deque[_Task[Any]] = deque()
        done = False
        try:
            pool = self._threads_for(user)

            def begin(job: Callable[[], T], /) -> Callable[[], T]:
                with starting("threads that decode"):
                    task = _Task(job, pool.submit(_started, start, job))
                every.append(task)
                waiting.append(task)
                return partial(_result, task, waiting, meanwhile)

            with crowded():
                yield begin
            done = all(task.done for task in every)
        finally:
            try:
                # Or interrupted, which may be in the midst of anything that the pool does. A fork has no threads.
                if not done and process == os.getpid():
                    stop.set()
                    wait([task.begun for task in every if not task.begun.cancel()])
            finally:
                stop.close()
                self._leave(user, is_over=not done)

    def close(self) -> None:
        """End the threads, or let those end them who have jobs in them now. They are made again if needed."""
        self._leave(None, is_over=True)

    def _begin_anew(self) -> None:
        """Threads do not come along when a process forks, and a lock may come along taken."""
        self._lock = threading.RLock()
        """Several iterators may share the threads. One may be closed by the garbage collector, wherever that runs."""
        self._pool: ThreadPoolExecutor | None = None
        self._users: set[object] = set()
        """Those whose jobs are not all done."""
        self._is_over = False

    def _threads_for(self, user: object) -> ThreadPoolExecutor:
        with self._lock:
            self._users.add(user)  # first: from here on nobody ends them
            self._is_over = False
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self.threads - 1, "headrace-decode")
            return self._pool

    def _leave(self, user: object, *, is_over: bool) -> None:
        """`is_over`: the threads are to end. Who leaves last ends them."""
        with self._lock:
            self._users.discard(user)
            self._is_over = self._is_over or is_over
            if not self._is_over or self._users:
                return
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)


def _after_fork() -> None:
    for helpers in list(_every):
        helpers._begin_anew()


_every: WeakSet[Helpers] = WeakSet()
os.register_at_fork(after_in_child=_after_fork)

ALONE = Helpers(1)


class _Task(Generic[T]):
    def __init__(self, job: Callable[[], T], begun: Future[T]) -> None:
        self._job, self.begun = job, begun
        self._here: Future[T] | None = None

    @property
    def done(self) -> bool:
        return self.begun.done()

    def run_here(self) -> None:
        """Unless another thread has begun it."""
        if self.begun.cancel():
            self._here = Future()
            try:
                self._here.set_result(self._job())
            except Exception as error:
                self._here.set_exception(error)

    def result(self) -> T:
        return (self._here or self.begun).result()


def _started(start: Callable[[], None], job: Callable[[], T]) -> T:
    """In a thread of the pool: a job that ends, and shows that it goes on, with the work that it is a part of."""
    start()
    return job()


def _result(task: _Task[T], waiting: deque[_Task[Any]], meanwhile: Callable[[], bool]) -> T:
    while waiting and not task.done:
        waiting.popleft().run_here()
    while not task.done and meanwhile():
        pass
    return task.result()

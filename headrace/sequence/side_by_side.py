"""Work in a few threads of this process, side by side: decoders let go of the interpreter's lock."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any, Generic, TypeVar

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


@contextmanager
def side_by_side(threads: int) -> Iterator[Callable[[Callable[[], T]], Callable[[], T]]]:
    """A function that has a job begun, and gives a call that waits for what it gives or raises. Whoever waits works
    too, so one thread less is made. None is left behind.

    Threads are made anew each time: what they do takes a hundred times as long.
    """
    if threads < 2:
        yield lambda job: job
        return
    pool = ThreadPoolExecutor(threads - 1, "headrace-decode")
    tasks: deque[_Task[Any]] = deque()

    def begin(job: Callable[[], T]) -> Callable[[], T]:
        with starting("threads that decode"):
            task = _Task(job, pool.submit(job))
        tasks.append(task)
        return partial(_result, task, tasks)

    try:
        yield begin
    finally:
        pool.shutdown(cancel_futures=True)


class _Task(Generic[T]):
    def __init__(self, job: Callable[[], T], begun: Future[T]) -> None:
        self._job, self._begun = job, begun
        self._here: Future[T] | None = None

    @property
    def done(self) -> bool:
        return self._begun.done()

    def run_here(self) -> None:
        """Unless another thread has begun it."""
        if self._begun.cancel():
            self._here = Future()
            try:
                self._here.set_result(self._job())
            except Exception as error:
                self._here.set_exception(error)

    def result(self) -> T:
        return (self._here or self._begun).result()


def _result(task: _Task[T], tasks: deque[_Task[Any]]) -> T:
    while tasks and not task.done:
        tasks.popleft().run_here()
    return task.result()

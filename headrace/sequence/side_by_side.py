"""Work in a few threads of this process, side by side: decoders let go of the interpreter's lock."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from queue import Empty, SimpleQueue
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
    tasks: SimpleQueue[_Task[Any] | None] = SimpleQueue()
    helpers: list[threading.Thread] = []

    def begin(job: Callable[[], T]) -> Callable[[], T]:
        if len(helpers) < threads - 1:
            helper = threading.Thread(target=_help, args=(tasks,), name="headrace-decode")
            with starting("threads that decode"):
                helper.start()
            helpers.append(helper)
        task = _Task(job)
        tasks.put(task)
        return partial(_result, task, tasks)

    try:
        yield begin
    finally:
        while _next(tasks) is not None:  # an exception came: nobody waits for the rest
            pass
        for _ in helpers:
            tasks.put(None)
        for helper in helpers:
            helper.join()


class _Task(Generic[T]):
    def __init__(self, job: Callable[[], T]) -> None:
        self._job, self.future = job, Future[T]()

    def run(self) -> None:
        try:
            self.future.set_result(self._job())
        except Exception as error:
            self.future.set_exception(error)


def _help(tasks: SimpleQueue[_Task[Any] | None]) -> None:
    while (task := tasks.get()) is not None:
        task.run()


def _result(task: _Task[T], tasks: SimpleQueue[_Task[Any] | None]) -> T:
    while not task.future.done() and (other := _next(tasks)) is not None:
        other.run()
    return task.future.result()


def _next(tasks: SimpleQueue[_Task[Any] | None]) -> _Task[Any] | None:
    with suppress(Empty):
        return tasks.get_nowait()
    return None

"""Work in a few threads of this process, side by side: decoders let go of the interpreter's lock."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

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
def side_by_side(jobs: Sequence[Callable[[], T]], threads: int) -> Iterator[list[Callable[[], T]]]:
    """All of them begun, each as a call that waits for what it gives or raises. No thread is left behind.

    Threads are made anew each time: what they do takes a hundred times as long.
    """
    pool = ThreadPoolExecutor(threads, "headrace-decode")
    try:
        with starting("threads that decode"):
            begun: list[Callable[[], T]] = [pool.submit(job).result for job in jobs]
        yield begun
    finally:
        pool.shutdown(cancel_futures=True)

"""Doing a thing once per node: a lock that only saves work. Nothing is wrong where it does not lock."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.fetch.leases import Lock

log = logging.getLogger(__name__)

POLL_SECONDS = 0.05
PATIENCE_SECONDS = 60.0


@contextmanager
def locked(path: Path, patience: float = PATIENCE_SECONDS) -> Iterator[Callable[[], None]]:
    """Hold the lock at `path`; gives a function that tells the waiting ones that the holder makes progress.

    A holder that dies frees it at once. One that shows no life for `patience` seconds is no longer waited for: the work
    is then done twice.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = Lock(path)
    seen, since = 0, time.monotonic()
    while lock.take() is False:
        beat = lock.owner()[1]
        if beat != seen:
            seen, since = beat, time.monotonic()
        if time.monotonic() - since > patience:
            log.warning("%s is held by a process that makes no progress; going on without it", path)
            break
        time.sleep(POLL_SECONDS)
    try:
        yield lock.touch
    finally:
        lock.release()

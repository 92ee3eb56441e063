"""When to ask again, when to give up, and how long to wait in between. No I/O but the file of `Hold`."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from secrets import SystemRandom
from typing import TypeVar

from headrace import files
from headrace.catalog.shard import Broken
from headrace.catalog.stop import pause

T = TypeVar("T")
log = logging.getLogger(__name__)

HEALS = frozenset({408, 429, 500, 502, 503, 504})
LONGEST_HOLD = 600.0

# From the system, because forked processes share the state of the other generators and would all wake at once.
_random = SystemRandom().random


@dataclass(frozen=True)
class Retry:
    """Exponential backoff with full jitter."""

    attempts: int = 6
    base: float = 0.5
    cap: float = 30.0
    enough: int = 256 << 10
    """So many new bytes, or an eighth of what was left, are progress that makes failures before it forgotten."""

    def wait(self, failures: int, asked: float | None, luck: float) -> float | None:
        """Seconds to wait after so many failures in a row; None: give up. `luck` is drawn from [0, 1)."""
        if failures >= self.attempts:
            return None
        backoff = luck * min(self.cap, self.base * 2.0 ** (failures - 1))
        return backoff if asked is None else min(asked, LONGEST_HOLD) + max(backoff, luck * min(asked, 1.0))

    def failures(self, before: int, gained: int, left: int) -> int:
        """The number of failures in a row after one more, which came after `gained` of `left` bytes."""
        progressed = gained > 0 and (gained >= self.enough or gained * 8 >= left >= 0)
        return 1 if progressed else before + 1


RETRY = Retry()


def rest(broken: Broken, failures: int, what: str) -> None:
    """Wait before the next attempt at `what`, or raise what `broken` becomes."""
    wait = RETRY.wait(failures, broken.retry_after, _random())
    if wait is None:
        raise broken.error(f"{what}: {broken}; gave up after {failures} attempts in a row") from broken
    log.info("%s: %s; next attempt in %.1f s", what, broken, wait)
    pause(wait)


def retrying(attempt: Callable[[], T], what: str) -> T:
    failures = 0
    while True:
        try:
            return attempt()
        except Broken as broken:
            failures += 1
            rest(broken, failures, what)


def asked_wait(headers: Mapping[str, str], now: float) -> float | None:
    """Seconds that a reply asks to wait for, by Retry-After (seconds or date) or by the Hub's ratelimit header."""
    waits = []
    after = headers.get("retry-after", "").strip()
    if re.fullmatch(r"\d{1,9}(\.\d*)?", after):
        waits.append(float(after))
    elif after:
        try:
            waits.append(parsedate_to_datetime(after).timestamp() - now)
        except (ValueError, OverflowError):
            pass  # an unreadable wish is no wish
    for window in headers.get("ratelimit", "").split(","):
        fields = dict(re.findall(r";\s*([rt])=(\d{1,9}(?:\.\d*)?)", window))
        if "t" in fields and float(fields.get("r", 0)) == 0:
            waits.append(float(fields["t"]))
    return max(0.0, *waits) if waits else None


class Hold:
    """Until when nobody asks this endpoint again: one tiny file, shared by all processes with the same cache folder."""

    def __init__(self, endpoint: str, root: Path | None) -> None:
        self._key = hashlib.blake2b(endpoint.encode(), digest_size=8).hexdigest()
        self._path = root / f".hold-{self._key}" if root is not None else None

    def left(self) -> float:
        """Seconds to go."""
        until = max(_HOLDS.get(self._key, 0.0), self._read())
        left = until - time.time()
        # More than any hold we write means that the clock was set back.
        return left if 0 < left <= LONGEST_HOLD + 1 else 0.0

    def wait(self) -> None:
        while left := self.left():
            log.info("the Hub asked for a pause: %.1f s to go", left)
            pause(left + _random() * max(1.0, left / 10))

    def ask(self, seconds: float) -> None:
        until = time.time() + min(seconds, LONGEST_HOLD)
        if until - time.time() <= self.left():
            return
        _HOLDS[self._key] = until
        if self._path is not None:
            try:
                files.publish(self._path, [f"{until:.3f}".encode()])
            except OSError:
                pass  # a cache folder that cannot be written: this process still holds back

    def _read(self) -> float:
        if self._path is None:
            return 0.0
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError:
            return 0.0
        try:
            return float(os.read(fd, 32))
        except (OSError, ValueError):
            return 0.0
        finally:
            os.close(fd)


_HOLDS: dict[str, float] = {}

"""When to ask again, when to give up, and how long to wait in between. No I/O but the file of `Hold`."""

from __future__ import annotations

import hashlib
import logging
import math
import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from secrets import SystemRandom
from typing import TypeVar

from headrace import files, run
from headrace.catalog.shard import Broken
from headrace.catalog.stop import pause
from headrace.errors import HeadraceError, plain_url

T = TypeVar("T")
log = logging.getLogger(__name__)

HEALS = frozenset({408, 425, 429, 500, 502, 503, 504, *range(520, 525), 529, 530})
"""From 520 on they are of networks that deliver for the Hub, whose way to it is closed for the moment."""
LONGEST_HOLD = 600.0
WRONG_ANSWERS = 6
"""Answers in a row that are not what was asked for, and are enough to give up: time seldom heals those."""
FIRST_NOTICE_SECONDS = 10.0
NOTICE_SECONDS = 60.0
"""A wait is told when it has taken the first of these, and then once in the second of these."""

# From the system, because forked processes share the state of the other generators and would all wake at once.
_random = SystemRandom().random


class Notices:
    """When this process told last that it waits: it says so once a minute, however many of its threads wait."""

    def __init__(self) -> None:
        self._last: float | None = None

    def is_due(self, since: float, now: float) -> bool:
        """Whether it is time to tell of a wait that began at `since`; then the next time is a minute later."""
        due = now - since >= FIRST_NOTICE_SECONDS and (self._last is None or now - self._last >= NOTICE_SECONDS)
        if due:
            self._last = now
        return due


def _now() -> float:
    return time.monotonic()


@dataclass(frozen=True)
class Retry:
    """Exponential backoff with full jitter, until nothing has come for long enough."""

    attempts: int | None = None
    """Failures in a row that are enough to give up, however short the time; None: the time decides."""
    base: float = 0.5
    cap: float = 30.0
    enough: int = 256 << 10
    """So many new bytes, or an eighth of what was left, are progress that makes failures before it forgotten."""
    seconds: float | None = None
    """How long without progress is enough to give up; None: HEADRACE_RETRY_SECONDS."""
    clock: Callable[[], float] = _now
    pause: Callable[[float], None] = pause
    notices: Notices = field(default_factory=Notices, compare=False)

    def wait(self, failures: int, asked: float | None, luck: float) -> float | None:
        """Seconds to wait after this many failures in a row; None: give up. `luck` is drawn from [0, 1)."""
        if self.attempts is not None and failures >= self.attempts:
            return None
        backoff = luck * min(self.cap, self.base * 2.0 ** min(failures - 1, 60))
        return backoff if asked is None else min(asked, LONGEST_HOLD) + max(backoff, luck * min(asked, 1.0))

    def failures(self, before: int, gained: int, left: int) -> int:
        """The number of failures in a row after one more, which came after `gained` of `left` bytes."""
        progressed = gained > 0 and (gained >= self.enough or gained * 8 >= left >= 0)
        return 1 if progressed else before + 1

    def rest(self, seconds: float, since: float, notice: Callable[[], str]) -> None:
        """Wait, and log what `notice` says where that is due; `since` is when the waiting began."""
        until = self.clock() + seconds
        while True:
            now = self.clock()
            if self.notices.is_due(since, now):
                log.warning("%s", notice())
            if now >= until:
                return
            self.pause(min(until - now, FIRST_NOTICE_SECONDS))


RETRY = Retry()


class _Thread(threading.local):
    at_most: float | None = None


_THREAD = _Thread()


@contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Give up after these seconds in the body, also where the server asks for a longer pause."""
    before, _THREAD.at_most = _THREAD.at_most, seconds
    try:
        yield
    finally:
        _THREAD.at_most = before


class Tries:
    """The attempts at one thing. Progress resets its time."""

    def __init__(self, what: str, attempts: int | None = None) -> None:
        """`attempts`: this many failures in a row are enough; None: the time decides."""
        self._what = what
        self._attempts = attempts
        self._failures = self._wrong = 0
        self._begun = self._since = RETRY.clock()

    def failed(self, broken: Broken, gained: int = 0, left: int = -1) -> None:
        """Wait before the next attempt, or raise what `broken` becomes. It came after `gained` of `left` bytes."""
        now, seconds = RETRY.clock(), self._seconds()
        self._failures = RETRY.failures(self._failures, gained, left)
        self._wrong = self._wrong + 1 if broken.wrong else 0
        if self._failures == 1:
            self._since, self._begun = now, now if gained else self._begun
        end = self._since + seconds
        wait = RETRY.wait(self._failures, broken.retry_after, _random())
        enough = self._attempts is not None and self._failures >= self._attempts
        if wait is None or enough or self._wrong >= WRONG_ANSWERS:
            raise self._given_up(broken, "")
        if not broken.wrong:
            if now >= end or (_THREAD.at_most is not None and (broken.retry_after or 0.0) > end - now):
                raise self._given_up(broken, f", {now - self._since:.0f} s without progress")
            if broken.retry_after is None:
                wait = min(wait, end - now)  # the last attempt comes at the end of the time, not before it
        log.info("%s: %s; next attempt in %.1f s", self._what, broken, wait)
        # A wait that is brief is over before it is worth telling, and its end is told by who asked for it.
        begun = self._begun if _THREAD.at_most is None else math.inf
        RETRY.rest(wait, begun, lambda: self._notice(broken, end))

    def _seconds(self) -> float:
        seconds = run.retry_seconds() if RETRY.seconds is None else RETRY.seconds
        return seconds if _THREAD.at_most is None else min(seconds, _THREAD.at_most)

    def _given_up(self, broken: Broken, after: str) -> HeadraceError:
        hint = "; HEADRACE_RETRY_SECONDS sets the time" if after and _THREAD.at_most is None else ""
        error = broken.error(f"{self._what}: {broken}; gave up after {_attempts(self._failures)} in a row{after}{hint}")
        error.__cause__ = broken
        return error

    def _notice(self, broken: Broken, end: float) -> str:
        now = RETRY.clock()
        asked = "" if broken.retry_after is None else f" (the server asks for a pause of {broken.retry_after:.0f} s)"
        return (
            f"waiting for {self._what}: {broken}{asked}; no progress since {_at(self._since - now)} "
            f"({now - self._since:.0f} s), trying again until {_at(end - now)} (HEADRACE_RETRY_SECONDS sets the time)"
        )


def retrying(attempt: Callable[[], T], what: str, attempts: int | None = None) -> T:
    """What `attempt` returns, as soon as it raises no `Broken`."""
    tries = Tries(what, attempts)
    while True:
        try:
            return attempt()
        except Broken as broken:
            tries.failed(broken)


def _attempts(count: int) -> str:
    return f"{count} attempt{'s' if count != 1 else ''}"


def _at(seconds: float) -> str:
    """The time of day, this many seconds from now."""
    return f"{datetime.fromtimestamp(time.time() + seconds):%H:%M:%S}"


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
        self._endpoint = plain_url(endpoint)
        self._key = hashlib.blake2b(endpoint.encode(), digest_size=8).hexdigest()
        self._path = root / f".hold-{self._key}" if root is not None else None

    def left(self) -> float:
        """Seconds to go."""
        until = max(_HOLDS.get(self._key, 0.0), self._read())
        left = until - time.time()
        # More than any hold we write means that the clock was set back.
        return left if 0 < left <= LONGEST_HOLD + 1 else 0.0

    def wait(self) -> None:
        since = RETRY.clock()
        while left := self.left():
            if _THREAD.at_most is not None and left > _THREAD.at_most:
                raise Broken(f"{self._endpoint} asked for a pause, of which {left:.0f} s are left", retry_after=left)
            log.info("%s asked for a pause: %.1f s to go", self._endpoint, left)
            RETRY.rest(left + _random() * max(1.0, left / 10), since, self._notice)

    def _notice(self) -> str:
        return f"waiting for {self._endpoint}: it asked for a pause, which ends at {_at(self.left())}"

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

"""What several test files need."""

from __future__ import annotations

import signal
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

from headrace.catalog import retry
from headrace.catalog.retry import Retry
from headrace.fetch import prefetch
from headrace.serve.short_folder import use_short_folder
from headrace.testing import LocalHub

# How long an example takes is the machine's affair: each test has its own timeout.
settings.register_profile("without deadlines", deadline=None)
settings.load_profile("without deadlines")
settings.register_profile("first failure", phases=[Phase.explicit, Phase.generate], deadline=None)
"""For `tests/trust/plant.py`: that it fails is enough, and finding the smallest example takes long."""


def pytest_configure() -> None:
    """A shell's background jobs ignore SIGINT, and so would every process that a test starts and interrupts.

    TMPDIR may be too long for the sockets of tests that start processes by `multiprocessing` themselves.
    """
    use_short_folder()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_nohup() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, and so it is by every process that is started there; not in here."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A TMPDIR for other processes, in which the path of a socket fits."""
    with tempfile.TemporaryDirectory(prefix="headrace-", dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    """A Hub with nothing in it."""
    with LocalHub() as hub:
        yield hub


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries without long waits, and nothing remembered from other tests."""
    monkeypatch.setattr(retry, "RETRY", Retry(attempts=4, base=0.01))
    monkeypatch.setattr(retry, "_HOLDS", {})
    monkeypatch.setattr(prefetch, "_SWEPT", set())


class Clock:
    """Time for retries that passes only in their pauses."""

    def __init__(self) -> None:
        self.now = 5000.0
        self.at_pause: Callable[[], None] = lambda: None

    def __call__(self) -> float:
        return self.now

    def pause(self, seconds: float) -> None:
        self.now += seconds
        self.at_pause()


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Retries as they are by default, in no time, and nothing remembered from other tests."""
    clock = Clock()
    monkeypatch.setattr(retry, "RETRY", Retry(clock=clock, pause=clock.pause))
    monkeypatch.setattr(retry, "_HOLDS", {})
    monkeypatch.setattr(prefetch, "_SWEPT", set())
    return clock


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """To be one of several ranks, as launchers say it."""

    def be(rank: int, ranks: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))

    return be

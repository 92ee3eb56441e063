"""What several test files need."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator

import pytest

from headrace.catalog import retry
from headrace.catalog.retry import Retry
from headrace.fetch import prefetch
from headrace.testing import LocalHub


def pytest_configure() -> None:
    """A shell's background jobs ignore SIGINT, and so would every process that a test starts and interrupts."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def no_nohup() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, and so it is by every process that is started there; not in here."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


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


@pytest.fixture
def as_rank(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """To be one of several ranks, as launchers say it."""

    def be(rank: int, ranks: int) -> None:
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", str(ranks))

    return be

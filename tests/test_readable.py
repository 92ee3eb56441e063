"""Sound is read from a file in memory while other threads are at work: what comes out, and what fails, is the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import media_files
import numpy as np
import pytest

from headrace.errors import HeadraceError
from headrace.fetch.media import readable as module
from headrace.fetch.media.audio import decode_audio, sound_seconds
from headrace.fetch.media.readable import readable

RATE = 16_000
FORMS = ("WAV", "FLAC", "OGG", "MP3", "AIFF")
TONE = media_files.tone(RATE, 0.4)


@contextmanager
def company() -> Iterator[None]:
    """Another thread, that only waits."""
    over = threading.Event()
    other = threading.Thread(target=over.wait)
    other.start()
    try:
        yield
    finally:
        over.set()
        other.join()


def outcome(data: bytes) -> Any:
    try:
        return decode_audio(data, RATE).tobytes()
    except HeadraceError as error:
        return type(error), str(error)


def files() -> int:
    return sum("headrace-sound" in str(path.resolve()) for path in Path("/proc/self/fd").iterdir())


def test_it_is_a_file_only_where_others_are_at_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)
    assert not isinstance(readable(b"abc"), int)
    monkeypatch.setattr(threading, "active_count", lambda: 2)
    found = readable(b"abc")
    assert isinstance(found, int)
    assert os.pread(found, 10, 0) == b"abc"
    assert readable(b"x" * 9) == found
    assert readable(b"de") == found
    assert os.pread(found, 10, 0) == b"de"  # nothing is left of what was longer
    assert os.lseek(found, 0, os.SEEK_CUR) == 0


def test_large_sounds_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 8)
    with company():
        assert isinstance(readable(b"x" * 8), int)
        assert not isinstance(readable(b"x" * 9), int)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_comes_out(form: str) -> None:
    data = media_files.sound(TONE, RATE, form)
    alone, seconds = outcome(data), sound_seconds(data)
    assert isinstance(alone, bytes)
    with company():
        assert outcome(data) == alone
        assert sound_seconds(data) == seconds


@pytest.mark.parametrize("form", FORMS)
def test_what_is_damaged_fails_the_same_way(form: str) -> None:
    data = media_files.sound(TONE, RATE, form)
    several = [data[: len(data) * i // 7] for i in range(7)] + list(media_files.mutants(data, 40))
    alone = [outcome(one) for one in several]
    assert any(isinstance(one, tuple) for one in alone)
    with company():
        assert [outcome(one) for one in several] == alone


def test_threads_have_a_file_each_and_it_ends_with_them() -> None:
    sounds = [media_files.sound(media_files.tone(RATE, 0.02 * (1 + i % 7)), RATE, FORMS[i % 2]) for i in range(60)]
    alone = [outcome(one) for one in sounds]
    before = files()
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(outcome, sounds)) == alone
        assert 0 < files() - before <= 4
    assert files() == before


def in_child(work: Callable[[], bool]) -> bool:
    process = os.fork()
    if not process:
        os._exit(0 if work() else 1)
    return os.waitpid(process, 0)[1] == 0


def test_a_forked_child_has_its_own() -> None:
    with company():
        mine = readable(b"parent")
        assert isinstance(mine, int)

        def work() -> bool:
            threading.active_count = lambda: 2
            own = readable(b"a child")
            return isinstance(own, int) and os.pread(own, 10, 0) == b"a child" and files() == 1

        assert in_child(work)
        assert os.pread(mine, 10, 0) == b"parent"


@pytest.mark.parametrize("name", ["memfd_create", "pwrite"])
def test_where_there_is_no_such_file_it_is_read_as_before(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data = media_files.sound(TONE, RATE, "FLAC")
    alone = decode_audio(data, RATE)
    monkeypatch.setattr(module._own, "file", None)

    def fails(*_: Any) -> int:
        raise OSError("no more of these")

    with company():
        monkeypatch.setattr(os, name, fails)
        assert np.array_equal(decode_audio(data, RATE), alone)
        monkeypatch.delattr(os, "memfd_create")
        assert np.array_equal(decode_audio(data, RATE), alone)

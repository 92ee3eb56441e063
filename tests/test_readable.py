"""Sound is read from a file in memory where several threads decode: what comes out, and what fails, is the same."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import media_files
import numpy as np
import pytest

from headrace.errors import HeadraceError
from headrace.fetch.media import readable as module
from headrace.fetch.media.audio import decode_audio, sound_seconds
from headrace.fetch.media.readable import crowded, readable
from headrace.make.describe import Faults
from headrace.make.prepare import Ready
from headrace.make.sample import Sample
from headrace.mix.turns import Pick
from headrace.sequence.samples import SampleBatcher
from headrace.sequence.side_by_side import Helpers

RATE = 16_000
FORMS = ("WAV", "FLAC", "OGG", "MP3", "AIFF")
TONE = media_files.tone(RATE, 0.4)


def outcome(data: bytes) -> Any:
    try:
        return decode_audio(data, RATE).tobytes()
    except HeadraceError as error:
        return type(error), str(error)


def files() -> int:
    return sum("headrace-sound" in str(path.resolve()) for path in Path("/proc/self/fd").iterdir())


def test_it_is_a_file_only_where_others_decode_too() -> None:
    assert not isinstance(readable(b"abc"), int)
    with crowded():
        with crowded():
            found = readable(b"abc")
            assert isinstance(found, int)
            assert os.pread(found, 10, 0) == b"abc"
        assert readable(b"x" * 9) == found
        assert readable(b"de") == found
    assert not isinstance(readable(b"abc"), int)
    assert os.pread(found, 10, 0) == b"de"  # nothing is left of what was longer
    assert os.lseek(found, 0, os.SEEK_CUR) == 0


@pytest.mark.parametrize("threads", [1, 2])
def test_a_batch_is_decoded_from_files_where_it_is_decoded_side_by_side(threads: int) -> None:
    rows = iter([Ready(0, 0, i, "shard", i, [Sample(np.zeros(1, np.int32))]) for i in range(4)])
    helpers = Helpers(threads)

    def finish(row: Ready, sub: int) -> dict[str, Any]:
        return {"in a file": isinstance(readable(b"abc"), int)}

    batcher = SampleBatcher(4, 1, 8, finish, Faults(), lambda pick: None, helpers)
    try:
        made = batcher.make(lambda: next((Pick(row, 0) for row in rows), None), 0)
    finally:
        helpers.close()
    assert [item.made["in a file"] for item in made] == [threads > 1] * 4


def test_large_sounds_do_not_stay_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST", 8)
    with crowded():
        assert isinstance(readable(b"x" * 8), int)
        assert not isinstance(readable(b"x" * 9), int)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_comes_out(form: str) -> None:
    data = media_files.sound(TONE, RATE, form)
    alone, seconds = outcome(data), sound_seconds(data)
    assert isinstance(alone, bytes)
    with crowded():
        assert outcome(data) == alone
        assert sound_seconds(data) == seconds


@pytest.mark.parametrize("tags", [1, 2])
@pytest.mark.parametrize("form", FORMS)
def test_tags_before_a_sound_are_no_part_of_it(form: str, tags: int) -> None:
    """libsndfile looks for the end at another place behind them, by how it reads."""
    plain = media_files.sound(TONE, RATE, form)
    data = (b"ID3\x04\0\0\0\0" + bytes([2000 >> 7, 2000 & 127]) + b"\0" * 2000) * tags + plain
    assert outcome(data) == outcome(plain)
    assert sound_seconds(data) == sound_seconds(plain)
    with crowded():
        assert outcome(data) == outcome(plain)
        assert sound_seconds(data) == sound_seconds(plain)


@pytest.mark.parametrize("form", FORMS)
def test_what_is_damaged_fails_the_same_way(form: str) -> None:
    data = media_files.sound(TONE, RATE, form)
    several = [data[: len(data) * i // 7] for i in range(7)] + list(media_files.mutants(data, 40))
    alone = [outcome(one) for one in several]
    assert any(isinstance(one, tuple) for one in alone)
    with crowded():
        assert [outcome(one) for one in several] == alone


def test_threads_have_a_file_each_and_it_ends_with_them() -> None:
    sounds = [media_files.sound(media_files.tone(RATE, 0.02 * (1 + i % 7)), RATE, FORMS[i % 2]) for i in range(60)]
    alone = [outcome(one) for one in sounds]
    before = files()
    with crowded(), ThreadPoolExecutor(4) as threads:
        assert list(threads.map(outcome, sounds)) == alone
        assert 0 < files() - before <= 4
    assert files() == before


def in_child(work: Callable[[], bool]) -> bool:
    process = os.fork()
    if not process:
        os._exit(0 if work() else 1)
    return os.waitpid(process, 0)[1] == 0


def test_a_forked_child_has_its_own() -> None:
    with crowded():
        mine = readable(b"parent")
        assert isinstance(mine, int)

        def work() -> bool:
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

    with crowded():
        monkeypatch.setattr(os, name, fails)
        assert np.array_equal(decode_audio(data, RATE), alone)
        monkeypatch.delattr(os, "memfd_create")
        assert np.array_equal(decode_audio(data, RATE), alone)

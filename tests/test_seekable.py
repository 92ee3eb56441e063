"""Compressed text: rewritten once, then read at any byte; and every kind of bad archive with a sentence."""

from __future__ import annotations

import errno
import gzip
import os
import random
import re
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.catalog import seekable
from headrace.catalog.lines import index_lines
from headrace.catalog.plain import PlainBytes, PlainFile, read_exactly
from headrace.catalog.seekable import SeekableFile, seekable_shard
from headrace.errors import Changed, DataError, Integrity, NoSpace
from headrace.fetch import text
from headrace.fetch.cache import ShardCache
from headrace.fetch.lines import LineReader
from headrace.files import REAL, Files

SKIPPABLE = b"\x50\x2a\x4d\x18" + (5).to_bytes(4, "little") + b"12345"


def open_text(path: Path, folder: Path, files: Files = REAL, cap: int | None = None) -> PlainBytes:
    return text.open_text(path, ShardCache(folder, files=files), cap)


def made_in(folder: Path) -> list[Path]:
    """The rewritten files in a cache folder."""
    return [p for p in (folder / "hf_shards" / "_text").glob("*") if not p.name.startswith(".")]


def zstd(data: bytes, **options: Any) -> bytes:
    return zstandard.ZstdCompressor(write_checksum=True, **options).compress(data)


def zstd_stream(data: bytes, **options: Any) -> bytes:
    """A frame that does not say how long it is."""
    made = zstandard.ZstdCompressor(**options).compressobj()
    return made.compress(data) + made.flush()


def halves(data: bytes) -> tuple[bytes, bytes]:
    return data[: len(data) // 3], data[len(data) // 3 :]


SHAPES: dict[str, Callable[[bytes], bytes]] = {
    "one.gz": gzip.compress,
    "members.gz": lambda data: b"".join(map(gzip.compress, halves(data))) + gzip.compress(b""),
    "padded.GZ": lambda data: gzip.compress(data) + bytes(100),
    "one.zst": zstd,
    "frames.zst": lambda data: b"".join(map(zstd_stream, halves(data))) + zstd(b""),
    "skippable.zst": lambda data: SKIPPABLE + zstd(data) + SKIPPABLE,
}


def words(size: int) -> bytes:
    draw = random.Random(7)
    lines = (f"{k} {draw.choice(['some', 'words', 'größer'])} {draw.random()}\n".encode() for k in range(size // 20))
    return b"".join(lines)[:size]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("seekable")


@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(st.sampled_from([b"a", b"\n", b"bcd", "ü".encode(), b"x" * 70]), max_size=12).map(b"".join),
    name=st.sampled_from(sorted(SHAPES)),
    cuts=st.tuples(st.integers(0, 400), st.integers(0, 400)),
)
def test_any_byte_range_is_that_of_the_plain_text(folder: Path, data: bytes, name: str, cuts: tuple[int, int]) -> None:
    path = folder / name
    path.write_bytes(SHAPES[name](data))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(seekable, "BLOCK", 64)
        target = folder / "out.zst"
        with PlainFile(path) as source:
            shard = seekable_shard(path, source.signature)
            target.write_bytes(b"".join(shard.origin.stream(shard)))
            found = SeekableFile(target, path, source.signature, "label")
        start, stop = sorted(cut % (len(data) + 1) for cut in cuts)
        assert found.size == len(data)
        assert found.read_bytes(start, stop) == data[start:stop]
        assert found.read_bytes(0, len(data)) == data
        found.close()


@pytest.mark.parametrize("name", SHAPES)
def test_rows_of_a_compressed_file_are_those_of_the_plain_file(tmp_path: Path, name: str) -> None:
    plain, path = tmp_path / "plain.txt", tmp_path / name
    plain.write_bytes(words(3_000_000))
    path.write_bytes(SHAPES[name](plain.read_bytes()))
    with open_text(plain, tmp_path / "cache") as expected, open_text(path, tmp_path / "cache") as found:
        a, b = index_lines(expected, "txt"), index_lines(found, "txt")
        assert (a.rows, a.offsets, a.bytes) == (b.rows, b.offsets, b.bytes)
        assert b.size == path.stat().st_size
        left, right = LineReader(expected, a, kind="txt"), LineReader(found, b, kind="txt", signature=found.signature)
        for start in (0, 999, 31_000, a.rows - 7):
            assert left.read(start, start + 7).equals(right.read(start, start + 7))


def test_one_row_decompresses_its_own_blocks_only_and_zstd_reads_the_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt.gz"
    data = words(9_500_000)
    path.write_bytes(gzip.compress(data, 1))
    with open_text(path, tmp_path / "cache") as source:
        index = index_lines(source, "txt")
    (made,) = made_in(tmp_path / "cache")
    with made.open("rb") as file:
        reader = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        assert reader.read() == data

    asked = []

    def recording(fd: int, start: int, stop: int, label: str) -> bytes:
        asked.append(stop - start)
        return read_exactly(fd, start, stop, label)

    monkeypatch.setattr(seekable, "read_exactly", recording)
    with open_text(path, tmp_path / "cache") as source:
        LineReader(source, index, kind="txt").read(150_000, 150_001)
    frames = [size for size in asked if size > 1_000]
    assert 1 <= len(frames) <= 2
    assert sum(frames) < made.stat().st_size / 3


def test_it_is_rewritten_once_and_again_only_when_the_file_changed(tmp_path: Path) -> None:
    path, cache = tmp_path / "a.gz", tmp_path / "cache"
    path.write_bytes(gzip.compress(b"one\n"))
    open_text(path, cache).close()
    (made,) = made_in(cache)
    before = made.stat().st_ino
    open_text(path, cache).close()
    assert made.stat().st_ino == before
    path.write_bytes(gzip.compress(b"three\n"))
    with open_text(path, cache) as found:
        assert found.read_bytes(0, found.size) == b"three\n"
    assert len(made_in(cache)) == 2
    before_it = path.stat()
    path.write_bytes(gzip.compress(b"seven\n"))
    os.utime(path, ns=(before_it.st_mtime_ns, before_it.st_mtime_ns + 1))
    assert path.stat().st_size == before_it.st_size
    with open_text(path, cache) as found:
        assert found.read_bytes(0, found.size) == b"seven\n"


BAD: dict[str, tuple[bytes, str]] = {
    "short.gz": (
        gzip.compress(words(9_000))[:-1],
        r"ends at byte \d+, inside the gzip member that begins at byte 0: it is",
    ),
    "cut.gz": (
        gzip.compress(b"a") + gzip.compress(words(9_000))[:99],
        r"inside the gzip member that begins at byte 21: ",
    ),
    "empty.gz": (b"", r"ends at byte 0, inside the gzip member .* truncated; fetch it or make it again"),
    "garbage.gz": (
        gzip.compress(b"a") + b"garbage",
        r"byte 21: what follows the last gzip member .*trailing garbage.*21$",
    ),
    "padding.gz": (gzip.compress(b"a") + bytes(9) + b"?!", r"byte 30: what follows the last gzip member"),
    "crc.gz": (
        gzip.compress(b"a\n")[:-6] + b"??" + gzip.compress(b"a\n")[-4:],
        r"member at byte 0 is corrupt before byte 22",
    ),
    "plain.gz": (b"hello\nworld\n", r"byte 0: this is not gzip, though its name says so; if it is plain text, take"),
    "zstd.gz": (
        zstd(b"a"),
        r"this is not gzip, .* first bytes are those of zstd data; give it a name that ends in .zst",
    ),
    "short.zst": (
        zstd(words(9_000))[:-1],
        r"ends at byte \d+, inside the zstd frame that begins at byte 0: it is trunc",
    ),
    "cut.zst": (zstd(b"a") + zstd(words(9_000))[:50], r"inside the zstd frame that begins at byte 14: it is truncated"),
    "empty.zst": (b"", r"ends at byte 0, inside the zstd frame"),
    "head.zst": (b"\x28\xb5", r"ends at byte 2, inside the zstd frame"),
    "garbage.zst": (
        zstd(b"a") + b"garbage",
        r"byte 14: what follows the last zstd frame .*trailing garbage.* head -c 14",
    ),
    "crc.zst": (zstd(words(9_000))[:-1] + b"?", r"frame at byte 0 is corrupt before byte \d+ \(.*checksum\); fetch it"),
    "plain.zst": (b"hello\nworld\n", r"byte 0: this is not zstd, though its name says so"),
    "gzip.zst": (gzip.compress(b"a"), r"this is not zstd, .* first bytes are those of gzip data; give it a name"),
    "window.zst": (
        zstd_stream(b"a", compression_params=zstandard.ZstdCompressionParameters.from_level(3, window_log=28)),
        r"frame at byte 0 needs a window above 128 MiB to be decompressed; recompress it with zstd --long=27",
    ),
    "dictionary.zst": (
        SKIPPABLE + zstd(b"a", dict_data=zstandard.train_dictionary(900, [b"some words %d" % k for k in range(2_000)])),
        r"the zstd frame at byte 13 needs a dictionary, which no file carries; recompress it without one",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_archive_is_named_by_file_and_byte_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    data, message = BAD[name]
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(DataError) as caught:
        open_text(path, tmp_path / "cache")
    assert re.search(f"{name}: .*{message}|{name}: {message}", str(caught.value)), caught.value
    assert made_in(tmp_path / "cache") == []


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_bomb_is_refused_in_bounded_memory(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"bomb.{kind}"
    zeros = bytes(1 << 20)
    if kind == "gz":
        with gzip.open(path, "wb") as file:
            for _ in range(300):
                file.write(zeros)
    else:
        path.write_bytes(zstd_stream(bytes(300 << 20)))
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as caught:
            open_text(path, tmp_path / "cache", cap=200 << 20)
        assert tracemalloc.get_traced_memory()[1] < 120 << 20
    finally:
        tracemalloc.stop()
    assert re.search(r"bomb\.\w+: its [\d,]+ bytes decompress to more than 209,715,200, .*a bomb", str(caught.value))
    assert made_in(tmp_path / "cache") == []


def test_the_default_cap_is_a_gigabyte_or_two_hundred_times_the_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seekable, "MIN_CAP", 1_000)
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(bytes(100_000)))
    with pytest.raises(DataError, match=f"more than {200 * path.stat().st_size:,}, which looks like a bomb"):
        open_text(path, tmp_path / "cache")
    path.write_bytes(gzip.compress(words(100_000)))
    open_text(path, tmp_path / "cache").close()


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_a_hundred_thousand_tiny_members_take_seconds_not_hours(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"a.{kind}"
    path.write_bytes((gzip.compress(b"a\n") if kind == "gz" else zstd(b"a\n")) * 100_000)
    began = time.perf_counter()
    with open_text(path, tmp_path / "cache") as found:
        assert index_lines(found, "txt").rows == 100_000
    assert time.perf_counter() - began < 8


def test_a_file_that_changes_while_it_is_rewritten_is_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(random.Random(3).randbytes(3 << 20), 0))

    class Touching(Files):
        def write(self, fd: int, data: bytes | memoryview) -> None:
            os.utime(path, ns=(1, 1))
            super().write(fd, data)

    with pytest.raises(Changed, match=r"a\.gz changed .*: mtime_ns was \d+, is 1"):
        open_text(path, tmp_path / "cache", files=Touching())
    assert made_in(tmp_path / "cache") == []


def test_an_index_of_a_rewritten_file_notices_that_the_original_changed(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"one\n"))
    with open_text(path, tmp_path / "cache") as found:
        os.utime(path, ns=(1, 1))
        with pytest.raises(Changed, match=r"a\.gz changed since its rows were counted: mtime_ns was"):
            index_lines(found, "txt")


def test_a_full_disk_leaves_nothing_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.gz"
    path.write_bytes(gzip.compress(b"one\n"))

    class Full(Files):
        def write(self, fd: int, data: bytes | memoryview) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(NoSpace, match="no room to write"):
        open_text(path, tmp_path / "cache", files=Full())
    assert made_in(tmp_path / "cache") == []
    with open_text(path, tmp_path / "cache") as found:
        assert found.read_bytes(0, 4) == b"one\n"


@pytest.mark.parametrize("damage", ["cut", "empty", "tail", "plain size", "frame size"])
def test_a_rewritten_file_without_its_table_is_made_again(tmp_path: Path, damage: str) -> None:
    path, cache = tmp_path / "a.gz", tmp_path / "cache"
    data = words(3 << 20)
    path.write_bytes(gzip.compress(data, 1))
    open_text(path, cache).close()
    (made,) = made_in(cache)
    good = made.read_bytes()
    bad = {
        "cut": good[:-20],
        "empty": b"",
        "tail": good[:-1] + b"?",
        "plain size": good[:-20] + b"???" + good[-17:],
        "frame size": good[:-17] + b"????" + good[-13:],
    }
    made.chmod(0o644)
    made.write_bytes(bad[damage])
    with open_text(path, cache) as found:
        assert found.read_bytes(0, found.size) == data
    assert made.read_bytes() == good


def test_a_damaged_block_is_an_integrity_error_and_is_then_made_again(tmp_path: Path) -> None:
    path, cache = tmp_path / "a.gz", tmp_path / "cache"
    data = words(9_000)
    path.write_bytes(gzip.compress(data))
    open_text(path, cache).close()
    (made,) = made_in(cache)
    good = made.read_bytes()
    refused = []
    for at in range(0, len(good) - 30, 7):
        with open_text(path, cache) as found:
            made.chmod(0o644)
            made.write_bytes(good[:at] + bytes([good[at] ^ 0x21]) + good[at + 1 :])
            try:
                # a few bits say only how the frame is to be decoded
                assert found.read_bytes(0, len(data)) == data
            except Integrity as error:
                refused.append((str(error), made.exists()))
    assert len(refused) > (len(good) - 30) // 7 - 5
    for message, is_still_there in refused:
        assert re.search(r"seekable form of .*a\.gz, was damaged on disk \(block 0.* is removed", message)
        assert not is_still_there
    with open_text(path, cache) as found:
        assert found.read_bytes(0, len(data)) == data


def test_processes_that_rewrite_at_once_all_end_right(tmp_path: Path) -> None:
    path, cache = tmp_path / "a.gz", tmp_path / "cache"
    data = words(6 << 20)
    path.write_bytes(gzip.compress(data, 1))
    script = (
        "import pathlib, sys, hashlib\n"
        "from headrace.fetch.cache import ShardCache; from headrace.fetch.text import open_text\n"
        "sys.stdin.read(1)\n"
        "found = open_text(sys.argv[1], ShardCache(pathlib.Path(sys.argv[2])))\n"
        "print(hashlib.sha256(found.read_bytes(0, found.size)).hexdigest())"
    )
    command = [sys.executable, "-c", script, str(path), str(cache)]
    started = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) for _ in range(3)]
    for process in started:
        assert process.stdin is not None
        process.stdin.write(b"x")
        process.stdin.flush()
    answers = {process.communicate(timeout=60)[0] for process in started}
    assert [process.returncode for process in started] == [0, 0, 0]
    assert len(answers) == 1
    assert len(made_in(cache)) == 1
    with open_text(path, cache) as found:
        assert found.read_bytes(0, found.size) == data


def test_rewritten_files_count_in_the_limit_of_the_cache_and_go_when_it_is_full(tmp_path: Path) -> None:
    cache = ShardCache(tmp_path / "cache", limit=150_000)
    for i in range(4):
        path = tmp_path / f"{i}.gz"
        path.write_bytes(gzip.compress(random.Random(i).randbytes(60_000)))
        with text.open_text(path, cache) as found:
            assert found.size == 60_000
    assert 1 <= len(made_in(tmp_path / "cache")) <= 3

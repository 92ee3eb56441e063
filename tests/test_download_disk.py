"""Downloads and the disk: what others left there, and what it refuses."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fetching import leftovers, noise, shard_on

from headrace.catalog.shard import Origin, Shard
from headrace.catalog.stop import Stop, Stopped
from headrace.errors import FetchError, HeadraceError, NoSpace
from headrace.fetch import download as module
from headrace.fetch.download import download, part_mark
from headrace.files import PART, Files, host_tag, unique_part
from headrace.testing.hub import (
    LocalHub,
    StallAfter,
)

BODY = noise(300_000)
N = len(BODY)
MID = N // 2
FILE = "*/resolve/*"


pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("quick")]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "shards" / "a.parquet"


def assert_nothing_is_left(target: Path) -> None:
    assert [path.name for path in target.parent.iterdir()] == []


def dead_part(target: Path, shard: Shard, content: bytes, mark: str = "abcd1234") -> Path:
    """A partial file of a process that has ended."""
    process = subprocess.Popen(["true"])
    process.wait()
    stem = f".{target.name}.{part_mark(shard)}.{host_tag()}.{process.pid}.12345.{mark}{PART}"
    part = target.with_name(stem)
    part.parent.mkdir(exist_ok=True)
    part.write_bytes(content)
    return part


class TestPartials:
    def test_the_largest_partial_of_a_dead_process_is_taken_over(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        for size, mark in [(5, "a"), (MID, "b"), (7, "c")]:
            dead_part(target, shard, BODY[:size], mark)
        download(shard, target)
        assert target.read_bytes() == BODY
        assert [r.range for r in hub.requests] == [f"bytes={MID}-"]
        assert leftovers(target.parent) == []

    def test_a_whole_partial_of_a_dead_process_needs_no_request(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        dead_part(target, shard, BODY)
        download(shard, target)
        assert target.read_bytes() == BODY
        assert hub.requests == []

    @pytest.mark.parametrize("content", [b"x" * MID, b"x" * N, b"x" * (N + 1)])
    def test_a_spoiled_partial_is_found_by_its_hash(self, hub: LocalHub, target: Path, content: bytes) -> None:
        shard = shard_on(hub, BODY)
        dead_part(target, shard, content)
        download(shard, target)
        assert target.read_bytes() == BODY
        assert leftovers(target.parent) == []

    def test_a_partial_of_a_living_process_is_left_alone(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        target.parent.mkdir()
        living = unique_part(target, part_mark(shard))
        living.write_bytes(BODY[:MID])
        download(shard, target)
        assert living.read_bytes() == BODY[:MID]
        assert hub.requests[0].range is None

    def test_a_dead_partial_of_an_older_content_is_removed_and_others_stay(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        older = dead_part(target, Shard("data/a.parquet", 5, "0" * 64, shard.origin), b"older")
        other = dead_part(target.with_name("b.parquet"), Shard("b", 5, "1" * 64, shard.origin), b"other")
        download(shard, target)
        assert not older.exists()
        assert other.exists()

    def test_a_link_in_place_of_a_partial_is_not_followed(self, hub: LocalHub, target: Path, tmp_path: Path) -> None:
        victim = tmp_path / "victim"
        victim.write_bytes(b"precious")
        shard = shard_on(hub, BODY)
        part = dead_part(target, shard, b"")
        part.unlink()
        part.symlink_to(victim)
        download(shard, target)
        assert victim.read_bytes() == b"precious"
        assert target.read_bytes() == BODY

    def test_a_stopped_download_ends_at_once_and_leaves_nothing(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, StallAfter(MID))
        stop = Stop()
        threading.Timer(0.2, stop.set).start()
        began = time.monotonic()
        with pytest.raises(Stopped):
            download(shard, target, stop=stop)
        assert time.monotonic() - began < 1
        assert_nothing_is_left(target)


class Failing(Files):
    """A disk on which one call fails, once or for good."""

    def __init__(self, call: str, code: int, times: int = 1, after: int = 0) -> None:
        self._code, self._times, self._after = code, times, after
        real = getattr(self, call)

        def fail(*args: object) -> object:
            if self._after:
                self._after -= 1
            elif self._times:
                self._times -= 1
                raise OSError(self._code, os.strerror(self._code))
            return real(*args)

        setattr(self, call, fail)


class Recording(Files):
    """The order in which things happen to files."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def __getattribute__(self, name: str) -> Any:
        if not name.startswith("_") and name != "calls":
            self.calls.append(name)
        return super().__getattribute__(name)


class TestDisk:
    def test_bytes_are_on_the_disk_before_they_have_a_name_and_the_name_before_we_return(
        self, hub: LocalHub, target: Path
    ) -> None:
        disk = Recording()
        download(shard_on(hub, BODY), target, files=disk)
        assert disk.calls[0] == "create"
        assert disk.calls[-5:] == ["fsync", "seal", "rename", "fsync_dir", "close"]

    @pytest.mark.parametrize("call", ["create", "write", "fsync", "rename", "fsync_dir"])
    @pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT])
    def test_a_full_disk_is_given_room_once(self, hub: LocalHub, target: Path, call: str, code: int) -> None:
        shard = shard_on(hub, BODY)
        asked: list[int] = []

        def make_room(needed: int) -> bool:
            asked.append(needed)
            return True

        download(shard, target, files=Failing(call, code), make_room=make_room)
        assert target.read_bytes() == BODY
        assert len(asked) == 1

    @pytest.mark.parametrize("call", ["create", "write", "fsync", "rename"])
    def test_a_disk_that_stays_full_is_an_error_with_the_numbers(self, hub: LocalHub, target: Path, call: str) -> None:
        shard = shard_on(hub, BODY)
        with pytest.raises(NoSpace, match=rf"needs {N:,} bytes.*bytes and.*free.*HEADRACE_CACHE_BYTES"):
            download(shard, target, files=Failing(call, errno.ENOSPC, 99), make_room=lambda needed: True)
        assert_nothing_is_left(target)

    def test_a_write_that_fails_half_way_leaves_no_torn_bytes(self, hub: LocalHub, target: Path) -> None:
        class Torn(Files):
            failed = False

            def write(self, fd: int, data: bytes | memoryview) -> None:
                if not self.failed:
                    self.failed = True
                    os.write(fd, data[: len(data) // 2])
                    raise OSError(errno.ENOSPC, "full")
                super().write(fd, data)

        download(shard_on(hub, BODY), target, files=Torn(), make_room=lambda needed: True)
        assert target.read_bytes() == BODY

    @pytest.mark.parametrize("call", ["create", "write", "fsync", "rename"])
    @pytest.mark.parametrize("code", [errno.EIO, errno.EROFS])
    def test_another_trouble_of_the_disk_is_an_error_of_the_family(
        self, hub: LocalHub, target: Path, call: str, code: int
    ) -> None:
        with pytest.raises(FetchError, match=rf"data/a\.parquet could not be written to .*{os.strerror(code)}"):
            download(shard_on(hub, BODY), target, files=Failing(call, code, 99))
        assert_nothing_is_left(target)


class TestOrigins:
    def test_any_origin_can_be_downloaded_from(self, target: Path) -> None:
        class Memory(Origin):
            name, folder = "memory", None

            def read(self, shard: Shard, start: int, stop: int) -> bytes:
                return BODY[start:stop]

            def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
                yield BODY[start : start + MID]
                yield BODY[start + MID :]

        download(Shard("a", N, "not a hash", Memory()), target)
        assert target.read_bytes() == BODY

    def test_an_origin_that_gives_too_much_is_refused(self, target: Path, caplog: pytest.LogCaptureFixture) -> None:
        class Endless(Origin):
            name, folder = "endless", None

            def read(self, shard: Shard, start: int, stop: int) -> bytes:
                raise NotImplementedError

            def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
                while True:
                    yield BODY

        caplog.set_level(logging.INFO)
        with pytest.raises(HeadraceError, match="more than the promised 10 bytes"):
            download(Shard("a", 10, "", Endless()), target)
        assert_nothing_is_left(target)

    def test_the_number_of_whole_downloads_is_what_the_module_says(self) -> None:
        assert module.WRONG_HASHES == 3

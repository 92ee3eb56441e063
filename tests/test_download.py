"""A download ends with the right file or with an error that says why, and with nothing in between."""

from __future__ import annotations

import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from fetching import leftovers, noise, shard_on

from headrace.catalog import transport
from headrace.catalog.shard import Shard
from headrace.errors import Changed, FetchError, Integrity, NotFound, Stalled
from headrace.fetch.download import download, part_mark
from headrace.files import host_tag
from headrace.testing.hub import (
    Action,
    ChunkedCut,
    CloseAfter,
    Drip,
    Flip,
    GzipBody,
    IgnoreRange,
    LocalHub,
    NoLength,
    RateLimit,
    ResetAfter,
    StaleEtag,
    StallAfter,
    Status,
    Swap,
    WrongLength,
    WrongRange,
)

BODY = noise(300_000)
N = len(BODY)
MID = N // 2
FILE = "*/resolve/*"


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "shards" / "a.parquet"


def assert_nothing_is_left(target: Path) -> None:
    assert [path.name for path in target.parent.iterdir()] == []


class TestFaults:
    @pytest.mark.parametrize("at", [0, 1, MID, N - 1])
    @pytest.mark.parametrize("action", [CloseAfter, ResetAfter, ChunkedCut, StallAfter])
    def test_a_body_that_breaks_off_is_resumed_with_its_etag(
        self, hub: LocalHub, target: Path, action: Callable[[int], Action], at: int
    ) -> None:
        shard = shard_on(hub, BODY, stall_seconds=0.2)
        hub.fault(FILE, action(at), nth=1)
        download(shard, target)
        assert target.read_bytes() == BODY
        first, second = hub.requests
        assert (first.range, second.range) == (None, f"bytes={at}-" if at else None)
        assert second.if_range == (f'"{shard.etag}"' if at else None)
        assert leftovers(target.parent) == []

    @pytest.mark.parametrize("action", [NoLength(), WrongLength(-7), WrongLength(7), GzipBody(), Drip(N / 0.3)])
    def test_a_body_with_odd_headers_becomes_the_right_file(self, hub: LocalHub, target: Path, action: Action) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, action, nth=1)
        download(shard, target)
        assert target.read_bytes() == BODY

    def test_a_body_without_length_that_ends_early_is_resumed(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, NoLength(), nth=1)
        hub.fault(FILE, CloseAfter(MID), nth=1)
        download(shard, target)
        assert target.read_bytes() == BODY
        assert hub.requests[1].range == f"bytes={MID}-"

    @pytest.mark.parametrize(
        "action", [IgnoreRange(), WrongRange(), StaleEtag("e" * 64), Status(416), Swap(b"x" * N), GzipBody()]
    )
    def test_an_answer_that_does_not_continue_the_partial_is_never_appended(
        self, hub: LocalHub, target: Path, action: Action
    ) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, CloseAfter(MID), nth=1)
        hub.fault(FILE, action, nth=1 if isinstance(action, IgnoreRange | WrongRange) else 2)
        download(shard, target)
        assert target.read_bytes() == BODY
        assert [r.range for r in hub.requests] == [None, f"bytes={MID}-", None]

    def test_a_server_that_always_cuts_and_never_continues_ends(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, IgnoreRange())
        hub.fault(FILE, CloseAfter(MID))
        with pytest.raises(FetchError, match=r"data/a\.parquet.*starts again from zero.*gave up"):
            download(shard, target)
        assert_nothing_is_left(target)

    def test_another_etag_for_good_is_a_change(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, StaleEtag("e" * 64))
        with pytest.raises(Changed):
            download(shard, target)
        assert_nothing_is_left(target)

    def test_a_stall_that_stays_is_an_error_within_its_time(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY, stall_seconds=0.1)
        hub.fault(FILE, StallAfter(0))
        began = time.monotonic()
        with pytest.raises(Stalled, match=r"0\.1 s of silence"):
            download(shard, target)
        assert time.monotonic() - began < 2
        assert_nothing_is_left(target)

    def test_a_file_that_is_not_there_fails_with_one_request(self, hub: LocalHub, target: Path) -> None:
        shard = Shard("nothing.parquet", 5, "", shard_on(hub, BODY).origin)
        with pytest.raises(NotFound, match=r"nothing\.parquet"):
            download(shard, target)
        assert len(hub.requests) == 1
        assert_nothing_is_left(target)

    def test_a_rate_limit_is_waited_for(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, RateLimit(1), nth=1)
        download(shard, target)
        first, second = hub.requests
        assert second.time - first.time >= 1

    @pytest.mark.parametrize("by", [-1, 0, 1])
    def test_sizes_around_the_block_size_arrive_whole(self, hub: LocalHub, target: Path, by: int) -> None:
        body = noise(transport.CHUNK * 2 + by)
        shard = shard_on(hub, body)
        hub.fault(FILE, CloseAfter(transport.CHUNK), nth=1)
        download(shard, target)
        assert target.read_bytes() == body

    def test_an_empty_file_needs_no_request(self, hub: LocalHub, target: Path) -> None:
        download(shard_on(hub, b""), target)
        assert target.read_bytes() == b""
        assert hub.requests == []

    def test_a_file_of_unknown_size_is_checked_by_its_hash(self, hub: LocalHub, target: Path) -> None:
        for path in ("a.parquet", "a.txt"):
            known = shard_on(hub, BODY, path)
            shard = Shard(known.path, -1, known.etag, known.origin)
            hub.fault(FILE, Flip(7), nth=1)
            download(shard, target)
            assert target.read_bytes() == BODY
            hub.clear_faults()


class TestContent:
    @pytest.mark.parametrize("path", ["a.parquet", "a.txt"])
    @pytest.mark.parametrize("at", [0, MID, N - 1])
    def test_a_flipped_byte_is_found_and_fetched_again(
        self, hub: LocalHub, target: Path, path: str, at: int, caplog: pytest.LogCaptureFixture
    ) -> None:
        shard = shard_on(hub, BODY, path)
        hub.fault(FILE, Flip(at), times=2)
        download(shard, target)
        assert target.read_bytes() == BODY
        assert len(hub.requests) == 3
        assert f"expected {'sha256' if path == 'a.parquet' else 'git sha1'} {shard.etag}" in caplog.text

    def test_wrong_bytes_for_good_are_an_error_with_nothing_published(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, Flip(MID))
        seen: list[bool] = []
        with pytest.raises(Integrity, match=rf"data/a\.parquet.*expected sha256 {shard.etag}, got [0-9a-f]{{64}}"):
            download(shard, target, on_progress=lambda size: seen.append(target.exists()))
        assert len(hub.requests) == 3
        assert not any(seen)
        assert_nothing_is_left(target)

    def test_wrong_bytes_at_the_same_length_in_the_resumed_half_are_found(self, hub: LocalHub, target: Path) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, CloseAfter(MID), nth=1)
        hub.fault(FILE, Flip(N - 5), nth=1)
        download(shard, target)
        assert target.read_bytes() == BODY

    @pytest.mark.parametrize("name", ["a.parquet", "a.txt"], ids=["sha256", "git sha1"])
    def test_what_an_ended_process_left_is_hashed_and_only_the_rest_is_fetched(
        self, hub: LocalHub, tmp_path: Path, name: str
    ) -> None:
        shard, target = shard_on(hub, BODY, path=f"data/{name}"), tmp_path / name
        ended = subprocess.Popen(["true"])
        ended.wait()
        left = f".{name}.{part_mark(shard)}.{host_tag()}.{ended.pid}.1.00000000.part"
        (tmp_path / left).write_bytes(BODY[:MID])
        download(shard, target)
        assert target.read_bytes() == BODY
        assert [request.range for request in hub.requests] == [f"bytes={MID}-"]
        assert list(tmp_path.iterdir()) == [target]

    def test_the_published_file_is_read_only(self, hub: LocalHub, target: Path) -> None:
        found = download(shard_on(hub, BODY), target)
        assert stat.S_IMODE(target.stat().st_mode) == 0o444
        assert found.st_ino == target.stat().st_ino

    def test_long_and_foreign_names_leave_room_for_the_partial(self, hub: LocalHub, tmp_path: Path) -> None:
        for name in ("x" * 255, "ä" * 127, "語" * 85):
            download(shard_on(hub, BODY), tmp_path / name)
            assert (tmp_path / name).read_bytes() == BODY

    def test_progress_is_told_and_ends_with_the_size(self, hub: LocalHub, target: Path) -> None:
        told: list[int] = []
        download(shard_on(hub, BODY), target, on_progress=told.append)
        assert told == sorted(told)
        assert told[-1] == N

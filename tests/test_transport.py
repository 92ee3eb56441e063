"""HTTP: what heals is asked again, what does not says what to do, and no secret goes where it should not."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest
from fetching import REPO, finish, noise, shard_on, start

from headrace.catalog import hub_origin
from headrace.catalog.hub_origin import HubOrigin
from headrace.catalog.retry import Hold, Retry, asked_wait
from headrace.catalog.shard import Shard
from headrace.errors import Changed, HeadraceError, NotAllowed, NotFound, SpecError, Stalled, Unreachable
from headrace.testing.hub import (
    Action,
    ChunkedCut,
    CloseAfter,
    Drip,
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

BODY = noise(100_000)
N = len(BODY)
FILE = "*/resolve/*"


pytestmark = pytest.mark.usefixtures("quick")


@pytest.fixture(autouse=True)
def without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "")


def read(shard: Shard, start: int = 0, stop: int = N) -> bytes:
    return shard.origin.read(shard, start, stop)


class TestBodies:
    @pytest.mark.parametrize("at", [0, 1, N // 2, N - 1])
    @pytest.mark.parametrize("action", [CloseAfter, ResetAfter, ChunkedCut, StallAfter])
    def test_a_body_that_breaks_off_is_completed(self, hub: LocalHub, action: Callable[[int], Action], at: int) -> None:
        shard = shard_on(hub, BODY, stall_seconds=0.2)
        hub.fault(FILE, action(at), nth=1)
        assert read(shard) == BODY
        assert hub.requests[1].range == f"bytes={at}-{N - 1}"

    @pytest.mark.parametrize("action", [NoLength(), GzipBody(), WrongLength(-1), WrongLength(1), WrongRange()])
    def test_a_body_with_odd_headers_is_read_right(self, hub: LocalHub, action: Action) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, action, nth=1)
        assert read(shard, 10, N - 10) == BODY[10:-10]

    def test_a_body_without_length_that_breaks_off_is_completed(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, NoLength(), nth=1)
        hub.fault(FILE, CloseAfter(777), nth=1)
        assert read(shard) == BODY

    def test_a_slow_body_is_no_stalled_body(self, hub: LocalHub) -> None:
        # A busy machine may be silent for a moment too: the limit is far above that, and the body takes longer still.
        shard = shard_on(hub, BODY, stall_seconds=2.0)
        hub.fault(FILE, Drip(N / 3.0))
        assert read(shard) == BODY
        assert len(hub.requests) == 1

    def test_a_stall_that_stays_is_an_error_that_names_the_shard(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY, stall_seconds=0.1)
        hub.fault(FILE, StallAfter(10))
        began = time.monotonic()
        with pytest.raises(Stalled, match=r"me/rows@.*/data/a.parquet.*silence.*gave up after 4"):
            read(shard)
        assert time.monotonic() - began < 2

    def test_few_bytes_at_a_time_are_not_progress_for_ever(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, CloseAfter(1))
        with pytest.raises(Unreachable):
            read(shard)
        assert len(hub.requests) == 4

    def test_many_broken_bodies_with_progress_are_no_failure(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, CloseAfter(N // 7))
        assert read(shard) == BODY
        assert len(hub.requests) == 8

    def test_no_server_at_all_is_unreachable(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        shard = Shard("a", 1, "", HubOrigin(REPO, "0" * 40, "train", f"http://127.0.0.1:{port}"))
        with pytest.raises(Unreachable, match="Connection refused"):
            shard.origin.read(shard, 0, 1)


class TestRanges:
    def test_a_range_is_exactly_the_bytes_asked_for(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        for first, last in [(0, 1), (5, 5), (N - 1, N), (1000, 70_001)]:
            assert read(shard, first, last) == BODY[first:last]
        with pytest.raises(SpecError):
            read(shard, 0, N + 1)

    def test_an_ignored_range_gives_the_right_bytes(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, IgnoreRange())
        assert read(shard, 1000, 2000) == BODY[1000:2000]

    def test_an_ignored_range_of_a_large_file_is_refused(self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hub_origin, "MAX_WASTE", N // 2)
        shard = shard_on(hub, BODY)
        hub.fault(FILE, IgnoreRange())
        with pytest.raises(Unreachable, match="ignores ranges"):
            read(shard, 1000, 2000)
        assert read(shard, 10, N) == BODY[10:]

    def test_a_wrong_content_range_that_stays_is_an_error_not_bytes(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, WrongRange())
        with pytest.raises(Unreachable, match="Content-Range"):
            read(shard, 1000, 2000)

    def test_another_content_under_the_same_headers_is_noticed_by_its_length(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, Swap(BODY[:-1]))
        with pytest.raises(HeadraceError):
            read(shard, 0, 100)

    def test_another_etag_or_commit_is_a_change(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, StaleEtag("f" * 64))
        with pytest.raises(Changed, match=r"etag f+ where"):
            read(shard)
        hub.clear_faults()
        hub.fault(FILE, Status(200, {"X-Repo-Commit": "e" * 40}, BODY))
        with pytest.raises(Changed, match=r"commit e+ where"):
            read(shard)

    def test_an_unsafe_path_never_becomes_a_request(self, hub: LocalHub) -> None:
        origin = shard_on(hub, BODY).origin
        for path in ["../x", "/x", "a/../../x", "a//b", "a\\b", "a\0b", "a\nb", "", ".", "x" * 256, "a/.b.meta.json"]:
            with pytest.raises(NotAllowed):
                origin.read(Shard(path, 1, "", origin), 0, 1)
        assert hub.requests == []

    def test_odd_but_honest_names_are_quoted(self, hub: LocalHub) -> None:
        name = "dir with space/100%/ä?#&+;=.parquet"
        shard = shard_on(hub, BODY, name)
        assert read(shard, 5, 9) == BODY[5:9]


class TestStatus:
    @pytest.mark.parametrize("code", [408, 425, 429, 500, 502, 503, 504, 520, 521, 522, 523, 524, 529, 530])
    def test_a_passing_trouble_heals(self, hub: LocalHub, code: int) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, Status(code, {"Retry-After": "0"}), nth=(1, 2))
        assert read(shard) == BODY
        assert len(hub.requests) == 3

    @pytest.mark.parametrize(
        ("code", "error", "words"),
        [
            (401, NotAllowed, "hf auth login"),
            (403, NotAllowed, "HF_TOKEN"),
            (404, NotFound, "check the name"),
            (451, NotAllowed, "legal reasons"),
            (400, Unreachable, "400"),
            (501, Unreachable, "501"),
        ],
    )
    def test_what_cannot_heal_fails_at_once(self, hub: LocalHub, code: int, error: type[Exception], words: str) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, Status(code))
        with pytest.raises(error, match=words):
            read(shard)
        assert len(hub.requests) == 1

    def test_a_gated_repo_says_where_to_accept_the_terms(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        hub.restrict(REPO, "gated")
        with pytest.raises(NotAllowed, match=f"gated.*accept its terms on {hub.endpoint}/datasets/me/rows.*hf auth"):
            read(shard)

    def test_a_private_repo_says_how_to_authenticate_and_opens_with_a_token(
        self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        shard = shard_on(hub, BODY)
        hub.restrict(REPO, "private")
        with pytest.raises(NotFound, match=r"private.*hf auth login.*HF_TOKEN"):
            read(shard)
        monkeypatch.setenv("HF_TOKEN", "hf_local")
        assert read(shard) == BODY

    def test_a_missing_small_file_is_none_and_a_large_one_an_error(self, hub: LocalHub) -> None:
        origin = shard_on(hub, b"# card", "README.md").origin
        assert isinstance(origin, HubOrigin)
        for action in (Status(503), GzipBody()):
            hub.fault("*/README.md", action, nth=1)
            assert origin.read_small("README.md", 100) == b"# card"
            hub.clear_faults()
        assert origin.read_small("nothing.md", 100) is None
        with pytest.raises(Unreachable, match="longer than the 5 bytes"):
            origin.read_small("README.md", 5)

    def test_offline_asks_nobody_and_says_so(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY, offline=True)
        with pytest.raises(Unreachable, match=r"data/a.parquet.*HF_HUB_OFFLINE"):
            read(shard)
        assert hub.requests == []


class TestWaits:
    @pytest.mark.parametrize("style", ["retry-after", "ratelimit"])
    def test_nobody_asks_before_the_time_the_server_gave(self, hub: LocalHub, tmp_path: Path, style: Any) -> None:
        shard = shard_on(hub, BODY, cache_root=tmp_path)
        hub.fault(FILE, RateLimit(1, style), nth=1)
        assert read(shard) == BODY
        asked = hub.requests
        assert asked[-1].time - asked[-2].time >= 1.0

    def test_a_server_that_has_had_enough_and_gives_no_time_is_left_alone_for_a_second(
        self, hub: LocalHub, tmp_path: Path
    ) -> None:
        shard = shard_on(hub, BODY, cache_root=tmp_path)
        hub.fault(FILE, Status(429), nth=1)
        assert read(shard) == BODY
        asked = hub.requests
        assert asked[-1].time - asked[-2].time >= 1.0

    def test_a_pause_is_shared_between_processes(self, hub: LocalHub, tmp_path: Path) -> None:
        shard = shard_on(hub, BODY, cache_root=tmp_path)
        Hold(hub.endpoint, tmp_path).ask(1.5)
        until = time.monotonic() + 1.5
        code = (
            "import dataclasses; o = dataclasses.replace(shards[0].origin, cache_root=root)\no.read(shards[0], 0, 10)"
        )
        finish(start(code, tmp_path, [shard]))
        assert hub.requests[0].time >= until - 0.1

    def test_a_pause_is_bounded_and_survives_a_clock_set_back(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hold = Hold("http://x", tmp_path)
        hold.ask(86_400)
        assert 590 < hold.left() <= 600
        real = time.time
        monkeypatch.setattr(time, "time", lambda: real() - 3600)
        assert hold.left() == 0
        (tmp_path / ".junk").write_text("")
        for junk in ("", "nan", "inf", "x" * 100):
            next(tmp_path.glob(".hold-*")).write_text(junk)
            assert Hold("http://x", tmp_path).left() == 0

    def test_waits_are_read_from_seconds_dates_and_the_ratelimit_header(self) -> None:
        now = 1_700_000_000.0
        assert asked_wait({"retry-after": "12"}, now) == 12
        assert asked_wait({"retry-after": formatdate(now + 30, usegmt=True)}, now) == 30
        assert asked_wait({"retry-after": formatdate(now - 30, usegmt=True)}, now) == 0
        assert asked_wait({"ratelimit": '"api";r=0;t=7, "pages";r=3;t=90'}, now) == 7
        assert asked_wait({"retry-after": "1", "ratelimit": '"api";r=0;t=60'}, now) == 60
        assert asked_wait({"retry-after": "60", "ratelimit": '"api";r=0;t=1'}, now) == 60
        assert asked_wait({"retry-after": "soon", "ratelimit": "?"}, now) is None
        assert asked_wait({}, now) is None

    def test_backoff_grows_has_full_jitter_and_a_cap_and_honours_the_server(self) -> None:
        policy = Retry(attempts=10, base=0.5, cap=30)
        assert [policy.wait(n, None, 1.0) for n in (1, 2, 3, 9)] == [0.5, 1, 2, 30]
        assert policy.wait(3, None, 0.0) == 0
        assert policy.wait(10, None, 0.5) is None
        for luck in (0.0, 0.5, 0.99):
            assert (policy.wait(1, 20, luck) or 0) >= 20

    def test_failures_are_forgotten_on_real_progress_only(self) -> None:
        policy = Retry(enough=1000)
        assert policy.failures(3, 1000, 100_000) == 1
        assert policy.failures(3, 999, 100_000) == 4
        assert policy.failures(3, 20, 100) == 1
        assert policy.failures(3, 0, 0) == 4

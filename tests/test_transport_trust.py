"""Where a token goes, what a redirect may do, and how connections begin and end."""

from __future__ import annotations

import logging
import pickle
import subprocess
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fetching import REPO, environment, finish, noise, python, shard_on, start

from headrace.catalog import connections, transport
from headrace.catalog.hub_origin import HubOrigin
from headrace.catalog.shard import Shard
from headrace.catalog.stop import Stop, Stopped, stopped_by
from headrace.catalog.transport import Transport
from headrace.errors import HeadraceError, NotAllowed, NotFound, SpecError, Unreachable
from headrace.testing.hub import (
    Action,
    CloseAfter,
    Delay,
    ExpiredSignature,
    LocalHub,
    RateLimit,
    Redirect,
    StallAfter,
    Status,
    WrongRange,
)

BODY = noise(100_000)
N = len(BODY)
FILE = "*/resolve/*"


pytestmark = [pytest.mark.timed, pytest.mark.usefixtures("quick")]


@pytest.fixture(autouse=True)
def without_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "")


def read(shard: Shard, start: int = 0, stop: int = N) -> bytes:
    return shard.origin.read(shard, start, stop)


class TestRedirects:
    def test_the_token_stays_with_the_endpoint(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_local")
        with LocalHub(cdn=True) as hub:
            shard = shard_on(hub, BODY)
            assert read(shard, 100, 200) == BODY[100:200]
            assert [(r.origin, r.authorized, r.range) for r in hub.requests] == [
                ("hub", True, "bytes=100-199"),
                ("cdn", False, "bytes=100-199"),
            ]

    def test_the_token_does_not_come_back_after_a_detour(self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_local")
        shard = shard_on(hub, BODY)
        home = f"{hub.endpoint}/datasets/{REPO}/resolve/{getattr(shard.origin, 'commit')}/data/a.parquet"  # noqa: B009
        with LocalHub() as other:
            other.fault("*", Redirect(home))
            hub.fault(FILE, Redirect(f"{other.endpoint}/x"), nth=1)
            assert read(shard) == BODY
            assert [r.authorized for r in (*hub.requests, *other.requests)] == [True, False, False]

    def test_a_renamed_repo_keeps_the_token(self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_local")
        shard = shard_on(hub, BODY)
        hub.rename(REPO, "me/moved")
        assert read(shard) == BODY
        assert [r.authorized for r in hub.requests] == [True, True]

    def test_an_expired_signature_is_renewed_once(self) -> None:
        with LocalHub(cdn=True) as hub:
            shard = shard_on(hub, BODY)
            hub.fault("*", ExpiredSignature(), nth=1)
            assert read(shard) == BODY
            hub.clear_log()
            hub.fault("*", ExpiredSignature())
            with pytest.raises(NotAllowed, match="403"):
                read(shard)
            assert [r.origin for r in hub.requests] == ["hub", "cdn"] * 2

    @pytest.mark.parametrize(
        "url", ["file:///etc/passwd", "ftp://x/y", "http://user:pw@127.0.0.1/", "http://[", "gopher://x"]
    )
    def test_a_redirect_to_elsewhere_than_the_web_is_refused(self, hub: LocalHub, url: str) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, Redirect(url))
        with pytest.raises(NotAllowed, match="not followed") as caught:
            read(shard)
        assert "pw" not in str(caught.value)
        assert len(hub.requests) == 1

    def test_a_sixth_redirect_is_refused(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        hub.fault("*", Redirect("/again"))
        with pytest.raises(Unreachable, match="5 redirects"):
            read(shard)
        assert len(hub.requests) == 6

    def test_https_never_becomes_http(self) -> None:
        reply: Any = SimpleNamespace(url="https://huggingface.co/x", headers={"location": "http://cdn.example/x?sig=1"})
        with pytest.raises(NotAllowed, match="never from https to http") as caught:
            Transport("https://huggingface.co")._next(reply)
        assert "sig" not in str(caught.value)

    def test_a_token_is_for_https_and_for_this_machine_only(self) -> None:
        can = transport._may_carry_token
        assert can("https://huggingface.co")
        assert can("http://127.0.0.1:80")
        assert can("http://localhost")
        assert can("http://[::1]:1")
        assert not can("http://mirror.example")
        assert not can("http://localhost.example")

    @pytest.mark.parametrize(
        ("endpoint", "env", "may"),
        [
            ("http://127.0.0.1:5", {}, True),
            ("http://127.0.0.1:5", {"http_proxy": "http://proxy.example"}, False),
            ("http://127.0.0.1:5", {"HTTP_PROXY": "http://proxy.example"}, False),
            ("http://127.0.0.1:5", {"all_proxy": "http://proxy.example"}, False),
            ("http://127.0.0.1:5", {"http_proxy": "http://127.0.0.1:6"}, False),
            ("http://127.0.0.1:5", {"https_proxy": "http://proxy.example"}, True),
            ("http://127.0.0.1:5", {"http_proxy": "http://proxy.example", "no_proxy": "x, 127.0.0.1"}, True),
            ("http://127.0.0.1:5", {"http_proxy": "http://proxy.example", "no_proxy": "localhost"}, False),
            ("http://localhost", {"http_proxy": "http://proxy.example", "no_proxy": "localhost"}, True),
            ("http://localhost", {"http_proxy": "http://proxy.example", "no_proxy": ".localhost"}, False),
            ("http://localhost", {"http_proxy": "http://proxy.example", "no_proxy": "*"}, True),
            ("http://mirror.example", {"http_proxy": "http://proxy.example", "no_proxy": "*"}, False),
            ("https://huggingface.co", {"https_proxy": "http://proxy.example", "all_proxy": "http://x"}, True),
        ],
    )
    def test_clients_of_others_get_it_where_no_proxy_sees_it(
        self, monkeypatch: pytest.MonkeyPatch, endpoint: str, env: dict[str, str], may: bool
    ) -> None:
        from huggingface_hub import constants

        for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
            monkeypatch.delenv(name.upper(), raising=False)
        for name, value in env.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        assert transport.client_token() is (None if may else False)

    def test_an_endpoint_with_a_secret_in_it_is_refused(self) -> None:
        for endpoint in ["https://me:pw@hub.example", "https://hub.example/?token=pw", "ftp://x", "hub.example"]:
            with pytest.raises(SpecError) as caught:
                HubOrigin(REPO, "0" * 40, "train", endpoint)
            assert "pw" not in str(caught.value)


class TestSecrets:
    def test_a_token_and_a_signature_are_in_no_message_log_repr_or_pickle(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_CANARY")
        caplog.set_level(logging.DEBUG)
        told: list[str] = []
        with LocalHub(cdn=True, tokens=("hf_CANARY",)) as hub:
            shard = shard_on(hub, BODY, cache_root=tmp_path, stall_seconds=0.1)
            hub.restrict(REPO, "private")
            assert read(shard) == BODY
            troubles: list[Action] = [Status(403), Status(404), Status(500), StallAfter(5), CloseAfter(5), RateLimit(0)]
            for action in [*troubles, WrongRange()]:
                fault = hub.fault("*", action, origin="cdn")
                with pytest.raises(HeadraceError) as caught:
                    read(shard)
                told += [str(caught.value), repr(caught.value), repr(caught.value.__cause__)]
                fault.remove()
            queries = [r.query for r in hub.requests if r.query]
        told += [caplog.text, repr(shard), repr(pickle.dumps(shard))]
        told += [path.read_text() for path in tmp_path.rglob("*") if path.is_file()]
        assert queries
        for text in told:
            assert "CANARY" not in text
            assert "Signature" not in text
            assert not any(query in text for query in queries)
        assert "connectionpool" in caplog.text

    def test_an_origin_travels_and_says_where_it_is(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        assert pickle.loads(pickle.dumps(shard)) == shard  # noqa: S301 - our own
        assert shard.origin.name.startswith("me/rows@")
        assert shard.origin.folder == ("hf_shards", "me", "rows", "train")
        for repo, commit in [("../x", "0" * 40), ("a/b/c", "0" * 40), ("a/b", "main"), ("a/.b", "0" * 40)]:
            with pytest.raises(SpecError):
                HubOrigin(repo, commit, "train")


class TestConnections:
    def test_proxies_come_from_the_environment_but_never_for_this_machine(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("http_proxy", "proxy.example:3128")
        monkeypatch.setenv("https_proxy", "http://me:pw@proxy.example:3129")
        monkeypatch.setenv("no_proxy", "internal.example")
        proxy = connections._proxy
        assert proxy("http://hub.example/x") == "http://proxy.example:3128"
        assert proxy("https://hub.example/x") == "http://me:pw@proxy.example:3129"
        assert proxy("http://127.0.0.1:5/x") is None
        assert proxy("http://localhost/x") is None
        assert proxy("http://internal.example/x") is None
        monkeypatch.setenv("https_proxy", "socks5://me:pw@proxy.example")
        with pytest.raises(SpecError, match="only http and https") as caught:
            proxy("https://hub.example/x")
        assert "pw" not in str(caught.value)

    def test_a_proxy_is_asked_for_the_whole_address(self, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("http_proxy", hub.endpoint.replace("//", "//me:pw@"))
        monkeypatch.delenv("no_proxy", raising=False)
        monkeypatch.delenv("NO_PROXY", raising=False)
        with pytest.raises(NotFound) as caught:
            Transport("http://hub.example").open("http://hub.example/some/file", "it")
        assert "hub.example/some/file" in hub.requests[0].path
        assert "proxy-authorization" in hub.requests[0].headers
        assert "pw" not in str(caught.value)

    def test_connections_are_reused_and_never_shared_with_a_forked_child(self, hub: LocalHub, tmp_path: Path) -> None:
        shard = shard_on(hub, BODY)
        code = """
body = shards[0].origin.read(shards[0], 0, shards[0].size)
pid = os.fork()
good = all(shards[0].origin.read(shards[0], n, n + 5000) == body[n : n + 5000] for n in range(0, 90_000, 700))
if pid == 0:
    os._exit(0 if good else 1)
assert good and os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""
        finish(start(code, tmp_path, [shard]))

    @pytest.mark.parametrize("action", [StallAfter(10), StallAfter(None), Delay(30)])
    def test_a_waiting_read_is_ended_from_another_thread(self, hub: LocalHub, action: Action) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, action)
        stop = Stop()
        threading.Timer(0.2, stop.set).start()
        began = time.monotonic()
        with stopped_by(stop), pytest.raises(Stopped):
            read(shard)
        assert time.monotonic() - began < 1

    def test_a_pause_is_ended_from_another_thread(self, hub: LocalHub) -> None:
        shard = shard_on(hub, BODY)
        hub.fault(FILE, RateLimit(30))
        stop = Stop()
        threading.Timer(0.2, stop.set).start()
        began = time.monotonic()
        with stopped_by(stop), pytest.raises(Stopped):
            read(shard)
        assert time.monotonic() - began < 1

    def test_many_reads_through_redirects_use_two_connections(self) -> None:
        with LocalHub(cdn=True) as hub:
            shard = shard_on(hub, BODY)
            for start_at in range(0, 90_000, 5_000):
                read(shard, start_at, start_at + 100)
            for origin in (hub.endpoint, str(hub.cdn_endpoint)):
                pool: Any = connections.manager_for(origin).connection_from_url(origin)
                assert (pool.num_connections, pool.num_requests) == (1, 18)

    def test_importing_the_package_loads_no_http_client(self) -> None:
        code = "import sys, headrace, headrace.errors, headrace.catalog.shard; assert 'urllib3' not in sys.modules"
        subprocess.run([*python(), "-c", code], env=environment(), check=True)

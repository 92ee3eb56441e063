"""What a server may say in answer to a question about a repo: no token is lost to it, and no time and no memory."""

from __future__ import annotations

import json
import logging
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from refused import a_parquet, check_refused, everything, refusal

from headrace.catalog import hub as listing
from headrace.catalog import hub_api, retry, transport
from headrace.catalog.shard import safe_parts
from headrace.catalog.source import Source
from headrace.errors import DataError, NotAllowed, NotFound, Stalled, Unreachable
from headrace.run import Run
from headrace.testing import LocalHub
from headrace.testing.hub import Action, Drip, DripHead, Exchange, GzipBody, Redirect, Status

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("quick")]

NAME = "data/train-0.parquet"
INFO, TREE = "/api/datasets/org/good/revision/*", "/api/datasets/org/good/tree/*"
ELSEWHERE = "hub.example"
"""A name that leads to this machine, and does not say so."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalHub]:
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_TOKEN", "hf_local")
        hub.push("org/good", {NAME: a_parquet(), "README.md": b"# Rows"})
        yield hub


@pytest.fixture
def elsewhere(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> str:
    """The same Hub as an endpoint on another machine, over plain http."""
    found = socket.getaddrinfo

    def known(host: Any, *args: Any, **options: Any) -> Any:
        return found("127.0.0.1" if host == ELSEWHERE else host, *args, **options)

    monkeypatch.setattr(socket, "getaddrinfo", known)
    monkeypatch.setenv("NO_PROXY", ELSEWHERE)
    monkeypatch.setenv("no_proxy", ELSEWHERE)
    endpoint = hub.endpoint.replace("127.0.0.1", ELSEWHERE)
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    return endpoint


class TestTokens:
    def ask_all(self, tmp_path: Path) -> None:
        assert len(everything("hf:org/good", tmp_path)) == 2
        listing.ref_names(Source(kind="hf", path="org/good"), Run.here())

    def test_no_request_carries_it_over_plain_http_to_another_machine(
        self, hub: LocalHub, elsewhere: str, tmp_path: Path
    ) -> None:
        self.ask_all(tmp_path)
        assert {request.headers["host"].partition(":")[0] for request in hub.requests} == {ELSEWHERE}
        assert {request.kind for request in hub.requests} == {"api", "tree", "resolve"}
        assert [request.path for request in hub.requests if request.authorized] == []

    def test_every_request_to_this_machine_carries_it(self, hub: LocalHub, tmp_path: Path) -> None:
        self.ask_all(tmp_path)
        assert {request.kind for request in hub.requests} == {"api", "tree", "resolve"}
        assert all(request.token_ok for request in hub.requests)

    def test_a_private_repo_over_plain_http_says_why_it_is_not_found(
        self, hub: LocalHub, elsewhere: str, tmp_path: Path
    ) -> None:
        hub.restrict("org/good", "private")
        check_refused(refusal("hf:org/good", tmp_path), NotFound, "or it is private.*HF_TOKEN.*over https only")

    @pytest.mark.parametrize("local", [True, False])
    @pytest.mark.parametrize("what", ["tokenizer", "files"])
    def test_the_client_of_the_hub_gets_it_under_the_same_rule(
        self, hub: LocalHub, tmp_path: Path, what: str, local: bool
    ) -> None:
        host = "127.0.0.1" if local else ELSEWHERE
        env = hub.env() | {"HF_ENDPOINT": hub.endpoint.replace("127.0.0.1", host), "no_proxy": host, "NO_PROXY": host}
        env |= {"HF_TOKEN": "hf_local", "HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
        done = subprocess.run([sys.executable, "-c", CLIENT, what], env=env, capture_output=True, text=True, check=True)
        assert "NotFound" in done.stdout, done.stderr
        assert hub.requests
        assert {request.authorized for request in hub.requests} == {local}


CLIENT = f"""
import socket, sys
found = socket.getaddrinfo
socket.getaddrinfo = lambda host, *a, **k: found("127.0.0.1" if host == "{ELSEWHERE}" else host, *a, **k)
from headrace.errors import HeadraceError
from headrace.make.load import by_name
from headrace.catalog.remote import list_remote
from headrace.catalog.source import Source
try:
    if sys.argv[1] == "tokenizer":
        by_name("org/none")
    else:
        list_remote(Source(kind="parquet", path="hf://datasets/org/none/x.parquet"))
except HeadraceError as error:
    print(type(error).__name__)
"""


class TestRedirects:
    @pytest.mark.parametrize("token", ["", "hf_local"])
    @pytest.mark.parametrize("match", [INFO, TREE])
    def test_a_listing_is_not_redirected_to_another_host(
        self, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, match: str, token: str
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", token)
        with LocalHub() as other:
            other.push("org/good", {NAME: a_parquet()})
            hub.fault(match, Redirect(f"{other.endpoint}/api/datasets/org/good/revision/main?expand=sha"))
            check_refused(refusal("hf:org/good", tmp_path), Unreachable, "redirects to another host.*not followed")
            assert other.requests == []

    def test_a_renamed_repo_is_found_with_the_token(self, hub: LocalHub, tmp_path: Path) -> None:
        hub.rename("org/good", "org/better")
        hub.restrict("org/better", "private")
        assert len(everything("hf:org/good", tmp_path)) == 2

    @pytest.mark.parametrize("match", [INFO, f"*/resolve/*/{NAME}"])
    def test_a_redirect_with_a_body_without_end_is_followed(self, hub: LocalHub, tmp_path: Path, match: str) -> None:
        fault = hub.fault(match, EndlessRedirect(), times=1)
        assert len(everything("hf:org/good", tmp_path)) == 2
        assert fault.hits == 1

    def test_the_same_host_may_answer_over_https(self) -> None:
        same = transport.is_same_host
        assert same("http://hub.example", "https://hub.example/x")
        assert same("https://hub.example:443", "https://hub.example/x")
        assert not same("https://hub.example", "http://hub.example/x")
        assert not same("http://hub.example:8080", "https://hub.example/x")
        assert not same("https://hub.example", "https://hub.example.org/x")


class EndlessRedirect:
    """It announces a short body, and sends one in chunks that never ends."""

    def acts_on(self, exchange: Exchange) -> bool:
        return True

    def act(self, exchange: Exchange) -> None:
        exchange.answer.replace(302, {"Location": "?again=1", "Content-Length": "10"}, b"x" * 5000)
        exchange.answer.trouble.endless = True
        exchange.answer.trouble.framing = "chunked"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """All waiting for a reply ends long before a silence in it would."""
    monkeypatch.setenv("HEADRACE_STALL_SECONDS", "20")
    monkeypatch.setattr(transport, "STALLS", 0.02)


class TestTime:
    @pytest.mark.parametrize("match", [INFO, TREE, "*/resolve/*/README.md", f"*/resolve/*/{NAME}"])
    @pytest.mark.parametrize("action", [Drip(20), DripHead(20)])
    def test_a_reply_that_drips_is_given_up(
        self, hub: LocalHub, tmp_path: Path, impatient: None, match: str, action: Action
    ) -> None:
        hub.push("org/good", {NAME: a_parquet(), "README.md": b"# Rows\n" * 100})
        hub.fault(match, PaddedBody(1000), method="GET")
        hub.fault(match, action)
        check_refused(refusal("hf:org/good", tmp_path), Stalled, r"s of waiting in all.*gave up after \d attempts")

    @pytest.mark.parametrize("action", [Drip(20), DripHead(20)])
    def test_all_waiting_for_a_reply_is_as_long_as_four_silences(
        self, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: Action
    ) -> None:
        """As it is shipped: no byte comes too late for the limit of 0.3 s, and the reply would take 50 s."""
        monkeypatch.setenv("HEADRACE_STALL_SECONDS", "0.3")
        monkeypatch.setattr(retry, "RETRY", replace(retry.RETRY, attempts=1))
        hub.fault(INFO, PaddedBody(1000), method="GET")
        hub.fault(INFO, action)
        error = refusal("hf:org/good", tmp_path)
        check_refused(error, Stalled, r"s of waiting in all \(HEADRACE_STALL_SECONDS=0.3\)")
        waited = re.search(r"([\d.]+) s of waiting", str(error))
        assert waited
        assert 1.1 < float(waited[1]) < 1.6

    @pytest.mark.parametrize("action", [Drip(20), DripHead(20), Redirect("http://127.0.0.1:9/login")])
    def test_the_last_commit_is_read_where_nobody_can_be_asked_for_the_newest(
        self, hub: LocalHub, tmp_path: Path, impatient: None, caplog: pytest.LogCaptureFixture, action: Action
    ) -> None:
        before = everything("hf:org/good", tmp_path)
        hub.fault(INFO, PaddedBody(1000))
        hub.fault(INFO, action)
        assert everything("hf:org/good", tmp_path) == before
        assert "cannot be asked which commit is the newest" in caplog.text

    def test_a_listing_that_takes_long_in_all_is_given_up(
        self, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "LISTING_STALLS", 0.0)
        hub.fault(TREE, NextForEver())
        check_refused(refusal("hf:org/good", tmp_path), Stalled, "listing takes too long")
        assert hub.count(kind="tree") == 1


class PaddedBody:
    """White space after a JSON body, so that there is something to wait for."""

    def __init__(self, size: int) -> None:
        self.size = size

    def acts_on(self, exchange: Exchange) -> bool:
        return exchange.has_body and "/api/" in exchange.path

    def act(self, exchange: Exchange) -> None:
        content = exchange.answer.content
        assert isinstance(content, bytes)
        exchange.answer.whole(content + b" " * self.size)


class NextForEver:
    """Each page has a next one, of which nobody has seen the address before; or it is its own next one."""

    def __init__(self, *, circle: bool = False) -> None:
        self.pages, self.circle = 0, circle

    def acts_on(self, exchange: Exchange) -> bool:
        return True

    def act(self, exchange: Exchange) -> None:
        self.pages += not self.circle
        exchange.answer.headers["Link"] = f'<{exchange.path}?page={self.pages}>; rel="next"'


class TestPages:
    def test_a_listing_without_an_end_is_left_after_so_many_pages(
        self, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "PAGES", 7)
        hub.fault(TREE, NextForEver())
        check_refused(refusal("hf:org/good", tmp_path), DataError, "more than 7 pages")
        assert hub.count(kind="tree") == 7

    def test_a_listing_that_goes_in_a_circle_is_left(self, hub: LocalHub, tmp_path: Path) -> None:
        hub.fault(TREE, NextForEver(circle=True))
        check_refused(refusal("hf:org/good", tmp_path), Unreachable, "goes on where it was before")
        assert hub.count(kind="tree") == 2

    def test_names_that_fill_the_memory_are_refused(
        self, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "LISTING_BYTES", 10_000)
        hub.push("org/good", {f"data/train-{i}.parquet": b"" for i in range(100)})
        check_refused(refusal("hf:org/good", tmp_path), DataError, "more than 10,000 bytes of memory")

    def test_what_is_shipped_bounds_a_listing_in_pages_time_and_memory(self) -> None:
        """Without a server: 60 silences of 30 seconds, 5 million files, and a gigabyte of names."""
        source, run = Source.parse("hf:org/good"), Run(stall_seconds=30.0)

        def pages(seconds: float) -> tuple[int, Exception]:
            bounds = listing._Bounds(source, run)
            for number in range(10_000):
                try:
                    bounds.take_page(hub_api.Answer([], f"/page/{number}", seconds))
                except (DataError, Stalled) as error:
                    return number + 1, error
            raise AssertionError("no page was too many")

        number, error = pages(0.1)
        assert (number, type(error)) == (5000, DataError)
        number, error = pages(29.0)
        assert (number, type(error)) == (63, Stalled)  # 1,800 seconds
        bounds, name = listing._Bounds(source, run), "d" * (1 << 20)
        for _ in range(1023):
            bounds.take_file(name, "")
        with pytest.raises(DataError, match="more than 1,073,741,824 bytes of memory"):
            bounds.take_file(name, "")

    def test_a_packed_listing_is_unpacked(self, hub: LocalHub, tmp_path: Path) -> None:
        hub.fault("/api/*", GzipBody())
        assert len(everything("hf:org/good", tmp_path)) == 2

    @pytest.mark.parametrize(
        ("headers", "body", "said"),
        [
            ({"Content-Encoding": "gzip"}, b"no gzip", "damaged"),
            ({"Content-Encoding": "gzip"}, b"\x1f\x8b\x08\0\0\0\0\0\0\3", "ends early"),
            ({"Content-Encoding": "gzip, gzip"}, b"x", "Content-Encoding 'gzip, gzip'"),
            ({"Content-Encoding": "\x1b[31m"}, b"x", r"Content-Encoding '.*x1b\[31m'"),
        ],
    )
    def test_a_listing_that_is_packed_wrongly_is_said(
        self, hub: LocalHub, tmp_path: Path, headers: dict[str, str], body: bytes, said: str
    ) -> None:
        hub.fault(TREE, Status(200, headers, body))
        check_refused(refusal("hf:org/good", tmp_path), Unreachable, said)

    def test_a_reply_of_very_many_values_is_refused_unparsed(
        self, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(hub_api, "PARSED_BYTES", 64_000)
        hub.fault(TREE, Status(200, body=b"[" + b"{}," * 1000 + b"{}]"))
        check_refused(refusal("hf:org/good", tmp_path), Unreachable, "2,002 values, more than the 1,000")


ESCAPE = "\x1b]0;owned\x07\x1b[2J"
ENTRY: dict[str, Any] = {"type": "file", "path": NAME, "size": 1, "oid": "0" * 40}
ENTRIES: dict[str, dict[str, Any]] = {
    "an oid for the terminal": {"oid": ESCAPE},
    "an etag for the terminal": {"lfs": {"oid": ESCAPE}},
    "an etag that ends a header": {"lfs": {"oid": 'x"\r\nX-Evil: 1'}},
    "an etag of another type": {"lfs": {"oid": [ESCAPE]}},
    "a very long etag": {"oid": "0" * 129},
    "a path for the terminal": {"path": ESCAPE * 1000},
    "a very long path": {"path": "a/" * 2048 + "b.parquet"},
    "a size that is a truth": {"size": True},
    "a size for the terminal": {"size": ESCAPE},
    "no facts of a large file": {"lfs": ESCAPE},
}


@pytest.mark.parametrize("case", ENTRIES)
def test_a_listed_file_that_cannot_be_is_refused_and_shown_escaped(
    hub: LocalHub, tmp_path: Path, caplog: pytest.LogCaptureFixture, case: str
) -> None:
    caplog.set_level(logging.DEBUG)
    hub.fault(TREE, Status(200, body=json.dumps([ENTRY | ENTRIES[case]]).encode()))
    check_refused(refusal("hf:org/good", tmp_path), Unreachable, "a file that cannot be: .*path")
    assert "\x1b" not in caplog.text


@pytest.mark.parametrize("header", ["ETag", "X-Linked-Etag", "X-Repo-Commit", "Content-Range", "X-Error-Message"])
def test_headers_for_the_terminal_are_shown_escaped(
    hub: LocalHub, tmp_path: Path, caplog: pytest.LogCaptureFixture, header: str
) -> None:
    caplog.set_level(logging.DEBUG)
    status = 404 if header == "X-Error-Message" else 206
    hub.fault(f"*/resolve/*/{NAME}", Status(status, {header: ESCAPE}, b"PAR1"))
    said = str(refusal("hf:org/good", tmp_path))
    assert "owned" in said
    assert "\x1b" not in said + caplog.text


@pytest.mark.parametrize("length", ["9" * 5000, "-1", "1_000", "x"])
@pytest.mark.parametrize("header", ["Content-Range", "X-Linked-Size"])
def test_lengths_that_cannot_be_are_no_accident(hub: LocalHub, tmp_path: Path, header: str, length: str) -> None:
    value = f"bytes {length}-{length}/{length}" if header == "Content-Range" else length
    hub.fault(f"*/resolve/*/{NAME}", Status(206, {header: value}, b"PAR1"))
    check_refused(refusal("hf:org/good", tmp_path), Unreachable, "Content-Range")


def test_the_announced_length_is_a_number_or_none() -> None:
    found = transport.announced_length
    assert found({"content-length": " 12 "}) == 12
    for text in ("", "-1", "1_0", "9" * 19, "9" * 5000, "\u0661"):
        assert found({"content-length": text}) is None


@pytest.mark.parametrize("path", ["a/" * 2048 + "b", "é" * 2049, "a/" + "b" * 256, "a/" + "é" * 128])
def test_a_path_that_no_disk_takes_is_refused(path: str) -> None:
    with pytest.raises(NotAllowed, match="is refused") as caught:
        safe_parts(path)
    assert len(str(caught.value)) < 1000
    safe_parts("a/" * 2047 + "bb")


@pytest.mark.parametrize("size", [3700, 3900, 4096])
def test_a_path_that_only_the_cache_makes_too_long_is_read(hub: LocalHub, tmp_path: Path, size: int) -> None:
    folders, zeros = divmod(size - 20, 100)
    name = "data" + ("/" + "d" * 99) * folders + f"/train-{'0' * (zeros + 1)}.parquet"
    assert len(name) == size
    hub.push("org/long", {name: a_parquet()})
    assert len(everything("hf:org/long", tmp_path)) == 2

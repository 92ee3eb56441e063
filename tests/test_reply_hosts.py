"""Which host an address means: what we compare and what the client connects to are the same, or it is refused."""

from __future__ import annotations

import socket
from pathlib import Path
from typing import Any

import pytest
import urllib3
from raw_server import RawServer, answer
from refused import check_refused, refusal

from headrace.catalog.connections import split_url
from headrace.catalog.patience import Patience
from headrace.catalog.stop import Cover
from headrace.catalog.transport import Reply, Transport
from headrace.errors import HeadraceError, NotAllowed, SpecError, Unreachable

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("quick")]

OTHER = "127.0.0.2"
"""Another host, which is this machine as well."""
AT_OTHER = ["http://{other}\\@{home}/x", "http://:@{other}\\@{home}/x", "http://{other}\\@{home}\\@{other}/x"]
WITH_A_NAME = ["http://@{home}/x", "http://:@{home}/x", "http://me@{home}/x", "http://:pw@{home}/x"]


class TestAddresses:
    @pytest.mark.parametrize("case", AT_OTHER + WITH_A_NAME)
    @pytest.mark.parametrize("way", ["next", "redirect"])
    def test_no_other_host_is_taken_for_the_endpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str, case: str
    ) -> None:
        def ours(path: str, connection: socket.socket) -> None:
            target = case.format(other=other.address, home=home.address)
            if "/revision/" in path and way == "redirect":
                answer(connection, status="302 Found", Location=target)
            elif "/revision/" in path:
                answer(connection, {"id": "org/good", "sha": "a" * 40})
            elif "/tree/" in path:
                answer(connection, [], Link=f'<{target}>; rel="next"')
            else:
                answer(connection, status="404 Not Found")

        def theirs(_: str, connection: socket.socket) -> None:
            answer(connection, [])

        monkeypatch.setenv("HF_TOKEN", "hf_local")
        with RawServer(theirs, OTHER) as other, RawServer(ours) as home:
            monkeypatch.setenv("HF_ENDPOINT", f"http://{home.address}")
            error = refusal("hf:org/good", tmp_path)
            check_refused(error, NotAllowed if way == "redirect" else Unreachable, "not followed|no address")
            assert "pw" not in str(error)
            assert other.requests == []
            assert "/x" not in {path for path, _ in home.requests}

    @pytest.mark.parametrize(
        "url",
        [
            "http://a.test\\@b.test/x",
            "http://a.test/x\\y",
            "http://a .test/x",
            "http://a.test\u00a0/x",
            " http://a.test/x",
            "http://a.t\nest/x",
            "http://a.test/x\r\nHost: b.test",
            "http://a.test/\x7f",
            "http://@a.test/x",
            "http://me:pw@a.test/x",
            "http://a.test:99999/x",
            "http://[::1/x",
        ],
    )
    def test_an_address_that_can_be_read_in_two_ways_is_refused(self, url: str) -> None:
        with pytest.raises(NotAllowed, match="not followed"):
            split_url(url)

    @pytest.mark.parametrize(
        ("url", "host", "port"),
        [
            ("https://Hub.Example/a b?c=d e", "hub.example", None),
            ("http://127.0.0.1:80/x@y", "127.0.0.1", 80),
            ("http://[::1]:8080/", "::1", 8080),
            ("https://a_b.example./x", "a_b.example.", None),
        ],
    )
    def test_a_plain_address_is_read_as_the_client_reads_it(self, url: str, host: str, port: int | None) -> None:
        parts = split_url(url)
        assert (parts.hostname, parts.port) == (host, port)

    def test_what_the_client_reads_otherwise_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Whatever the next difference between the two may be."""
        read = urllib3.util.parse_url
        for url, found in (("http://a.test/x", "http://b.test/x"), ("http://a.test/x", "http://a.test:81/x")):
            monkeypatch.setattr(urllib3.util, "parse_url", lambda text, u=url, f=found: read(f if text == u else text))
            with pytest.raises(NotAllowed, match="not followed"):
                split_url(url)

    @pytest.mark.parametrize("url", ["http://@hub.example", "http://:@hub.example", "http://me@hub.example"])
    def test_an_endpoint_with_a_user_name_is_refused_even_an_empty_one(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", url)
        check_refused(refusal("hf:org/good", tmp_path), SpecError, "without user name")

    @pytest.mark.parametrize(
        "url", ["http://127.0.0.1:99999", "http://hub.example\n", " http://hub.example", "http://a\\b"]
    )
    def test_an_endpoint_that_is_no_address_is_called_an_endpoint(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
    ) -> None:
        monkeypatch.setenv("HF_ENDPOINT", url)
        check_refused(refusal("hf:org/good", tmp_path), SpecError, "endpoint 'http")

    def test_a_proxy_may_have_a_user_name(self) -> None:
        assert split_url("http://me:pw@proxy.test:8080", login=True).username == "me"


def test_a_listing_is_taken_from_the_endpoint_also_when_it_is_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The endpoint moved to https, which is allowed, and answers 403 once, which is asked again."""
    hops = [
        ("http://hub.example/api/x", 302, "https://hub.example/api/x"),
        ("https://hub.example/api/x", 403, ""),
        ("http://hub.example/api/x", 302, "https://hub.example/api/x"),
        ("https://hub.example/api/x", 302, "https://hub.example:8443/api/x"),
    ]

    def once(_: Transport, url: str, headers: dict[str, str], patience: Patience, *, foreign: bool) -> Reply:
        expected, status, location = hops.pop(0)
        assert url == expected
        raw = urllib3.HTTPResponse(status=status, headers={"location": location}, preload_content=False)
        return Reply(raw, url, Cover(), patience, foreign=foreign)

    monkeypatch.setattr(Transport, "_once", once)
    error: Any
    with pytest.raises(HeadraceError) as error:
        Transport("http://hub.example").open("http://hub.example/api/x", "x", api=True)
    check_refused(error.value, Unreachable, "redirects to another host")
    assert hops == []

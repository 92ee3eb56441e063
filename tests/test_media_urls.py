"""Media by address: from listed hosts only, over the public internet only, and never more than is allowed."""

from __future__ import annotations

import datetime as dt
import gzip
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest
from media_net import Net, Server, gives, sends_to

from headrace.catalog import retry
from headrace.catalog.retry import Retry
from headrace.errors import HeadraceError, NotAllowed, NotFound, Refused, Stalled, Unreachable
from headrace.fetch.media import addresses, urls
from headrace.fetch.media.policy import MediaPolicy, open_media

BODY = b"\x89PNG and so on"
CLOSED = MediaPolicy()


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Iterator[Net]:
    found = Net()
    monkeypatch.setattr(addresses, "resolve", found.resolve)
    monkeypatch.setattr(addresses, "dial", found.dial)
    monkeypatch.setattr(retry, "RETRY", Retry(attempts=3, base=0.01))
    yield found
    found.server.close()


OPEN = MediaPolicy(hosts=("images.test", "cdn.test"), timeout=5.0)


class TestAddresses:
    def test_a_listed_host_is_asked_plainly(self, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "https_proxy", "all_proxy"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        net.server.answers["/a b.png"] = net.server.answers["/a%20b.png"] = gives(BODY)
        assert open_media("http://images.test/a%20b.png?size=1", OPEN, "image") == BODY
        assert open_media({"bytes": None, "path": "HTTP://IMAGES.test/a%20b.png"}, OPEN, "image") == BODY
        path, headers = net.server.requests[0]
        assert path == "/a%20b.png?size=1"
        assert headers["Host"] == "images.test"
        assert {name.lower() for name in headers} == {
            "host", "accept", "accept-encoding", "connection", "user-agent",
        }  # fmt: skip
        assert net.dialled == [("93.184.216.34", 80)] * 2

    def test_addresses_are_off_by_default(self, net: Net) -> None:
        for url in ("http://images.test/a", "https://images.test/a"):
            with pytest.raises(NotAllowed, match=r"MediaPolicy\(hosts=...\)"):
                open_media(url, CLOSED, "image")
        assert (net.lookups, net.dialled) == ([], [])

    @pytest.mark.parametrize(
        "url",
        [
            "http://other.test/a",
            "http://images.test.other.test/a",
            "http://images.test./a",
            "http://images.test:81/a",
            "http://images.test:80@other.test/a",
            "http://user:pa55@images.test/a",
            "http://@images.test/a",
            "http://images.test\\@other.test/a",
            "http://images.test/a b",
            "http://images.test/\r\nHost: x",
            "http:///a",
            "http:images.test/a",
            "http://[::1/a",
            "http://images.test:99999/a",
            "http://images.test:x/a",
            "http://\u0131mages.test/a",
        ],
    )
    def test_an_address_that_is_not_listed_is_refused_unasked(self, net: Net, url: str) -> None:
        with pytest.raises(NotAllowed) as caught:
            open_media(url, OPEN, "image")
        assert "pa55" not in str(caught.value)
        assert (net.lookups, net.dialled) == ([], [])

    def test_a_port_must_be_listed_with_its_host(self, net: Net) -> None:
        net.server.answers["/a"] = gives(BODY)
        policy = MediaPolicy(hosts=("images.test:8080",))
        assert open_media("http://images.test:8080/a", policy, "image") == BODY
        assert net.server.requests[0][1]["Host"] == "images.test:8080"
        assert net.dialled == [("93.184.216.34", 8080)]
        with pytest.raises(NotAllowed, match="'images.test' is not among"):
            open_media("http://images.test/a", policy, "image")

    @pytest.mark.parametrize(
        "address",
        [
            "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "169.254.169.254", "100.64.0.1", "0.0.0.0",
            "224.0.0.1", "255.255.255.255", "198.18.0.1", "::1", "::", "fe80::1", "fe80::1%eth0", "fc00::1",
            "ff02::1", "nonsense", "::ffff:127.0.0.1", "::ffff:169.254.169.254", "64:ff9b::a9fe:a9fe",
            "2002:7f00:1::", "2002:a9fe:a9fe::", "2001:0:7f00:1::", "2001:db8::1", "",
        ],
    )  # fmt: skip
    def test_a_private_address_is_refused_even_among_public_ones(self, net: Net, address: str) -> None:
        for found in ([address], ["93.184.216.34", address], [address, "93.184.216.34"]):
            net.names["images.test"] = found
            with pytest.raises(NotAllowed, match="not an address of the public internet"):
                open_media("http://images.test/a", OPEN, "image")
        assert net.dialled == []

    @pytest.mark.parametrize(
        "address", ["8.8.8.8", "93.184.216.34", "2606:4700::1111", "::ffff:8.8.8.8", "64:ff9b::808:808"]
    )
    def test_a_public_address_is_public(self, address: str) -> None:
        assert addresses.is_public(address)

    def test_a_host_without_an_address_is_unreachable(self, net: Net) -> None:
        del net.names["images.test"]
        with pytest.raises(Unreachable, match="host images.test.*not known"):
            open_media("http://images.test/a", OPEN, "image")
        net.names["images.test"] = []
        with pytest.raises(NotAllowed, match="no address"):
            open_media("http://images.test/a", OPEN, "image")

    def test_a_name_is_looked_up_once_for_each_hop(self, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
        answers = iter([["93.184.216.34"], ["127.0.0.1"]])

        def rebinds(host: str, port: int) -> list[str]:
            net.lookups.append(host)
            return next(answers)

        monkeypatch.setattr(addresses, "resolve", rebinds)
        net.server.answers["/a"] = gives(BODY)
        assert open_media("http://images.test/a", OPEN, "image") == BODY
        assert net.lookups == ["images.test"]
        assert net.dialled == [("93.184.216.34", 80)]
        with pytest.raises(NotAllowed, match=r"127\.0\.0\.1"):
            open_media("http://images.test/a", OPEN, "image")

    def test_the_next_address_is_dialled_when_one_fails(self, net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
        net.names["images.test"] = ["8.8.4.4", "93.184.216.34"]
        net.server.answers["/a"] = gives(BODY)
        dial = net.dial

        def fails(address: str, port: int, timeout: float) -> socket.socket:
            if address == "8.8.4.4":
                raise ConnectionRefusedError
            return dial(address, port, timeout)

        monkeypatch.setattr(addresses, "dial", fails)
        assert open_media("http://images.test/a", OPEN, "image") == BODY


class TestRedirects:
    def test_they_are_followed_among_listed_hosts(self, net: Net) -> None:
        net.server.answers |= {"/a": sends_to("/b?x=1"), "/b": sends_to("http://cdn.test/c"), "/c": gives(BODY)}
        assert open_media("http://images.test/a", OPEN, "image") == BODY
        assert [headers["Host"] for _, headers in net.server.requests] == ["images.test", "images.test", "cdn.test"]
        assert net.lookups == ["images.test", "images.test", "cdn.test"]
        assert net.dialled[-1][0] == "2606:2800:220:1::1"

    @pytest.mark.parametrize(
        "location",
        [
            "http://127.0.0.1/x",
            "http://localhost/x",
            "http://169.254.169.254/latest/meta-data",
            "http://other.test/x",
            "http://images.test:8080/x",
            "//other.test/x",
            "file:///etc/passwd",
            "ftp://images.test/x",
            "data:text/plain,x",
            "gopher://images.test/x",
            "http://user:pa55@images.test/x",
            "http://[::1",
            "\\\\other.test\\x",
        ],
    )
    def test_they_are_checked_like_the_first_address(self, net: Net, location: str) -> None:
        net.server.answers |= {"/a": sends_to(location), "/x": gives(BODY)}
        with pytest.raises(NotAllowed, match="images.test/a redirects to") as caught:
            open_media("http://images.test/a", OPEN, "image")
        assert "pa55" not in str(caught.value)
        assert len(net.dialled) == 1

    def test_a_listed_port_is_no_way_around(self, net: Net) -> None:
        policy = MediaPolicy(hosts=("images.test", "images.test:8080"))
        net.server.answers |= {"/a": sends_to("http://images.test:8080/b"), "/b": gives(BODY)}
        with pytest.raises(NotAllowed, match="change of scheme or port"):
            open_media("http://images.test/a", policy, "image")

    def test_a_name_that_turns_private_is_refused(self, net: Net) -> None:
        net.names["cdn.test"] = ["10.1.2.3"]
        net.server.answers["/a"] = sends_to("http://cdn.test/x")
        with pytest.raises(NotAllowed, match=r"cdn\.test.*10\.1\.2\.3"):
            open_media("http://images.test/a", OPEN, "image")
        assert len(net.dialled) == 1

    def test_five_are_followed_and_six_are_not(self, net: Net) -> None:
        for i in range(6):
            net.server.answers[f"/{i}"] = sends_to(f"/{i + 1}")
        net.server.answers["/6"] = gives(BODY)
        assert open_media("http://images.test/1", OPEN, "image") == BODY
        with pytest.raises(NotAllowed, match="more than 5 redirects"):
            open_media("http://images.test/0", OPEN, "image")


class TestBodies:
    def test_an_announced_size_is_refused_before_the_body(self, net: Net) -> None:
        net.server.answers["/a"] = gives(b"x", Content_Length=str(10 << 30))
        with pytest.raises(Refused, match="announced size in bytes.*10,737,418,240.*max_bytes"):
            open_media("http://images.test/a?key=secret", OPEN, "image")

    def test_attempts_at_a_body_that_breaks_off_have_one_deadline_together(self, net: Net) -> None:
        def breaks_off(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.send_header("Content-Length", "100")
            handler.end_headers()
            handler.wfile.write(b"x")
            time.sleep(0.9)

        net.server.answers["/a"] = breaks_off
        with pytest.raises(Stalled, match="did not arrive within timeout=1 s"):
            open_media("http://images.test/a", MediaPolicy(hosts=("images.test",), timeout=1.0), "image")
        assert len(net.server.requests) <= 2

    def test_an_endless_body_is_cut_off(self, net: Net) -> None:
        def endless(handler: BaseHTTPRequestHandler) -> None:
            handler.send_response(200)
            handler.end_headers()
            while True:
                handler.wfile.write(b"x" * 65536)

        net.server.answers["/a"] = endless
        with pytest.raises(Refused, match="max_bytes=1,000,000"):
            open_media("http://images.test/a", MediaPolicy(hosts=("images.test",), max_bytes=1_000_000), "image")

    @pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "deflate, gzip"])
    def test_a_packed_body_is_not_unpacked(self, net: Net, coding: str) -> None:
        net.server.answers["/a"] = gives(gzip.compress(b"\0" * (10 << 20)), Content_Encoding=coding)
        with pytest.raises(NotAllowed, match=f"packed as '{coding}'"):
            open_media("http://images.test/a", OPEN, "image")

    @pytest.mark.parametrize("where", ["before the answer", "in the headers", "in the body"])
    def test_a_slow_server_is_left_at_the_deadline(self, net: Net, where: str) -> None:
        done = threading.Event()

        def slow(handler: BaseHTTPRequestHandler) -> None:
            if where != "before the answer":
                handler.wfile.write(b"HTTP/1.1 200 OK\r\n")
            if where == "in the body":
                handler.wfile.write(b"Content-Length: 1000\r\n\r\n")
            for _ in range(200):
                if where != "before the answer":
                    handler.wfile.write(b"X-Y: z\r\n" if where == "in the headers" else b"x")
                if done.wait(0.05):
                    return

        net.server.answers["/a"] = slow
        begin = time.monotonic()
        with pytest.raises(Stalled, match="within timeout=0.5 s"):
            open_media("http://images.test/a", MediaPolicy(hosts=("images.test",), timeout=0.5), "image")
        assert time.monotonic() - begin < 2
        done.set()

    def test_a_body_that_breaks_off_is_asked_for_again(self, net: Net) -> None:
        tries = []

        def breaks(handler: BaseHTTPRequestHandler) -> None:
            tries.append(1)
            (gives(BODY, Content_Length="100") if len(tries) < 3 else gives(BODY))(handler)

        net.server.answers["/a"] = breaks
        assert open_media("http://images.test/a", OPEN, "image") == BODY
        assert len(tries) == 3
        net.server.answers["/b"] = gives(BODY, Content_Length="100")
        with pytest.raises(Unreachable, match="gave up after 3 attempts"):
            open_media("http://images.test/b", OPEN, "image")

    @pytest.mark.parametrize(
        ("status", "error", "tries"),
        [
            (404, NotFound, 1),
            (410, NotFound, 1),
            (401, NotAllowed, 1),
            (403, NotAllowed, 1),
            (400, Unreachable, 1),
            (206, Unreachable, 1),
            (204, Unreachable, 1),
            (503, Unreachable, 3),
            (429, Unreachable, 3),
        ],
    )
    def test_statuses_mean_what_they_say(self, net: Net, status: int, error: type[HeadraceError], tries: int) -> None:
        net.server.answers["/a"] = gives(b"", status)
        with pytest.raises(error, match=str(status)) as caught:
            open_media("http://images.test/a?key=secret", OPEN, "image")
        assert "secret" not in str(caught.value)
        assert len(net.server.requests) == tries

    def test_a_wish_to_wait_longer_than_the_deadline_ends_it(self, net: Net) -> None:
        net.server.answers["/a"] = gives(b"", 503, Retry_After="100")
        with pytest.raises(Unreachable, match="too late"):
            open_media("http://images.test/a", OPEN, "image")
        assert len(net.server.requests) == 1


class TestTls:
    @pytest.fixture
    def secure(self, net: Net, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
        """The server speaks TLS, with a certificate for images.test; gives the names that it was asked for."""
        cert, key = certificate(tmp_path)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(cert, key)
        names: list[str] = []
        context.sni_callback = lambda _, name, __: names.append(name or "")
        net.server.close()
        net.server = Server(context)
        trusting = ssl.create_default_context(cafile=str(cert))
        urls._tls.cache_clear()
        monkeypatch.setattr(urls, "tls_context", lambda: trusting)
        yield names
        urls._tls.cache_clear()

    def test_the_name_stays_in_the_handshake(self, net: Net, secure: list[str]) -> None:
        net.server.answers["/a"] = gives(BODY)
        assert open_media("https://images.test/a", OPEN, "image") == BODY
        assert secure == ["images.test"]
        assert net.dialled == [("93.184.216.34", 443)]
        assert net.server.requests[0][1]["Host"] == "images.test"

    def test_a_certificate_of_another_host_is_not_trusted(self, net: Net, secure: list[str]) -> None:
        with pytest.raises(Unreachable, match="certificate of https://cdn.test/a is not trusted"):
            open_media("https://cdn.test/a", OPEN, "image")
        assert net.server.requests == []

    def test_nobody_is_sent_from_https_to_http(self, net: Net, secure: list[str]) -> None:
        net.server.answers["/a"] = sends_to("http://images.test/b")
        with pytest.raises(NotAllowed, match="change of scheme or port"):
            open_media("https://images.test/a", OPEN, "image")


def certificate(folder: Path) -> tuple[Path, Path]:
    x509 = pytest.importorskip("cryptography.x509")
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "images.test")])
    now = dt.datetime.now(dt.UTC)
    cert = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("images.test")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert").write_bytes(cert.public_bytes(serialization.Encoding.PEM))
    (folder / "key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert", folder / "key"

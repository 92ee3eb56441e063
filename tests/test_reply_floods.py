"""Replies that never end although their bytes come fast: of what is no body, a little is read and no more."""

from __future__ import annotations

import errno
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from raw_server import RawServer, answer
from refused import check_refused, refusal

from headrace.catalog import patience, retry
from headrace.catalog.patience import Patience
from headrace.catalog.transport import Transport
from headrace.errors import Stalled, Unreachable
from headrace.fetch.media import addresses
from headrace.fetch.media.policy import MediaPolicy, open_media

pytestmark = [pytest.mark.timed, pytest.mark.timeout(60), pytest.mark.usefixtures("quick")]

CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
DRAINED = b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n"
FLOODS = {
    "100 Continue": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "trailers": (CHUNKED + b"0\r\n", b"a\r\n"),
    "trailers of a redirect": (DRAINED, b"a\r\n"),
    "chunks of a byte": (CHUNKED, b"1\r\n \r\n"),
}
FEW = 20 << 20
"""Bytes on the way are sent as well, so a server sends more than is read."""


class Flood:
    """A server that never ends an answer, and counts what it sent."""

    def __init__(self, case: str) -> None:
        self.sent = 0
        self._head, self._unit = FLOODS[case]

    def __call__(self, _: str, connection: socket.socket) -> None:
        connection.sendall(self._head)
        block = self._unit * (60_000 // len(self._unit))
        while True:
            connection.sendall(block)
            self.sent += len(block)


@contextmanager
def at_most(seconds: int) -> Iterator[None]:
    """Ends what it holds by an error, also a loop that never waits."""

    def end(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, end)
    signal.alarm(seconds)
    try:
        yield
    except KeyboardInterrupt:
        pytest.fail(f"it went on after {seconds} s")
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("case", FLOODS)
def test_an_answer_of_the_api_that_floods_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    monkeypatch.setattr(retry, "RETRY", retry.Retry(attempts=1, base=0.01))
    flood = Flood(case)
    with RawServer(flood) as server, at_most(30):
        monkeypatch.setenv("HF_ENDPOINT", f"http://{server.address}")
        check_refused(refusal("hf:org/good", tmp_path), Unreachable, "1,048,576 bytes more than its body")
    assert flood.sent < FEW


@pytest.mark.parametrize("case", FLOODS)
def test_a_file_that_floods_is_given_up(case: str) -> None:
    flood = Flood(case)
    with RawServer(flood) as server, at_most(30):
        endpoint = f"http://{server.address}"
        with pytest.raises(Exception, match="1,048,576 bytes more than its body"):
            for _ in Transport(endpoint).open(f"{endpoint}/file", "a file").chunks():
                pass
    assert flood.sent < FEW


@pytest.mark.parametrize("size", [24, 1000, 100_000])
def test_a_large_file_in_chunks_is_read_whole(size: int) -> None:
    def chunks(_: str, connection: socket.socket) -> None:
        connection.sendall(CHUNKED)
        block = b"%x\r\n%s\r\n" % (size, b"x" * size)
        for _round in range(rounds):
            connection.sendall(block * many)
        connection.sendall(b"0\r\nx-checksum: 1\r\n\r\n")

    many = max(1, 100_000 // size)
    rounds = 80
    with RawServer(chunks) as server, at_most(30):
        endpoint = f"http://{server.address}"
        reply = Transport(endpoint).open(f"{endpoint}/file", "a file")
        assert sum(len(chunk) for chunk in reply.chunks()) == rounds * many * size


def test_a_slow_consumer_of_a_fast_file_keeps_its_reply() -> None:
    """The time between two chunks is the consumer's own."""
    body = "x" * (6 << 20)
    with RawServer(lambda _, connection: answer(connection, body)) as server:
        endpoint = f"http://{server.address}"
        got = 0
        for chunk in Transport(endpoint, stall_seconds=0.2).open(f"{endpoint}/file", "a file").chunks():
            got += len(chunk)
            time.sleep(0.1)
        assert got == len(body)


@pytest.mark.parametrize("case", [case for case in FLOODS if "redirect" not in case])
def test_a_media_address_that_floods_is_left_at_its_deadline(monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    with RawServer(Flood(case)) as server, at_most(30):
        host = server.address.partition(":")[0]
        monkeypatch.setattr(addresses, "public_addresses", lambda *_: [host])
        policy = MediaPolicy(hosts=(server.address,), timeout=1.0)
        began = time.monotonic()
        with pytest.raises(Stalled, match="timeout=1 s"):
            open_media(f"http://{server.address}/a.png", policy, "image")
        assert time.monotonic() - began < 10


def test_a_deadline_counts_the_time_between_two_reads() -> None:
    left = Patience(10, 10, ends=time.monotonic() + 0.05)
    assert left.next_timeout() <= 0.05
    time.sleep(0.06)
    with pytest.raises(TimeoutError):
        left.next_timeout()


def test_what_is_no_body_is_counted() -> None:
    left = Patience(10, 10, spare=100)
    left.spend(0, 100)
    left.next_timeout()
    left.spend(0, 1)
    with pytest.raises(OSError, match="100 bytes more than its body") as caught:
        left.next_timeout()
    assert caught.value.errno == errno.EMSGSIZE
    left.took(1)
    left.next_timeout()
    left.spend(0, 125)
    left.took(100)
    left.next_timeout()
    assert patience.SPARE == 1 << 20

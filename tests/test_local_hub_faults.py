"""LocalHub's faults: each does on the wire what it says, and to the requests its rule names."""

from __future__ import annotations

import gzip
import http.client
import os
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from wire import Reply

from headrace.testing.hub import (
    Action,
    ChunkedCut,
    CloseAfter,
    Delay,
    Drip,
    DripHead,
    Endless,
    Exchange,
    ExpiredSignature,
    Flip,
    GzipBody,
    IgnoreRange,
    Link,
    LocalHub,
    NoLength,
    RateLimit,
    Redirect,
    ResetAfter,
    StaleEtag,
    StallAfter,
    Status,
    Swap,
    ToSecondOrigin,
    WrongLength,
    WrongRange,
)

DATA = bytes(range(256)) * 16
BIN = "/datasets/me/rows/resolve/main/train-00000.bin"
INFO = "/api/datasets/me/rows"
TREE = "/api/datasets/me/rows/tree/main"


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with LocalHub() as hub:
        hub.push("me/rows", {"train-00000.bin": DATA, "train-00001.bin": DATA, "README.md": b"# Rows"})
        yield hub


# Which requests a rule acts on


def test_nth_and_times_choose_among_the_requests_that_match(hub: LocalHub) -> None:
    second = hub.fault("*/train-00000*", 503, nth=2)
    first_two = hub.fault("*/train-00001*", Status(500), times=2)
    some = hub.fault("*/README.md", 502, nth=range(2, 5), times=2)
    assert [Reply(hub.endpoint + BIN).status for _ in range(3)] == [200, 503, 200]
    assert [Reply(hub.endpoint + BIN.replace("0.bin", "1.bin")).status for _ in range(3)] == [500, 500, 200]
    readme = hub.endpoint + BIN.replace("train-00000.bin", "README.md")
    assert [Reply(readme).status for _ in range(5)] == [200, 502, 502, 200, 200]
    assert (second.hits, second.seen, first_two.hits, some.hits) == (1, 3, 2, 2)


def test_a_rule_may_name_a_method_and_an_origin_and_be_taken_back(hub: LocalHub) -> None:
    rule = hub.fault("*.bin", 503, method="head", origin="hub")
    hub.fault("*.bin", 500, origin="cdn")
    assert (Reply(hub.endpoint + BIN).status, Reply(hub.endpoint + BIN, "HEAD").status) == (200, 503)
    rule.remove()
    rule.remove()
    assert Reply(hub.endpoint + BIN, "HEAD").status == 200
    hub.fault("*", 503)
    hub.clear_faults()
    assert Reply(hub.endpoint + BIN).status == 200


def test_a_fault_of_the_body_waits_for_a_body(hub: LocalHub) -> None:
    cut = hub.fault("*.bin", CloseAfter(10), nth=1)
    assert Reply(hub.endpoint + BIN, "HEAD").status == 200
    assert Reply(hub.endpoint + BIN.replace("0.bin", "9.bin")).status == 404
    assert (cut.seen, Reply(hub.endpoint + BIN).body, cut.hits) == (0, DATA[:10], 1)
    with LocalHub(cdn=True) as other:
        other.push("me/rows", {"train-00000.bin": DATA})
        cut = other.fault("*.bin", CloseAfter(10), nth=1)
        redirect = Reply(other.endpoint + BIN)
        assert (redirect.status, cut.seen) == (302, 0)
        assert (Reply(redirect.headers["location"]).body, cut.hits) == (DATA[:10], 1)


def test_what_one_rule_does_changes_no_other_rules_count(hub: LocalHub) -> None:
    hub.fault("*.bin", 503, nth=1)
    cut = hub.fault("*.bin", CloseAfter(10), nth=(1, 2))
    assert [len(Reply(hub.endpoint + BIN).body) for _ in range(3)] == [0, 10, 4096]
    assert (cut.seen, cut.hits) == (3, 1)


def test_all_rules_that_match_act_in_order(hub: LocalHub) -> None:
    hub.fault("*.bin", Flip(3))
    hub.fault("*.bin", Flip(5))
    hub.fault("*.bin", GzipBody())
    body = gzip.decompress(Reply(hub.endpoint + BIN).body)
    assert [n for n in range(len(DATA)) if body[n] != DATA[n]] == [3, 5]


def test_a_test_may_bring_its_own_action(hub: LocalHub) -> None:
    class Teapot:
        def acts_on(self, exchange: Exchange) -> bool:
            return exchange.headers.get("x-tea") == "yes"

        def act(self, exchange: Exchange) -> None:
            exchange.answer.replace(418, {})

    assert isinstance(Teapot(), Action)
    hub.fault("*", Teapot())
    assert (Reply(hub.endpoint + BIN, X_Tea="yes").status, Reply(hub.endpoint + BIN).status) == (418, 200)
    with pytest.raises(TypeError, match="is no action"):
        hub.fault("*", "503")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="counted from 1"):
        hub.fault("*", 503, nth=0)


@pytest.mark.parametrize("path", [INFO, TREE])
def test_the_api_fails_like_the_files(hub: LocalHub, path: str) -> None:
    whole = Reply(hub.endpoint + path).body
    hub.fault(path, RateLimit(2), nth=1)
    hub.fault(path, CloseAfter(7), nth=2)
    hub.fault(path, Swap(b"[]"), nth=3)
    limited, cut, swapped = (Reply(hub.endpoint + path) for _ in range(3))
    assert (limited.status, limited.headers["retry-after"]) == (429, "2")
    assert (cut.body, swapped.body) == (whole[:7], b"[]")


# What each action does


def test_status_sends_its_headers_and_its_body(hub: LocalHub) -> None:
    hub.fault("*", Status(451, {"X-Why": "law"}, b"no"))
    reply = Reply(hub.endpoint + BIN)
    assert (reply.status, reply.headers["x-why"], reply.body) == (451, "law", b"no")


def test_a_rate_limit_says_when_to_come_back_in_each_style(hub: LocalHub) -> None:
    for nth, style in enumerate(("retry-after", "ratelimit", "none"), start=1):
        hub.fault("*", RateLimit(7, style), nth=nth)  # type: ignore[arg-type]
    replies = [Reply(hub.endpoint + BIN) for _ in range(3)]
    assert [reply.status for reply in replies] == [429] * 3
    assert replies[0].headers["retry-after"] == "7"
    assert replies[1].headers["ratelimit"] == '"api";r=0;t=7'
    assert not {"retry-after", "ratelimit"} & set(replies[2].headers)


@pytest.mark.parametrize("after", [0, 1, 2048, 4095, 4096])
def test_close_after_sends_exactly_so_many_bytes(hub: LocalHub, after: int) -> None:
    hub.fault("*.bin", CloseAfter(after))
    reply = Reply(hub.endpoint + BIN)
    assert (reply.headers["content-length"], reply.body) == ("4096", DATA[:after])
    assert isinstance(reply.error, http.client.IncompleteRead) == (after < 4096)
    assert hub.requests[-1].bytes_sent == after


def test_close_after_none_ends_a_connection_before_the_status_line(hub: LocalHub) -> None:
    hub.fault("*.bin", CloseAfter(None))
    assert isinstance(Reply(hub.endpoint + BIN, "HEAD").error, http.client.RemoteDisconnected)
    assert hub.requests[-1].status == 0


@pytest.mark.parametrize("after", [None, 0, 1000])
def test_reset_after_resets_the_connection(hub: LocalHub, after: int | None) -> None:
    hub.fault("*.bin", ResetAfter(after))
    reply = Reply(hub.endpoint + BIN)
    assert isinstance(reply.error, ConnectionResetError)
    assert reply.body == DATA[: after or 0]


def test_stall_after_is_silent_but_keeps_the_connection_open(hub: LocalHub) -> None:
    hub.fault("*.bin", StallAfter(100), nth=1)
    hub.fault("*.bin", StallAfter(100, 0.1), nth=2)
    reply = Reply(hub.endpoint + BIN, timeout=0.5)
    assert (reply.body, type(reply.error)) == (DATA[:100], TimeoutError)
    start = time.monotonic()
    reply = Reply(hub.endpoint + BIN)
    assert (reply.body, type(reply.error)) == (DATA[:100], http.client.IncompleteRead)
    assert 0.1 <= time.monotonic() - start < 5


def test_drip_keeps_to_its_speed(hub: LocalHub) -> None:
    hub.fault("*.bin", Drip(20_480))
    start = time.monotonic()
    assert Reply(hub.endpoint + BIN).body == DATA
    assert 0.19 <= time.monotonic() - start < 5


def test_drip_head_gives_the_right_answer_after_slow_headers(hub: LocalHub) -> None:
    hub.fault("*.bin", DripHead(10_000, padding=1000))
    start = time.monotonic()
    reply = Reply(hub.endpoint + BIN)
    assert time.monotonic() - start >= 0.1
    assert (reply.status, reply.body, len(reply.headers["x-padding"])) == (200, DATA, 1000)


def test_endless_gives_the_body_again_and_again(hub: LocalHub) -> None:
    hub.fault("*.bin", Endless())
    connection = http.client.HTTPConnection(hub.endpoint.removeprefix("http://"), timeout=30)
    connection.request("GET", BIN)
    response = connection.getresponse()
    assert response.read(5 * len(DATA)) == DATA * 5
    response.close()
    connection.close()


def test_delay_gives_the_right_answer_late(hub: LocalHub) -> None:
    hub.fault("*.bin", Delay(0.1))
    start = time.monotonic()
    assert Reply(hub.endpoint + BIN, Range="bytes=0-9").body == DATA[:10]
    assert 0.1 <= time.monotonic() - start < 5


def test_all_bodies_share_a_link_and_each_begins_late(hub: LocalHub) -> None:
    hub.fault("*.bin", Link(0.05, 4 * len(DATA) / 0.4))
    with ThreadPoolExecutor(4) as threads:
        start = time.monotonic()
        began = [threads.submit(Reply, hub.endpoint + BIN) for _ in range(4)]
        assert all(one.result().body == DATA for one in began)
        assert 0.45 <= time.monotonic() - start < 5, "four at once take four times as long as one"
    start = time.monotonic()
    assert Reply(hub.endpoint + BIN, method="HEAD").body == b""
    assert 0.05 <= time.monotonic() - start < 5


def test_flip_turns_one_byte_of_the_file_under_any_range(hub: LocalHub) -> None:
    rule = hub.fault("*.bin", Flip(100))
    wrong = DATA[:100] + bytes([DATA[100] ^ 0xFF]) + DATA[101:]
    assert Reply(hub.endpoint + BIN).body == wrong
    assert Reply(hub.endpoint + BIN, Range="bytes=90-109").body == wrong[90:110]
    assert Reply(hub.endpoint + BIN, Range="bytes=101-").body == DATA[101:]
    assert rule.hits == 2


def test_ignore_range_sends_the_whole_file(hub: LocalHub) -> None:
    hub.fault("*.bin", IgnoreRange())
    reply = Reply(hub.endpoint + BIN, Range="bytes=10-19")
    assert (reply.status, reply.body, "content-range" in reply.headers) == (200, DATA, False)


def test_wrong_range_lies_about_where_the_bytes_are_from(hub: LocalHub) -> None:
    hub.fault("*.bin", WrongRange())
    reply = Reply(hub.endpoint + BIN, Range="bytes=10-19")
    assert (reply.status, reply.body, reply.headers["content-range"]) == (206, DATA[10:20], "bytes 11-20/4096")


def test_stale_etag_is_in_all_headers_of_head_and_get(hub: LocalHub) -> None:
    hub.fault("*.bin", StaleEtag("old"))
    for method in ("HEAD", "GET"):
        reply = Reply(hub.endpoint + BIN, method)
        assert (reply.headers["etag"], reply.headers["x-linked-etag"]) == ('"old"', '"old"')


def test_no_length_ends_the_body_with_the_connection(hub: LocalHub) -> None:
    hub.fault("*.bin", NoLength())
    reply = Reply(hub.endpoint + BIN)
    assert (reply.body, reply.error, "content-length" in reply.headers) == (DATA, None, False)
    assert "content-length" not in Reply(hub.endpoint + BIN, "HEAD").headers


def test_wrong_length_is_wrong_by_its_delta(hub: LocalHub) -> None:
    hub.fault("*.bin", WrongLength(5), nth=1)
    hub.fault("*.bin", WrongLength(-5), nth=2)
    longer, shorter = Reply(hub.endpoint + BIN), Reply(hub.endpoint + BIN)
    assert (longer.headers["content-length"], longer.body, type(longer.error)) == (
        "4101", DATA, http.client.IncompleteRead,
    )  # fmt: skip
    assert (shorter.headers["content-length"], shorter.body) == ("4091", DATA[:-5])


def test_a_chunked_cut_lacks_its_last_chunk(hub: LocalHub) -> None:
    hub.fault("*.bin", ChunkedCut(1000))
    with socket.create_connection(tuple(urlsplit(hub.endpoint).netloc.split(":"))) as connection:  # type: ignore[arg-type]
        connection.sendall(f"GET {BIN} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        received = b"".join(iter(lambda: connection.recv(65536), b""))
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"Transfer-Encoding: chunked" in head
    assert b"Content-Length" not in head
    assert body == b"3e8\r\n" + DATA[:1000] + b"\r\n"


def test_redirect_leads_to_the_address_it_was_given(hub: LocalHub) -> None:
    hub.fault("*.bin", Redirect("http://127.0.0.1:1/x", code=307))
    reply = Reply(hub.endpoint + BIN)
    assert (reply.status, reply.headers["location"]) == (307, "http://127.0.0.1:1/x")


def test_to_second_origin_starts_it_when_first_needed(hub: LocalHub) -> None:
    assert hub.cdn_endpoint is None
    hub.fault("*.bin", ToSecondOrigin())
    redirect = Reply(hub.endpoint + BIN, Range="bytes=0-9")
    assert (redirect.status, redirect.headers["x-linked-size"]) == (302, "4096")
    assert "content-range" not in redirect.headers
    assert hub.cdn_endpoint is not None
    assert redirect.headers["location"].startswith(hub.cdn_endpoint)
    assert Reply(redirect.headers["location"], Range="bytes=0-9").body == DATA[:10]
    assert [one.kind for one in hub.requests] == ["resolve", "cdn"]


def test_an_expired_signature_is_refused_by_the_second_origin_only(hub: LocalHub) -> None:
    hub.fault("*.bin", ToSecondOrigin())
    rule = hub.fault("*.bin", ExpiredSignature(), times=1)
    location = Reply(hub.endpoint + BIN).headers["location"]
    expired = Reply(location)
    assert (expired.status, b"expired" in expired.body, rule.hits) == (403, True, 1)
    assert Reply(location).body == DATA


def test_swap_sends_other_content_under_the_old_etag(hub: LocalHub) -> None:
    hub.fault("*.bin", Swap(b"0123456789"))
    head, got = Reply(hub.endpoint + BIN, "HEAD"), Reply(hub.endpoint + BIN)
    assert (head.headers["content-length"], got.body) == ("4096", b"0123456789")
    assert head.headers["etag"] == got.headers["etag"]
    part = Reply(hub.endpoint + BIN, Range="bytes=2-4")
    assert (part.status, part.body, part.headers["content-range"]) == (206, b"234", "bytes 2-4/10")
    assert Reply(hub.endpoint + BIN, Range="bytes=100-").status == 416


def test_a_gzip_body_says_so_and_has_its_own_length(hub: LocalHub) -> None:
    hub.fault("*.bin", GzipBody())
    reply = Reply(hub.endpoint + BIN, Range="bytes=0-99")
    assert (reply.status, reply.headers["content-encoding"], reply.error) == (206, "gzip", None)
    assert gzip.decompress(reply.body) == DATA[:100]


def test_a_connection_lives_on_after_a_fault_that_does_not_end_it(hub: LocalHub) -> None:
    hub.fault("*.bin", 503, nth=1)
    hub.fault("*.bin", Flip(0), nth=2)
    connection = http.client.HTTPConnection(urlsplit(hub.endpoint).netloc)
    for expected in (b"", b"\xff" + DATA[1:], DATA):
        connection.request("GET", BIN)
        reply = connection.getresponse()
        assert not reply.will_close
        assert reply.read() == expected
    connection.close()


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_holds_no_connection_open_and_cannot_close_the_hub(hub: LocalHub) -> None:
    connection = http.client.HTTPConnection(urlsplit(hub.endpoint).netloc, timeout=5)
    connection.request("GET", BIN)
    assert connection.getresponse().read() == DATA
    hub.fault("*.bin", ResetAfter(None), nth=1)
    wait, go = os.pipe()
    child = os.fork()
    if child == 0:
        hub.close()
        os.close(go)
        os.read(wait, 1)
        os._exit(0)
    os.close(wait)
    try:
        connection.request("GET", BIN)
        with pytest.raises(ConnectionResetError):
            connection.getresponse()
        assert Reply(hub.endpoint + BIN).body == DATA
    finally:
        connection.close()
        os.close(go)
        assert os.waitpid(child, 0)[1] == 0

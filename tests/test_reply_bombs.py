"""Replies that unpack to gigabytes, or never end: refused by a process that has twice its budget of memory."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from bombs import met, packed
from media_net import Server, gives
from refused import a_parquet

from headrace.catalog import hub as listing
from headrace.catalog import hub_api, transport
from headrace.catalog.card import MOST_NODES
from headrace.outside_json import PARSED_BYTES, VALUE_BYTES
from headrace.testing import LocalHub
from headrace.testing.hub import Action, Endless, Exchange, GzipBody, Status

pytestmark = pytest.mark.timeout(120)

MB = 1 << 20
BUDGET = hub_api.REPLY_BYTES + PARSED_BYTES
CARD_BUDGET = 500 * MOST_NODES
NAME = "data/train-0.parquet"
INFO, TREE = "/api/datasets/org/good/revision/*", "/api/datasets/org/good/tree/*"
README = "/datasets/org/good/resolve/*/README.md"


@pytest.fixture
def hub() -> Iterator[LocalHub]:
    with LocalHub() as hub:
        hub.push("org/good", {NAME: a_parquet(), "README.md": b"# Rows"})
        yield hub


LIST = """
from headrace.catalog import hub, retry
from headrace.catalog.source import Source
from headrace.run import Run
retry.RETRY = retry.Retry(attempts=2, base=0.01)
run, warm, source = Run.here(), *(Source(kind="hf", path=name) for name in ("org/warm", "org/good"))
hub.list_split(warm, hub.resolve(warm, run), run)
def work():
    return [path for path, *_ in hub.list_split(source, hub.resolve(source, run), run).files()]
limited(work, int(sys.argv[1]))
"""


def listed(hub: LocalHub, tmp_path: Path, budget: int = BUDGET) -> tuple[str, str]:
    """How a listing ends where there is no more memory than twice the budget."""
    hub.push("org/warm", {NAME: a_parquet(), "README.md": b"# Rows"})
    kind, said, taken = met(LIST, str(budget), env=hub.env() | {"HEADRACE_CACHE_DIR": str(tmp_path / "data")})
    assert taken < 2 * budget
    return kind, said


class Larger:
    """A listing with white space before its end, so that it is right and large."""

    def acts_on(self, exchange: Exchange) -> bool:
        return exchange.has_body

    def act(self, exchange: Exchange) -> None:
        content = exchange.answer.content
        assert isinstance(content, bytes)
        exchange.answer.whole(content[:-1] + b" " * (10 * MB) + content[-1:])


@pytest.fixture(scope="module")
def spaces() -> bytes:
    """A list with a gigabyte of white space in it, packed."""
    body = packed(b"[", b" ", b"]", 1000)
    assert len(body) < 2 * MB
    return body


@pytest.mark.parametrize("packing", ["gzip", "gzip, gzip", "deflate", ""])
@pytest.mark.parametrize("match", [INFO, TREE])
def test_a_listing_that_unpacks_to_gigabytes_is_refused(
    hub: LocalHub, tmp_path: Path, spaces: bytes, match: str, packing: str
) -> None:
    hub.fault(match, Status(200, {"Content-Encoding": packing}, spaces))
    kind, said = listed(hub, tmp_path)
    assert kind == "Unreachable"
    assert ("16,777,216 bytes" if packing == "gzip" else "Content-Encoding" if packing else "not JSON") in said


@pytest.mark.parametrize("match", [INFO, TREE])
@pytest.mark.parametrize("action", [Endless(), GzipBody()])
def test_a_large_listing_is_read_and_an_endless_one_is_not(
    hub: LocalHub, tmp_path: Path, match: str, action: Action
) -> None:
    hub.fault(match, Larger())
    hub.fault(match, action)
    if isinstance(action, GzipBody):
        assert listed(hub, tmp_path) == ("", repr([NAME]))
    else:
        kind, said = listed(hub, tmp_path)
        assert (kind, "16,777,216 bytes" in said) == ("Unreachable", True)


BODIES = {
    "empty objects": b"{},",
    "empty lists": b"[],",
    "objects of one key": b'{"":0},',
    "short texts": b'"ab\\u0100",',
    "numbers": b"1.5,",
}


@pytest.mark.parametrize("case", BODIES)
def test_a_reply_of_very_many_values_is_refused_or_small(hub: LocalHub, tmp_path: Path, case: str) -> None:
    unit = BODIES[case]
    per_unit = sum(unit.count(mark) for mark in (b",", b":", b"[", b"{"))
    most = min(hub_api.REPLY_BYTES // len(unit), PARSED_BYTES // VALUE_BYTES // per_unit) - 10
    for count, refused in ((most, False), (hub_api.REPLY_BYTES // len(unit) - 10, True)):
        hub.clear_faults()
        hub.fault(TREE, Status(200, {}, b"[" + unit * count + b"0]"))
        kind, said = listed(hub, tmp_path)
        assert kind in ("NotFound", "Unreachable")
        assert ("values, more than" in said) == refused


def test_names_of_files_are_counted_before_they_fill_the_memory(hub: LocalHub, tmp_path: Path) -> None:
    budget = 40 * MB
    code = LIST.replace("limited(", f"hub.LISTING_BYTES = {budget}\nlimited(")
    hub.push("org/warm", {NAME: a_parquet(), "README.md": b"# Rows"})
    hub.fault(TREE, NewNames())
    assert budget < listing.LISTING_BYTES
    kind, said, taken = met(code, str(budget), env=hub.env() | {"HEADRACE_CACHE_DIR": str(tmp_path / "data")})
    assert (kind, "the names of its files" in said) == ("DataError", True)
    assert taken < 2 * budget


class NewNames:
    """A page of a thousand files that no other page has, and the address of the next one."""

    def __init__(self) -> None:
        self.page = 0

    def acts_on(self, exchange: Exchange) -> bool:
        return True

    def act(self, exchange: Exchange) -> None:
        self.page += 1
        names = [f"{self.page}/" + "x" * 900 + f"{i}.parquet" for i in range(1000)]
        entries = [{"type": "file", "path": name, "size": 1, "oid": "0" * 40} for name in names]
        link = f'<{exchange.path}?page={self.page}>; rel="next"'
        exchange.answer.replace(200, {"Link": link}, json.dumps(entries).encode())


@pytest.fixture(scope="module")
def twice_packed() -> bytes:
    """Packed twice: gigabytes in few bytes, short enough to be read for the sake of the connection."""
    body = gzip.compress(packed(b"", b"\0", b"", 1500), mtime=0)
    assert len(body) < 16 << 10
    return body


@pytest.mark.parametrize("match", [INFO, README])
@pytest.mark.parametrize("status", [302, 404, 503])
def test_a_body_that_is_not_wanted_is_not_unpacked(
    hub: LocalHub, tmp_path: Path, twice_packed: bytes, status: int, match: str
) -> None:
    headers = {"Content-Encoding": "gzip, gzip", "Location": "?expand=sha"}
    fault = hub.fault(match, Status(status, headers, twice_packed), times=1)
    kind, said = listed(hub, tmp_path, 20 * MB)
    assert kind == ("NotFound" if (status, match) == (404, INFO) else ""), said
    assert fault.hits == 1


class Packed:
    """A body of a client that unpacks where it is asked to, or where it is not asked what to do."""

    def __init__(self, size: int) -> None:
        self.status, self.headers, self.closed = 302, {"content-length": str(size)}, False
        self.left, self.unpacked = size, 0

    def read1(self, amount: int, *, decode_content: bool = True) -> bytes:
        taken = min(amount, self.left)
        self.left -= taken
        self.unpacked += decode_content
        return b"x" * taken

    def read(self, amount: int, *, decode_content: bool = True) -> bytes:
        return self.read1(amount, decode_content=decode_content)

    def drain_conn(self) -> None:  # urllib3's own way
        self.unpacked += 1

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("size", "left"), [(1000, 0), (transport.MAX_DRAIN + 1, transport.MAX_DRAIN + 1)])
def test_what_is_passed_by_of_a_body_stays_packed_whatever_the_client_does_by_itself(size: int, left: int) -> None:
    """Versions of urllib3 differ in what they unpack."""
    body = Packed(size)
    reply: Any = transport.Reply(body, "http://a.test/", None, None, foreign=False)  # type: ignore[arg-type]
    reply.drain()
    assert (body.left, body.unpacked) == (left, 0)


QUOTED = "'*a',"
CARDS = {
    "very many lists": ("configs: [" + "[]," * 1_300_000 + "]", "", repr([NAME])),
    "very many keys": ("configs: {" + "".join(f"{i}: ," for i in range(400_000)) + "}", "", repr([NAME])),
    "keys that fall into one place": (
        "configs: {" + "".join(f"{i * (2**61 - 1)}: ," for i in range(90_000)) + "}",
        "",
        repr([NAME]),
    ),
    "merges by a tag": (
        "a0: &a0 {k: v}\n"
        + "".join(f"a{i}: &a{i} {{!!merge x: [{','.join([f'*a{i - 1}'] * 20)}]}}\n" for i in range(1, 7)),
        "",
        repr([NAME]),
    ),
    "one list of files in many places": (
        f"l: &l [{'a,' * 90_000}]\nconfigs: [{{config_name: default, data_files: [{'{path: *l},' * 30_000}]}}]",
        "DataError",
        "more than 100,000 files or patterns",
    ),
    "one list of files for many splits": (
        f"l: &l [{'a,' * 90_000}]\nconfigs: [{{config_name: default, data_files: "
        f"{{{''.join(f's{i}: *l,' for i in range(45_000))}}}}}]",
        "DataError",
        "more than 100,000 files or patterns",
    ),
    "a pattern of megabytes": (
        f"configs: [{{config_name: default, data_files: '{QUOTED[1:3] * 2_000_000}'}}]",
        "DataError",
        "a pattern of 4,000,000 characters",
    ),
    "more patterns than time": (
        f"configs: [{{config_name: default, data_files: [{QUOTED * 90_000}]}}]",
        "DataError",
        "90,000 patterns for 1,000 files",
    ),
}


@pytest.mark.parametrize("case", CARDS)
def test_a_card_costs_no_more_than_its_values(hub: LocalHub, tmp_path: Path, case: str) -> None:
    card, error, said = CARDS[case]
    # The space in its first line keeps the local Hub from reading it too.
    files: dict[str, bytes] = {"README.md": f"--- \n{card}\n---\n".encode(), NAME: b""}
    if "patterns for" in said:
        files |= {f"data/train-{i}.parquet": b"" for i in range(1000)}
    hub.push("org/good", files)
    kind, told = listed(hub, tmp_path, CARD_BUDGET)
    assert kind == error, told
    assert said in told


MEDIA = """
import socket
from headrace.catalog import retry
from headrace.fetch.media import addresses
from headrace.fetch.media.policy import MediaPolicy, open_media
retry.RETRY = retry.Retry(attempts=2, base=0.01)
addresses.resolve = lambda host, port: ["93.184.216.34"]
addresses.dial = lambda address, port, timeout: socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout)
policy = MediaPolicy(hosts=("images.test",), timeout=30.0)
open_media("http://images.test/warm", policy, "image")
limited(lambda: open_media("http://images.test/a", policy, "image"), int(sys.argv[1]))
"""


@pytest.mark.parametrize("status", [302, 404, 503])
def test_a_body_that_is_not_wanted_of_a_media_address_is_not_unpacked(twice_packed: bytes, status: int) -> None:
    server, budget = Server(), 20 * MB
    server.answers = {
        "/warm": gives(b"x"),
        "/a": gives(twice_packed, status, Content_Encoding="gzip, gzip", Location="http://images.test/warm"),
    }
    try:
        kind, said, taken = met(MEDIA, str(budget), str(server.port), env={})
    finally:
        server.close()
    assert kind == {302: "", 404: "NotFound", 503: "Unreachable"}[status], said
    assert taken < 2 * budget

"""Media by address, fetched by ourselves: only from hosts that the user listed, and only over the public internet.

The host of each hop is checked and looked up once, and the connection goes to an address that was looked at; its name
still stands in the Host header and in the TLS handshake. No cookies, no credentials, no proxies, no compressed bodies.
"""

from __future__ import annotations

import re
import socket
import ssl
import time
from functools import cache
from http.client import HTTPException
from typing import NamedTuple
from urllib.parse import quote, urljoin

import urllib3
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.exceptions import HTTPError

from headrace.catalog.connections import split_url, tls_context
from headrace.catalog.patience import Patience, wait_with
from headrace.catalog.retry import HEALS, asked_wait, retrying
from headrace.catalog.shard import Broken
from headrace.catalog.stop import beat
from headrace.catalog.transport import MAX_REDIRECTS, REDIRECTS, announced_length
from headrace.errors import HeadraceError, NotAllowed, NotFound, Stalled, Unreachable, plain_url, shown
from headrace.fetch.media import addresses
from headrace.fetch.media.budget import over
from headrace.fetch.media.policy import MediaPolicy

CHUNK = 64 << 10
ATTEMPTS = 6
PORTS = {"http": 80, "https": 443}
HEADERS = {"Accept": "*/*", "Accept-Encoding": "identity", "Connection": "close", "User-Agent": "headrace"}

_ODD = re.compile(r"[\x00-\x20\x7f\\\ud800-\udfff]")


class Hop(NamedTuple):
    """One address on the way, as far as it may be followed."""

    scheme: str
    host: str
    port: int
    target: str
    """Path and query, as they go into the request."""
    url: str
    """For messages: without its query."""


def fetch(url: str, policy: MediaPolicy) -> bytes:
    """The body at an address of a row, within `policy.timeout`.

    Addresses in rows are often dead for good, so one that does not answer is not waited for as the data itself is.
    """
    hop = _checked(url.strip(), policy)
    deadline = time.monotonic() + policy.timeout
    return retrying(lambda: _follow(hop, policy, deadline), hop.url, ATTEMPTS)


def _checked(url: str, policy: MediaPolicy) -> Hop:
    """Refuse an address that policy does not allow; nothing is asked of the network for that."""
    if not policy.hosts:
        raise NotAllowed(
            "a row holds a media address, and addresses are not followed; MediaPolicy(hosts=...) allows some"
        )
    if _ODD.search(url):
        raise NotAllowed("a media address holds a space, a control character or a backslash; it is not followed")
    parts = split_url(url)
    where = plain_url(url)
    if parts.scheme not in PORTS:
        raise NotAllowed(f"{where}: only http and https addresses are followed")
    host = parts.hostname or ""
    port = parts.port if parts.port is not None else PORTS[parts.scheme]
    name = host if port == PORTS[parts.scheme] else f"{host}:{port}"
    if name not in policy.hosts:
        raise NotAllowed(f"{where}: the host {shown(name)!r} is not among those that MediaPolicy(hosts=...) lists")
    target = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~-._")
    if parts.query:
        target += "?" + quote(parts.query, safe="/?%:@!$&'()*+,;=~-._[]")
    return Hop(parts.scheme, host, port, target, where)


def _follow(hop: Hop, policy: MediaPolicy, deadline: float) -> bytes:
    for _ in range(MAX_REDIRECTS + 1):
        answer = _ask(hop, policy, deadline)
        if isinstance(answer, bytes):
            return answer
        hop = _next(hop, answer, policy)
    raise NotAllowed(f"{hop.url}: more than {MAX_REDIRECTS} redirects in a row; they are not followed further")


def _next(hop: Hop, location: str, policy: MediaPolicy) -> Hop:
    here = f"{hop.scheme}://{f'[{hop.host}]' if ':' in hop.host else hop.host}:{hop.port}{hop.target}"
    try:
        url = urljoin(here, location)
    except ValueError:
        raise NotAllowed(f"{hop.url} redirects to no address at all; it is not followed") from None
    try:
        found = _checked(url, policy)
    except NotAllowed as error:
        raise NotAllowed(f"{hop.url} redirects to an address that is not followed: {error}") from None
    upgrade = (hop.scheme, hop.port, found.scheme, found.port) == ("http", 80, "https", 443)
    if (found.scheme, found.port) != (hop.scheme, hop.port) and not upgrade:
        raise NotAllowed(f"{hop.url} redirects to {found.url}: a change of scheme or port is not followed")
    return found


def _ask(hop: Hop, policy: MediaPolicy, deadline: float) -> bytes | str:
    """The body, or the address that the answer sends us to."""
    found = addresses.public_addresses(hop.host, hop.port)
    connection, raw = None, None
    try:
        connection = _connection(hop, found, deadline)
        connection.request("GET", hop.target, headers=HEADERS, preload_content=False, decode_content=False)
        raw = connection.getresponse()
        if raw.status in REDIRECTS:
            return raw.headers.get("location", "")
        _require_useful(raw, hop, deadline)
        return _body(raw, hop, policy, deadline)
    except (HeadraceError, Broken):
        raise
    except TimeoutError:
        raise _late(hop, policy) from None
    except ssl.SSLCertVerificationError:
        raise Unreachable(f"the certificate of {hop.url} is not trusted") from None
    except (HTTPError, HTTPException, OSError, ValueError) as error:
        if time.monotonic() >= deadline:
            raise _late(hop, policy) from None
        # Their own words may hold the query of the address.
        raise Broken(f"the connection broke ({type(error).__name__})") from None
    finally:
        for one in (raw, connection):
            if one is not None:
                one.close()


def _require_useful(raw: urllib3.BaseHTTPResponse, hop: Hop, deadline: float) -> None:
    if raw.status == 200:
        coding = raw.headers.get("content-encoding", "identity").strip().lower()
        if coding not in ("", "identity"):
            raise NotAllowed(f"{hop.url} sends a body packed as {shown(coding)!r}, unasked; it is not unpacked")
        return
    if raw.status in HEALS:
        asked = asked_wait(raw.headers, time.time())
        if asked is not None and asked > deadline - time.monotonic():
            raise Unreachable(
                f"{hop.url} answered {raw.status} and asks to come back after {asked:g} s, which is too late"
            )
        raise Broken(f"it answered {raw.status}", retry_after=asked)
    if raw.status in (404, 410):
        raise NotFound(f"{hop.url}: not found ({raw.status})")
    if raw.status in (401, 403, 451):
        raise NotAllowed(f"{hop.url}: the server refuses it ({raw.status}); media is fetched without credentials")
    raise Unreachable(f"{hop.url} answered {raw.status}, which is of no use")


def _body(raw: urllib3.BaseHTTPResponse, hop: Hop, policy: MediaPolicy, deadline: float) -> bytes:
    length = announced_length(raw.headers)
    if length is not None:
        policy.require("max_bytes", length, f"the announced size in bytes of {hop.url}")
    parts, got = [], 0
    while part := raw.read1(CHUNK, decode_content=False):
        beat()
        got += len(part)
        if got > policy.max_bytes:
            raise over(f"the size in bytes of {hop.url}", "max_bytes", policy.max_bytes)
        parts.append(part)
        if time.monotonic() > deadline:
            raise _late(hop, policy)
    return b"".join(parts)


def _late(hop: Hop, policy: MediaPolicy) -> Stalled:
    return Stalled(f"{hop.url} did not arrive within timeout={policy.timeout:g} s")


def _connection(hop: Hop, found: list[str], deadline: float) -> HTTPConnection:
    """A connection to one of the addresses that were looked at, in their order."""
    connection: _Plain | _Secure
    if hop.scheme == "https":
        connection = _Secure(hop.host, hop.port, timeout=_left(deadline), ssl_context=_tls())
    else:
        connection = _Plain(hop.host, hop.port, timeout=_left(deadline))
    connection.found, connection.deadline = found, deadline
    wait_with(Patience(_left(deadline), _left(deadline), ends=deadline), connection)
    return connection


@cache
def _tls() -> ssl.SSLContext:
    return tls_context()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _dialled(connection: _Plain | _Secure) -> socket.socket:
    error: OSError | None = None
    for address in connection.found:
        left = _left(connection.deadline)
        try:
            return addresses.dial(address, connection.port or 0, left)
        except OSError as failed:
            error = failed
    raise error or OSError("no address")


class _Plain(HTTPConnection):
    found: list[str]
    deadline: float

    def _new_conn(self) -> socket.socket:
        return _dialled(self)


class _Secure(HTTPSConnection):
    found: list[str]
    deadline: float

    def _new_conn(self) -> socket.socket:
        return _dialled(self)

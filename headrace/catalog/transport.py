"""HTTP as this package speaks it: every rule about tokens, redirects, proxies, stalls and refusals, in one place.

`Transport.get` is the seam: one request (with its redirects) becomes one `Reply`. `Transport.open` adds the meaning of
the status: it raises `Broken` for what can heal and an error of the family for what cannot. Nothing here retries.
Addresses appear in messages and logs without their query, which on a CDN is a signature. Every reply has a limit of
size and of time, and what is not wanted of it is not read.
"""

from __future__ import annotations

import re
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urljoin

import urllib3
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NewConnectionError, ReadTimeoutError

from headrace import run
from headrace.catalog.connections import covered_by, is_loopback, is_untrusted, manager_for, may_use_proxy, split_url
from headrace.catalog.patience import SPARE, Patience
from headrace.catalog.refusals import refusal
from headrace.catalog.retry import HEALS, Hold, asked_wait
from headrace.catalog.shard import Broken
from headrace.catalog.stop import Cover, Stopped, beat, current
from headrace.errors import HeadraceError, NotAllowed, SpecError, Stalled, Unreachable, plain_url, shown

CONNECT_SECONDS = 10.0
MAX_REDIRECTS = 5
CHUNK = 256 << 10
MAX_DRAIN = 16 << 10
STALLS = 4.0
"""The time limit for a whole reply, in multiples of the limit for one silence in it."""
SLOWEST = 4 << 10
"""Bytes a second below which a large body counts as stalled."""

REDIRECTS = frozenset({301, 302, 303, 307, 308})
_KEPT = ("x-repo-commit", "x-linked-etag", "x-linked-size")


class Reply:
    """The answer to a request. Its body is read once, by `chunks`, or not at all; it must be closed."""

    def __init__(
        self, raw: urllib3.BaseHTTPResponse, url: str, cover: Cover, patience: Patience, *, foreign: bool
    ) -> None:
        self.status = raw.status
        self.headers: Mapping[str, str] = raw.headers
        self.url = url
        """Where the answer came from, after redirects. It may carry a signature: for messages use `plain_url`."""
        self.foreign = foreign
        """Whether another origin than the endpoint gave it."""
        self.first: Mapping[str, str] = {}
        """What the endpoint itself said about the file (commit, etag), also when it then sent us elsewhere."""
        self._raw = raw
        self._cover = cover
        self._patience = patience

    def __repr__(self) -> str:
        return f"<Reply {self.status} from {plain_url(self.url)}>"

    @property
    def waited(self) -> float:
        """Seconds that were spent waiting for it so far."""
        return self._patience.waited

    @property
    def length(self) -> int | None:
        """The number of bytes that are announced."""
        return announced_length(self.headers)

    def chunks(self) -> Iterator[bytes]:
        """The body as it arrives, however large it is. `Broken` when it stops coming before its announced end."""
        self._patience.extend(SLOWEST)
        yield from self._arriving()

    def _arriving(self) -> Iterator[bytes]:
        got = 0
        try:
            while data := self._raw.read1(CHUNK, decode_content=False):
                got += len(data)
                self._patience.took(len(data))
                yield data
                beat()
        except ReadTimeoutError:
            self._stopped()
            why = f"{self._patience.why} after {got:,} bytes of the body from {plain_url(self.url)}"
            raise Broken(why, error=Stalled) from None
        except (HTTPError, HTTPException, OSError, ValueError) as error:
            self._stopped()
            why = f"the connection to {plain_url(self.url)} broke after {got:,} bytes of the body ({_kind(error)})"
            raise Broken(why) from None
        finally:
            self.close()
        # An ended socket reads like the end of a body of unknown length.
        self._stopped()

    def read(self, limit: int) -> bytearray:
        """The whole body, of at most `limit` bytes after it was unpacked."""
        packing = self.headers.get("content-encoding", "identity").strip().lower()
        if packing not in ("", "identity", "gzip"):
            self.close()
            raise Broken(f"the body came with Content-Encoding {shown(packing)!r}, which was not asked for")
        unpacker = zlib.decompressobj(wbits=31) if packing == "gzip" else None
        body, got = bytearray(), 0
        for chunk in self._arriving():
            got += len(chunk)
            body += chunk if unpacker is None else self._unpacked(unpacker, chunk, limit + 1 - len(body))
            if max(got, len(body)) > limit:
                self.close()
                raise Unreachable(f"{plain_url(self.url)} is longer than the {limit:,} bytes that are accepted there")
        if unpacker is not None and not unpacker.eof:
            raise Broken(f"the body from {plain_url(self.url)} is packed by gzip and ends early")
        return body

    def _unpacked(self, unpacker: Any, chunk: bytes, most: int) -> bytes:
        """What a part of the body holds, or the first `most` bytes of it: no more than that is ever unpacked."""
        try:
            data: bytes = unpacker.decompress(chunk, most)
        except zlib.error:
            self.close()
            raise Broken(f"the body from {plain_url(self.url)} is packed by gzip and damaged") from None
        if unpacker.unused_data:
            self.close()
            raise Broken(f"the body from {plain_url(self.url)} goes on after its end")
        return data

    def drain(self) -> None:
        """Read a short body to its end, packed as it may be, so that the connection can be used again."""
        left = MAX_DRAIN
        if self.length is None or self.length > left:
            return
        try:
            # A body in chunks may be of another length than it announces.
            while left > 0 and (data := self._raw.read1(left, decode_content=False)):
                left -= len(data)
        except (HTTPError, HTTPException, OSError, ValueError):
            self._raw.close()

    def close(self) -> None:
        self._cover.close()
        if not self._raw.closed:
            # A connection with unread bytes cannot carry another request.
            self._raw.close()
        self._raw.release_conn()

    def _stopped(self) -> None:
        stop = current()
        if stop is not None and stop.is_set():
            raise Stopped

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


@dataclass(frozen=True)
class Transport:
    """Requests to one endpoint. Holds no connection and no secret."""

    endpoint: str
    stall_seconds: float = 30.0
    hold_root: Path | None = None
    """Where a pause that the server asked for is shared with other processes."""

    def open(
        self,
        url: str,
        what: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        if_range: str | None = None,
        api: bool = False,
    ) -> Reply:
        """A reply with a body of use: status 2xx, or 416. `what` names the thing asked for in errors."""
        hold = Hold(self.endpoint, self.hold_root)
        hold.wait()
        reply = self.get(url, start=start, stop=stop, if_range=if_range, api=api)
        if reply.status == 403 and reply.foreign:
            # A signed address may have expired on its way; the endpoint gives a new one.
            reply.close()
            reply = self.get(url, start=start, stop=stop, if_range=if_range, api=api)
        if 200 <= reply.status < 300 or reply.status == 416:
            return reply
        with reply:
            asked = asked_wait(reply.headers, time.time())
            if reply.status == 429:
                hold.ask(asked if asked is not None else 1.0)
            if reply.status in HEALS:
                raise Broken(f"{plain_url(reply.url)} answered {reply.status}", retry_after=asked)
            with_token = _may_carry_token(self.endpoint) and run.hub_token() is not None
            raise refusal(reply.status, reply.headers, what, self.endpoint, with_token)

    def get(
        self,
        url: str,
        *,
        start: int | None = None,
        stop: int | None = None,
        if_range: str | None = None,
        api: bool = False,
    ) -> Reply:
        """One request, followed through redirects, whatever its status. `Broken` when there is no answer.

        Files may lie on other hosts; an answer of the endpoint's own API (`api`) is taken from its own host only.
        """
        headers = {"Accept-Encoding": "gzip" if api else "identity", "User-Agent": "headrace"}
        if start is not None:
            headers["Range"] = f"bytes={start}-{'' if stop is None else stop - 1}"
        patience = Patience(self.stall_seconds, STALLS * self.stall_seconds, spare=SPARE)
        at_home = True
        first: dict[str, str] = {}
        for _ in range(MAX_REDIRECTS + 1):
            at_home = at_home and origin_of(url) == origin_of(self.endpoint)
            extra = self._for_home(if_range) if at_home else {}
            reply = self._once(url, headers | extra, patience, foreign=not at_home)
            if at_home:
                first |= {name: reply.headers[name] for name in _KEPT if name in reply.headers}
                if "etag" in reply.headers:
                    first.setdefault("etag", reply.headers["etag"])
            reply.first = first
            if reply.status not in REDIRECTS:
                return reply
            with reply:
                url = self._next(reply)
                if api and not is_same_host(self.endpoint, url):
                    raise Unreachable(
                        f"{plain_url(reply.url)} redirects to another host, {plain_url(url)}, which is not followed: "
                        f"only the endpoint itself says what a repo holds; check HF_ENDPOINT, or log in to this network"
                    )
                reply.drain()
        raise Unreachable(f"{plain_url(url)}: more than {MAX_REDIRECTS} redirects in a row; check HF_ENDPOINT")

    def _for_home(self, if_range: str | None) -> dict[str, str]:
        """Headers for the endpoint only: a CDN must not see the token, and knows its files by other etags."""
        extra = {"If-Range": if_range} if if_range else {}
        if _may_carry_token(self.endpoint) and (token := run.hub_token()):
            extra["Authorization"] = f"Bearer {token}"
        return extra

    def _next(self, reply: Reply) -> str:
        try:
            target = urljoin(reply.url, reply.headers.get("location", ""))
        except ValueError:
            raise NotAllowed(f"{plain_url(reply.url)} redirects to no address at all; it is not followed") from None
        parts = split_url(target)
        here = split_url(reply.url)
        downgrade = here.scheme == "https" and parts.scheme == "http"
        local = is_loopback(here.hostname) and is_loopback(parts.hostname)
        if parts.scheme not in ("http", "https") or not parts.hostname or (downgrade and not local):
            raise NotAllowed(
                f"{plain_url(reply.url)} redirects to {plain_url(target)}, which is not followed: only http and https "
                f"addresses, and never from https to http"
            )
        return target

    def _once(self, url: str, headers: dict[str, str], patience: Patience, *, foreign: bool) -> Reply:
        beat()
        cover = Cover()
        timeout = urllib3.Timeout(connect=CONNECT_SECONDS, read=self.stall_seconds)
        try:
            with covered_by(cover, patience):
                raw = manager_for(url).urlopen(
                    "GET", url, headers=headers, preload_content=False, retries=False, redirect=False, timeout=timeout
                )
        except BaseException as error:
            cover.close()
            beat()
            if not isinstance(error, HTTPError | HTTPException | OSError) or isinstance(error, HeadraceError):
                raise
            raise _no_answer(url, error, patience) from None
        return Reply(raw, url, cover, patience, foreign=foreign)


def origin_of(url: str) -> tuple[str, str, int]:
    """Scheme, host and port."""
    parts = split_url(url)
    return parts.scheme, parts.hostname or "", parts.port or {"http": 80, "https": 443}.get(parts.scheme, 0)


def is_same_host(url: str, other: str) -> bool:
    """Whether the other address is of the same origin, or of the same host after a change from http to https."""
    upgrade = ("http", 80), ("https", 443)
    (scheme, host, port), (other_scheme, other_host, other_port) = origin_of(url), origin_of(other)
    ways = (scheme, port), (other_scheme, other_port)
    return host == other_host and (ways[0] == ways[1] or ways == upgrade)


def announced_length(headers: Mapping[str, str]) -> int | None:
    """The Content-Length of a reply, where it has one that can be meant."""
    found = re.fullmatch(r"[0-9]{1,18}", headers.get("content-length", "").strip())
    return int(found[0]) if found else None


def checked_endpoint(url: str) -> str:
    """An endpoint as the user gives it, without its last slash; one that cannot be used is refused."""
    try:
        parts = split_url(url, login=True)  # refused below, with more to say
        is_right = parts.scheme in ("http", "https") and parts.hostname and "@" not in parts.netloc
    except NotAllowed:
        is_right = False
    if not is_right or parts.query or parts.fragment:
        raise SpecError(
            f"endpoint {plain_url(url)!r}: it is an http or https address without user name, password and query, such "
            f"as https://huggingface.co; a token goes into HF_TOKEN"
        )
    return url.rstrip("/")


def _may_carry_token(endpoint: str) -> bool:
    parts = split_url(endpoint)
    return parts.scheme == "https" or is_loopback(parts.hostname)


def client_token() -> bool | None:
    """What the Hub's own client is told of the user's token: None, to use it, or False, where it must not travel.

    Unlike ours, it may ask a proxy also for this machine, which then reads what is sent over plain http.
    """
    from huggingface_hub import constants

    endpoint = constants.ENDPOINT
    safe = split_url(endpoint).scheme == "https" or not may_use_proxy(endpoint)
    return None if safe and _may_carry_token(endpoint) else False


def _no_answer(url: str, error: BaseException, patience: Patience) -> Exception:
    where = plain_url(url)
    if isinstance(error, ReadTimeoutError):
        return Broken(f"no answer from {where}: {patience.why}", error=Stalled)
    if isinstance(error, ConnectTimeoutError) and not isinstance(error, NewConnectionError):
        return Broken(f"no connection to {where} within {CONNECT_SECONDS:g} s")
    if is_untrusted(error):
        return Unreachable(f"the certificate of {where} is not trusted; for a private authority set SSL_CERT_FILE")
    return Broken(f"no answer from {where} ({_kind(error)})")


def _kind(error: BaseException) -> str:
    """An exception without its own words, which may hold an address with its query."""
    inner = next((e for e in (error.__cause__, *error.args) if isinstance(e, OSError)), error)
    return inner.strerror if isinstance(inner, OSError) and inner.strerror else type(inner).__name__

"""What can go wrong between a client and a Hub, as rules a test writes down.

A rule looks at requests by a glob on their path, and, where given, by method and origin. It counts the requests whose
right answer its action can act on: a cut body needs a body, so neither a HEAD nor a redirect counts. What other rules
do to an answer changes no count. All rules that match act, in the order in which they were made.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Literal, Protocol, runtime_checkable

from headrace.testing.hub.answers import Answer, RepoFile, Shared
from headrace.testing.hub.log import Origin


@dataclass(slots=True)
class Exchange:
    """A request and the answer it is about to get."""

    method: str
    path: str
    origin: Origin
    headers: Mapping[str, str]
    """The request's, by lower-case name."""
    answer: Answer
    sign: Callable[[RepoFile], str]
    """The signed address of a file in the second origin, which is started if need be."""

    @property
    def has_body(self) -> bool:
        return self.method != "HEAD" and self.answer.has_content


@runtime_checkable
class Action(Protocol):
    """One thing that goes wrong. Tests may bring their own."""

    def acts_on(self, exchange: Exchange) -> bool:
        """Whether this exchange counts for the rule."""
        ...

    def act(self, exchange: Exchange) -> None:
        """Change the exchange's answer."""
        ...


class _OnAny:
    def acts_on(self, exchange: Exchange) -> bool:
        return True


class _OnBody:
    def acts_on(self, exchange: Exchange) -> bool:
        return exchange.has_body


class _OnContent:
    def acts_on(self, exchange: Exchange) -> bool:
        return exchange.answer.has_content


@dataclass(frozen=True)
class Status(_OnAny):
    """Another answer instead."""

    code: int
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""

    def act(self, exchange: Exchange) -> None:
        exchange.answer.replace(self.code, self.headers, self.body)


@dataclass(frozen=True)
class RateLimit(_OnAny):
    """429, saying how long to wait in one of the two ways the Hub does, or not at all."""

    retry_after: float
    style: Literal["retry-after", "ratelimit", "none"] = "retry-after"

    def act(self, exchange: Exchange) -> None:
        seconds = f"{self.retry_after:g}"
        headers = {
            "retry-after": {"Retry-After": seconds},
            "ratelimit": {
                "RateLimit": f'"api";r=0;t={seconds}',
                "RateLimit-Policy": '"fixed window";"api";q=500;w=300',
            },
            "none": {},
        }
        exchange.answer.replace(429, headers[self.style], b"Too many requests")


@dataclass(frozen=True)
class _Ending:
    after: int | None
    """Bytes of the body that still travel; None ends the connection before the status line, for any request."""

    def acts_on(self, exchange: Exchange) -> bool:
        return self.after is None or exchange.has_body

    def _end(self, exchange: Exchange, ending: Literal["close", "reset", "stall"]) -> None:
        exchange.answer.trouble.after = -1 if self.after is None else self.after
        exchange.answer.trouble.ending = ending


@dataclass(frozen=True)
class CloseAfter(_Ending):
    """The connection is closed, in good order, in the middle of the body."""

    def act(self, exchange: Exchange) -> None:
        self._end(exchange, "close")


@dataclass(frozen=True)
class ResetAfter(_Ending):
    """The connection is reset in the middle of the body."""

    def act(self, exchange: Exchange) -> None:
        self._end(exchange, "reset")


@dataclass(frozen=True)
class StallAfter(_Ending):
    """The connection stays open but silent, and is closed after a time (None: when the client or the Hub closes)."""

    seconds: float | None = None

    def act(self, exchange: Exchange) -> None:
        self._end(exchange, "stall")
        exchange.answer.trouble.stall_seconds = self.seconds


@dataclass(frozen=True)
class ChunkedCut(_Ending):
    """A chunked body whose last chunk never comes."""

    after: int

    def act(self, exchange: Exchange) -> None:
        self._end(exchange, "close")
        exchange.answer.trouble.framing = "chunked"


@dataclass(frozen=True)
class Drip(_OnBody):
    """The body comes slowly."""

    bytes_per_second: float

    def act(self, exchange: Exchange) -> None:
        exchange.answer.trouble.bytes_per_second = self.bytes_per_second


@dataclass(frozen=True)
class DripHead(_OnAny):
    """The status line and the headers come slowly, byte by byte, with so many bytes of padding among them."""

    bytes_per_second: float
    padding: int = 1000

    def act(self, exchange: Exchange) -> None:
        exchange.answer.headers["X-Padding"] = "x" * self.padding
        exchange.answer.trouble.head_bytes_per_second = self.bytes_per_second


@dataclass(frozen=True)
class Endless(_OnBody):
    """The body begins again and again, and never ends."""

    def act(self, exchange: Exchange) -> None:
        exchange.answer.trouble.endless = True
        exchange.answer.trouble.framing = "chunked"


@dataclass(frozen=True)
class Flip:
    """All bits of one byte are turned over. Acts on the requests that carry this byte of the file."""

    index: int

    def acts_on(self, exchange: Exchange) -> bool:
        return exchange.has_body and exchange.answer.start <= self.index < exchange.answer.stop

    def act(self, exchange: Exchange) -> None:
        exchange.answer.trouble.flips.append(self.index)


@dataclass(frozen=True)
class IgnoreRange:
    """200 and the whole body where a range was asked for."""

    def acts_on(self, exchange: Exchange) -> bool:
        return exchange.has_body and "range" in exchange.headers

    def act(self, exchange: Exchange) -> None:
        exchange.answer.whole(exchange.answer.content)


@dataclass(frozen=True)
class WrongRange:
    """206 with the bytes that were asked for, under a Content-Range that is one byte further on."""

    def acts_on(self, exchange: Exchange) -> bool:
        return exchange.has_body and exchange.answer.status == 206

    def act(self, exchange: Exchange) -> None:
        answer = exchange.answer
        size = answer.headers["Content-Range"].rpartition("/")[2]
        answer.headers["Content-Range"] = f"bytes {answer.start + 1}-{answer.stop}/{size}"


@dataclass(frozen=True)
class StaleEtag:
    """Another etag in all headers that give one; also on a HEAD."""

    value: str

    def acts_on(self, exchange: Exchange) -> bool:
        return "ETag" in exchange.answer.headers

    def act(self, exchange: Exchange) -> None:
        for name in ("ETag", "X-Linked-Etag"):
            if name in exchange.answer.headers:
                exchange.answer.headers[name] = f'"{self.value}"'


@dataclass(frozen=True)
class NoLength(_OnContent):
    """No Content-Length: the end of the connection is the end of the body. Also on a HEAD."""

    def act(self, exchange: Exchange) -> None:
        exchange.answer.trouble.framing = "none"


@dataclass(frozen=True)
class WrongLength(_OnContent):
    """A Content-Length that is wrong by `delta`, then the real body and the end of the connection. Also on a HEAD."""

    delta: int

    def act(self, exchange: Exchange) -> None:
        exchange.answer.trouble.length_delta = self.delta


@dataclass(frozen=True)
class Redirect(_OnAny):
    """A redirect to an address of the test's choice."""

    url: str
    code: int = 302

    def act(self, exchange: Exchange) -> None:
        exchange.answer.replace(self.code, {"Location": self.url})


@dataclass(frozen=True)
class ToSecondOrigin:
    """A redirect of a file to its signed address in the second origin. Other headers stay, as they do on the Hub."""

    def acts_on(self, exchange: Exchange) -> bool:
        return exchange.origin == "hub" and exchange.answer.file is not None and exchange.answer.status != 302

    def act(self, exchange: Exchange) -> None:
        answer = exchange.answer
        assert answer.file is not None
        kept = {name: value for name, value in answer.headers.items() if not name.startswith("Content-")}
        answer.replace(302, kept | {"Location": exchange.sign(answer.file)})


@dataclass(frozen=True)
class Swap(_OnBody):
    """Other content under the same headers, as when a file is replaced between a HEAD and its GET."""

    content: bytes

    def act(self, exchange: Exchange) -> None:
        exchange.answer.whole(self.content)
        exchange.answer.narrow(exchange.headers)


@dataclass(frozen=True)
class GzipBody(_OnBody):
    """The body comes with `Content-Encoding: gzip`, asked for or not."""

    def act(self, exchange: Exchange) -> None:
        exchange.answer.trouble.gzip = True


@dataclass(frozen=True)
class ExpiredSignature:
    """403 from the second origin, as for a signed address that is too old."""

    def acts_on(self, exchange: Exchange) -> bool:
        return exchange.origin == "cdn"

    def act(self, exchange: Exchange) -> None:
        body = b"<Error><Code>AccessDenied</Code><Message>Request has expired</Message></Error>"
        exchange.answer.replace(403, {"Content-Type": "application/xml"}, body)


@dataclass(frozen=True)
class Delay(_OnAny):
    """A time of silence, then the answer as it would have been."""

    seconds: float

    def act(self, exchange: Exchange) -> None:
        exchange.answer.trouble.delay += self.seconds


@dataclass(frozen=True)
class Link(_OnAny):
    """A way to the Hub: each answer begins so many seconds late, all bodies together have so many bytes a second."""

    seconds: float
    bytes_per_second: float
    _shared: Shared = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_shared", Shared(self.bytes_per_second))

    def act(self, exchange: Exchange) -> None:
        exchange.answer.trouble.delay += self.seconds
        exchange.answer.trouble.shared = self._shared


@dataclass(eq=False)
class Fault:
    """A rule: which requests, and what goes wrong with them."""

    match: str
    action: Action
    nth: Collection[int] | None = None
    times: int | None = None
    method: str | None = None
    origin: Origin | None = None
    seen: int = 0
    """Requests that matched, and that the action could act on."""
    hits: int = 0
    """Requests that it did act on."""
    _rules: FaultRules | None = field(default=None, repr=False)

    def remove(self) -> None:
        """End this rule. May be called more than once."""
        if self._rules is not None:
            self._rules.remove(self)

    def _takes(self, exchange: Exchange) -> bool:
        if self.method not in (None, exchange.method) or self.origin not in (None, exchange.origin):
            return False
        if not fnmatchcase(exchange.path, self.match) or not self.action.acts_on(exchange):
            return False
        self.seen += 1
        chosen = (self.nth is None or self.seen in self.nth) and (self.times is None or self.hits < self.times)
        self.hits += chosen
        return chosen


class FaultRules:
    """The rules of one Hub."""

    def __init__(self) -> None:
        self._rules: tuple[Fault, ...] = ()
        self._lock = threading.Lock()

    def add(self, fault: Fault) -> Fault:
        with self._lock:
            fault._rules = self
            self._rules += (fault,)
        return fault

    def remove(self, fault: Fault) -> None:
        with self._lock:
            self._rules = tuple(rule for rule in self._rules if rule is not fault)

    def clear(self) -> None:
        with self._lock:
            self._rules = ()

    def act_on(self, exchange: Exchange) -> None:
        with self._lock:
            chosen = [rule for rule in self._rules if rule._takes(exchange)]
        for rule in chosen:
            if rule.action.acts_on(exchange):
                rule.action.act(exchange)
            else:
                # An earlier rule has left nothing to act on, such as a 503 in place of a body.
                with self._lock:
                    rule.hits -= 1

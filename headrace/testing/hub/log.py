"""What was asked of a Hub, and what it sent."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

Origin = Literal["hub", "cdn"]
Kind = Literal["api", "tree", "resolve", "cdn", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request, as the server saw it."""

    time: float
    """When it arrived, by `time.monotonic()`."""
    method: str
    path: str
    """Without the query, and unquoted."""
    query: str
    origin: Origin
    kind: Kind
    headers: Mapping[str, str]
    """All headers by lower-case name, but never `authorization`: a log must not hold a secret."""
    authorized: bool
    """Whether there was an Authorization header at all."""
    token_ok: bool
    status: int
    """0 where a fault ended the connection before the status line."""
    bytes_sent: int = 0
    """Bytes of the body that were handed to the network."""

    @property
    def range(self) -> str | None:
        return self.headers.get("range")

    @property
    def if_range(self) -> str | None:
        return self.headers.get("if-range")

    @property
    def user_agent(self) -> str:
        return self.headers.get("user-agent", "")


class Line:
    """A request in the log whose body may still be on its way."""

    __slots__ = ("bytes_sent", "request")

    def __init__(self, request: Request) -> None:
        self.request = request
        self.bytes_sent = 0


class RequestLog:
    def __init__(self) -> None:
        self._lines: list[Line] = []
        self._lock = threading.Lock()

    def add(self, request: Request) -> Line:
        line = Line(request)
        with self._lock:
            self._lines.append(line)
        return line

    def snapshot(self) -> list[Request]:
        with self._lock:
            lines = self._lines.copy()
        return [replace(line.request, bytes_sent=line.bytes_sent) for line in lines]

    def clear(self) -> None:
        with self._lock:
            self._lines = []

    def count(self, *, kind: Kind | None, method: str | None, path: str | None) -> int:
        with self._lock:
            lines = self._lines.copy()
        return sum(
            (kind is None or line.request.kind == kind)
            and (method is None or line.request.method == method)
            and (path is None or fnmatchcase(line.request.path, path))
            for line in lines
        )

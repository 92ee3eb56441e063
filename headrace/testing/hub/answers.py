"""An answer before it is sent: what it says, which part of the content travels, and what is to go wrong on the way."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.testing.hub.blobs import Blob

_RANGE = re.compile(r"bytes=([0-9]{0,18})-([0-9]{0,18})")


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, taken apart."""

    method: str
    raw_path: str
    raw_query: str
    segments: tuple[str, ...]
    """The path's parts, unquoted one by one, so that a quoted slash stays inside its part."""
    query: Mapping[str, list[str]]
    headers: Mapping[str, str]
    body: bytes = b""
    token_ok: bool = False

    def flag(self, name: str) -> bool:
        return self.query.get(name, [""])[-1].lower() in ("1", "true")


@dataclass(frozen=True, slots=True)
class RepoFile:
    """Which file an answer is about."""

    repo_id: str
    commit: str
    path: str


class Shared:
    """A line that several bodies travel over: so many bytes a second, all together."""

    def __init__(self, bytes_per_second: float) -> None:
        self._seconds = 1 / bytes_per_second
        self._free = 0.0
        self._lock = threading.Lock()

    def wait_for(self, count: int) -> float:
        """Seconds until `count` more bytes are through, after all that others have sent before."""
        with self._lock:
            now = time.monotonic()
            self._free = max(now, self._free) + count * self._seconds
            return self._free - now


@dataclass(slots=True)
class Trouble:
    """What happens to an answer on the wire. The default is nothing."""

    delay: float = 0.0
    bytes_per_second: float | None = None
    head_bytes_per_second: float | None = None
    endless: bool = False
    """The body begins again and again, and the connection stays open."""
    shared: Shared | None = None
    flips: list[int] = field(default_factory=list)
    gzip: bool = False
    framing: Literal["length", "none", "chunked"] = "length"
    length_delta: int = 0
    after: int | None = None
    """How many bytes of the body travel before the `ending`; -1 means that not even the status line does."""
    ending: Literal["whole", "close", "reset", "stall"] = "whole"
    stall_seconds: float | None = None

    @property
    def touches_body(self) -> bool:
        slow = self.bytes_per_second is not None or self.shared is not None
        cut = self.ending != "whole"
        return bool(self.flips or self.gzip or slow or self.endless or cut) or self.framing == "chunked"


@dataclass(slots=True)
class Answer:
    status: int
    headers: dict[str, str] = field(default_factory=dict)
    content: bytes | Blob = b""
    start: int = 0
    stop: int = 0
    file: RepoFile | None = None
    trouble: Trouble = field(default_factory=Trouble)

    @property
    def has_content(self) -> bool:
        return self.status in (200, 206)

    def whole(self, content: bytes | Blob) -> None:
        """Make this an answer with all of `content`."""
        self.status = 200
        self.headers.pop("Content-Range", None)
        self.content = content
        self.start, self.stop = 0, size_of(content)

    def narrow(self, headers: Mapping[str, str]) -> None:
        """Answer only what a request's Range header asks for, unless its If-Range names another etag."""
        match = _RANGE.fullmatch(headers.get("range", ""))
        if match is None or headers.get("if-range", self.headers.get("ETag")) != self.headers.get("ETag"):
            return
        size = size_of(self.content)
        first, last = match.groups()
        if first + last == "" or (first and last and int(first) > int(last)):
            return
        if first:
            start, stop = int(first), min(int(last) + 1, size) if last else size
        else:
            start, stop = max(0, size - int(last)), size
        if start >= size:
            self.status, self.content, self.start, self.stop = 416, b"", 0, 0
            self.headers["Content-Range"] = f"bytes */{size}"
            return
        self.status, self.start, self.stop = 206, start, stop
        self.headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"

    def replace(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
        """Make this another answer altogether. What is to go wrong on the wire stays."""
        self.status, self.headers, self.content = status, dict(headers), body
        self.start, self.stop = 0, len(body)


class Refused(Exception):
    """A request that gets an error, in the form the clients know."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code

    def answer(self) -> Answer:
        message = str(self)
        body = json.dumps({"error": message}).encode()
        # A header holds one line of plain characters, and the message may quote a hostile path.
        headers = {
            "Content-Type": "application/json; charset=utf-8",
            "X-Error-Message": message.encode("unicode_escape").decode("ascii"),
        }
        if self.code:
            headers["X-Error-Code"] = self.code
        return Answer(self.status, headers, body, 0, len(body))


def json_answer(value: Any, headers: Mapping[str, str] | None = None) -> Answer:
    body = value if isinstance(value, bytes) else json.dumps(value, default=str).encode()
    return Answer(200, {"Content-Type": "application/json; charset=utf-8", **(headers or {})}, body, 0, len(body))


def size_of(content: bytes | Blob) -> int:
    return len(content) if isinstance(content, bytes) else content.size

"""How long a reply may be waited for: each silence has a limit, and so has all waiting for it together.

The timeout of a socket begins again with every byte. A server that sends one byte in time, and then another, would be
listened to for ever. One that sends without a pause is not waited for at all, so bytes that are no body (answers before
the answer, headers, trailers, frames of tiny chunks) are counted as well.
"""

from __future__ import annotations

import errno
import io
import math
import socket
import time
from functools import partial
from http.client import HTTPResponse
from typing import Any

SPARE = 1 << 20
"""Bytes of a reply that may be no body."""
_SHARE = 0.25
"""Of a body: what may come with it in frames."""


class Patience:
    """What is left for one reply: seconds, and bytes that are no body."""

    def __init__(self, silence: float, total: float, *, ends: float = math.inf, spare: float = math.inf) -> None:
        """`ends`: a deadline by `time.monotonic`, which also counts the time that the caller takes. `spare`: how many
        bytes may arrive that are not part of the body."""
        self._silence = silence
        self._left = total
        self._ends = ends
        self._spare = self._most_spare = spare
        self._seconds_per_byte = 0.0
        self.waited = 0.0
        """Seconds of waiting so far."""

    @property
    def is_over(self) -> bool:
        return self._left <= 0.001

    @property
    def why(self) -> str:
        """Why it is not waited for any longer."""
        if self.is_over:
            return f"{self.waited:.3g} s of waiting in all (HEADRACE_STALL_SECONDS={self._silence:g})"
        return f"{self._silence:g} s of silence"

    def extend(self, slowest: float) -> None:
        """From now on each byte that arrives adds the time that it takes at `slowest` bytes a second."""
        self._seconds_per_byte = 1 / slowest

    def next_timeout(self) -> float:
        left = min(self._left, self._ends - time.monotonic())
        if left <= 0.001:
            raise TimeoutError
        if self._spare < 0:
            raise OSError(errno.EMSGSIZE, f"it sends {self._most_spare:,} bytes more than its body")
        return min(self._silence, left)

    def spend(self, seconds: float, arrived: int) -> None:
        self.waited += seconds
        self._left += arrived * self._seconds_per_byte - seconds
        self._spare -= arrived

    def took(self, size: int) -> None:
        """So many bytes of the body were read."""
        self._spare = min(self._spare + size * (1 + _SHARE), self._most_spare)


class _Timed(io.RawIOBase):
    """What a socket receives, as long as there is patience."""

    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        self._sock, self._patience = sock, patience
        # It counts as a user of the socket, which a connection may close before its last reply is read.
        self._raw = sock.makefile("rb", buffering=0)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self._sock.settimeout(self._patience.next_timeout())
        began, arrived = time.monotonic(), 0
        try:
            arrived = self._raw.readinto(buffer) or 0
        finally:
            self._patience.spend(time.monotonic() - began, arrived)
        return arrived

    def close(self) -> None:
        super().close()
        self._raw.close()


class _Wire:
    """The part of a socket that a reply of `http.client` uses."""

    def __init__(self, sock: socket.socket, patience: Patience) -> None:
        self._sock, self._patience = sock, patience

    def makefile(self, *_: Any, **__: Any) -> io.BufferedReader:
        return io.BufferedReader(_Timed(self._sock, self._patience))


def _response(patience: Patience, sock: socket.socket, *args: Any, **options: Any) -> HTTPResponse:
    return HTTPResponse(_Wire(sock, patience), *args, **options)  # type: ignore[arg-type]


def wait_with(patience: Patience, connection: Any) -> None:
    """Read the replies on a connection of `http.client` with this patience."""
    connection.response_class = partial(_response, patience)

"""Writes an answer to a socket, with whatever is to go wrong on the way."""

from __future__ import annotations

import fcntl
import gzip
import itertools
import os
import select
import socket
import struct
import termios
import time
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path

from headrace.testing.hub.answers import Answer, Trouble
from headrace.testing.hub.blobs import Blob
from headrace.testing.hub.log import Line

_PIECE = 1 << 20
_JOINED = 1 << 16
_TICK = 0.05
_TURN = 1 << 16
_DRAIN_SECONDS = 2.0
_GONE = getattr(select, "POLLRDHUP", select.POLLIN)
_MORE = getattr(socket, "MSG_MORE", 0)


def send(sock: socket.socket, answer: Answer, line: Line, *, body: bool) -> bool:
    """Send an answer, with its body or without. Says whether the connection may be used again."""
    trouble = answer.trouble
    if trouble.delay and not pause(sock, trouble.delay):
        return False
    if trouble.after == -1:
        return _end(sock, trouble)
    payload = answer
    if trouble.gzip:
        payload = _gzipped(answer)
    head = _head(payload)
    if trouble.head_bytes_per_second:
        if not _drip(sock, head, trouble.head_bytes_per_second):
            return False
        head = b""
    if not body:
        sock.sendall(head)
    elif trouble.touches_body:
        sock.sendall(head)
        if not _send_troubled(sock, payload, line):
            return False
    else:
        _send_whole(sock, head, payload, line)
    return trouble.framing == "length" and not trouble.length_delta


def pause(sock: socket.socket, seconds: float | None) -> bool:
    """Wait, for ever if None; False as soon as either side has hung up, which is how closing a Hub ends all waits."""
    poll = select.poll()
    poll.register(sock, _GONE)
    return not poll.poll(None if seconds is None else seconds * 1000)


def _drip(sock: socket.socket, data: bytes, bytes_per_second: float) -> bool:
    """Send byte by byte. False when the other side has hung up before the end."""
    for at in range(len(data)):
        if not pause(sock, 1 / bytes_per_second):
            return False
        sock.sendall(data[at : at + 1])
    return True


def _head(answer: Answer) -> bytes:
    trouble = answer.trouble
    headers = dict(answer.headers)
    if trouble.framing == "length":
        headers["Content-Length"] = str(max(0, answer.stop - answer.start + trouble.length_delta))
    elif trouble.framing == "chunked":
        headers["Transfer-Encoding"] = "chunked"
    if trouble.framing == "none" or trouble.length_delta:
        headers["Connection"] = "close"
    try:
        phrase = HTTPStatus(answer.status).phrase
    except ValueError:
        phrase = "Unknown"
    lines = [f"HTTP/1.1 {answer.status} {phrase}", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1", "replace")


def _send_whole(sock: socket.socket, head: bytes, answer: Answer, line: Line) -> None:
    source, size = _source(answer.content), answer.stop - answer.start
    if isinstance(source, bytes):
        line.bytes_sent = size
        view = memoryview(source)[answer.start : answer.stop]
        if size <= _JOINED:
            sock.sendall(b"".join((head, view)))
        else:
            sock.sendall(head, _MORE)
            sock.sendall(view)
        return
    with source.open("rb", buffering=0) as file:
        sock.sendall(head, _MORE if size else 0)
        at = answer.start
        while at < answer.stop:
            # Counted first: a client that has its last byte must find all of them in the log.
            count = min(_PIECE, answer.stop - at)
            line.bytes_sent = at - answer.start + count
            sent = os.sendfile(sock.fileno(), file.fileno(), at, count)
            if sent == 0:
                raise ConnectionAbortedError(f"{source} became shorter while it was sent")
            at += sent
            line.bytes_sent = at - answer.start


def _send_troubled(sock: socket.socket, answer: Answer, line: Line) -> bool:
    """Send a body piece by piece. False when the connection is at its end."""
    trouble = answer.trouble
    chunked = trouble.framing == "chunked"
    left = trouble.after
    pieces = _pieces(answer)
    for piece in itertools.cycle(pieces) if trouble.endless else pieces:
        part = piece if left is None else piece[:left]
        if trouble.bytes_per_second and not pause(sock, len(part) / trouble.bytes_per_second):
            return False
        if trouble.shared and not pause(sock, trouble.shared.wait_for(len(part))):
            return False
        if part:
            line.bytes_sent += len(part)
            sock.sendall(b"%x\r\n%s\r\n" % (len(part), part) if chunked else part)
        if left is not None:
            left -= len(part)
        if left == 0:
            break
    if trouble.ending != "whole":
        return _end(sock, trouble)
    if chunked:
        sock.sendall(b"0\r\n\r\n")
    return True


def _end(sock: socket.socket, trouble: Trouble) -> bool:
    if trouble.ending == "stall":
        pause(sock, trouble.stall_seconds)
    elif trouble.ending == "reset":
        _drain(sock)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    return False


def _drain(sock: socket.socket) -> None:
    """Wait until the other side has all that was sent: a reset throws away what is still in the buffer."""
    deadline = time.monotonic() + _DRAIN_SECONDS
    while time.monotonic() < deadline:
        waiting = fcntl.ioctl(sock, termios.TIOCOUTQ, b"\0" * 4)
        if struct.unpack("i", waiting)[0] == 0:
            return
        time.sleep(0.001)


def _pieces(answer: Answer) -> Iterator[bytes]:
    """The body's bytes, flipped where they are to be, in pieces that suit its speed."""
    rate = answer.trouble.bytes_per_second
    step = _PIECE if rate is None else max(1, min(_PIECE, int(rate * _TICK)))
    step = step if answer.trouble.shared is None else min(step, _TURN)
    for at in range(answer.start, answer.stop, step):
        piece = _read(answer.content, at, min(at + step, answer.stop))
        for flip in answer.trouble.flips:
            if at <= flip < at + len(piece):
                piece[flip - at] ^= 0xFF
        yield bytes(piece)


def _read(content: bytes | Blob, start: int, stop: int) -> bytearray:
    source = _source(content)
    if isinstance(source, bytes):
        return bytearray(source[start:stop])
    with source.open("rb") as file:
        file.seek(start)
        return bytearray(file.read(stop - start))


def _source(content: bytes | Blob) -> bytes | Path:
    return content.source if isinstance(content, Blob) else content


def _gzipped(answer: Answer) -> Answer:
    body = gzip.compress(b"".join(_pieces(answer)), compresslevel=1, mtime=0)
    headers = answer.headers | {"Content-Encoding": "gzip"}
    packed = Answer(answer.status, headers, body, 0, len(body), trouble=answer.trouble)
    packed.trouble.flips = []
    return packed

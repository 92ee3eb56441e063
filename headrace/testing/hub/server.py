"""The HTTP side of a Hub: one server for each origin, one thread for each connection."""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote

from headrace.testing.hub.answers import Answer, Asked, Refused
from headrace.testing.hub.log import Line, Origin
from headrace.testing.hub.wire import send

Responder = Callable[[Origin, Asked, float], tuple[Answer, Line]]

_POLL_SECONDS = 0.02
_MAX_BODY = 64 << 20
_servers: weakref.WeakSet[OriginServer] = weakref.WeakSet()


class OriginServer(ThreadingHTTPServer):
    """Serves one origin on a free port of the loopback device, until it is closed."""

    request_queue_size = 1024
    # A forgotten Hub must not keep the interpreter alive; close() joins every thread itself.
    daemon_threads = True
    block_on_close = False

    def __init__(self, origin: Origin, respond: Responder, tokens: frozenset[str]) -> None:
        self.origin: Origin = origin
        self.respond = respond
        self.tokens = tokens
        self._connections: set[socket.socket] = set()
        self._handlers: list[threading.Thread] = []
        self._connections_lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)
        self.endpoint = f"http://127.0.0.1:{self.server_address[1]}"
        self._thread = threading.Thread(
            target=self.serve_forever, args=(_POLL_SECONDS,), name=f"local-{origin}", daemon=True
        )
        self._thread.start()
        _servers.add(self)

    def server_bind(self) -> None:
        # HTTPServer's own asks the name service for the host's name, which can take seconds.
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = "127.0.0.1", self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        thread = threading.Thread(
            target=self.process_request_thread, args=(request, client_address), name=self._thread.name, daemon=True
        )
        with self._connections_lock:
            self._connections.add(request)
            # A connection leaves the set just before its thread ends, so the threads are kept apart to be joined.
            self._handlers = [*filter(threading.Thread.is_alive, self._handlers), thread]
        thread.start()

    def shutdown_request(self, request: Any) -> None:
        with self._connections_lock:
            self._connections.discard(request)
        if request.getsockopt(socket.SOL_SOCKET, socket.SO_LINGER):
            # A polite end would reach the client before the reset that a fault has asked for.
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def forget(self) -> None:
        """Let go of all sockets in a forked child, where no thread serves them."""
        for inherited in (self.socket, *self._connections):
            descriptor = inherited.detach()
            if descriptor >= 0:
                os.close(descriptor)

    def close(self) -> None:
        self.shutdown()
        self._thread.join()
        with self._connections_lock:
            connections, threads = list(self._connections), self._handlers
        for connection in connections:
            try:
                connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass  # the client was faster
        for thread in threads:
            thread.join()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: OriginServer

    def serve(self) -> None:
        arrived = time.monotonic()
        headers = {name.lower(): value for name, value in self.headers.items()}
        try:
            asked = self._asked(headers)
            answer, line = self.server.respond(self.server.origin, asked, arrived)
            if not send(self.connection, answer, line, body=self.command != "HEAD"):
                self.close_connection = True
        except OSError:
            self.close_connection = True

    do_GET = do_HEAD = do_POST = serve

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """The request log is the Hub's own."""

    def _asked(self, headers: Mapping[str, str]) -> Asked:
        raw_path, _, query = self.path.partition("?")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or int(length) > _MAX_BODY or "transfer-encoding" in headers:
            self.close_connection = True
            length = "0"
        scheme, _, token = headers.get("authorization", "").partition(" ")
        return Asked(
            method=self.command,
            raw_path=raw_path,
            raw_query=query,
            segments=tuple(unquote(part, errors="surrogateescape") for part in raw_path.removeprefix("/").split("/")),
            query=parse_qs(query, keep_blank_values=True),
            headers=headers,
            body=self.rfile.read(int(length)),
            token_ok=scheme == "Bearer" and token in self.server.tokens,
        )


def _forget_all() -> None:
    for server in _servers:
        server.forget()


# A child's copy of a socket would keep a connection open that a fault has closed, and its port taken.
os.register_at_fork(after_in_child=_forget_all)


def refusal_of_bug(error: Exception) -> Answer:
    """A bug in the Hub must be seen by the test that met it, not end as a silent hang-up."""
    return Refused(500, "LocalHubBug", f"{type(error).__name__}: {error}").answer()

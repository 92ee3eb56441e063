"""An internet of our own for the tests of media: names, addresses, and one server behind all of them."""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Answer = Callable[[BaseHTTPRequestHandler], None]


class Server:
    """A web server on the loopback device, with a script for each path."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self.answers: dict[str, Answer] = {}
        self.requests: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append((self.path, dict(self.headers)))
                try:
                    outer.answers.get(self.path.partition("?")[0], missing)(self)
                except OSError:
                    pass  # the other side has had enough

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        if context is not None:
            self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = int(self._server.server_address[1])
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def missing(handler: BaseHTTPRequestHandler) -> None:
    handler.send_error(404)


def gives(body: bytes, status: int = 200, **headers: str) -> Answer:
    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(status)
        for name, value in ({"Content_Length": str(len(body))} | headers).items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(body)

    return answer


def sends_to(location: str) -> Answer:
    return gives(b"", 302, Location=location)


class Net:
    """Names and addresses of an internet of our own; every public address leads to the server."""

    def __init__(self) -> None:
        self.server = Server()
        self.names: dict[str, list[str]] = {"images.test": ["93.184.216.34"], "cdn.test": ["2606:2800:220:1::1"]}
        self.lookups: list[str] = []
        self.dialled: list[tuple[str, int]] = []

    def resolve(self, host: str, port: int) -> list[str]:
        self.lookups.append(host)
        if host not in self.names:
            raise socket.gaierror(-2, "Name or service not known")
        return self.names[host]

    def dial(self, address: str, port: int, timeout: float) -> socket.socket:
        self.dialled.append((address, port))
        return socket.create_connection(("127.0.0.1", self.server.port), timeout)

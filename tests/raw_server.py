"""A server that writes what a test says, byte for byte: what no library for servers would send."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Self

Handler = Callable[[str, socket.socket], None]
"""Given a path and the connection, it writes an answer."""


class RawServer:
    """Answers on a port of this machine, and keeps the path and the headers of each request."""

    def __init__(self, handler: Handler, host: str = "127.0.0.1") -> None:
        self._handler = handler
        self._listener = socket.create_server((host, 0))
        self.address = f"{host}:{self._listener.getsockname()[1]}"
        self.requests: list[tuple[str, dict[str, str]]] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            try:
                while line := lines.readline().decode("latin-1"):
                    path, headers = line.split()[1], {}
                    while header := lines.readline().decode("latin-1").strip():
                        name, _, value = header.partition(":")
                        headers[name.lower()] = value.strip()
                    self.requests.append((path, headers))
                    self._handler(path, connection)
            except OSError:
                return

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()


def answer(connection: socket.socket, body: object = "", status: str = "200 OK", **headers: str) -> None:
    """A whole answer. Names of headers have `_` for `-`."""
    text = body.encode() if isinstance(body, str) else json.dumps(body).encode()
    lines = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    connection.sendall(f"HTTP/1.1 {status}\r\nContent-Length: {len(text)}\r\n{lines}\r\n".encode("latin-1") + text)

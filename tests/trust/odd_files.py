"""What may stand where a file of ours is expected, and a watch over whoever opens it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")


def make_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    # a path below /proc is short, which the address of a socket has to be
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


PLANTED: dict[str, Callable[[Path, Path], object]] = {
    "link": lambda path, victim: path.symlink_to(victim),
    "link to nothing": lambda path, victim: path.symlink_to(victim.with_name("nothing")),
    "link to itself": lambda path, victim: path.symlink_to(path.name),
    "fifo": lambda path, victim: os.mkfifo(path),
    "folder": lambda path, victim: path.mkdir(),
    "socket": lambda path, victim: make_socket(path),
    "file": lambda path, victim: path.write_bytes(b"\xff" * 5000),
}
"""Each puts something at a path; a link leads to the victim, which must stay as it is."""


def soon(work: Callable[[], T], seconds: float = 5) -> T:
    """What `work` gives, in time. Where it hangs it does so in a thread of its own, and the test can say it."""
    found: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if errors:
        raise errors[0]
    assert found, "it hangs"
    return found[0]

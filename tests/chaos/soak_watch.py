"""What a process of a soak run takes of the machine, written down every few seconds by a thread inside it.

Only from inside can the allocators be asked: how much of what the process holds is in use, and how much they keep.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

MB = 1e6
PRIVATE = ("Private_Clean", "Private_Dirty")


@dataclass(frozen=True)
class Watch:
    """Where a job's samples go. Processes that are forked off are watched as well, as its workers."""

    samples: Path
    job: str
    every: float
    """Seconds between two samples."""
    over: threading.Event = field(default_factory=threading.Event)
    """Set when the job ends: pages that workers leave become the trainer's own."""

    def begin(self) -> None:
        # with an event of its own: another thread may hold the lock of ours at the moment of the fork
        os.register_at_fork(after_in_child=lambda: replace(self, over=threading.Event())._start("worker"))
        self._start("trainer")

    def _start(self, role: str) -> None:
        threading.Thread(target=self._watch, args=(role,), name="soak-watch", daemon=True).start()

    def _watch(self, role: str) -> None:
        born = time.time()
        while not self.over.wait(self.every):
            self._write({"job": self.job, "role": role, "pid": os.getpid(), "born": born, "at": time.time()})

    def _write(self, named: dict[str, Any]) -> None:
        line = json.dumps({**named, **taken()}) + "\n"
        file = os.open(self.samples, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.write(file, line.encode())  # one call, so that lines of several processes stay whole
        os.close(file)


def taken() -> dict[str, float]:
    """What this process takes: memory in MB, and counts."""
    pages = {}
    for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]:
        name, _, kib = line.partition(":")
        pages[name] = int(kib.split()[0]) * 1024 / MB
    return {
        "rss": pages["Rss"],
        "pss": pages["Pss"],
        "uss": sum(pages[name] for name in PRIVATE),
        **allocated(),
        "files": sum(1 for _ in Path("/proc/self/fd").iterdir()),
        "threads": sum(1 for _ in Path("/proc/self/task").iterdir()),
        "objects": sys.getallocatedblocks(),
    }


def allocated() -> dict[str, float]:
    """What the allocators of this process say: in use, and kept for later."""
    found = {}
    if (libc := _libc()) is not None:
        info = libc.mallinfo2()
        found = {"malloc used": (info.uordblks + info.hblkhd) / MB, "malloc free": info.fordblks / MB}
    arrow: Any = sys.modules.get("pyarrow")  # never imported from here: that alone would take memory
    if hasattr(arrow, "total_allocated_bytes"):  # another thread may be importing it just now
        found["arrow"] = arrow.total_allocated_bytes() / MB
    return found


class _MallInfo2(ctypes.Structure):
    """As in malloc.h of glibc, from 2.33 on."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keep",
        )
    ]


def _libc() -> Any:
    libc = ctypes.CDLL(None)
    if not hasattr(libc, "mallinfo2"):
        return None
    libc.mallinfo2.restype = _MallInfo2
    return libc

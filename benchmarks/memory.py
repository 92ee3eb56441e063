"""Resident memory after each of some epochs, in a process of its own: run as a script it prints MB as JSON."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

import headrace

SETTLED = 2
"""Epochs before memory is judged: the first ones fill caches and the allocator's pools."""


def after_each_epoch(spec: str, cache: Path, epochs: int) -> tuple[list[float], float]:
    """(MB after each epoch, the most at any time), in a fresh process: nothing of the other benchmarks is counted."""
    done = subprocess.run([sys.executable, __file__, spec, str(cache), str(epochs)], stdout=subprocess.PIPE, check=True)
    found = json.loads(done.stdout)
    return [float(x) for x in found["after"]], float(found["peak"])


def slope(megabytes: Sequence[float]) -> float:
    """MB per epoch once settled."""
    late = megabytes[SETTLED:]
    return float(np.polyfit(range(len(late)), late, 1)[0]) if len(late) > 1 else 0.0


def spread(megabytes: Sequence[float]) -> float:
    late = megabytes[SETTLED:] or megabytes
    return max(late) - min(late)


def _main(spec: str, cache: str, epochs: int) -> None:
    found = []
    for epoch in range(epochs):
        with headrace.rows(spec, shuffle=True, epoch=epoch, cache_dir=cache) as rows:
            for _ in rows:
                pass
        gc.collect()
        found.append(resident_megabytes())
    print(json.dumps({"after": found, "peak": most_resident_megabytes()}))


def resident_megabytes() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6


def most_resident_megabytes() -> float:
    # Not getrusage: a child's maximum there begins with what its parent had.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:"))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], int(sys.argv[3]))

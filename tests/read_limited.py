"""Reads a source to its end in a process of its own and prints what that cost: for tests of files that grow in memory.

    python tests/read_limited.py SPEC CACHE WAY

The process may have no more address space than a machine would survive. Printed are the growth of its largest resident
size since before the first row, in bytes, the rows it got, how long they took, and the error it ended in.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MB = 1_000_000
BUDGET = 40 * MB
LIMIT = 4 << 30
"""Of address space: beyond it an allocation fails in the child, and nobody else is harmed."""
WARM = "warm.parquet"
BATCH = 4
POOL = 64
"""Episodes of a robot that are held, unless it is one at a time."""
ONE = "robot, one at a time"


def cost(spec: str, tmp_path: Path, way: str, budget: int = BUDGET) -> dict[str, Any]:
    """What reading all of it in a process of its own takes, and gives."""
    command = [sys.executable, __file__, spec, str(tmp_path / "data"), way]
    env = {**os.environ, "HEADRACE_MEMORY_BYTES": str(budget)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return dict(json.loads(done.stdout))


def resident() -> int:
    """The largest resident size so far, in bytes; it counts from the last `forget`."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) << 10


def forget() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def read(spec: str, cache: str, way: str) -> Iterator[Any]:
    import headrace

    if way.startswith("robot"):
        yield from robot_frames(spec, cache, way)
        return
    if way.startswith("loader"):
        shuffle = not way.endswith("in order")
        faults = headrace.Faults(policy="skip", budget=1) if "skips" in way else None
        pace: dict[str, Any] = {"batch_size": BATCH, "num_workers": 0}
        with headrace.load(spec, shuffle=shuffle, faults=faults, cache_dir=cache, **pace) as loader:
            yield from loader
        return
    with headrace.rows(spec, shuffle=way == "shuffled", cache_dir=cache) as stage:
        yield from stage


def robot_frames(spec: str, cache: str, way: str) -> Iterator[Any]:
    """The frames of a robot data set; or ("robot's table") the lists "l" of its episodes."""
    from headrace import StreamingLeRobotDataset

    pool = 1 if way == ONE else POOL
    frames = StreamingLeRobotDataset(spec.removeprefix("lerobot:"), episode_pool_size=pool, cache_dir=cache)
    yield from frames.meta.episodes["l"] if way == "robot's table" else frames


def main(spec: str, cache: str, way: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headrace.errors import DataError, HeadraceError

    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    folder = Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    warm = f"{spec}-warm"
    if not way.startswith("robot"):
        pq.write_table(pa.table({"l": [["a"], ["b"]]}), folder / WARM)
        warm = f"parquet:{folder}/{WARM}"
    for _ in read(warm, cache, way):
        pass
    forget()
    before, began, rows, error = resident(), time.monotonic(), 0, ""
    try:
        for _ in read(spec, cache, way):
            rows += 1
    except HeadraceError as found:
        kind = DataError if isinstance(found, DataError) else type(found)
        error = f"{kind.__name__}: {found}"
    seconds = time.monotonic() - began
    print(json.dumps({"bytes": resident() - before, "rows": rows, "seconds": seconds, "error": error}))


if __name__ == "__main__":
    main(*sys.argv[1:])

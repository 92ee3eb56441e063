"""Reads a source to its end in a process of its own and prints what that cost: for tests of files that grow in memory.

    python tests/read_limited.py SPEC CACHE WAY

The process may have no more address space than a machine would survive. Printed are the growth of its largest resident
size since before the first row, in bytes, the rows it got, and the error it ended in.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

MB = 1_000_000
BUDGET = 40 * MB
LIMIT = 4 << 30
"""Of address space: beyond it an allocation fails in the child, and nobody else is harmed."""
WARM = "warm.parquet"
BATCH = 4


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

    if way == "episodes":
        yield from episode_texts(Path(spec.removeprefix("parquet:")))
        return
    if way == "loader":
        with headrace.load(spec, batch_size=BATCH, num_workers=0, cache_dir=cache) as loader:
            yield from loader
        return
    with headrace.rows(spec, shuffle=way == "shuffled", cache_dir=cache) as stage:
        yield from stage


def episode_texts(path: Path) -> list[Any]:
    """The column "l" of a file that is read as the table of a robot's episodes is, which may take a fixed number of
    bytes: here as many as the budget has."""
    import numpy as np

    from headrace.catalog.local import LocalOrigin
    from headrace.catalog.shard import Shard
    from headrace.lerobot import projection
    from headrace.lerobot.episode_rows import EpisodeRows

    projection.MOST_BYTES = int(os.environ["HEADRACE_MEMORY_BYTES"])
    found = path.stat()
    rows = EpisodeRows([Shard(str(path), found.st_size, str(found.st_mtime_ns), LocalOrigin())])
    return rows.column("l", np.array(rows.column("episode_index", np.arange(rows.row(0)["count"]))))


def main(spec: str, cache: str, way: str) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    from headrace.errors import HeadraceError

    resource.setrlimit(resource.RLIMIT_AS, (LIMIT, LIMIT))
    folder = Path(cache)
    folder.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"episode_index": [0, 1], "count": [2, 2], "l": [["a"], ["b"]]}), folder / WARM)
    for _ in read(f"parquet:{folder}/{WARM}", cache, way):
        pass
    forget()
    before, rows, error = resident(), 0, ""
    try:
        for _ in read(spec, cache, way):
            rows += 1
    except HeadraceError as found:
        error = f"{type(found).__name__}: {found}"
    print(json.dumps({"bytes": resident() - before, "rows": rows, "error": error}))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""A process that may have little address space (`ulimit -v`, RLIMIT_AS) reads as others do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace.testing import write_parquet

ROOM = 192 << 20
"""Beyond what the process has when all is imported: for threads that read footers, which take most of it."""

CODE = f"""
import resource, sys, threading
from pathlib import Path
import headrace
import pyarrow.parquet
spec, cache = sys.argv[1:]
threading.stack_size(1 << 20)
sum(1 for _ in headrace.rows(spec, cache_dir=cache + "/warm"))
size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + {ROOM}, size + {ROOM}))
for _ in range(2):  # the second time its index is read
    print(sum(1 for _ in headrace.rows(spec, cache_dir=cache)))
with headrace.load(spec, batch_size=5, num_workers=0, cache_dir=cache) as loader:
    print(sum(len(batch["uid"]) for batch in loader))
"""


def test_sources_are_opened_in_a_process_with_little_address_space(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[10], [10]])
    command = [sys.executable, "-c", CODE, f"parquet:{tmp_path}/in/*.parquet", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["20", "20", "20"]

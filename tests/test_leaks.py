"""Epoch after epoch, nothing grows: not the trainer, not its workers, not what they have open."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace import rng
from headrace.testing import write_parquet

pytestmark = pytest.mark.alone

EPOCHS = 20
FIRST = 5
"""Until then buffers and caches may still fill."""

SCRIPT = """
import gc, json, os, sys, threading
from pathlib import Path
import headrace
import torch  # as every trainer has: an import keeps the frames that it was asked for in, and batches with them
gc.disable()  # nothing large may wait for the garbage collector

def mib(pid, *names):
    lines = open(f"/proc/{pid}/smaps_rollup").read().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.partition(":")[0] in names) / 1024

def children():
    return [int(pid) for pid in open(f"/proc/self/task/{os.getpid()}/children").read().split()]

def main():
    options = json.loads(sys.argv[1])
    epochs = options.pop("epochs_run")
    loader = headrace.load(**options)
    out, seen = [], 0
    for epoch in range(epochs):
        pss = []
        for n, batch in enumerate(loader):
            seen += sum(len(sequence) for sequence in batch.spans)
            if n % 2:
                # not the part of libraries, which depends on what else runs on this machine
                pss.append([mib(pid, "Pss_Anon", "Pss_Shmem") for pid in children()])
        del batch
        out.append({
            "rss": mib("self", "Rss"),
            **{f"pss of worker {i}": min(mb) for i, mb in enumerate(zip(*pss, strict=True))},
            "files": len(os.listdir("/proc/self/fd")),
            "threads": threading.active_count(),
            "tasks": len(os.listdir("/proc/self/task")),
            "shared": len(os.listdir("/dev/shm")),
            "children": len(children()),
        })
    loader.close()
    left = {"children": len(children()), "threads": threading.active_count()}
    print(json.dumps({"epochs": out, "left": left, "seen": seen}))

if __name__ == "__main__":
    main()
"""


def token_row(shard: str, row: int) -> dict[str, Any]:
    return {"ids": [(row * 7 + i) % 30_000 for i in range(20 + rng.draw(rng.key("leaks", shard), row, 560))]}


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("corpus")
    write_parquet(folder / "in", [[500, 500]] * 4, row=token_row)
    return f"{folder}/in/*.parquet"


def slope(values: Sequence[float]) -> float:
    """Of a straight line through them."""
    middle, mean = (len(values) - 1) / 2, sum(values) / len(values)
    numbers = [i - middle for i in range(len(values))]
    return sum(n * (value - mean) for n, value in zip(numbers, values, strict=True)) / sum(n * n for n in numbers)


@pytest.mark.parametrize("persistent", [True, False])
def test_memory_files_and_threads_stay_flat_over_epochs(pattern: str, tmp_path: Path, persistent: bool) -> None:
    options = {
        "recipe": f"parquet:{pattern}:ids",
        "seq_len": 2048,
        "batch_size": 8,
        "epochs": 1,
        "lanes": 4,
        "num_workers": 2,
        "persistent_workers": persistent,
        "cache_dir": str(tmp_path),
        "epochs_run": EPOCHS,
    }
    script = tmp_path / "trainer.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), json.dumps(options)], capture_output=True, text=True, timeout=110, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["seen"] >= EPOCHS * 4000
    late = found["epochs"][FIRST:]
    for name in ("rss", "pss of worker 0", "pss of worker 1"):
        mb = [epoch[name] for epoch in late]
        assert slope(mb) < 1, (name, mb)
        if name != "rss":
            # How far a worker had read ahead whenever it was looked at is chance; what it never gives back is not.
            mb = [min(mb[i : i + 3]) for i in range(len(mb) - 2)]
        assert max(mb) - min(mb) < 20, (name, mb)
    for name in ("files", "threads", "tasks", "children"):
        assert len({epoch[name] for epoch in late}) == 1, (name, [epoch[name] for epoch in late])
    assert max(epoch["shared"] for epoch in late) <= found["epochs"][0]["shared"]
    assert late[-1]["children"] == (2 if persistent else 0)
    assert found["left"] == {"children": 0, "threads": 1}


def test_iterators_left_early_leave_nothing_open(pattern: str, tmp_path: Path) -> None:
    code = (
        "import headrace, json, os, sys, threading\n"
        "def look(): return len(os.listdir('/proc/self/fd')), threading.active_count()\n"
        "for workers in (0, 1):\n"
        f"    loader = headrace.load('parquet:{pattern}:ids', batch_size=2, lanes=2, num_workers=workers, "
        f"persistent_workers=True, cache_dir={str(tmp_path)!r})\n"
        "    for n in range(60):\n"
        "        for batch in loader: break\n"
        "        if n == 5: before = look()\n"
        "    assert look() == before, (workers, before, look())\n"
        "    loader.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr

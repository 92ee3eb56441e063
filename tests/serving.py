"""Small corpora for loaders, and what of a batch must be the same: what the tests of workers and ranks share."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import headrace
from headrace import rng
from headrace.batch import Batch
from headrace.serve.loader import Loader
from headrace.testing import ledger_row, write_parquet

SHAPE = [[40, 23], [31], [7, 7, 7], [60]]
NUM_ROWS = sum(map(sum, SHAPE))
UIDS = sorted(
    f"train-{i:05d}-of-{len(SHAPE):05d}.parquet:{row}" for i, groups in enumerate(SHAPE) for row in range(sum(groups))
)


def token_row(shard: str, row: int) -> dict[str, Any]:
    """A row whose tokens no other row has."""
    number = int(shard[6:11]) if shard[6:11].isdecimal() else 0
    first = (number * 1000 + row) * 100
    return {**ledger_row(shard, row), "ids": list(range(first, first + 1 + rng.draw(rng.key(shard), row, 60)))}


def write_rows(folder: Path) -> str:
    """The pattern of shards with uids, texts and token numbers."""
    write_parquet(folder / "in", SHAPE, row=token_row)
    return f"{folder}/in/*.parquet"


ALL_TOKENS = sorted(
    token
    for i, groups in enumerate(SHAPE)
    for row in range(sum(groups))
    for token in token_row(f"train-{i:05d}-of-{len(SHAPE):05d}.parquet", row)["ids"]
)

KINDS: dict[str, dict[str, Any]] = {
    "rows": {"batch_size": 5},
    "tokens": {"batch_size": 2, "seq_len": 48, "epochs": 1},
    "endless": {"batch_size": 2, "seq_len": 48, "steps_per_epoch": 24},
}


def loader_of(kind: str, pattern: str, **options: Any) -> Loader:
    """Rows, one pass of packed tokens, or packed tokens without end, in epochs of so many steps."""
    column = "" if kind == "rows" else ":ids"
    folder = Path(pattern).parent.parent / "cache"
    return headrace.load(f"parquet:{pattern}{column}", **{"cache_dir": folder, "lanes": 12, **KINDS[kind], **options})


def seen(batch: Batch) -> tuple[Any, ...]:
    """All that the trainer sees of a batch."""
    items = [(name, value if isinstance(value, list | int) else value.tolist()) for name, value in batch.items()]
    documents = [batch.document_ids.tolist(), batch.cu_seqlens.tolist(), batch.max_seqlen] if batch.packed else []
    return batch.m, batch.pad, items, batch.addresses, batch.spans, documents


def tokens_in(batches: Iterable[Batch]) -> list[int]:
    found: list[int] = []
    for batch in batches:
        if not batch.pad:
            found += batch["input_ids"][batch.document_ids > 0].tolist()
    return found


def uids_in(batches: Iterable[Batch]) -> list[str]:
    return [uid for batch in batches if not batch.pad for uid in batch["uid"]]


def children(pid: int | None = None) -> set[int]:
    """Processes whose parent is this one, without those that only wait to be counted as dead."""
    parent, found = pid or os.getpid(), set()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                found.add(int(folder.name))
    return found


def workers() -> set[int]:
    """Processes of this one that make batches, which multiprocessing's own helpers do not."""
    return {pid for pid in children() if not _is_helper(pid)}


def _is_helper(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False
    return "forkserver import main" in command or "resource_tracker import main" in command


def open_files() -> set[str]:
    """The numbers of this process's open files, but the one that looks."""
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.exists() or path.is_symlink()}


def shared_memory() -> set[str]:
    """What lies in shared memory, but for torch's files of living processes that are none of ours: other tests run at
    the same time."""
    own, found = _family(), set()
    for path in Path("/dev/shm").iterdir():
        owner = re.match(r"torch_(\d+)_", path.name)
        if owner is None or int(owner[1]) in own or not is_alive(int(owner[1])):
            found.add(path.name)
    return found


def _family() -> set[int]:
    """This process and those below it."""
    found, waiting = set(), [os.getpid()]
    while waiting:
        pid = waiting.pop()
        found.add(pid)
        with suppress(OSError):
            waiting += map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())
    return found


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


def on_this_machine(seconds: float) -> float:
    """So long where processors are free; where more wants to run than there are, as much longer."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


def kill_all(pids: Iterable[int]) -> None:
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except OSError:
            pass  # it is gone, as it should be

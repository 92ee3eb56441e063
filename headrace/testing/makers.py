"""Makers of small real datasets whose rows can be told apart and checked."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from headrace import rng


def ledger_row(shard: str, row: int, words: int = 12) -> dict[str, Any]:
    """A row that says where it lies and proves that its text is whole: uid, text, crc32 of the text, and a number."""
    stream = rng.key("ledger", shard, row)
    text = " ".join(f"w{rng.draw(stream, i, 5000)}" for i in range(1 + rng.draw(stream, 999, words)))
    return {"uid": f"{shard}:{row}", "text": text, "crc": zlib.crc32(text.encode()), "n": row}


def is_whole(row: dict[str, Any]) -> bool:
    return bool(zlib.crc32(row["text"].encode()) == row["crc"])


def write_parquet(
    folder: str | Path,
    groups: Sequence[Sequence[int]],
    *,
    name: str = "train-{:05d}-of-{:05d}.parquet",
    row: Callable[[str, int], dict[str, Any]] = ledger_row,
    **options: Any,
) -> list[Path]:
    """Parquet shards with the given rows per row group: `[[3, 4], [10]]` is two files, the first with two groups."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = []
    Path(folder).mkdir(parents=True, exist_ok=True)
    schema = pa.Table.from_pylist([row("schema", r) for r in range(3)]).schema
    for i, sizes in enumerate(groups):
        path = Path(folder) / name.format(i, len(groups))
        first = 0
        with pq.ParquetWriter(path, schema, **options) as writer:
            for size in sizes:
                rows = [row(path.name, first + r) for r in range(size)]
                writer.write_table(pa.Table.from_pylist(rows, schema=schema), row_group_size=max(size, 1))
                first += size
        paths.append(path)
    return paths


def write_jsonl(folder: str | Path, sizes: Sequence[int], *, name: str = "part-{:03d}.jsonl") -> list[Path]:
    paths = []
    Path(folder).mkdir(parents=True, exist_ok=True)
    for i, size in enumerate(sizes):
        path = Path(folder) / name.format(i)
        path.write_text("".join(json.dumps(ledger_row(path.name, r)) + "\n" for r in range(size)))
        paths.append(path)
    return paths


def write_txt(folder: str | Path, sizes: Sequence[int], *, name: str = "part-{:03d}.txt") -> list[Path]:
    """Lines that read `<file>:<row> <words>`."""
    paths = []
    Path(folder).mkdir(parents=True, exist_ok=True)
    for i, size in enumerate(sizes):
        path = Path(folder) / name.format(i)
        rows = (ledger_row(path.name, r) for r in range(size))
        path.write_text("".join(f"{r['uid']} {r['text']}\n" for r in rows))
        paths.append(path)
    return paths

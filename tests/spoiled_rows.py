"""Files of all kinds with rows that cannot be read or made ready, and a ledger of what was delivered of them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.batch import Batch
from headrace.testing import ledger_row


class Spoiled(NamedTuple):
    spec: str
    rows: frozenset[tuple[str, int]]
    """(shard, row) of every row."""
    bad: frozenset[tuple[str, int]]

    @property
    def good(self) -> frozenset[tuple[str, int]]:
        return self.rows - self.bad

    def skip(self) -> list[str]:
        return [f"{self.spec}|{shard}|{row}" for shard, row in sorted(self.bad)]


SIZES = (23, 40, 9)
BAD = ((0, 0), (0, 11), (0, 12), (1, 39), (2, 4))
"""(file, row): the first row of all, two neighbours, the last row of a file, and one in its middle."""


def _line(row: dict[str, Any]) -> bytes:
    return json.dumps(row).encode()


JSONL: dict[str, tuple[Callable[[dict[str, Any]], bytes], str]] = {
    "a null text": (lambda row: _line({**row, "text": None}), "column 'text' is 'None'"),
    "no text": (lambda row: _line({"uid": row["uid"]}), "column 'text' is 'None'"),
    "bad JSON": (lambda row: b'{"text": "x", }', "is not JSON"),
    "no object": (lambda row: b"17", "not an object"),
    "half a surrogate": (lambda row: b'{"text": "a\\ud800b"}', "half of a surrogate pair"),
    "bad UTF-8": (lambda row: b'{"text": "a\xff"}', "is not UTF-8"),
}
"""How a line is spoiled, and what is said about it."""
UNREADABLE = ("bad JSON", "no object", "bad UTF-8")
"""Those that also fail where rows are given as they are."""


def jsonl(folder: Path, how: str) -> Spoiled:
    spoil, lines = JSONL[how][0], {}
    for i, size in enumerate(SIZES):
        name = f"part-{i}.jsonl"
        rows = [ledger_row(name, r) for r in range(size)]
        lines[name] = [spoil(row) if (i, r) in BAD else _line(row) for r, row in enumerate(rows)]
    return _written(folder, "jsonl", lines)


def txt(folder: Path) -> Spoiled:
    lines = {}
    for i, size in enumerate(SIZES):
        name = f"part-{i}.txt"
        good = [ledger_row(name, r)["text"].encode() for r in range(size)]
        lines[name] = [b"caf\xe9 " + text if (i, r) in BAD else text for r, text in enumerate(good)]
    return _written(folder, "txt", lines)


def parquet(folder: Path, how: str) -> Spoiled:
    """`how`: "a null text" or "bad UTF-8"."""
    folder.mkdir(parents=True, exist_ok=True)
    for i, size in enumerate(SIZES):
        texts = [ledger_row(f"part-{i}", r)["text"].encode() for r in range(size)]
        bad = None if how == "a null text" else b"caf\xe9"
        values = [bad if (i, r) in BAD else text for r, text in enumerate(texts)]
        binary = pa.array(values, pa.binary())
        column = pa.Array.from_buffers(pa.string(), size, binary.buffers())  # not looked at
        pq.write_table(pa.table({"text": column}), folder / f"part-{i}.parquet", row_group_size=10)
    return _described(folder, "parquet")


def _written(folder: Path, kind: str, lines: dict[str, list[bytes]]) -> Spoiled:
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in lines.items():
        (folder / name).write_bytes(b"".join(row + b"\n" for row in rows))
    return _described(folder, kind)


def _described(folder: Path, kind: str) -> Spoiled:
    names = [f"{folder}/part-{i}.{kind}" for i in range(len(SIZES))]
    rows = {(names[i], r) for i, size in enumerate(SIZES) for r in range(size)}
    return Spoiled(f"{kind}:{folder}/*.{kind}:text", frozenset(rows), frozenset((names[i], r) for i, r in BAD))


KINDS: dict[str, Callable[[Path], Spoiled]] = {
    "txt": txt,
    **{f"jsonl, {how}": (lambda folder, how=how: jsonl(folder, how)) for how in JSONL},  # type: ignore[misc]
    "parquet, a null text": lambda folder: parquet(folder, "a null text"),
    "parquet, bad UTF-8": lambda folder: parquet(folder, "bad UTF-8"),
}
RAW_KINDS = ("txt", *(f"jsonl, {how}" for how in UNREADABLE), "parquet, bad UTF-8")
"""Those with rows that also fail where they are given as they are."""


def delivered(batches: Iterable[Batch]) -> Counter[tuple[str, int]]:
    """How often each row was given. Of packed rows: how often their first token was."""
    found: Counter[tuple[str, int]] = Counter()
    for batch in batches:
        if batch.pad:
            continue
        if batch.packed:
            spans = [span for sequence in batch.spans for span in sequence if span.start == 0]
            found.update((span.address.shard, span.address.row) for span in spans)
        else:
            found.update((address.shard, address.row) for address in batch.addresses)
    return found


def seen(batch: Batch) -> tuple[Any, ...]:
    """All that the trainer sees of a batch."""
    items = [(name, value if isinstance(value, list | int) else value.tolist()) for name, value in batch.items()]
    return batch.m, batch.pad, items, batch.addresses, batch.spans

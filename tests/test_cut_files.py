"""A file that ends early, at any byte of it, is an error or gives its first rows unchanged: never other rows."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from headrace import rows
from headrace.errors import HeadraceError

ROWS = [{"text": text} for text in ("one", "zwö", "", "a longer one 🙂", "5")]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS).encode()
TEXT = "".join(row["text"] + "\n" for row in ROWS).encode()


def parquet() -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(ROWS), sink, compression="none", use_dictionary=False, write_statistics=False)
    return bytes(sink.getvalue())


FILES: dict[str, tuple[str, Callable[[], bytes]]] = {
    "parquet": ("parquet", parquet),
    "jsonl": ("jsonl", lambda: LINES),
    "jsonl.gz": ("jsonl", lambda: gzip.compress(LINES, mtime=0)),
    "jsonl.zst": ("jsonl", lambda: zstandard.ZstdCompressor(write_checksum=True).compress(LINES)),
    "txt": ("txt", lambda: TEXT),
    "txt.gz": ("txt", lambda: gzip.compress(TEXT, mtime=0)),
    "txt.zst": ("txt", lambda: zstandard.ZstdCompressor().compress(TEXT)),
}


def read(kind: str, path: Path, folder: Path) -> list[dict[str, Any]] | None:
    """The rows of a file; None: it is refused."""
    try:
        found = list(rows(f"{kind}:{path}", shuffle=False, cache_dir=folder))
    except HeadraceError as error:
        assert path.name in str(error)  # noqa: PT017 - not every cut is an error
        return None
    return [{"text": row["text"]} for row in (one.data for one in found)]


@pytest.mark.parametrize("name", FILES)
def test_a_file_cut_at_any_byte_gives_no_row_that_it_did_not_have(tmp_path: Path, name: str) -> None:
    kind, make = FILES[name]
    data = make()
    path, folder = tmp_path / f"a.{name}", tmp_path / "cache"
    path.write_bytes(data)
    assert read(kind, path, folder) == ROWS
    read_whole = []
    for cut in range(len(data)):
        path.write_bytes(data[:cut])
        found = read(kind, path, folder)
        if found is None:
            continue
        read_whole.append(cut)
        if name == "txt":  # a line that is cut is a shorter line
            *whole, last = found or [{"text": ""}]
            assert whole == ROWS[: len(whole)], f"cut at {cut}"
            assert ROWS[len(whole)]["text"].startswith(last["text"]), f"cut at {cut}"
        else:
            assert found == ROWS[: len(found)], f"cut at {cut}"
    ends = [len(LINES[: at + 1]) for at, byte in enumerate(LINES) if byte == 10]
    if name == "jsonl":  # whole lines, with their newline or just without
        assert {cut for cut in read_whole if cut} <= {end - short for end in ends for short in (0, 1)}
    elif name != "txt":
        assert read_whole in ([], [0]), "only a file of no bytes may be one of no rows"

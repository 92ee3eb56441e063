"""Many damaged forms of one small parquet file, each read to its end, in a process that pyarrow might bring down."""

from __future__ import annotations

import json
import random
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from headrace import rows
from headrace.errors import HeadraceError
from headrace.files import Files

ROWS = 40
WRITERS: dict[str, dict[str, Any]] = {
    "plain": {"compression": "none", "use_dictionary": False},
    "zstd": {"compression": "zstd"},
    "snappy": {"compression": "snappy"},
    "checksums": {"compression": "none", "write_page_checksum": True},
    "gzip v2": {"compression": "gzip", "data_page_version": "2.0"},
    "deltas": {
        "compression": "none",
        "use_dictionary": False,
        "column_encoding": {"n": "DELTA_BINARY_PACKED", "text": "DELTA_BYTE_ARRAY"},
    },
}


def table() -> Any:
    return pa.table(
        {
            "text": [f"row {i} " * 3 for i in range(ROWS)],
            "n": list(range(ROWS)),
            "words": [["a"] * (i % 3) for i in range(ROWS)],
            "image": [{"bytes": b"x%d" % i, "path": None if i % 2 else "q"} for i in range(ROWS)],
            "lang": ["en", "de"] * (ROWS // 2),
        }
    )


def mutated(good: bytes, seed: int, body_only: bool) -> bytes:
    """Bytes flipped, replaced, cut out, put in, or cut off at the end; half of them in the footer."""
    draw, data = random.Random(seed), bytearray(good)
    footer = len(good) - 8 - int.from_bytes(good[-8:-4], "little")
    how = draw.random()
    if body_only:
        data[draw.randrange(4, footer)] ^= 1 << draw.randrange(8)
    elif how < 0.1:
        del data[draw.randrange(len(data)) :]
    elif how < 0.2:
        at = draw.randrange(len(data))
        del data[at : at + draw.randrange(1, 40)]
    elif how < 0.3:
        at = draw.randrange(len(data))
        data[at:at] = draw.randbytes(draw.randrange(1, 9))
    else:
        for _ in range(draw.choice([1, 1, 1, 2, 5])):
            at = draw.randrange(len(data)) if draw.random() < 0.5 else draw.randrange(footer, len(data))
            data[at] = draw.choice([0, 255, 127, 128, draw.randrange(256), data[at] ^ 1 << draw.randrange(8)])
    return bytes(data)


def outcome(path: Path, cache_dir: Path, want: list[dict[str, Any]], shuffle: bool) -> str:
    """ "right", "error", "values" (as many rows, some of them others), or what should not be."""
    try:
        with rows(f"parquet:{path}", cache_dir=cache_dir, shuffle=shuffle) as stage:
            found = [row.data for row in sorted(stage, key=lambda row: row.address.row)]
    except HeadraceError as error:
        return "error" if path.name in str(error) else f"{type(error).__name__} without the file: {error}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    if len(found) != ROWS:
        return f"{len(found)} rows"
    return "right" if found == want else "values"


def read_mutants(folder: Path, writer: str, count: int, body_only: bool) -> Counter[str]:
    path, want = folder / "a.parquet", table().to_pylist()
    pq.write_table(table(), path, row_group_size=15, **WRITERS[writer])
    good, found = path.read_bytes(), Counter[str]()
    for seed in range(count):
        # The last seed that is seen here is the one that pyarrow died of.
        (folder / "seed").write_text(f"{seed} of {writer}")
        path.write_bytes(mutated(good, seed, body_only))
        kind = outcome(path, folder / f"data{seed % 10}", want, shuffle=bool(seed % 2))
        found[kind if kind in ("right", "error", "values") else f"seed {seed}: {kind}"] += 1
    return found


if __name__ == "__main__":
    warnings.simplefilter("error")
    for name in ("fsync", "fsync_dir"):  # of hundreds of small indices
        setattr(Files, name, lambda *_: None)
    made = {name: read_mutants(Path(sys.argv[1]), name, int(sys.argv[2]), body_only=False) for name in WRITERS}
    made["body"] = read_mutants(Path(sys.argv[1]), "checksums", int(sys.argv[2]), body_only=True)
    sys.stdout.write(json.dumps(made))

"""Row counts of a parquet file, from its footer alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from weakref import ref

from headrace.catalog.lines import LFS_POINTER
from headrace.catalog.schemas import Schema
from headrace.catalog.shard import Shard
from headrace.catalog.soundness import AGAIN, require_sound, said
from headrace.catalog.stored import stored_type
from headrace.catalog.thrift import check_footer
from headrace.errors import DataError, shown

if TYPE_CHECKING:
    from headrace.rng import I64

TAIL = 64 << 10
"""Read first: most footers are smaller, and then one request does."""
LARGEST = 512 << 20
MOST_GROUPS = 1_000_000
MOST_COLUMNS = 20_000
MOST_ROWS = 1 << 31
BOUNDED = 26
"""The first pyarrow that survives columns nested without end."""
SAMPLED = 16
"""Row groups whose column sizes are looked at; they stand for the others."""

_PARSED: dict[str, ref[Any]] = {}
"""Footers that somebody holds, all of them sound, by their digests. Of 50,000 row groups one takes 100 MB, and each
lane has a reader of its own.

Not a WeakValueDictionary: it runs Python code when a footer goes, and swallows an interrupt that comes meanwhile."""


@dataclass(frozen=True, eq=False)
class GroupRows:
    """The row groups of one file. A pure function of its footer, also after a round trip through JSON."""

    rows: I64
    """Per row group."""
    kib: I64
    """Per row group, KiB of all its columns, uncompressed, rounded up."""
    weights: dict[str, int]
    """Per top-level column, its bytes in a sample of the row groups."""
    schema: Schema
    digest: str = ""
    """Of the footer's bytes: those of this digest were found to be sound. An index of before has none."""

    @property
    def num_rows(self) -> int:
        return int(self.rows.sum())

    def nbytes(self, columns: list[str] | None) -> I64:
        """Per row group, bytes of the columns that are read, as far as the footer tells."""
        import numpy as np

        total = sum(self.weights.values()) or 1
        part = total if columns is None else sum(self.weights.get(c, 0) for c in columns)
        # Python's numbers: the product of two large sizes does not fit into 64 bits.
        return np.array([-(-kib * 1024 * part // total) for kib in self.kib.tolist()], dtype=np.int64)

    def to_json(self) -> dict[str, Any]:
        runs = [[rows, len(list(run))] for rows, run in groupby(self.rows.tolist())]
        return {
            "rows": runs,
            "kib": self.kib.tolist(),
            "weights": self.weights,
            "schema": [list(c) for c in self.schema],
            "digest": self.digest,
        }

    @classmethod
    def from_json(cls, value: Any) -> Self:
        import numpy as np

        kib = np.array(value["kib"], dtype=np.int64)
        if kib.ndim != 1 or sum(n for _, n in value["rows"]) != len(kib):
            raise ValueError("numbers of row groups that do not agree")
        rows = np.repeat([r for r, _ in value["rows"]], [n for _, n in value["rows"]]).astype(np.int64)
        if (rows < 0).any() or (kib < 0).any():
            raise ValueError("row groups that cannot be")
        weights = {str(k): int(v) for k, v in value["weights"].items()}
        return cls(rows, kib, weights, tuple((n, t) for n, t in value["schema"]), str(value.get("digest", "")))


def read_footer(shard: Shard) -> GroupRows:
    """By range reads of the end of the file; whatever is wrong with it is said with the file's name."""
    footer = footer_bytes(shard)
    return replace(_summary(shard, parse_footer(shard, footer)), digest=digest_of(footer))


def digest_of(footer: bytes) -> str:
    return hashlib.sha256(footer).hexdigest()[:32]


def footer_bytes(shard: Shard, read: Callable[[int, int], bytes] | None = None) -> bytes:
    """The footer with its length and magic, as it stands at the end of the file. `read`: its bytes from one place to
    another, where they do not come from its origin."""
    size, read = shard.size, read or partial(shard.origin.read, shard)
    if size < 12:
        raise DataError(f"{shard} has {size} bytes and so is no parquet file (an interrupted copy?): {AGAIN}")
    tail = read(max(0, size - TAIL), size)
    magic = tail[-4:]
    if magic == b"PARE":
        raise DataError(f"{shard} is an encrypted parquet file; decrypt it first, keys are not supported")
    if magic != b"PAR1" and size < TAIL and tail.startswith(LFS_POINTER):
        raise DataError(
            f"{shard} is a Git LFS pointer, not the parquet file it stands for; fetch that with git lfs pull"
        )
    if magic != b"PAR1":
        raise DataError(
            f"{shard} has no parquet footer: its last 4 bytes (at offset {size - 4}) are not b'PAR1' (an interrupted "
            f"write, or not a parquet file): {AGAIN}"
        )
    need = int.from_bytes(tail[-8:-4], "little") + 8
    if need > size - 4 or need > LARGEST:
        raise DataError(
            f"{shard}: its footer claims {need - 8} bytes at offset {size - 8}, in a file of {size}; "
            f"it is damaged: {AGAIN}"
        )
    if need > len(tail):
        tail = read(size - need, size - len(tail)) + tail
    return tail[-need:]


def parse_footer(shard: Shard, footer: bytes, *, sound: str = "") -> Any:
    """pyarrow's FileMetaData. It is shared by all that hold it, and to be held as long as it is in use. `sound`: the
    digest of a footer that is known to be sound; any other one is looked at."""
    digest = digest_of(footer)
    known = _PARSED.get(digest)
    meta = None if known is None else known()
    if meta is None:
        meta = _parsed(shard, footer)
        if digest != sound:
            require_sound(shard, meta)
        _PARSED[digest] = ref(meta, partial(_PARSED.pop, digest))
    return meta


def _parsed(shard: Shard, footer: bytes) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if int(pa.__version__.split(".")[0]) < BOUNDED:
            check_footer(footer)
        meta = pq.read_metadata(pa.BufferReader(footer))
    except (pa.ArrowException, OSError, ValueError) as error:
        at = shard.size - len(footer)
        raise DataError(f"{shard}: its parquet footer at offset {at} cannot be read: {said(error)}; {AGAIN}") from error
    if meta.num_row_groups > MOST_GROUPS or meta.num_columns > MOST_COLUMNS:
        raise DataError(
            f"{shard}: {meta.num_row_groups:,} row groups and {meta.num_columns:,} columns are more than we read "
            f"({MOST_GROUPS:,} and {MOST_COLUMNS:,}); write the file with larger row groups"
        )
    return meta


class Leaf(NamedTuple):
    """A column as it is stored: of a nested one, a part."""

    path: str
    """With a dot between the names."""
    flat: bool
    """Each row has exactly one value, or null."""


def leaves(shard: Shard, meta: Any) -> list[Leaf]:
    try:
        columns = [meta.schema.column(c) for c in range(meta.num_columns)]
        return [Leaf(column.path, column.max_repetition_level == 0) for column in columns]
    except UnicodeDecodeError as error:
        raise DataError(f"{shard}: the name of a column is not UTF-8 ({error}); {AGAIN}") from error


def check_num_values(shard: Shard, leaf: Leaf, group: int, found: int, rows: int) -> None:
    """A flat column has a value for each row; where it has more, rows would be left out without a word."""
    if leaf.flat and found != rows:
        raise DataError(
            f"{shard}: column {shown(leaf.path)!r} of row group {group} has {found} values for {rows} rows; it is "
            f"damaged: {AGAIN}"
        )


def _summary(shard: Shard, meta: Any) -> GroupRows:
    import numpy as np

    groups = [meta.row_group(g) for g in range(meta.num_row_groups)]
    rows = np.array([g.num_rows for g in groups], dtype=np.int64)
    sizes = np.array([g.total_byte_size for g in groups], dtype=np.int64)
    if (rows > MOST_ROWS).any() or rows.sum() > MOST_ROWS:
        raise DataError(
            f"{shard} says it has over {MOST_ROWS:,} rows, which is more than we read; split it, or {AGAIN}"
        )
    if (rows < 0).any() or int(rows.sum()) != meta.num_rows:
        raise DataError(
            f"{shard}: its row groups have {int(rows.sum())} rows, its footer says {meta.num_rows}; it is damaged: "
            f"{AGAIN}"
        )
    weights: dict[str, int] = {}
    columns, schema = leaves(shard, meta), _schema(shard, meta)
    tops = {name for name, _ in schema}
    for g in range(0, len(groups), max(1, len(groups) // SAMPLED))[:SAMPLED]:
        for c, leaf in enumerate(columns):
            column, name = groups[g].column(c), top_of(leaf.path, tops)
            check_num_values(shard, leaf, g, column.num_values, groups[g].num_rows)
            weights[name] = weights.get(name, 0) + max(0, column.total_uncompressed_size)
    return GroupRows(rows, -(-np.maximum(sizes, 0) // 1024), weights, schema)


def top_of(path: str, names: Container[str]) -> str:
    """The column that a stored column is part of; its own name may have dots."""
    parts = path.split(".")
    return next((n for i in range(len(parts), 0, -1) if (n := ".".join(parts[:i])) in names), parts[0])


def _schema(shard: Shard, meta: Any) -> Schema:
    import pyarrow as pa

    try:
        schema = meta.schema.to_arrow_schema()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise DataError(f"{shard}: its schema cannot be read: {said(error)}; {AGAIN}") from error
    return tuple((field.name, str(stored_type(field.type))) for field in schema)

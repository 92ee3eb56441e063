"""Where the rows of a text file lie: found in one pass, so that any row can be opened by seeking.

What is a row. `txt`: every line, blank ones too. `jsonl`: every line that is not blank (only ASCII white space).
A line ends with `\\n` or `\\r\\n`; a lone `\\r` ends nothing; the last line needs no end. A byte order mark at the
start of the file belongs to no row, and NUL bytes are bytes like any other.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeAlias

from headrace.catalog.plain import PlainBytes, PlainFile
from headrace.errors import DataError, SpecError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LineKind: TypeAlias = Literal["txt", "jsonl"]

EVERY = 1000
"""Rows between two offsets of an index: the chunk of a text file."""
MAX_LINE_BYTES = 64 << 20
BLOCK = 1 << 20
"""Bytes read at once by the pass: small enough to stay in the processor's cache."""
WHOLE_BYTES = 64 << 20
"""A file of more plain bytes is told from others by samples: by so many bytes in blocks, evenly spread."""

_NEWLINE = 10
_BOM = b"\xef\xbb\xbf"
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
_MAGIC = {
    b"\x1f\x8b": "gzip data; give it a name that ends in .gz",
    b"\x28\xb5\x2f\xfd": "zstd data; give it a name that ends in .zst",
    b"\xfd7zXZ\x00": "xz data; decompress it, or recompress it with zstd",
    b"BZh91AY&SY": "bzip2 data; decompress it, or recompress it with zstd",
    b"PK\x03\x04": "a zip archive; unpack it",
    b"PAR1\x15": "a parquet file; name it with a parquet: spec",
    LFS_POINTER: "a Git LFS pointer, which stands for the file; fetch the file itself with git lfs pull",
    b"\xff\xfe": "UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8",
    b"\xfe\xff": "UTF-16 text; convert it with iconv -f UTF-16 -t UTF-8",
}


@dataclass(frozen=True, kw_only=True)
class LineIndex:
    kind: LineKind
    rows: int
    every: int = EVERY
    offsets: array[int]
    """The plain byte offset of row 0, `every`, 2 * `every`, ..."""
    blanks: array[int] = field(default_factory=lambda: array("q"))
    """Blank lines before each of those rows, so that a message can name the line; empty where there is none."""
    size: int
    """Bytes of the file as it lies on disk."""
    bytes: int
    """Plain bytes: the same, unless the file is compressed."""
    digest: str = ""
    """Of the plain bytes, or of samples of them. An index of before has none."""

    def span(self, start: int, stop: int) -> tuple[int, int, int]:
        """For rows [start, stop): the nearest indexed row at or before them, and the byte range to read."""
        if not 0 <= start <= stop <= self.rows:
            raise SpecError(f"rows {start} to {stop} were asked for, of a file with {self.rows} rows")
        if start == stop:
            return start, 0, 0
        first, last = start // self.every, -(-stop // self.every)
        end = self.offsets[last] if last < len(self.offsets) else self.bytes
        return first * self.every, self.offsets[first], end

    def line(self, row: int) -> int:
        """The line number, from 1, of an indexed row."""
        return 1 + row + (self.blanks[row // self.every] if self.blanks else 0)

    def to_json(self) -> dict[str, Any]:
        plain = {name: getattr(self, name) for name in ("kind", "rows", "every", "size", "bytes")}
        told = {"digest": self.digest} if self.digest else {}
        return plain | {"offsets": _deltas(self.offsets), "blanks": _deltas(self.blanks)} | told

    @classmethod
    def from_json(cls, value: Any) -> Self:
        """Back from `to_json`; a `DataError` for anything that no pass could have made."""
        try:
            found = cls(
                **{name: value[name] for name in ("kind", "rows", "every", "size", "bytes")},
                offsets=array("q", accumulate(value["offsets"])),
                blanks=array("q", accumulate(value["blanks"])),
                digest=str(value.get("digest", "")),
            )
            good = found._is_possible()
        except (KeyError, TypeError, ValueError, OverflowError, AttributeError):
            good = False
        if not good:
            raise DataError("a line index is damaged or of another version; delete it, and it is made again")
        return found

    def _is_possible(self) -> bool:
        numbers = (self.rows, self.every, self.size, self.bytes)
        if (
            self.kind not in ("txt", "jsonl")
            or any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers)
            or not self.every
        ):
            return False
        slots = -(-self.rows // self.every)
        return (
            len(self.offsets) == slots
            and len(self.blanks) in (0, slots)
            and all(a < b for a, b in pairwise([-1, *self.offsets, self.bytes]))
            and all(a <= b for a, b in pairwise([0, *self.blanks]))
        )


def index_file(path: str | Path, kind: LineKind, *, label: str | None = None) -> LineIndex:
    """The line index of a file as it lies."""
    with PlainFile(path, label=label) as source:
        return index_lines(source, kind)


def index_lines(
    source: PlainBytes,
    kind: LineKind,
    *,
    every: int = EVERY,
    max_line_bytes: int = MAX_LINE_BYTES,
    beat: Callable[[], None] | None = None,
) -> LineIndex:
    """One pass over the plain bytes, in blocks; `beat` is called at each, as a sign of life."""
    scan = _Scan(source.label, kind, every, max_line_bytes)
    digest, apart = hashlib.blake2b(digest_size=16), max(1, -(-source.size // WHOLE_BYTES))
    for at in range(0, source.size, BLOCK):
        block = source.read_bytes(at, min(at + BLOCK, source.size))
        if at // BLOCK % apart == 0 or at + BLOCK >= source.size:
            digest.update(block)
        if at == 0:
            if what := known_format(block):
                raise DataError(f"{source.label} is not plain text: its first bytes are those of {what}")
            block = scan.skip_mark(block)
        scan.feed(block)
        if beat is not None:
            beat()
    source.check()
    scan.finish()
    return LineIndex(
        kind=kind,
        rows=scan.rows,
        every=every,
        offsets=scan.offsets,
        blanks=scan.blanks if any(scan.blanks) else array("q"),
        size=source.signature.size,
        bytes=source.size,
        digest=digest.hexdigest(),
    )


class _Scan:
    """The rows found so far, and the line that is still open."""

    def __init__(self, label: str, kind: LineKind, every: int, limit: int) -> None:
        self.label, self.kind, self.every, self.limit = label, kind, every, limit
        self.offsets, self.blanks = array("q"), array("q")
        self.rows = self.lines = 0
        self.at = 0
        self.line_start = 0
        self.line_has_text = False

    def skip_mark(self, block: bytes) -> bytes:
        if not block.startswith(_BOM):
            return block
        self.at = self.line_start = len(_BOM)
        return block[len(_BOM) :]

    def feed(self, block: bytes) -> None:
        import numpy as np

        data = np.frombuffer(block, np.uint8)
        ends = np.flatnonzero(data == _NEWLINE)
        rest = block
        if len(ends):
            starts = np.empty_like(ends)
            starts[0] = self.line_start - self.at
            starts[1:] = ends[:-1] + 1
            long = (ends - starts) > self.limit
            if long.any():
                self._refuse_long(int(long.argmax()))
            self._add(starts, None if self.kind == "txt" else self._has_text(block, data, starts, ends))
            self.line_start, self.line_has_text = self.at + int(ends[-1]) + 1, False
            rest = block[int(ends[-1]) + 1 :]
        self.at += len(block)
        self.line_has_text = self.line_has_text or has_text(rest)
        if self.at - self.line_start > self.limit:
            self._refuse_long(0)

    def finish(self) -> None:
        """The last line, where nothing ends it."""
        if self.line_start < self.at and (self.kind == "txt" or self.line_has_text):
            if self.rows % self.every == 0:
                self.offsets.append(self.line_start)
                self.blanks.append(self.lines - self.rows)
            self.rows += 1

    def _add(self, starts: NDArray[np.intp], filled: NDArray[np.bool_] | None) -> None:
        import numpy as np

        rows = np.arange(len(starts)) if filled is None else np.flatnonzero(filled)
        first = -self.rows % self.every
        picked = rows[first :: self.every]
        self.offsets.extend((starts[picked] + self.at).tolist())
        numbers = self.rows + first + self.every * np.arange(len(picked))
        self.blanks.extend((self.lines + picked - numbers).tolist())
        self.rows += len(rows)
        self.lines += len(starts)

    def _has_text(
        self, block: bytes, data: NDArray[np.uint8], starts: NDArray[np.intp], ends: NDArray[np.intp]
    ) -> NDArray[np.bool_]:
        """For each line that ends in this block: is there more than white space in it."""
        import numpy as np

        first = data[starts[1:]]
        filled = np.empty(len(starts), np.bool_)
        filled[0] = self.line_has_text or has_text(block[max(int(starts[0]), 0) : int(ends[0])])
        filled[1:] = first > 32
        if ((first <= 32) & (first != _NEWLINE)).any():
            text = _text_bytes()[data[: int(ends[-1]) + 1]]
            filled[1:] = np.logical_or.reduceat(text, starts[1:])
        return filled

    def _refuse_long(self, lines_on: int) -> None:
        raise DataError(
            f"{self.label}: line {self.lines + lines_on + 1} is longer than {self.limit:,} bytes; "
            f"split it, or look whether this file is {self.kind} at all"
        )


def has_text(data: bytes) -> bool:
    return bool(data) and not data.isspace()


def _text_bytes() -> NDArray[np.bool_]:
    import numpy as np

    return np.array([not bytes([byte]).isspace() for byte in range(256)])


def _deltas(values: array[int]) -> list[int]:
    return [b - a for a, b in pairwise([0, *values])]


def known_format(head: bytes) -> str | None:
    """What the first bytes of a file say it is, with what to do about it, where that is not plain UTF-8 text."""
    for magic, what in _MAGIC.items():
        if head.startswith(magic):
            return what
    head = head[:4096]
    nuls = head[::2].count(0), head[1::2].count(0)
    if min(nuls) == 0 and max(nuls) > max(8, len(head) // 4):
        return "UTF-16 text without a byte order mark; convert it with iconv -f UTF-16LE (or UTF-16BE) -t UTF-8"
    return None

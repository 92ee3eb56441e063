"""Whether the footer of a parquet file holds together, found out without risk to the process.

pyarrow ends the process (`std::terminate`) when Python asks a row group for a column whose description does not hold
together: its checks throw, and nothing catches that. Reading rows makes the same checks where they are caught. So a
read is begun here, on a file that has no bytes to give: with `pre_buffer` it looks at every column that it will need
before it asks for the first byte.
"""

from __future__ import annotations

import time
from typing import Any
from weakref import ref

from headrace.catalog.filelike import FileLike
from headrace.catalog.shard import Shard
from headrace.errors import DataError, shown
from headrace.limits import is_file_limit, is_task_limit, too_many_files, too_many_tasks

AGAIN = "fetch it, or write it, again"
MOST_SECONDS = 1.0
"""To wait for a thread of pyarrow to let go of a file."""
MOST_TRIED = 1000
"""Columns that are looked at one by one to name the one that is wrong."""


def said(error: BaseException) -> str:
    """pyarrow's words, on one line. Where it got no thread or no file, the data is not to blame: that is raised."""
    if is_task_limit(error):
        raise too_many_tasks("a thread of pyarrow", error) from error
    if is_file_limit(error):
        raise too_many_files("a file", error) from error
    return shown(" ".join(str(error).split()))


class _Blank(FileLike):
    """A file that is large enough for everything, and has no bytes."""

    def __init__(self) -> None:
        super().__init__(1 << 62)
        self.was_read = False

    def read(self, size: int = -1) -> bytes:
        self.was_read = True
        return b""


def require_sound(shard: Shard, meta: Any) -> None:
    """Refuse a footer (pyarrow's FileMetaData) with columns that Python must not look at."""
    error = _begin(meta, None)
    if error is None:
        return
    if "decrypt" in str(error).lower():
        raise DataError(f"{shard} has encrypted columns; decrypt it first, keys are not supported") from error
    raise DataError(
        f"{shard}: its footer describes {_culprit(meta)} in a way that cannot be read: {said(error)}; "
        f"it is damaged, or written by something unusual: {AGAIN}"
    ) from error


def require_codecs(meta: Any, group: int, columns: list[str] | None) -> None:
    """Raise what pyarrow says against a codec that it does not know; to ask for the name of that ends the process."""
    if (error := _begin(meta, columns, [group], buffer_size=1 << 12)) is not None:
        raise error


def _begin(
    meta: Any, columns: list[str] | None, groups: list[int] | None = None, buffer_size: int = 0
) -> Exception | None:
    """Begin to read all row groups, or some, up to where the first byte is needed. With a buffer the first of them is
    opened before that, which looks at its codecs too."""
    groups = list(range(meta.num_row_groups)) if groups is None else groups
    if not groups:
        return None  # there is no column to look at, and pyarrow 18 fails to read no row groups
    blank = _Blank()
    error, held = _refusal(blank, meta, columns, groups, buffer_size), ref(blank)
    error = None if blank.was_read else error
    del blank
    # A thread of pyarrow asked for the bytes. If it still has the file when the interpreter ends, the process aborts.
    until = time.monotonic() + MOST_SECONDS
    while held() is not None and time.monotonic() < until:
        time.sleep(0.0001)
    return error


def _refusal(
    blank: _Blank, meta: Any, columns: list[str] | None, groups: list[int], buffer_size: int
) -> Exception | None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        source = pa.PythonFile(blank, mode="r")
        file = pq.ParquetFile(source, metadata=meta, pre_buffer=not buffer_size, buffer_size=buffer_size)
        next(file.iter_batches(1, row_groups=groups, columns=columns, use_threads=False), None)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        return error.with_traceback(None)  # whose frames would keep the file
    return None


def _culprit(meta: Any) -> str:
    import pyarrow as pa

    try:
        names = meta.schema.to_arrow_schema().names[:MOST_TRIED]
    except (pa.ArrowException, OSError, ValueError, KeyError):
        return "its columns"
    found = next((name for name in names if _begin(meta, [name]) is not None), None)
    return "a column" if found is None else f"column {shown(found)!r}"

"""Local files: found by path or glob, read where they lie, never written, never removed."""

from __future__ import annotations

import difflib
import glob
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.catalog.listing import Listing, signature
from headrace.catalog.shard import Origin, Shard
from headrace.catalog.source import Source
from headrace.errors import Changed, DataError, NotAllowed, NotFound, SourceError, shown


@dataclass(frozen=True)
class LocalOrigin(Origin):
    name: str = ""
    folder: tuple[str, ...] | None = None

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        fd = open_regular(shard.path)
        try:
            check_same(os.fstat(fd), shard)
            data = os.pread(fd, stop - start, start)
        finally:
            os.close(fd)
        if len(data) != stop - start:
            raise Changed(
                f"{shown(shard.path)} changed while reading: {len(data)} of {stop - start} bytes at {start} are there"
            )
        return data

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        while data := self.read(shard, start, min(start + (1 << 22), shard.size)):
            yield data
            start += len(data)

    def local_path(self, shard: Shard) -> Path | None:
        return Path(shard.path)

    def __str__(self) -> str:
        return "local files"


def list_local(source: Source) -> Listing:
    """Files by path or glob, in name order. A missing, unreadable or odd file is an error here, not an empty source."""
    pattern = source.path.removeprefix("file://")
    if glob.has_magic(pattern) and not os.path.lexists(pattern):
        paths = sorted(p for p in glob.glob(pattern, recursive=True) if not Path(p).is_dir())  # noqa: PTH207
        if not paths:
            raise _nothing(source, pattern)
    else:
        paths = [pattern]
    files = []
    for path in paths:
        found = stat_regular(path)
        files.append((path, found.st_size, str(found.st_mtime_ns)))
    return Listing.of(source, signature(files), LocalOrigin(), files)


def open_regular(path: str) -> int:
    """A descriptor of a regular file; everything else is an error with a sentence (and a fifo never blocks us)."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise _explain(path, error) from error
    try:
        _refuse_odd(path, os.fstat(fd))
    except BaseException:
        os.close(fd)
        raise
    return fd


def stat_regular(path: str) -> os.stat_result:
    try:
        found = os.stat(path)  # noqa: PTH116 - the result goes to `_refuse_odd` as it is
    except OSError as error:
        raise _explain(path, error) from error
    _refuse_odd(path, found)
    if not os.access(path, os.R_OK):
        raise NotAllowed(f"{shown(path)} cannot be read by this user; check its permissions")
    return found


def check_same(found: os.stat_result, shard: Shard) -> None:
    """The file is still the one that was listed."""
    if found.st_size != shard.size or str(found.st_mtime_ns) != shard.etag:
        raise Changed(
            f"{shown(shard.path)} changed since it was listed: it had {shard.size} bytes (mtime {shard.etag}), now "
            f"{found.st_size} (mtime {found.st_mtime_ns}); rows may have moved, so start anew on the changed file"
        )


def check_same_file(path: Path, shard: Shard) -> None:
    """A user's file is still the one that was listed; a fetched one was checked by its hash."""
    if isinstance(shard.origin, LocalOrigin):
        check_same(stat_regular(str(path)), shard)


def _refuse_odd(path: str, found: os.stat_result) -> None:
    mode = found.st_mode
    if stat.S_ISREG(mode):
        return
    if stat.S_ISDIR(mode):
        raise DataError(f"{shown(path)} is a folder; name its files, for example {shown(path.rstrip('/'))}/*")
    kinds = {stat.S_IFIFO: "a fifo", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    what = kinds.get(stat.S_IFMT(mode), "not a regular file")
    raise DataError(f"{shown(path)} is {what}; rows are read by seeking, which needs a regular file")


def _explain(path: str, error: OSError) -> SourceError | DataError:
    if isinstance(error, FileNotFoundError):
        if Path(path).is_symlink():
            return NotFound(f"{shown(path)} is a link to a file that does not exist; mend or remove the link")
        return NotFound(f"{shown(path)}: no such file{_near(path)}")
    if isinstance(error, PermissionError):
        return NotAllowed(f"{shown(path)} cannot be read by this user; check its permissions")
    return DataError(f"{shown(path)} cannot be opened: {error.strerror or error}")


def _nothing(source: Source, pattern: str) -> NotFound:
    return NotFound(f"no file matches {shown(pattern)} ({source.kind}){_near(pattern)}")


def _near(path: str) -> str:
    """The nearest names in the same folder, for the error."""
    folder = Path(path).parent
    try:
        names = sorted(p.name for p in folder.iterdir())[:10_000]
    except OSError:
        return f"; the folder {shown(folder)} cannot be listed"
    close = difflib.get_close_matches(Path(path).name, names, n=3, cutoff=0.4)
    return f"; nearest there: {', '.join(shown(n) for n in close)}" if close else f"; {shown(folder)} has none like it"

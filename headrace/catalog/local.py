"""Local files: found by path or glob, read where they lie, never written, never removed."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.catalog.globs import find_paths
from headrace.catalog.listing import Listing, signature
from headrace.catalog.plain import PlainFile, Signature, look_at, nearest
from headrace.catalog.shard import Origin, Shard
from headrace.catalog.source import Source
from headrace.errors import Changed, DataError, NotFound, shown

BLOCK = 4 << 20


@dataclass(frozen=True)
class LocalOrigin(Origin):
    name: str = ""
    folder: tuple[str, ...] | None = None

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        with open_listed(shard) as file:
            return file.read_bytes(start, stop)

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        with open_listed(shard) as file:
            for at in range(start, shard.size, BLOCK):
                yield file.read_bytes(at, min(at + BLOCK, shard.size))

    def local_path(self, shard: Shard) -> Path | None:
        return Path(shard.path)


def list_local(source: Source) -> Listing:
    """Files by path or glob, in name order. A missing, unreadable or odd file is an error here, not an empty source."""
    return Listing.of(source, *_listed(source.path, source.kind))


def signature_of(kind: str, path: str) -> tuple[str, list[str]]:
    """The signature of the files under a path that is taken as it is written, and their absolute paths."""
    found, _, files = _listed(path, kind)
    return found, [os.path.abspath(file[0]) for file in files]  # noqa: PTH100


def signature_elsewhere(kind: str, path: str, before: str) -> str | None:
    """The signature that the files under `path` had when they lay under the path `before`, with the sizes and times
    that they have. None where the two differ in more than the folder, or the name of a single file."""
    old, new = (text.removeprefix("file://").split("/") for text in (before, path))
    while len(old) > 1 and len(new) > 1 and old[-1] == new[-1]:
        old.pop()
        new.pop()
    if glob.has_magic("/".join((*old, *new))):
        return None
    was, now = "/".join(old), "/".join(new)
    files = _listed(path, kind)[2]
    if not all(file.startswith(now) for file, _, _ in files):
        return None
    return signature((was + file.removeprefix(now), size, tag) for file, size, tag in files)


def _listed(pattern: str, kind: str) -> tuple[str, LocalOrigin, list[tuple[str, int, str]]]:
    files = []
    for path in _paths(pattern.removeprefix("file://"), kind):
        found = look_at(path)
        files.append((path, found.size, str(found.mtime_ns)))
    return signature(files), LocalOrigin(), files


def _paths(pattern: str, kind: str) -> list[str]:
    paths, folders = [pattern], [pattern]
    if os.path.isdir(pattern):  # noqa: PTH112 - does not raise where the way to it is barred
        paths = []
    elif glob.has_magic(pattern) and not os.path.lexists(pattern):
        paths, folders = find_paths(pattern)
    if paths:
        return paths
    if not folders:
        raise NotFound(f"no file matches {shown(pattern)}{nearest(Path(pattern))}")
    folder = shown(folders[0])
    raise DataError(f"{folder} is a folder, not a file; name its files with a glob, for example {folder}/*.{kind}")


def open_listed(shard: Shard) -> PlainFile:
    """A listed file, open, and still the one that was listed."""
    file = PlainFile(shard.path)
    try:
        require_listed(file.signature, shard)
    except BaseException:
        file.close()
        raise
    return file


def require_listed(now: Signature, shard: Shard) -> None:
    if now.size != shard.size or str(now.mtime_ns) != shard.etag:
        raise Changed(
            f"{shown(shard.path)} changed since it was listed: it had {shard.size} bytes (mtime {shard.etag}), now "
            f"{now.size} (mtime {now.mtime_ns}); rows may have moved, so start anew on the changed file"
        )

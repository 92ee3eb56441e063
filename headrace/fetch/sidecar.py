"""What a cached file is, written beside it: whose content, and how the file looked when it was last known to be right.

A sidecar comes before its file and goes after it. While there is one, the name is taken for its content, so that two
contents never share a file; and a file without one is not ours.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from headrace.catalog.shard import Shard
from headrace.fetch.download import identity
from headrace.files import Files, publish_json, remove_quietly, unique_part

ENDING = ".meta.json"
_MAX_BYTES = 64 << 10

Look = tuple[int, int, int, int]
"""Inode, size, mtime and ctime: a file that looks the same has not been changed."""


def look(found: os.stat_result) -> Look:
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


@dataclass(frozen=True)
class Sidecar:
    file: str
    """The name of the file it stands beside."""
    origin: str
    path: str
    commit: str
    etag: str
    size: int
    identity: str
    look: Look | None = None
    """None while the file has not been seen whole."""
    ours: bool = True
    """False for a file that lay there before us: it is read, never removed or replaced."""

    @classmethod
    def of(cls, shard: Shard, place: Path) -> Self:
        commit = str(getattr(shard.origin, "commit", ""))
        return cls(place.name, shard.origin.name, shard.path, commit, shard.etag, shard.size, identity(shard))

    def holds(self, shard: Shard) -> bool:
        return self.identity == identity(shard)

    def seen(self, found: os.stat_result) -> Self:
        return dataclasses.replace(self, look=look(found))

    def write(self, place: Path, files: Files) -> None:
        publish_json(path_beside(place), dataclasses.asdict(self), files)

    def reserve(self, place: Path, files: Files) -> bool:
        """Take the name, unless another has it."""
        path = path_beside(place)
        part = unique_part(path)
        fd = files.create(part)
        try:
            try:
                files.write(fd, json.dumps(dataclasses.asdict(self)).encode())
            finally:
                files.close(fd)
            try:
                files.link(part, path)
            except FileExistsError:
                return False
            except OSError:
                # A file system without links: two may now take the name at once, and one of them reads it again.
                if path.exists():
                    return False
                files.rename(part, path)
            return True
        finally:
            remove_quietly(part, files)


def path_beside(place: Path) -> Path:
    name = f".{place.name}{ENDING}"
    if len(name.encode()) > 255:
        name = f".{hashlib.blake2b(place.name.encode(), digest_size=16).hexdigest()}{ENDING}"
    return place.with_name(name)


def read(place: Path, files: Files) -> Sidecar | None:
    """The sidecar of a file; None where there is none. One that cannot be read is removed."""
    path = path_beside(place)
    try:
        return _load(path, place.name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # nothing is wrong with it
        # Torn by a power cut, or not ours: either way it says nothing.
        remove_quietly(path, files)
        return None


def touch(place: Path) -> None:
    """Note that the file was used now: eviction begins with those unused for longest."""
    with contextlib.suppress(OSError):
        os.utime(path_beside(place), follow_symlinks=False)


def last_use(place: Path) -> float:
    try:
        return path_beside(place).lstat().st_mtime
    except OSError:
        return 0.0


def walk(top: Path) -> Iterator[tuple[Path, Sidecar]]:
    """Every file with a sidecar below a folder."""
    for folder, _, names in os.walk(top):
        for name in names:
            if name.startswith(".") and name.endswith(ENDING):
                path = Path(folder, name)
                try:
                    sidecar = _load(path, None)
                except (OSError, ValueError, TypeError, KeyError):
                    continue
                yield path.with_name(sidecar.file), sidecar


def _load(path: Path, name: str | None) -> Sidecar:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fields = json.loads(os.read(fd, _MAX_BYTES))
    finally:
        os.close(fd)
    known = {field.name: fields[field.name] for field in dataclasses.fields(Sidecar)}
    if known["look"] is not None:
        inode, size, mtime, ctime = map(int, known["look"])
        known["look"] = inode, size, mtime, ctime
    sidecar = Sidecar(**known)
    if name not in (None, sidecar.file) or path_beside(path.with_name(sidecar.file)).name != path.name:
        raise ValueError(f"{path} speaks of another file")
    return sidecar

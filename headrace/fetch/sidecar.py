"""What a cached file is, written beside it: whose content, and how the file looked when it was last known to be right.

A sidecar comes before its file and goes after it. While there is one, the name is taken for its content, so that two
contents never share a file; and a file without one is not ours, unless it says so itself: a file that was fetched
carries the same as an attribute, with where it lies, where the disk can keep that.
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
from typing import Any, Self

from headrace.catalog.shard import Shard
from headrace.fetch.download import identity
from headrace.files import Files, publish_json, remove_quietly, unique_part

ENDING = ".meta.json"
MARK = "user.headrace"
"""The name of that attribute."""
LEASES = ".leases"
NEEDS = ".needs"
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
    passing: bool = False
    """Fetched by a reader that passes on, under `auto` cleanup: it goes when nobody needs it any more."""

    @classmethod
    def of(cls, shard: Shard, place: Path, passing: bool = False) -> Self:
        commit = str(getattr(shard.origin, "commit", ""))
        told = (place.name, shard.origin.name, shard.path, commit, shard.etag, shard.size, identity(shard))
        return cls(*told, passing=passing)

    def holds(self, shard: Shard) -> bool:
        return self.identity == identity(shard)

    def seen(self, found: os.stat_result) -> Self:
        return dataclasses.replace(self, look=look(found))

    def mark(self, place: Path, files: Files, fd: int) -> None:
        """Have the file that will lie there say what it is."""
        lies = [os.fstat(fd).st_ino, place.parent.stat().st_ino]
        value = {**dataclasses.asdict(self), "look": None, "lies": lies}
        with contextlib.suppress(OSError, AttributeError):  # it does without
            files.mark(fd, MARK, json.dumps(value).encode())

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
    """The sidecar of a file, or what the file says where it was lost; None where there is neither. One that cannot be
    read is removed."""
    path = path_beside(place)
    try:
        return _load(path, place.name)
    except (FileNotFoundError, NotADirectoryError):
        return _said_by(place)
    except (OSError, ValueError, TypeError, KeyError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise  # nothing is wrong with it
        # Torn by a power cut, or not ours: either way it says nothing.
        remove_quietly(path, files)
        return _said_by(place)


def _said_by(place: Path) -> Sidecar | None:
    """What a file of ours says about itself. A copy, or one that was moved or linked, is not ours."""
    try:
        value = json.loads(os.getxattr(place, MARK, follow_symlinks=False))
        sidecar = _of(value)
        lies = [place.lstat().st_ino, place.parent.stat().st_ino]
        return sidecar if value["lies"] == lies and sidecar.file == place.name else None
    except (OSError, AttributeError, ValueError, TypeError, KeyError):
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
    """Every file of ours below a folder, and every name that is taken."""
    for folder, folders, names in os.walk(top):
        folders[:] = [name for name in folders if name not in (LEASES, NEEDS)]
        taken = set(names)
        for name in names:
            if not name.startswith("."):
                place = Path(folder, name)
                if path_beside(place).name not in taken and (lost := _said_by(place)) is not None:
                    yield place, lost
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
    sidecar = _of(fields)
    if name not in (None, sidecar.file) or path_beside(path.with_name(sidecar.file)).name != path.name:
        raise ValueError(f"{path} speaks of another file")
    return sidecar


def _of(fields: dict[str, Any]) -> Sidecar:
    fields = {"passing": False, **fields}  # of a version that did not write it
    known = {field.name: fields[field.name] for field in dataclasses.fields(Sidecar)}
    if known["look"] is not None:
        inode, size, mtime, ctime = map(int, known["look"])
        known["look"] = inode, size, mtime, ctime
    return Sidecar(**known)

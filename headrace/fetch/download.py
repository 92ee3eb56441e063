"""One shard from its origin to its place on disk: whole and checked, or not at all.

The bytes go into a partial file that belongs to this process alone, so that two processes that fetch the same shard
cannot spoil each other's. A partial file of a process that died is taken over by renaming it, which only one can do.
"""

from __future__ import annotations

import errno
import hashlib
import logging
import os
import re
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.catalog.retry import Tries
from headrace.catalog.shard import Broken, Restart, Shard
from headrace.catalog.stop import Stop, beat, stopped_by
from headrace.errors import FetchError, HeadraceError, Integrity, NoSpace, shown
from headrace.fetch import heartbeat
from headrace.fetch.heartbeat import Sign, is_silent
from headrace.files import (
    PART,
    REAL,
    Files,
    explain_os_error,
    lives,
    part_owner,
    remove_quietly,
    unique_part,
)
from headrace.limits import is_file_limit, too_many_files

if TYPE_CHECKING:
    from hashlib import _Hash

log = logging.getLogger(__name__)

WRONG_HASHES = 3
"""So many whole downloads with wrong bytes end the attempt."""
BLOCK = 1 << 20
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
GONE = (errno.ENOENT, errno.ESTALE)


def download(
    shard: Shard,
    target: Path,
    *,
    files: Files = REAL,
    on_progress: Callable[[int], None] | None = None,
    stop: Stop | None = None,
    make_room: Callable[[int], bool] | None = None,
    mark: Callable[[Files, int], None] | None = None,
) -> os.stat_result:
    """Fetch `shard` to `target`, and return what the published file looks like.

    `on_progress` is told the number of bytes there are. When the disk is full, `make_room` is asked once to free the
    number of bytes that are missing, and says whether it freed any. `mark` is called with the whole file, open.
    """
    part, was_lost = _Part(shard, target, files), False
    with stopped_by(stop):
        while True:
            try:
                part.open()
                _fill(part, on_progress)
                return part.publish(mark)
            except HeadraceError:
                part.discard()
                raise
            except OSError as error:
                if error.errno in FULL and make_room is not None and make_room(part.missing()):
                    make_room = None
                    part.rewind()
                    continue
                if error.errno in GONE and not was_lost:
                    log.warning("%s: its partial file was removed; downloading it again", shard)
                    was_lost = True
                    part.discard()
                    part = _Part(shard, target, files)
                    continue
                part.discard()
                raise explained(error, shard, target) from error
            except BaseException:
                part.discard()
                raise


def hash_of(path: Path, shard: Shard) -> str | None:
    """The hash of a file in the way the shard's etag is one; None when the etag is no hash."""
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        digest = _hasher(shard.etag, os.fstat(fd).st_size)
        if digest is None:
            return None
        _hash_into(digest, fd, 0)
        return digest.hexdigest()
    finally:
        os.close(fd)


def is_hash(etag: str) -> bool:
    return re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", etag) is not None


def identity(shard: Shard) -> str:
    """What makes two shards the same bytes: their hash, or where they came from."""
    return shard.etag if is_hash(shard.etag) else f"{shard.origin.name}|{shard.path}|{shard.etag}|{shard.size}"


def part_mark(shard: Shard) -> str:
    """The content that a partial file is a part of, as it stands in its name."""
    return hashlib.blake2b(f"{shard.path}|{identity(shard)}".encode(), digest_size=8).hexdigest()


def is_orphan(part: Path, elsewhere: bool = False) -> bool:
    """Whether a partial file belongs to a process that is gone. `elsewhere`: also to one of another machine.

    Such a file may be removed, and is never taken over: its process may have been suspended, and write to it again.
    """
    try:
        alive = lives(part_owner(part), part)
    except ValueError:
        alive = None
    if alive is None:
        return elsewhere and is_silent(part)
    return not alive


def _fill(part: _Part, on_progress: Callable[[int], None] | None) -> None:
    """Get all bytes into the partial file, and see that they are the right ones."""
    shard = part.shard
    tries, restarts, wrong = Tries(str(shard)), Tries(str(shard)), 0
    while True:
        before = part.size
        try:
            if not part.is_full():
                for chunk in shard.origin.stream(shard, part.size):
                    part.write(chunk)
                    beat()
                    if on_progress is not None:
                        on_progress(part.size)
                part.check_size()
        except Restart as why:
            part.restart()
            restarts.failed(Broken(f"{why}, so it starts again from zero", wrong=True))
            continue
        except Broken as broken:
            # With all bytes there, the rest of the conversation does not matter.
            if not part.is_full():
                tries.failed(broken, part.size - before, shard.size - before)
                continue
        got = part.digest()
        if got is None or got == shard.etag:
            return
        wrong += 1
        if wrong == WRONG_HASHES:
            raise Integrity(
                f"{shard}: the bytes that arrived are not the bytes that were promised, {wrong} times in a row: "
                f"expected {_kind(shard.etag)} {shard.etag}, got {got}; something between here and the server changes "
                f"them, or the repo is damaged; nothing was kept"
            )
        log.warning("%s: expected %s %s, got %s; downloading it again", shard, _kind(shard.etag), shard.etag, got)
        part.restart()


class _Part:
    """The partial file of one download."""

    def __init__(self, shard: Shard, target: Path, files: Files) -> None:
        self.shard = shard
        self.size = 0
        self._target = target
        self._files = files
        self._mark = part_mark(shard)
        self._path = unique_part(target.with_name(_short(target.name)), self._mark)
        self._fd = -1
        self._named = False
        self._sign: Sign | None = None
        self._hash = _hasher(shard.etag, shard.size)

    def open(self) -> None:
        """Take over what a dead process left, or begin. Does nothing when it is open."""
        if self._fd >= 0:
            return
        self._target.parent.mkdir(parents=True, exist_ok=True)
        for orphan in self._orphans():
            if self._fd >= 0:
                remove_quietly(orphan, self._files)
            else:
                self._adopt(orphan)
        if self._fd < 0:
            self._fd = self._files.create(self._path)
        self._sign = heartbeat.hold(self._path)

    def write(self, chunk: bytes) -> None:
        self._files.write(self._fd, chunk)
        self.size += len(chunk)
        if self._hash is not None:
            self._hash.update(chunk)
        if 0 <= self.shard.size < self.size:
            raise Restart(f"more than the promised {self.shard.size:,} bytes came")

    def is_full(self) -> bool:
        return self.size == self.shard.size

    def missing(self) -> int:
        return max(self.shard.size - self.size, 1)

    def check_size(self) -> None:
        if 0 <= self.size < self.shard.size:
            raise Broken(f"the body ended early: expected {self.shard.size:,} bytes, got {self.size:,}")

    def digest(self) -> str | None:
        if self._hash is None and is_hash(self.shard.etag):
            # git hashes the length first, which was not known before the end
            self._hash = _hasher(self.shard.etag, self.size)
            if self._hash is not None:
                _hash_into(self._hash, self._fd, 0)
        return self._hash.hexdigest() if self._hash is not None else None

    def restart(self) -> None:
        self.size = 0
        self._hash = _hasher(self.shard.etag, self.shard.size)
        self.rewind()

    def rewind(self) -> None:
        """Throw away what was half written when a write failed. A file that has its name is whole, and left alone."""
        if self._fd >= 0 and not self._named:
            self._files.truncate(self._fd, self.size)
            os.lseek(self._fd, self.size, os.SEEK_SET)

    def publish(self, mark: Callable[[Files, int], None] | None) -> os.stat_result:
        if not self._named:
            if mark is not None:
                mark(self._files, self._fd)
            self._files.fsync(self._fd)
            self._files.seal(self._fd)
            self._drop()
            self._files.rename(self._path, self._target)
            self._named = True
        self._files.fsync_dir(self._target.parent)
        found = os.fstat(self._fd)
        self._close()
        return found

    def discard(self) -> None:
        if self._fd >= 0:
            self._close()
            remove_quietly(self._path, self._files)

    def _close(self) -> None:
        self._drop()
        fd, self._fd = self._fd, -1
        self._files.close(fd)

    def _drop(self) -> None:
        if self._sign is not None:
            heartbeat.drop(self._sign)
            heartbeat.wait_for_end()

    def _orphans(self) -> list[Path]:
        """Partial files of dead processes with our content, largest first. Those of older contents are removed."""
        ours = []
        short = _short(self._target.name)
        with os.scandir(self._target.parent) as entries:
            found = [entry for entry in entries if entry.name.startswith(f".{short}.") and entry.name.endswith(PART)]
        for entry in found:
            path = Path(entry.path)
            if not is_orphan(path) or _stem_in(entry.name) != f".{short}":
                continue
            if _mark_in(entry.name) == self._mark:
                ours.append(path)
            else:
                remove_quietly(path, self._files)
        return sorted(ours, key=_size_or_zero, reverse=True)

    def _adopt(self, orphan: Path) -> None:
        try:
            self._files.rename(orphan, self._path)
        except OSError:
            return  # another process was faster
        try:
            self._fd = self._files.reopen(self._path)
        except OSError:
            # It was sealed, or is no file: the download begins anew.
            remove_quietly(self._path, self._files)
            return
        found = os.fstat(self._fd)
        self.size = found.st_size
        if not stat.S_ISREG(found.st_mode) or 0 <= self.shard.size < self.size:
            self.restart()
        elif self._hash is not None:
            _hash_into(self._hash, self._fd, 0)
        os.lseek(self._fd, self.size, os.SEEK_SET)
        log.info("%s: going on with %s bytes that an ended process left", self.shard, f"{self.size:,}")


def _hasher(etag: str, size: int) -> _Hash | None:
    if not is_hash(etag) or (len(etag) == 40 and size < 0):
        return None
    if len(etag) == 64:
        return hashlib.sha256()
    return hashlib.sha1(f"blob {size}\0".encode(), usedforsecurity=False)


def _hash_into(digest: _Hash, fd: int, at: int) -> None:
    while block := os.pread(fd, BLOCK, at):
        digest.update(block)
        at += len(block)
        beat()


def _kind(etag: str) -> str:
    return "sha256" if len(etag) == 64 else "git sha1"


def _short(name: str) -> str:
    """The start of a file name, short enough to leave room for what a partial file's name says besides."""
    return name.encode()[:60].decode("utf-8", "ignore")


def _mark_in(name: str) -> str | None:
    fields = name.removesuffix(PART).split(".")
    return fields[-5] if name.endswith(PART) and len(fields) > 5 else None


def _stem_in(name: str) -> str:
    return name.removesuffix(PART).rsplit(".", 5)[0]


def _size_or_zero(path: Path) -> int:
    try:
        return path.lstat().st_size
    except OSError:
        return 0


def explained(error: OSError, shard: Shard, target: Path) -> OSError:
    if is_file_limit(error):
        return too_many_files(f"{shard}: a file of the cache", error)
    told = explain_os_error(error, target)
    if isinstance(told, NoSpace):
        needs = f"{shard.size:,} bytes" if shard.size >= 0 else "an unknown number of bytes"
        return NoSpace(error.errno, f"{shard} needs {needs}: {told.args[1]}")
    return FetchError(
        error.errno,
        f"{shard} could not be written to {shown(target)}: {error.strerror}; give another folder with cache_dir= "
        f"(HEADRACE_CACHE_DIR)",
    )

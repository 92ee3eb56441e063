"""Regular files and nothing else: opened with care, read at any place, noticed when they change."""

from __future__ import annotations

import difflib
import errno
import os
import stat
import weakref
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from headrace.errors import Changed, DataError, FetchError, HeadraceError, NotAllowed, NotFound, shown
from headrace.limits import is_file_limit, too_many_files

MOST_CAUSES = 10
"""Errors that are raised again in other threads may be causes of each other, in a circle."""


class Signature(NamedTuple):
    """What tells that a file is still the one it was."""

    size: int
    mtime_ns: int
    inode: int

    @classmethod
    def of(cls, found: os.stat_result) -> Self:
        return cls(found.st_size, found.st_mtime_ns, found.st_ino)

    def differences(self, now: Signature) -> str:
        pairs = zip(self._fields, self, now, strict=True)
        return ", ".join(f"{name} was {was}, is {found}" for name, was, found in pairs if was != found)


class PlainBytes(ABC):
    """The plain bytes of a text file, at any place: of a file as it lies, or of one rewritten to be seekable."""

    label: str
    signature: Signature
    """Of the user's file, compressed or not."""
    size: int
    """Of the plain bytes."""

    @abstractmethod
    def read_bytes(self, start: int, stop: int) -> bytes:
        """Exactly the plain bytes [start, stop). Keeps no position, so threads and forks may share it."""

    @abstractmethod
    def check(self) -> None:
        """Raise `Changed` when the user's file is not the one that was opened."""

    _fd = -1

    def _hold(self, fd: int) -> None:
        """Keep a descriptor until we are closed, or forgotten. Not by `__del__`: that would run after each close() too,
        and an interrupt that comes while it runs is swallowed."""
        self._fd = fd
        self._forgotten = weakref.finalize(self, os.close, fd)
        self._forgotten.atexit = False

    def close(self) -> None:
        """Idempotent."""
        fd, self._fd = self._fd, -1
        if fd >= 0 and self._forgotten.detach() is not None:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class PlainFile(PlainBytes):
    """A regular file, read where it lies."""

    def __init__(self, path: str | Path, *, label: str | None = None, signature: Signature | None = None) -> None:
        self.path = Path(path)
        self.label = shown(path if label is None else label)
        fd, self.signature = open_regular(self.path, self.label)
        self._hold(fd)
        self.size = self.signature.size
        if signature is not None:
            require_same(self.label, signature, self.signature)

    def read_bytes(self, start: int, stop: int) -> bytes:
        data = read_exactly(self._fd, start, stop, self.label)
        self.check_content()
        if len(data) < stop - start:
            raise Changed(
                f"{self.label} changed while reading: it ends at byte {start + len(data)}, not at {self.size}"
            )
        return data

    @property
    def open_path(self) -> str:
        """A path to the open file itself, whatever stands under its name by now."""
        return f"/proc/self/fd/{self._fd}"

    def check_content(self) -> None:
        """Raise `Changed` when the open file was written to; it may have been moved or removed."""
        try:
            found = os.fstat(self._fd)
        except OSError as error:  # NFS, when another machine has removed it
            raise Changed(f"{self.label} changed while reading: it is gone ({error.strerror})") from error
        self._require(Signature.of(found))

    def check(self) -> None:
        try:
            found = os.stat(self.path)  # noqa: PTH116 - beside fstat, the same words
        except OSError as error:
            raise Changed(f"{self.label} changed while reading: it is gone ({error.strerror})") from error
        self._require(Signature.of(found))
        if read_exactly(self._fd, self.size, self.size + 1, self.label):
            raise Changed(f"{self.label} changed while reading: it goes on after its size of {self.size} bytes")

    def _require(self, found: Signature) -> None:
        if found != self.signature:
            raise Changed(
                f"{self.label} changed while reading: {self.signature.differences(found)}; "
                f"let its writer finish, then start again"
            )


def open_regular(path: Path, label: str) -> tuple[int, Signature]:
    """A descriptor of a regular file, and nothing else: never waits on a fifo, never touches a device."""
    try:
        _refuse_irregular(os.stat(path), label)  # noqa: PTH116 - beside fstat, the same words
        # What was a file at the stat may be a fifo by now: O_NONBLOCK keeps the open from waiting for its writer.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except HeadraceError:
        raise
    except (OSError, ValueError) as error:
        raise explain_open(error, path, label) from error
    try:
        found = os.fstat(fd)
        _refuse_irregular(found, label)
    except BaseException:
        os.close(fd)
        raise
    return fd, Signature.of(found)


def look_at(path: str) -> Signature:
    """The signature of a regular file that may be read. Where its mode tells that it may, it is not opened: there may
    be a hundred thousand, on a disk far away."""
    try:
        found = os.stat(path)  # noqa: PTH116 - of a string: a Path takes longer to make than the call
    except (OSError, ValueError) as error:
        raise explain_open(error, Path(path), shown(path)) from error
    may_read = 0o400 if found.st_uid == os.geteuid() else 0o044
    if stat.S_ISREG(found.st_mode) and found.st_mode & may_read == may_read:
        return Signature.of(found)
    with PlainFile(path) as file:
        return file.signature


def _refuse_irregular(found: os.stat_result, label: str) -> None:
    if stat.S_ISREG(found.st_mode):
        return
    if stat.S_ISDIR(found.st_mode):
        raise DataError(f"{label} is a folder, not a file; name its files with a glob, for example {label}/*")
    kinds = {stat.S_IFIFO: "a fifo", stat.S_IFSOCK: "a socket", stat.S_IFCHR: "a device", stat.S_IFBLK: "a device"}
    what = kinds.get(stat.S_IFMT(found.st_mode), "something else")
    raise DataError(f"{label} is {what}, not a regular file, so its rows cannot be read twice; save them in a file")


def explain_open(error: OSError | ValueError, path: Path, label: str) -> HeadraceError:
    if isinstance(error, ValueError):
        return NotFound(f"{label}: no such file ({error})")
    if is_file_limit(error):
        return too_many_files(label, error)
    if error.errno == errno.ELOOP:
        return NotFound(f"{label}: its symbolic links lead in a circle; point the link at the file")
    if error.errno == errno.ENOENT and path.is_symlink():
        return NotFound(f"{label} is a broken symbolic link: {shown(path.readlink())} does not exist")
    if isinstance(error, PermissionError):
        return NotAllowed(f"{label} may not be read by this user ({error.strerror}); chmod or chown it or its folders")
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
        return NotFound(f"{label}: no such file ({error.strerror}){nearest(path)}")
    return FetchError(error.errno, f"{label} cannot be opened: {error.strerror}")


def require_same(label: str, before: Signature, now: Signature) -> None:
    if before != now:
        raise Changed(
            f"{label} changed since its rows were counted: {before.differences(now)}; "
            f"put the old file back, or start anew with the new one"
        )


def is_stale(error: BaseException | None) -> bool:
    """Whether an error comes from an open file that another machine has removed, as NFS says it."""
    for _ in range(MOST_CAUSES):
        if isinstance(error, OSError) and error.errno == errno.ESTALE:
            return True
        error = None if error is None else error.__cause__
    return False


def read_exactly(fd: int, start: int, stop: int, label: str) -> bytes:
    """The bytes [start, stop), fewer only where the file ends."""
    if fd < 0:
        raise ValueError(f"{label} is closed")
    parts, at = [], start
    try:
        while at < stop and (part := os.pread(fd, stop - at, at)):
            parts.append(part)
            at += len(part)
    except OSError as error:
        raise FetchError(error.errno, f"{label}: bytes {at} to {stop} cannot be read: {error.strerror}") from error
    return parts[0] if len(parts) == 1 else b"".join(parts)


def nearest(path: Path) -> str:
    """The nearest names in the same folder, or in the last one on the way that exists, for an error."""
    folder, name = path.parent, path.name
    try:
        while not folder.is_dir() and folder != folder.parent:
            folder, name = folder.parent, folder.name
        names = sorted(p.name for p in folder.iterdir())[:10_000]
    except OSError:
        return f"; the folder {shown(folder)} cannot be listed"
    there = "there" if folder == path.parent else f"in {shown(folder)}"
    close = difflib.get_close_matches(name, names, n=3, cutoff=0.4)
    if close:
        return f"; nearest {there}: {', '.join(shown(n) for n in close)}"
    some = ", ".join(shown(n) for n in names[:3]) + (", …" if len(names) > 3 else "")
    return f"; {shown(folder)} has {some or 'no file'}"

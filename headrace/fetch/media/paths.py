"""Files that rows name: read only if they lie, after all links, under one folder that the user has given.

A name is looked at before the disk is. Then each of its parts is taken hold of without being opened (O_PATH) and
without following a link, so that nothing can be swapped between a check and the open: what is read in the end is
what was checked, through the very same handle.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path

from headrace.catalog.plain import read_exactly
from headrace.errors import HeadraceError, NotAllowed, NotFound, shown
from headrace.fetch.media.budget import Budget

# "C:" is a drive, "pipe:" and "concat:" are FFmpeg's, "zip://x::http://y" is fsspec's. Colons further on are harmless.
SCHEME = re.compile(r"\s*([A-Za-z][A-Za-z0-9+.\-]*):")
_ENCODED = re.compile(r"%(?:00|25|2e|2f|5c|c0|c1|e0%80|f0%80)", re.IGNORECASE)
_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_SYSTEM = ("/proc", "/sys", "/dev")
_MEMORY = "/dev/shm"  # noqa: S108 - a place for files, unlike the rest of /dev

_HOLD = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY


class _Link(Exception):
    """A part of the way is a symbolic link."""


def read_under(root: Path | None, name: str, budget: Budget) -> bytes:
    """The bytes of the file `name` under `root`."""
    if root is None:
        raise _refused(name, "its source has no folder of its own, so rows cannot name files; give MediaPolicy a root")
    parts = _parts(name, root)
    try:
        top = os.open(root, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise NotFound(f"the media folder {shown(root)} cannot be opened ({error.strerror})") from error
    try:
        home = os.readlink(f"/proc/self/fd/{top}")  # noqa: PTH115 - a handle, not a path
        try:
            handle = _take(top, parts)
        except _Link:
            handle = _take_resolved(top, home, parts, name)
        try:
            return _read(handle, home, name, budget)
        finally:
            os.close(handle)
    except _Link:
        raise _refused(name, "a part of it was replaced by a link while it was being opened") from None
    except HeadraceError:
        raise
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):
            raise NotFound(f"{shown(name)!r}: no such file under {shown(root)} ({error.strerror})") from error
        raise _refused(name, f"it may not be read by this user ({error.strerror})") from error
    finally:
        os.close(top)


def _parts(name: str, root: Path) -> list[str]:
    """The name as a way down from the root; names that try to be something else are refused here."""
    if _UNPRINTABLE.search(name):
        raise _refused(name, "it holds a NUL, a control character or bytes that are no text")
    if SCHEME.match(name) or "::" in name:
        raise _refused(name, "it is an address or has a drive letter; only plain names of files are followed")
    if "\\" in name:
        raise _refused(name, "it holds a backslash; folders are separated by /")
    if _ENCODED.search(name):
        raise _refused(name, "it holds an encoded dot, separator or percent sign; names are not decoded")
    if name.startswith("~"):
        raise _refused(name, "it names a home folder")
    way = name
    if name.startswith("/"):
        way = next((name[len(top) + 1 :] for top in _tops(root) if name.startswith(f"{top}/")), "")
        if not way:
            raise _refused(name, f"it is an absolute path outside of the media folder {shown(root)}")
    parts = [part for part in way.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise _refused(name, "it climbs out of its folder with '..'")
    if not parts:
        raise NotFound(f"{shown(name)!r} names no file under {shown(root)}")
    return parts


def _tops(root: Path) -> tuple[str, str]:
    return os.path.abspath(root).rstrip("/"), os.path.realpath(root).rstrip("/")  # noqa: PTH100 - links stay, as given


def _take(top: int, parts: list[str]) -> int:
    """A handle on the last part; nothing is opened, no link is followed."""
    handle = os.dup(top)
    for part in parts:
        try:
            below = os.open(part, _HOLD, dir_fd=handle)
        finally:
            os.close(handle)
        handle = below
        if stat.S_ISLNK(os.fstat(handle).st_mode):
            os.close(handle)
            raise _Link
    return handle


def _take_resolved(top: int, home: str, parts: list[str], name: str) -> int:
    """The same for a way with links in it: they may lead elsewhere under the root, and not out of it."""
    found = os.path.realpath(os.path.join(home, *parts))  # noqa: PTH118 - strings, as /proc gives them
    if not _is_under(found, home):
        raise _refused(name, "a symbolic link leads it out of the media folder")
    return _take(top, os.path.relpath(found, home).split("/"))


def _read(handle: int, home: str, name: str, budget: Budget) -> bytes:
    place = os.readlink(f"/proc/self/fd/{handle}")  # noqa: PTH115 - a handle, not a path
    if not _is_under(place, home):
        raise _refused(name, "it lies outside of the media folder")
    if any(_is_under(place, top) for top in _SYSTEM) and not _is_under(place, _MEMORY):
        raise _refused(name, "it lies in /proc, /sys or /dev")
    found = os.fstat(handle)
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "a fifo, a socket or a device"
        raise _refused(name, f"it is {what}, not a regular file")
    budget.require("max_bytes", found.st_size, f"the size in bytes of {shown(name)!r}")
    fd = os.open(f"/proc/self/fd/{handle}", _READ)
    try:
        data = read_exactly(fd, 0, budget.max_bytes + 1, shown(name))
    finally:
        os.close(fd)
    budget.require("max_bytes", len(data), f"the size in bytes of {shown(name)!r}")
    return data


def _is_under(path: str, folder: str) -> bool:
    return path.startswith(folder.rstrip("/") + "/")


def _refused(name: str, why: str) -> NotAllowed:
    return NotAllowed(f"a row names the file {shown(name)!r}, which is not opened: {why}")

"""The one place where cache, index and state files are written.

All writes go through a `Files` object, so that a test can put a recording, failing or power-losing one in its place.
`publish` is the only way a finished file appears under its name: written beside it under a name nobody else uses,
synced, renamed, and the folder synced. A reader sees the old file or the new one, never a part.
"""

from __future__ import annotations

import errno
import json
import os
import secrets
import stat
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from headrace.errors import FetchError, HeadraceError, NoSpace, shown

PART = ".part"
"""Unfinished files end so. They belong to the process named in them; see `unique_part`."""
PIECE = 1 << 20
SHARED_MEMORY = "/dev/shm"  # noqa: S108 - for files that have no name there
"""Where a temporary file lies in memory, if it is there and may be written to."""


class Files:
    """The system calls, and nothing else."""

    def create(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)

    def reopen(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)

    def write(self, fd: int, data: bytes | memoryview) -> None:
        view = memoryview(data)
        while len(view):
            view = view[os.write(fd, view) :]

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def seal(self, fd: int) -> None:
        """Nobody writes to it from here on, also not through another name."""
        os.fchmod(fd, 0o444)

    def mark(self, fd: int, name: str, value: bytes) -> None:
        """Have the file itself say something, whatever becomes of those beside it. Not every disk can."""
        os.setxattr(fd, name, value)

    def fsync(self, fd: int) -> None:
        os.fsync(fd)

    def close(self, fd: int) -> None:
        os.close(fd)

    def rename(self, old: Path, new: Path) -> None:
        os.rename(old, new)  # noqa: PTH104 - the seam names system calls

    def link(self, old: Path, new: Path) -> None:
        """A second name; unlike `rename` it fails where there is one already."""
        os.link(old, new, follow_symlinks=False)

    def unlink(self, path: Path) -> None:
        os.unlink(path)  # noqa: PTH108 - the seam names system calls

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


REAL = Files()


def process_tag() -> str:
    """This process, in a form that a later process can test for life: host, pid, start time."""
    return f"{host_tag()}.{os.getpid()}.{start_time(os.getpid())}"


def host_tag() -> str:
    """This boot, the pid namespace (pids of another one mean nothing here), and this machine, with dashes between."""
    global _HOST
    if _HOST is None:
        import hashlib

        parts = []
        node = os.uname().nodename
        for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
            try:
                parts.append(os.readlink(path) if path.endswith("pid") else Path(path).read_text())  # noqa: PTH115
            except OSError:
                parts.append(node)
        _HOST = "-".join(hashlib.blake2b(part.encode(), digest_size=5).hexdigest() for part in (*parts, node))
    return _HOST


_HOST: str | None = None


def is_of_earlier_boot(tag: str, path: Path) -> bool:
    """Whether the process of a `process_tag`, which made the file `path`, ended with an earlier boot of this machine.

    So it did where the boot is another and the machine is not, the disk is this machine's, and the file was not touched
    since this boot. Each of them could deceive: containers may have a boot of their own, machines the same name, disks
    may be served to others, clocks may jump.
    """
    then, now = tag.partition(".")[0].split("-"), host_tag().split("-")
    if len(then) != len(now) or then[0] == now[0] or then[-1] != now[-1]:
        return False
    try:
        found = path.lstat()
        return found.st_mtime < _boot_moment() - CLOCK_SECONDS and _is_own_disk(found.st_dev)
    except (OSError, AttributeError):
        return False


def _boot_moment() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)


CLOCK_SECONDS = 2.0
"""So much a clock may have been corrected by."""
_OWN_DISKS = {"bcachefs", "btrfs", "ext2", "ext3", "ext4", "f2fs", "jfs", "overlay", "tmpfs", "xfs", "zfs"}


def _is_own_disk(device: int) -> bool:
    """Whether the file system of a device is one that only one machine can have mounted."""
    number = f"{os.major(device)}:{os.minor(device)}"
    lines = (line.split() for line in Path("/proc/self/mountinfo").read_text().splitlines())
    return any(line[line.index("-") + 1] in _OWN_DISKS for line in lines if line[2] == number)


def start_time(pid: int) -> int:
    """Clock ticks since boot when `pid` started; 0 where that cannot be read (gone, not yet buried, or no /proc)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()
    return 0 if fields[0] in "ZX" else int(fields[19])


def is_alive(tag: str) -> bool | None:
    """Whether the process of a `process_tag` lives; None when it runs on another machine."""
    host, pid, started = tag.split(".")
    if host != host_tag():
        return None
    now = start_time(int(pid))
    if now:
        return now == int(started)
    try:
        os.kill(int(pid), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return int(started) == 0


def lives(tag: str, path: Path) -> bool | None:
    """`is_alive` of the process that made the file `path`; what an earlier boot of this machine ended does not live."""
    alive = is_alive(tag)
    return False if alive is None and is_of_earlier_boot(tag, path) else alive


def unique_part(path: Path, mark: str = "") -> Path:
    """A name beside `path` that no other process uses: `.<name>.<mark>.<host>.<pid>.<start>.<random>.part`."""
    stem = path.name.encode("utf-8", "surrogateescape")[:120].decode("utf-8", "ignore")
    return path.with_name(f".{stem}.{mark or 'x'}.{process_tag()}.{secrets.token_hex(4)}{PART}")


def part_owner(path: Path) -> str:
    """The `process_tag` in a name made by `unique_part`."""
    return ".".join(path.name.removesuffix(PART).split(".")[-4:-1])


def make_private_folder(path: Path) -> None:
    """A folder of ours that nobody else may write to: made 0700, and refused when it is not ours."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = path.lstat()
    if path.is_symlink() or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        from headrace.errors import NotAllowed

        raise NotAllowed(
            f"cache folder {shown(path)} is a link, is owned by another user or can be written by others, so its files "
            f"could be swapped under us; give a folder of your own with cache_dir=, or chmod 0700 it"
        )


def publish(path: Path, chunks: Iterable[bytes], files: Files = REAL) -> None:
    """Write a whole file so that it appears complete or not at all, also after a power cut."""
    part = unique_part(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        fd = files.create(part)
        try:
            for chunk in chunks:
                files.write(fd, chunk)
            files.fsync(fd)
        finally:
            files.close(fd)
        files.rename(part, path)
        files.fsync_dir(path.parent)
    except OSError as error:
        remove_quietly(part, files)
        raise explain_os_error(error, path) from error
    except BaseException:
        remove_quietly(part, files)
        raise


def publish_json(path: Path, value: Any, files: Files = REAL) -> None:
    publish(path, [json.dumps(value, separators=(",", ":"), sort_keys=True).encode()], files)


def put_json(path: Path, value: Any, files: Files = REAL) -> None:
    """As `publish_json`, without waiting for the disk: whole for every reader, but a power cut may lose or tear it."""
    part = unique_part(path)
    try:
        fd = files.create(part)
        try:
            files.write(fd, json.dumps(value, separators=(",", ":"), sort_keys=True).encode())
        finally:
            files.close(fd)
        files.rename(part, path)
    except BaseException:
        remove_quietly(part, files)
        raise


def keep_json(path: Path, value: Any) -> None:
    """As `publish_json`, for files of the cache folder that have no other care taken of them: an index, a pin. What a
    killed writer left beside it is removed."""
    try:
        publish_json(path, value)
        with suppress(OSError):  # what lies beside it is no matter of this one
            _remove_orphans(path.parent)
    except HeadraceError:
        raise
    except OSError as error:
        raise FetchError(
            error.errno,
            f"{shown(path)} could not be written: {error.strerror}; give another folder with cache_dir= "
            f"(HEADRACE_CACHE_DIR)",
        ) from error


def _remove_orphans(folder: Path) -> None:
    """Unfinished files of dead processes of this machine: once per process and folder."""
    if (os.getpid(), folder) in _TIDY:
        return
    _TIDY.add((os.getpid(), folder))
    for path in [path for path in folder.iterdir() if path.name.startswith(".") and path.name.endswith(PART)]:
        with suppress(ValueError):  # not a name of ours
            if lives(part_owner(path), path) is False:
                remove_quietly(path)


_TIDY: set[tuple[int, Path]] = set()


def read_whole(path: Path, most: int = 1 << 30) -> bytes:
    """A regular file of at most so many bytes. A pipe or a device in its place is an OSError, and not waited for."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        data = bytearray()
        # By pieces: one read takes as much memory as it asks for, and a process may have less than the most.
        while len(data) <= most and (piece := os.read(fd, min(PIECE, most + 1 - len(data)))):
            data += piece
    finally:
        os.close(fd)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return bytes(data)


def memory_file(name: str) -> int:
    """The descriptor of a file in memory that no folder lists; `name` is what /proc shows for it.

    Where the system makes none (some sandboxes, kernels and Pythons do not), it is a temporary file without a name.
    """
    try:
        return os.memfd_create(name)
    except AttributeError:
        pass
    except OSError as error:
        if error.errno in (errno.EMFILE, errno.ENFILE):
            raise OSError(error.errno, "this process may open no more files; raise `ulimit -n`") from error
    for folder in (SHARED_MEMORY, None):
        try:
            with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
                return os.dup(file.fileno())
        except OSError:
            if folder is None:
                raise
    raise AssertionError


def remove_quietly(path: Path, files: Files = REAL) -> bool:
    """Unlink, where being gone already, or not being allowed to, is no news. True if it was removed by us."""
    try:
        files.unlink(path)
    except OSError:
        return False
    return True


def explain_os_error(error: OSError, path: Path) -> OSError:
    """A full disk becomes `NoSpace` with the numbers; every other error stays what it is."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return error
    try:
        space = os.statvfs(path.parent)
        free = f"{space.f_bavail * space.f_frsize:,} bytes and {space.f_favail:,} inodes free"
    except OSError:
        free = "free space unknown"
    return NoSpace(
        error.errno,
        f"no room to write {shown(path)} ({error.strerror}; {free}); free some space, or point cache_dir= "
        f"(HEADRACE_CACHE_DIR) at a larger disk, or lower HEADRACE_CACHE_BYTES so that old shards go earlier",
    )

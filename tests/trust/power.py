"""A disk that loses power: which states it may be found in afterwards.

Calls are done for real and written down. What a crash may leave, by POSIX and no more:

- of a file, what was written up to its last fsync; or any of: all of it, a part, or nothing but zeros of that length;
- of a folder, its names as of its last fsync, and then any number of the changes after it, in their order.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from headrace.files import Files


@dataclass
class Inode:
    written: bytearray = field(default_factory=bytearray)
    durable: bytes | None = None
    """What is on the disk for certain; None: nothing was ever synced, not even that it is empty."""

    def contents(self) -> list[bytes]:
        """What may be found in it."""
        now = bytes(self.written)
        if self.durable == now:
            return [now]
        found = [self.durable or b"", now, bytes(len(now)), now[: len(now) // 2]]
        return list(dict.fromkeys(found))


Change = tuple[str, Inode | None]
"""A name, and what it stands for from then on (None: it is gone)."""


@dataclass
class Folder:
    durable: dict[str, Inode] = field(default_factory=dict)
    changes: list[list[Change]] = field(default_factory=list)
    """Since the last fsync; those of one call come together or not at all."""

    def now(self, count: int | None = None) -> dict[str, Inode]:
        found = dict(self.durable)
        for changes in self.changes[: len(self.changes) if count is None else count]:
            for name, inode in changes:
                if inode is None:
                    found.pop(name, None)
                else:
                    found[name] = inode
        return found


State = dict[str, bytes]
"""Path under the root -> content."""


class PowerDisk(Files):
    """Below `root`. `states()` gives what may be found if the power goes now."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls: list[str] = []
        self.found: dict[str, set[tuple[tuple[str, bytes], ...]]] = {}
        """Per call, the states that a crash right after it may leave."""
        self._folders: dict[str, Folder] = {}
        self._open: dict[int, Inode] = {}

    def _folder(self, path: Path) -> Folder:
        return self._folders.setdefault(str(path.parent.relative_to(self.root)), Folder())

    def _note(self, what: str) -> None:
        self.calls.append(what)
        key = f"{len(self.calls):03d} {what}"
        self.found[key] = {tuple(sorted(state.items())) for state in self.states()}

    def states(self) -> Iterator[State]:
        """Folders are synced one by one, so each is at a moment of its own."""
        choices = [[(name, count) for count in range(len(f.changes) + 1)] for name, f in self._folders.items()]
        for moment in itertools.product(*choices):
            names: list[tuple[str, Inode]] = []
            for folder, count in moment:
                names += [(str(Path(folder) / name), i) for name, i in self._folders[folder].now(count).items()]
            inodes = list({id(inode): inode for _, inode in names}.values())
            for contents in itertools.product(*(inode.contents() for inode in inodes)):
                by_inode = {id(inode): content for inode, content in zip(inodes, contents, strict=True)}
                yield {path: by_inode[id(inode)] for path, inode in names}

    # --- calls

    def create(self, path: Path) -> int:
        fd = super().create(path)
        self._open[fd] = Inode()
        self._folder(path).changes.append([(path.name, self._open[fd])])
        self._note(f"create {path.name}")
        return fd

    def reopen(self, path: Path) -> int:
        fd = super().reopen(path)
        self._open[fd] = self._folder(path).now()[path.name]
        return fd

    def write(self, fd: int, data: bytes | memoryview) -> None:
        super().write(fd, data)
        self._open[fd].written += data
        self._note("write")

    def truncate(self, fd: int, size: int) -> None:
        super().truncate(fd, size)
        del self._open[fd].written[size:]
        self._note("truncate")

    def fsync(self, fd: int) -> None:
        self._open[fd].durable = bytes(self._open[fd].written)
        self._note("fsync")

    def close(self, fd: int) -> None:
        super().close(fd)
        self._open.pop(fd, None)

    def rename(self, old: Path, new: Path) -> None:
        super().rename(old, new)
        folder = self._folder(old)
        assert old.parent == new.parent, "a name that moves to another folder is not modelled"
        folder.changes.append([(new.name, folder.now()[old.name]), (old.name, None)])
        self._note(f"rename {old.name} {new.name}")

    def link(self, old: Path, new: Path) -> None:
        super().link(old, new)
        folder = self._folder(new)
        folder.changes.append([(new.name, folder.now()[old.name])])
        self._note(f"link {new.name}")

    def unlink(self, path: Path) -> None:
        super().unlink(path)
        self._folder(path).changes.append([(path.name, None)])
        self._note(f"unlink {path.name}")

    def fsync_dir(self, path: Path) -> None:
        folder = self._folders.setdefault(str(path.relative_to(self.root)), Folder())
        folder.durable, folder.changes = folder.now(), []
        self._note("fsync_dir")


def put(state: tuple[tuple[str, bytes], ...], root: Path) -> None:
    """A disk as it was found."""
    for name, content in state:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.write_bytes(content)
    for folder in [path for path in root.rglob("*") if path.is_dir()]:
        os.chmod(folder, 0o700)  # noqa: PTH101 - as the cache makes them

"""What runs need of a cache, written beside it, so that `auto` cleanup leaves it alone when they were killed.

    <root>/hf_shards/.needs/<run>-<part>-<parts>.<host>.<pid>.<start>

A need has two parts. That of the state which was returned last counts until a later process of the same run returns
one; that of the places where readers began counts while their process lives, because they may have no lease yet. A need
that is lost or out of date costs a download, and nothing else, so no write here waits for the disk.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from headrace.catalog.shard import Shard
from headrace.errors import HeadraceError
from headrace.fetch import heartbeat
from headrace.fetch.download import is_hash
from headrace.fetch.heartbeat import Sign, is_owner_alive
from headrace.files import Files, make_private_folder, process_tag, put_json, read_whole, remove_quietly

FORMAT = 1
KEPT_SECONDS = 30 * 24 * 3600.0
"""The need of a run that was not continued for so long is forgotten."""
KEPT = 64
"""So many needs of ended processes are kept: those written last."""
MOST_BYTES = 64 << 20


def mark_of(etag: str, origin: str) -> str:
    """A short name for a content. A part of a file has the name of the whole file."""
    whole = etag.partition("[")[0]
    text = whole if is_hash(whole) else f"{origin}|{whole}"
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def mark_of_shard(shard: Shard) -> str:
    return mark_of(shard.etag, shard.origin.name)


@dataclass(eq=False)
class _Noted:
    """What one file says."""

    saved: frozenset[str] | None = None
    """None: this process has returned no state."""
    begun: dict[int, frozenset[str]] = field(default_factory=dict)
    """Per reader."""
    sign: Sign | None = None
    """While there are readers: what they need counts while this process lives."""


_NOTED: dict[Path, _Noted] = {}
"""By file. Its name has the process in it, so a forked child begins with nothing noted."""


class Need:
    """What one run, or its part of several, needs of a cache."""

    def __init__(self, folder: Path, files: Files, run: str, part: int = 0, parts: int = 1) -> None:
        self._folder, self._files = folder, files
        self._run = hashlib.blake2b(run.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        self._name = f"{self._run}-{part}-{parts}"

    def save(self, marks: Iterable[str]) -> None:
        """A state was returned that needs these. Files are written only where that differs from the state before."""
        path, noted, found = self._path, self._noted, frozenset(marks)
        if found != noted.saved:
            noted.saved = found
            self._write(path, noted)
            self._supersede(path)

    def begin(self, reader: object, marks: Iterable[str]) -> None:
        """A reader begins where it needs these. It takes leases from there on."""
        noted = self._noted
        noted.begun[id(reader)] = frozenset(marks)
        self._write(self._path, noted)

    def end(self, reader: object) -> None:
        noted = _NOTED.get(self._path)
        if noted is not None and noted.begun.pop(id(reader), None) is not None:
            self._write(self._path, noted)

    @property
    def _path(self) -> Path:
        return self._folder / f"{self._name}.{process_tag()}"

    @property
    def _noted(self) -> _Noted:
        return _NOTED.setdefault(self._path, _Noted())

    def _write(self, path: Path, noted: _Noted) -> None:
        begun = frozenset().union(*noted.begun.values())
        if not begun and noted.sign is not None:
            heartbeat.drop(noted.sign)
            heartbeat.wait_for_end()
            noted.sign = None
        if not noted.saved and not begun:
            remove_quietly(path, self._files)
            return
        value = {"format": FORMAT, "saved": sorted(noted.saved or ()), "begun": sorted(begun)}
        with suppress(OSError, HeadraceError):  # where nothing can be written, it may have to be downloaded again
            make_private_folder(self._folder.parent)
            self._folder.mkdir(mode=0o700, exist_ok=True)
            put_json(path, value, self._files)
        if begun and noted.sign is None:
            noted.sign = heartbeat.hold(path, lambda: self._write(path, noted))

    def _supersede(self, own: Path) -> None:
        """Remove what ended processes left of this run: of the same part of it, or of another number of parts."""
        parts = self._name.rpartition("-")[2]
        for path in _entries(self._folder, self._run):
            name = path.name.partition(".")[0]
            if path != own and (name == self._name or name.rpartition("-")[2] != parts) and not _lives(path):
                remove_quietly(path, self._files)


def needed(folder: Path, files: Files) -> set[str]:
    """The marks of all that any run needs. What has no meaning any more is removed."""
    marks: set[str] = set()
    ended: list[tuple[float, Path, set[str]]] = []
    for path in _entries(folder, ""):
        try:
            saved, begun = _read(path)
            alive, written = _lives(path), path.lstat().st_mtime
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
                raise  # nothing is wrong with it
            continue
        except (ValueError, LookupError, TypeError, RecursionError):
            remove_quietly(path, files)  # torn by a power cut, or not ours: either way it says nothing
            continue
        if alive:
            marks |= saved | begun
        elif saved and abs(time.time() - written) < KEPT_SECONDS:
            ended.append((written, path, saved))
        else:
            remove_quietly(path, files)
    ended.sort(reverse=True)
    for _, _, saved in ended[:KEPT]:
        marks |= saved
    for _, path, _ in ended[KEPT:]:
        remove_quietly(path, files)
    return marks


def _entries(folder: Path, prefix: str) -> Iterator[Path]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.name.startswith(prefix) and entry.name[0] != "."]
    except (FileNotFoundError, NotADirectoryError):
        return iter(())
    return (folder / name for name in names)


def _read(path: Path) -> tuple[set[str], set[str]]:
    value = json.loads(read_whole(path, MOST_BYTES))
    if value["format"] != FORMAT:
        raise ValueError("a need of another format")
    return set(map(str, value["saved"])), set(map(str, value["begun"]))


def _lives(path: Path) -> bool:
    """Whether the process that wrote it lives. One of another machine is heard only while it has readers."""
    return is_owner_alive(".".join(path.name.split(".")[1:4]), path)

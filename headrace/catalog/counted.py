"""Lines of local files that were counted before: kept per file, so that one more file does not mean counting them all.

One JSON file for the files of a folder. It is only an aid: whatever is wrong with it, lines are counted again.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.catalog.lines import LineIndex
from headrace.catalog.shard import Shard
from headrace.errors import DataError, HeadraceError, shown
from headrace.files import keep_json, read_whole

log = logging.getLogger(__name__)

FORMAT = 1
SAVE_SECONDS = 30.0
"""A pass that takes longer keeps what it has counted so far: it may be killed."""


class CountedLines:
    """What was counted of files of one kind. As a context manager it keeps what is new at its end, also after an
    error. Threads may share it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self._folder, self._kind = folder, kind
        self._known: dict[str, dict[str, Any]] = {}
        """For each folder of files, by the name of the file: size, modification time and lines."""
        self._new: set[str] = set()
        self._lock = threading.Lock()
        self._saved = time.monotonic()

    def get(self, shard: Shard) -> LineIndex | None:
        """The lines of a file that has the path, size and modification time that it had when they were counted."""
        folder, name = os.path.split(os.path.abspath(shard.path))  # noqa: PTH100 - keeps what links are called
        with self._lock:
            found = self._of(folder).get(name)
        if not isinstance(found, list) or len(found) != 3 or found[:2] != [shard.size, shard.etag]:
            return None
        try:
            lines = LineIndex.from_json(found[2])
        except DataError:
            return None
        return lines if lines.digest and lines.kind == self._kind else None

    def put(self, shard: Shard, lines: LineIndex) -> LineIndex:
        folder, name = os.path.split(os.path.abspath(shard.path))  # noqa: PTH100
        with self._lock:
            self._of(folder)[name] = [shard.size, shard.etag, lines.to_json()]
            self._new.add(folder)
            if time.monotonic() - self._saved > SAVE_SECONDS:
                self._save()
        return lines

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        with self._lock:
            self._save()

    def _save(self) -> None:
        for folder in sorted(self._new):
            files = self._of(folder)
            there = {name: value for name, value in files.items() if os.path.lexists(os.path.join(folder, name))}  # noqa: PTH118
            try:
                keep_json(self._path(folder), {"format": FORMAT, "folder": folder, "files": there})
            except (HeadraceError, OSError) as error:
                log.info("the lines counted in %s are not kept: %s", shown(folder), shown(error))
        self._new.clear()
        self._saved = time.monotonic()

    def _of(self, folder: str) -> dict[str, Any]:
        if folder not in self._known:
            self._known[folder] = self._read(folder)
        return self._known[folder]

    def _read(self, folder: str) -> dict[str, Any]:
        try:
            value = json.loads(read_whole(self._path(folder)))
            if value["format"] == FORMAT and value["folder"] == folder and isinstance(value["files"], dict):
                return dict(value["files"])
        except FileNotFoundError:
            pass
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            log.info("what was counted in %s before cannot be used: %s", shown(folder), shown(error))
        return {}

    def _path(self, folder: str) -> Path:
        digest = hashlib.blake2b(folder.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
        return self._folder / "lines" / f"{self._kind}-{digest}.json"

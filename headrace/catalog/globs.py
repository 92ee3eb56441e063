"""Local paths by pattern. Two things differ from the standard library's `glob`: a folder that cannot be read is an
error and not a smaller source, and links that lead in a circle are gone round once.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from headrace.catalog.plain import explain_open
from headrace.errors import shown


def find_paths(pattern: str) -> tuple[list[str], list[str]]:
    """What matches, in name order: files (of any kind, also broken links), and folders. `**` crosses folders."""
    root = "/" if pattern.startswith("/") else ""
    parts = [part for part in pattern.split("/") if part]
    found = dict(_matches(root, parts, _identity(root)))
    files = sorted(path for path, is_folder in found.items() if not is_folder)
    return files, sorted(path for path, is_folder in found.items() if is_folder)


def _matches(folder: str, parts: Sequence[str], above: frozenset[tuple[int, int]]) -> Iterator[tuple[str, bool]]:
    """Paths, and whether they are folders. `above`: the folders that the way to this one goes through."""
    part, rest = parts[0], parts[1:]
    if not glob.has_magic(part):
        path = folder + part
        if rest:
            yield from _matches(f"{path}/", rest, above | _identity(path))
        elif _exists(path):
            yield path, os.path.isdir(path)  # noqa: PTH112 - of a string, as all paths here
        return
    if part == "**" and rest:
        yield from _matches(folder, rest, above)
    fits = _fits("*" if part == "**" else part)
    for entry in _entries(folder):
        if not fits(entry.name) or (entry.name.startswith(".") and not part.startswith(".")):
            continue
        path, is_folder = folder + entry.name, _is_folder(entry)
        if not rest:
            yield path, is_folder
        if (rest or part == "**") and is_folder:
            here = _identity(path)
            if part != "**":
                yield from _matches(f"{path}/", rest, above | here)
            elif not here <= above:
                yield from _matches(f"{path}/", parts, above | here)


def _fits(part: str) -> Callable[[str], object]:
    """Whether a name matches a pattern. One `*` is what most patterns are, and needs no expression made for it."""
    start, star, end = part.partition("*")
    if not star or glob.has_magic(start) or glob.has_magic(end):
        return re.compile(fnmatch.translate(part)).match
    return lambda name: len(name) >= len(start) + len(end) and name.startswith(start) and name.endswith(end)


def _entries(folder: str) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder or ".") as entries:
            return list(entries)
    except (FileNotFoundError, NotADirectoryError):
        return []
    except OSError as error:
        raise explain_open(error, Path(folder), shown(folder.rstrip("/"))) from error


def _exists(path: str) -> bool:
    try:
        os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise explain_open(error, Path(path), shown(path)) from error
    return True


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError as error:
        if error.errno == errno.ELOOP:
            return False
        raise explain_open(error, Path(entry.path), shown(entry.path)) from error


def _identity(folder: str) -> frozenset[tuple[int, int]]:
    try:
        found = os.stat(folder or ".")  # noqa: PTH116 - of a string, as all paths here
    except OSError:
        return frozenset()
    return frozenset([(found.st_dev, found.st_ino)])

"""Small made-up sets: seeded, the same bytes everywhere, and right. Sums add up, diffs apply, code gives what it says.

    headrace.synth.write("cot", "data/synth", rows=200, seed=0)   # data/synth/cot.jsonl
    headrace.synth.row("shell", 3, seed=0)                        # one row, without the others

A kind is one function `(dice, i, seed) -> fields`. Row i depends on its kind, its number and the seed only, so a longer
set begins with the shorter one.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

from headrace.errors import SpecError, shown
from headrace.files import Files, publish

_HOMES = {
    "cot": "cot",
    "idk": "facts",
    "fact_check": "facts",
    "uncertainty": "odds",
    "commits": "git",
    "diffs": "git",
    "issues": "git",
    "jupyter": "notebooks",
    "shell": "shell",
    "documents": "documents",
}
"""Each kind and the file that its function of the same name is in."""

KINDS: tuple[str, ...] = tuple(_HOMES)
ROWS = 200
_FIRST_DATE, _DATES = 10**18, 5 * 10**17
"""Dates lie within sixteen years from 2001 on."""


def row(kind: str, i: int, seed: int = 0) -> dict[str, Any]:
    """Row `i` of a set."""
    from headrace.synth.dice import Dice

    _check(kind, seed)
    if type(i) is not int or i < 0:
        raise SpecError(f"row number {shown(i)}: rows count from 0")
    fields = _maker(kind)(Dice(kind, seed, i), i, seed)
    return {"id": f"{kind}-{seed}-{i}", "kind": kind, "seed": seed, **fields}


def write(
    kind: str,
    folder: str | Path,
    rows: int = ROWS,
    seed: int = 0,
    *,
    on_row: Callable[[], None] | None = None,
) -> Path:
    """A set as `<folder>/<kind>.jsonl`, whole or not at all. A file that has these very bytes is left as it is.

    `on_row` is called after each row.
    """
    _check(kind, seed)
    if type(rows) is not int or rows < 1:
        raise SpecError(f"rows={shown(rows)}: a set has at least one row")
    path = path_of(kind, folder)
    data = b"".join(_lines(kind, rows, seed, on_row))
    if not (path.is_file() and path.read_bytes() == data):
        publish(path, [data], Dated(data))
    return path


def path_of(kind: str, folder: str | Path) -> Path:
    """Where `write` puts a set."""
    _check(kind)
    return Path(folder) / f"{kind}.jsonl"


class Dated(Files):
    """Files whose date follows from what is in them.

    A resumed run tells local files by size and date. So a set that is written anew, here or on another machine, is
    still the one that was read, and one with other rows is not.
    """

    def __init__(self, data: bytes) -> None:
        nanoseconds = int.from_bytes(hashlib.blake2b(data, digest_size=8).digest(), "big")
        self._date = _FIRST_DATE + nanoseconds % _DATES

    def fsync(self, fd: int) -> None:
        os.utime(fd, ns=(self._date, self._date))
        super().fsync(fd)


def _lines(kind: str, rows: int, seed: int, on_row: Callable[[], None] | None) -> Iterator[bytes]:
    for i in range(rows):
        yield json.dumps(row(kind, i, seed), ensure_ascii=False).encode() + b"\n"
        if on_row is not None:
            on_row()


def _maker(kind: str) -> Callable[..., dict[str, Any]]:
    maker: Callable[..., dict[str, Any]] = getattr(import_module(f"headrace.synth.{_HOMES[kind]}"), kind)
    return maker


def _check(kind: str, seed: int = 0) -> None:
    if kind not in _HOMES:
        raise SpecError(f"there is no synthetic set {shown(kind)!r}; there are {', '.join(KINDS)}")
    if type(seed) is not int or seed < 0:
        raise SpecError(f"seed={shown(seed)}: a whole number from 0 on is expected")

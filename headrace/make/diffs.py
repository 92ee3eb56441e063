"""Unified diffs that `patch` and `git apply` take."""

from __future__ import annotations

import difflib

MOST_CHARACTERS = 2**21
"""Of both texts together; finding the lines that stayed takes too long beyond."""
_NO_NEWLINE = "\n\\ No newline at end of file\n"


def unified_diff(before: str, after: str, path: str) -> str:
    """The change from one text to the other; "" where there is none, or where the texts are too long for it."""
    if before == after or len(before) + len(after) > MOST_CHARACTERS:
        return ""
    path = " ".join(path.split()) or "file"
    old = f"a/{path}" if before else "/dev/null"
    new = f"b/{path}" if after else "/dev/null"
    lines = difflib.unified_diff(_lines(before), _lines(after), old, new)
    return "".join(_ended(line) for line in lines)


def _lines(text: str) -> list[str]:
    """Lines as diff knows them: only a newline ends one."""
    return [f"{line}\n" for line in text.split("\n")[:-1]] + [line for line in text.split("\n")[-1:] if line]


def _ended(line: str) -> str:
    return line if line.endswith("\n") else line + _NO_NEWLINE

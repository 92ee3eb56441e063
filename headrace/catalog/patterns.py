"""Glob patterns of a repo's README, as regular expressions that no pattern can make slow."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headrace.errors import DataError, shown

MOST_CROSSINGS = 2
"""`**` in one pattern; each tries all the places for the rest."""

_FOLDERS, _ANYTHING = "(?:[^/]+/)*", ".*"
_STAR = None


def glob_regex(pattern: str) -> re.Pattern[str]:
    """`**` crosses folders, `*` and `?` do not."""
    out: list[str] = []
    part: list[str | None] = []
    for token in _tokens(pattern):
        if token not in (_FOLDERS, _ANYTHING, "/"):
            part.append(token)
        elif token != _FOLDERS or out[-1:] != [_FOLDERS] or part:
            out += [_part(part, before_anything=token == _ANYTHING), token]
            part = []
    if sum(token in (_FOLDERS, _ANYTHING) for token in out) > MOST_CROSSINGS:
        raise DataError(f"the pattern {shown(pattern)!r} has more than {MOST_CROSSINGS} `**`, which is not supported")
    return re.compile("".join([*out, _part(part, before_anything=False)]), re.DOTALL)


def _tokens(pattern: str) -> Iterator[str | None]:
    """The pattern as regular expressions, each for one character or a `**`; None: a `*`."""
    i = 0
    while i < len(pattern):
        c, stars = pattern[i], re.compile(r"\**").match(pattern, i)
        assert stars is not None
        i = max(stars.end(), i + 1)
        if len(stars[0]) > 1:
            yield _FOLDERS if pattern.startswith("/", i) else _ANYTHING
            i += pattern.startswith("/", i)
        elif c == "*":
            yield _STAR
        elif c == "?":
            yield "[^/]"
        elif c == "[" and (end := pattern.find("]", i + 1)) > 0:
            yield _one_of(pattern[i:end])
            i = end + 1
        else:
            yield c if c == "/" else re.escape(c)


def _one_of(inside: str) -> str:
    """What stands between brackets; a range that is none matches nothing."""
    no = inside.startswith("!")
    plain = re.sub(r"[^\w\-]", lambda c: re.escape(c[0]), inside[no:])
    regex = f"[^/{plain}]" if no else f"[{plain}]"
    try:
        re.compile(regex)
    except re.error:
        return "(?!)"
    return regex


def _part(tokens: list[str | None], before_anything: bool) -> str:
    """A run inside one folder. All stars but the last take as little as they can, once and for all."""
    fixed = [""]
    for token in tokens:
        if token is _STAR:
            fixed.append("")
        else:
            fixed[-1] += token
    *head, last = fixed
    first, middle = ("", []) if not head else (head[0], head[1:])
    stars = "".join(f"(?>[^/]*?{text})" for text in middle)
    if not head:
        return last
    return f"{first}{stars}(?>[^/]*?{last})" if before_anything else f"{first}{stars}[^/]*{last}"

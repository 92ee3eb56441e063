"""A change to a small program, with calls that show what it does before and after."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from string import Template
from typing import NamedTuple

from headrace.synth.dice import Dice

_FOLDERS = ("src", "lib", "tools", "app", "core", "common", "util", "helpers", "scripts", "pkg")


class Check(NamedTuple):
    on: str
    """`before` or `after`: the text that is run."""
    call: str
    result: str
    """What the call gives, as `repr` writes it, or the error with its message."""

    @property
    def is_error(self) -> bool:
        return self.result.partition(":")[0].endswith("Error")


@dataclass(frozen=True, kw_only=True)
class Change:
    type: str
    """fix, rename, feature, refactor, test or docs."""
    file: str
    before: str
    after: str
    subject: str
    """The first line of the commit message: what the change does, as an order."""
    body: str
    """Why."""
    checks: list[Check]
    title: str = ""
    """Of a fix: the issue, in a line."""

    def __post_init__(self) -> None:
        assert self.before != self.after, self
        assert all(text.endswith("\n") for text in (self.before, self.after)), self

    @property
    def diff(self) -> str:
        return unified(self.before, self.after, self.file)


def unified(before: str, after: str, file: str) -> str:
    """The change as git writes it."""
    lines = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{file}", f"b/{file}")
    return f"diff --git a/{file} b/{file}\n{''.join(lines)}"


def fill(text: str, names: Mapping[str, str] | None = None) -> str:
    """A program without the indentation of ours, its `$names` filled in."""
    return Template(textwrap.dedent(text).lstrip("\n")).substitute(names or {})


def swap(text: str, *pairs: tuple[str, str]) -> str:
    """A text with parts replaced; each of them has to be in it."""
    for old, new in pairs:
        assert old in text, (old, text)
        text = text.replace(old, new)
    return text


def place(dice: Dice, name: str) -> str:
    """A file of that name, somewhere."""
    return f"{dice.pick(_FOLDERS)}/{name}.py"


def both(call: str, result: object) -> list[Check]:
    """A call that gives the same before and after."""
    return [Check("before", call, repr(result)), Check("after", call, repr(result))]


def fixed(call: str, wrong: object, right: object) -> list[Check]:
    """A call that gave something wrong. An error stands for what it prints."""
    return [Check("before", call, printed(wrong)), Check("after", call, printed(right))]


def printed(value: object) -> str:
    return f"{type(value).__name__}: {value}" if isinstance(value, Exception) else repr(value)

"""Where the end of a text is cut off, the media that stand there go with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from headrace.make.draft import LIST_KEYS, placeholder


def ends_of_media(text: str, marks: Mapping[str, str]) -> dict[str, list[int]]:
    """Where each placeholder ends, by kind. `marks`: what stands for a medium of a kind."""
    found: dict[str, list[int]] = {}
    for kind, mark in marks.items():
        at = text.find(mark) if mark else -1
        while at >= 0:
            found.setdefault(kind, []).append(at + len(mark))
            at = text.find(mark, at + len(mark))
    return found


def marks_of(tokens: Mapping[str, str]) -> dict[str, str]:
    return {kind: placeholder(tokens, kind) for kind in LIST_KEYS}


def without_cut(
    one: dict[str, Any], ends: Mapping[str, list[int]], tokens_before: Callable[[list[int]], list[int]], room: int
) -> dict[str, Any]:
    """A sample without the media whose placeholders are beyond its first `room` tokens. Where there are more or fewer
    of them than media, nobody can tell which is which, and all stay.

    `tokens_before`: for places in the text, in order, how many tokens there are up to each. It is asked for all of a
    kind at once, so that a text with many media is not tokenized for each of them.
    """
    found = dict(one)
    for kind, own in ends.items():
        several = LIST_KEYS[kind]
        values = one.get(several) if one.get(several) is not None else [one[kind]] if one.get(kind) is not None else []
        if not isinstance(values, list | tuple) or len(values) != len(own):
            continue
        kept = sum(tokens <= room for tokens in tokens_before(own))
        if kept == len(own):
            continue
        found.pop(several, None)
        found.pop(kind, None)
        if kept:
            found |= {kind: values[0]} if kept == 1 else {several: list(values[:kept])}
    return found

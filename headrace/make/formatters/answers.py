"""Questions with options, and answers given as number, letter, text or list."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace.make.fields import Row, first_of
from headrace.make.turns import Piece, Turn, turn
from headrace.make.values import as_text, dumped, is_whole, joined, listed, texts

_LETTER = re.compile(r"\(?([A-Za-z])\)?[.):]?")
_LETTERED = re.compile(r"\(?([A-Za-z])[.):]\s+(.*)", re.DOTALL)
_NO_OPTION = frozenset({"", "n/a"})


def letter(index: int) -> str:
    return chr(ord("A") + index) if index < 26 else str(index + 1)


def options_of(row: Row) -> list[str]:
    """The options without the letters that may stand before them; missing ones at the end are left out."""
    found = [as_text(item).strip() for _, item in _named(row)]
    while found and found[-1].lower() in _NO_OPTION:
        found.pop()
    inside = [_LETTERED.fullmatch(option) for option in found]
    if found and all(match and match[1].upper() == letter(i) for i, match in enumerate(inside)):
        found = [match[2] for match in inside if match]
    return found


def _named(row: Row) -> list[tuple[str, Any]]:
    """The options, each with the name that the row has for it ("" where it has none): a list, a struct with a list of
    texts and maybe one of labels, or an option under each letter."""
    value = listed(first_of(row, "options", "choices"))
    names: list[str] = []
    if isinstance(value, Mapping) and "text" in value:
        names = texts(value.get("label"))
        value = value["text"]
    elif isinstance(value, Mapping):
        keys = [key for key in value if isinstance(key, str)]
        keys = sorted(keys) if all(_LETTER.fullmatch(key) for key in keys) else keys
        names, value = keys, [value[key] for key in keys]
    if not isinstance(value, list | tuple):
        return []
    return list(zip(names if len(names) == len(value) else [""] * len(value), value, strict=True))


def answer_of(row: Row, options: list[str]) -> str:
    """The answer as a text, with its letter where there are options; "" where the row has none."""
    numbered = options and not row.is_mapped("answer") and row.find("answer_index") is not None
    if row.is_mapped("answer_index") or numbered:
        return _chosen(_index(row.find("answer_index"), options), options)
    if row.is_mapped("answer_letter"):
        value = row.text("answer_letter")
        found = _by_name(row, value, options)
        found = _by_letter(value, options) if found is None else found
        return _chosen(found, options) if options else value.strip()
    value = first_of(row, "answer_text", "answer", "response")
    if not options:
        return plain_answer(value)
    found = _by_name(row, value, options) if isinstance(value, str) else None
    if found is None:
        found = _matching(value, options, by_number=not row.is_mapped("answer_text"))
    if found is None and _is_number(value):
        return ""
    return plain_answer(value) if found is None else _chosen(found, options)


def plain_answer(value: Any) -> str:
    """An answer by itself: the first of those that are accepted; numbers of a list stay together."""
    found = value if isinstance(value, str) and not value.lstrip().startswith("[") else listed(value)
    if isinstance(found, Mapping):
        inner = next((found[key] for key in ("text", "answer", "value") if key in found), None)
        return dumped(found) if inner is None else plain_answer(inner)
    if not isinstance(found, list | tuple):
        return as_text(value).strip()
    if all(isinstance(item, int | float) for item in found):
        return dumped(list(found)) if found else ""
    return next((text for text in (plain_answer(item) for item in found) if text), "")


def _matching(value: Any, options: list[str], *, by_number: bool) -> int | None:
    if isinstance(value, list | tuple):
        found = (_matching(item, options, by_number=by_number) for item in value)
        return next((index for index in found if index is not None), None)
    if is_whole(value):
        return _index(value, options)
    text = as_text(value).strip()
    if text in options:
        return options.index(text)
    if _is_number(value):
        return _index(value, options)
    lettered = _LETTERED.fullmatch(text)
    if lettered and lettered[2].strip() in options:
        return options.index(lettered[2].strip())
    found_letter = _by_letter(text, options)
    if found_letter is not None or not by_number:
        return found_letter
    return _index(text, options) if text.isdecimal() else None


def _by_name(row: Row, value: str, options: list[str]) -> int | None:
    """The option that the row has under that name."""
    names = [name for name, _ in _named(row)][: len(options)]
    return names.index(value.strip()) if value.strip() in names else None


def _is_number(value: Any) -> bool:
    """A whole number, also as a column that may be null reads it: 1.0."""
    return is_whole(value) or (isinstance(value, float) and value.is_integer())


def _by_letter(value: str, options: list[str]) -> int | None:
    match = _LETTER.fullmatch(value.strip())
    index = ord(match[1].upper()) - ord("A") if match else -1
    return index if 0 <= index < len(options) else None


def _index(value: Any, options: list[str]) -> int | None:
    text = as_text(int(value) if isinstance(value, float) and value.is_integer() else value).strip()
    index = int(text) if text.isdecimal() and len(text) < 9 else -1
    return index if 0 <= index < len(options) else None


def _chosen(index: int | None, options: list[str]) -> str:
    return "" if index is None else f"{letter(index)}. {options[index]}"


# --- turns


def asked(question: str, options: list[str], context: str = "") -> str:
    """What comes before a question, the question, and its options unless they are in it already."""
    if options and all(option in question for option in options):
        options = []
    lines = "\n".join(f"{letter(i)}. {option}" for i, option in enumerate(options))
    return joined(context, joined(question, lines, by="\n"))


def answered(answer: str, rationale: str = "") -> Turn:
    """An answer, after the reasons for it."""
    thought = (Piece("think", rationale.strip()),) if rationale.strip() else ()
    given = turn("assistant", answer)
    return given._replace(pieces=(*thought, *given.pieces)) if thought else given


def rationale_of(row: Row) -> str:
    """Why it is so: the first of several reasons."""
    value = listed(row.find("rationale"))
    return as_text(value[0] if value else "") if isinstance(value, list | tuple) else as_text(value)

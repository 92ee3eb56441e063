"""Thoughts and calls inside an assistant's text, by the marks that data sets put around them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Literal, TypeAlias

from headrace.make.calls import calls_of

SpanKind: TypeAlias = Literal["text", "think", "call"]


class _Marks:
    """Opening marks with their closing ones."""

    def __init__(self, *pairs: tuple[str, str]) -> None:
        self.closing = dict(pairs)
        self.opening = re.compile("|".join(map(re.escape, self.closing)))


_THOUGHTS = _Marks(
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<reasoning>", "</reasoning>"),
    ("<|begin_of_thought|>", "<|end_of_thought|>"),
)
_CALLS = _Marks(
    ("<tool_call>", "</tool_call>"),
    ("<functioncall>", "</functioncall>"),
    ("<function_call>", "</function_call>"),
)
_SOLUTION = _Marks(("<|begin_of_solution|>", "<|end_of_solution|>"))
_OPEN_ENDED = ("<functioncall>",)
"""Marks that a text may leave open: what they hold goes up to its end."""
_END = re.compile(r"\s*(?:<\|endoftext\|>|<\|im_end\|>|</s>)\s*\Z")


def split_spans(text: str) -> list[tuple[SpanKind, str]]:
    """A text as thoughts, calls and what is said, in order. A mark that is opened and never closed is text."""
    if "<" not in text:
        return [("text", text)] if text else []
    found: list[tuple[SpanKind, str]] = []
    text, late = _late_thought(text)
    if late:
        found.append(("think", late))
    for mark, part in _between(text, _THOUGHTS):
        found += [("think", part.strip())] if mark else _said(part, first=not found)
    return [(kind, part) for kind, part in found if part]


def _late_thought(text: str) -> tuple[str, str]:
    """Templates that write the opening mark themselves leave only the closing one in the data."""
    close = text.find("</think>")
    if close < 0 or 0 <= text.find("<think>") < close:
        return text, ""
    return text[close + len("</think>") :].lstrip(), text[:close].strip()


def _said(text: str, first: bool) -> list[tuple[SpanKind, str]]:
    """What is not thought: texts and calls. White space around marks is not said."""
    found: list[tuple[SpanKind, str]] = []
    text = "".join(part.strip() if mark else part for mark, part in _between(text, _SOLUTION))
    if not first:
        text = text.lstrip()
    for mark, part in _between(text, _CALLS):
        if mark:
            inside = _END.sub("", part).strip()
            found += [("call", call) for call in calls_of(inside) or [inside]]
        elif part.strip():
            found.append(("text", part.lstrip() if found else part))
    if len(found) > 1:
        found = [(kind, part.rstrip() if kind == "text" else part) for kind, part in found]
    return found


def _between(text: str, marks: _Marks) -> Iterator[tuple[str, str]]:
    """(mark, what it holds) and ("", what stands outside), in order. Each mark is looked for once only, so that a
    text full of marks that are never closed costs no more than any other."""
    at, search = 0, 0
    hopeless: set[str] = set()
    while (match := marks.opening.search(text, search)) is not None:
        close = -1 if match[0] in hopeless else text.find(marks.closing[match[0]], match.end())
        if close < 0 and match[0] not in _OPEN_ENDED:
            hopeless.add(match[0])
            search = match.end()
            continue
        yield "", text[at : match.start()]
        yield match[0], text[match.end() : close if close >= 0 else len(text)]
        at = search = close + len(marks.closing[match[0]]) if close >= 0 else len(text)
    yield "", text[at:]


def bare_thought(text: str) -> str:
    """A thought without the marks that may stand around it."""
    spans = split_spans(text.strip())
    return spans[0][1] if len(spans) == 1 and spans[0][0] == "think" else text.strip()

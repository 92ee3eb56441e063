"""Calls of tools: lists of calls, conversations with calls and results in them, dialogues in one string."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from headrace.make.calls import calls_of, is_pythonic
from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens, flag_of, formatter, text_sample
from headrace.make.formatters.chat import listed_turns, with_system
from headrace.make.formatters.media import with_media
from headrace.make.turns import Piece, Turn, turn
from headrace.make.values import as_text, is_empty, joined, listed, parsed

_BLOCK = re.compile(r"```\w*\n(?:(?!```).)*```", re.DOTALL)
_PROMPTS = ("query", "instruction", "prompt", "question", "user", "input")


@formatter
def format_tool_use(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A question that is answered by calls, or a conversation in which tools are called and answer."""
    turns = [_called(one) for one in listed_turns(row)] or _asked(row)
    if turns:
        draft = Draft(tokens)
        draft.turns(with_media(row, with_system(row, turns)))
        yield draft.sample("tool_use", is_training=flag_of(row))
    else:
        yield text_sample(row, tokens, "tool_use", row.text("text"))


def _called(one: Turn) -> Turn:
    """A turn that is nothing but calls as Python writes them is a call, in the set's own writing."""
    if one.role != "assistant" or any(piece.kind not in ("text", "think") for piece in one.pieces):
        return one
    text = one.text.strip()
    if not (text.startswith("[") and text.endswith(")]") and is_pythonic(text)):
        return one
    return one._replace(pieces=(*(p for p in one.pieces if p.kind == "think"), Piece("call", text)))


def _asked(row: Row) -> list[Turn]:
    query = joined(row.text("prompt", *_PROMPTS), row.text("context") if row.is_mapped("context") else "")
    answer = _answer(row) if query.strip() else ()
    return [turn("user", query), Turn("assistant", answer)] if answer else []


def _answer(row: Row) -> tuple[Piece, ...]:
    """All calls of the answer. A text in their place is a refusal or a question back, and stays a text."""
    given = row.find("tool_calls")
    if not is_empty(given):
        calls = calls_of(given)
        if calls:
            return tuple(Piece("call", call) for call in calls)
        found = listed(given)
        text = as_text(found[0] if isinstance(found, list) and len(found) == 1 else given).strip()
        return turn("assistant", text).pieces if text not in ("", "[]", "{}") else ()
    return _response(row)


def _response(row: Row) -> tuple[Piece, ...]:
    """An answer under its common names: what is written as a call is one, all else a text."""
    response = row.find("response", "response", "output", "answer", "completion")
    if is_empty(response):
        return ()
    calls = calls_of(response)
    if len(calls) > 1 or (calls and not isinstance(response, str)):
        return tuple(Piece("call", call) for call in calls)
    text = as_text(response)
    spans = turn("assistant", text).pieces
    if any(piece.kind != "text" for piece in spans):
        return spans
    beside_tools = not is_empty(parsed(row.find("tools")))
    if calls or _is_written_call(text.strip()) or (beside_tools and _is_structured(text.strip())):
        return (Piece("call", text),)
    return spans if text.strip() not in ("[]", "{}") else ()


def _is_written_call(text: str) -> bool:
    """`f(x=1)` or `[Get It(x=1)]`: without brackets a name has no spaces, or words (and more) would be one."""
    bracketed = text.startswith("[") and text.endswith("]")
    return is_pythonic(text) and (bracketed or not any(c.isspace() for c in text.partition("(")[0]))


def _is_structured(text: str) -> bool:
    """Objects in a form of the set's own, a list of written calls, or nothing but a block of code."""
    found = listed(text)
    if isinstance(found, list | tuple):
        return bool(found) and all(isinstance(one, Mapping) or _is_written_call(as_text(one).strip()) for one in found)
    return (isinstance(found, Mapping) and bool(found)) or bool(_BLOCK.fullmatch(text))

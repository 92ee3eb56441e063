"""Thoughts before answers: in columns of their own, in marks, before a line of hashes, or as checked attempts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row
from headrace.make.formatters.answers import plain_answer
from headrace.make.formatters.base import Tokens, flag_of, formatter, text_sample
from headrace.make.formatters.chat import listed_turns, pair_turns, with_system
from headrace.make.formatters.media import with_media
from headrace.make.spans import bare_thought
from headrace.make.turns import Piece, Turn, turn
from headrace.make.values import as_text, is_empty, listed, texts

_PROMPTS = ("question", "prompt", "problem", "instruction", "query")
_ANSWERS = ("answer", "response", "output", "solution", "final_answer")
_CHECKS = ("correctness_math_verify", "correctness_llama", "is_reasoning_complete")
_HASHES = re.compile(r"(.*?)\n?####[ \t]*([^\n]+)\s*", re.DOTALL)
_CALCULATOR = re.compile(r"<<[^<>\n]*>>")


@formatter
def format_chain_of_thought(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A question, the thoughts about it, and the answer they lead to."""
    turns = _turns(row)
    if turns:
        draft = Draft(tokens)
        draft.turns(with_media(row, with_system(row, turns)))
        yield draft.sample("chain_of_thought", is_training=flag_of(row))
    else:
        yield text_sample(row, tokens, "chain_of_thought", row.text("text"))


def _turns(row: Row) -> list[Turn]:
    prompt = row.text("prompt", *_PROMPTS)
    attempt = _checked(row)
    if attempt and prompt.strip():
        return [turn("user", prompt), turn("assistant", attempt)]
    turns = listed_turns(row)
    if turns or not prompt.strip():
        return turns
    answer = plain_answer(row.find("answer", *_ANSWERS)) if not row.is_mapped("response") else row.text("response")
    thinking = _thinking(row)
    if thinking:
        return [turn("user", prompt), Turn("assistant", (Piece("think", thinking), *turn("assistant", answer).pieces))]
    hashes = _HASHES.fullmatch(answer)
    if hashes and hashes[1].strip():
        thought = _CALCULATOR.sub("", hashes[1]).strip()
        return [turn("user", prompt), Turn("assistant", (Piece("think", thought), Piece("text", hashes[2].strip())))]
    return [turn("user", prompt), turn("assistant", answer)] if answer.strip() else pair_turns(row)


def _thinking(row: Row) -> str:
    value = listed(row.find("thinking"))
    return bare_thought("\n".join(texts(value)) if isinstance(value, list) else as_text(value))


def _checked(row: Row) -> str:
    """The first attempt that was found right."""
    attempts = listed(row.find("generations"))
    if not isinstance(attempts, list):
        return ""
    for name in ("correctness", *_CHECKS):
        checks = listed(row.find(name))
        if isinstance(checks, list) and not is_empty(checks):
            right = (as_text(a) for a, check in zip(attempts, checks, strict=False) if check is True)
            return next(right, "")
    return ""

"""The conversation of a row, in whatever form it comes, and its rendering."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.make.calls import shows_tools, tools_of, tools_text
from headrace.make.clean import cleaner
from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens, flag_of
from headrace.make.formatters.media import KINDS, with_media
from headrace.make.messages import Ways, messages_of
from headrace.make.spans import bare_thought
from headrace.make.tokens import TOKENS
from headrace.make.turns import Piece, Turn, alternating, split_chat, turn, turns_of
from headrace.make.values import as_text, joined, listed

TOOLS = "You have access to the following tools:"
_NO_INPUT = frozenset({"", "not applicable", "n/a", "<noinput>"})


def chat_sample(row: Row, tokens: Tokens, dtype: str) -> Formatted | None:
    """The row's conversation as a sample; None where there is none, or no answer in it."""
    draft = Draft(tokens)
    draft.turns(with_media(row, chat_turns(row)))
    return draft.sample(dtype, is_training=flag_of(row))


def chat_turns(row: Row) -> list[Turn]:
    turns = listed_turns(row) or pair_turns(row)
    if row.is_mapped("clean") and turns:
        turns = cleaned(turns, row)
    return with_system(row, turns) if turns else []


def cleaned(turns: list[Turn], row: Row) -> list[Turn]:
    clean = cleaner(row.text("clean"))
    return [
        one._replace(pieces=tuple(p._replace(text=clean(p.text)) if p.kind == "text" else p for p in one.pieces))
        for one in turns
    ]


def listed_turns(row: Row) -> list[Turn]:
    """Turns that the row keeps as a list or as one string. Where they end with the question, its answer is beside."""
    turns = turns_of(row.find("messages"))
    if not turns:
        chat = row.find("chat")
        turns = split_chat(chat) if isinstance(chat, str) else []
    if not turns:
        said = listed(row.find("alternating"))
        turns = alternating(said) if isinstance(said, list) and all(isinstance(s, str) for s in said) else []
    if not turns:
        prompt = listed(row.find("prompt"))
        turns = turns_of(prompt) if _is_messages(prompt) else []
    if not turns:
        turns = _whole_answer(row)
    if turns and not any(one.role == "assistant" for one in turns):
        turns = [*turns, *answer_turns(row)]
    return turns


def _whole_answer(row: Row) -> list[Turn]:
    """The turns of an answer that has its question in it: as messages, or as `Human: ... Assistant: ...`. Where the
    question is in a column as well, it must be the same."""
    answer = row.find("response")
    if isinstance(answer, str):
        turns = split_chat(answer) if answer.lstrip().startswith("Human:") else []
    else:
        answer = listed(answer)
        turns = turns_of(answer) if _is_messages(answer) else []
    if not {"user", "assistant"} <= {one.role for one in turns}:
        return []
    asked = row.text("prompt").strip()
    told = [answer] if isinstance(answer, str) else [one.text for one in turns if one.role == "user"]
    return turns if any(asked in text for text in told) else []


def _is_messages(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def pair_turns(row: Row) -> list[Turn]:
    """A question and its answer in columns of their own."""
    question, answers = question_turns(row), answer_turns(row)
    return [*question, *answers] if question and answers else []


def question_turns(row: Row) -> list[Turn]:
    """A question with its input and its context, after a history where there is one."""
    prompt, extra = row.text("prompt"), row.text("input")
    if extra.strip().lower() not in _NO_INPUT and extra != prompt:
        prompt = joined(prompt, extra, by="\n")
    asked = joined(prompt, row.text("context") if row.is_mapped("context") or prompt else "")
    return [*turns_of(row.find("history")), turn("user", asked)] if asked.strip() else []


def answer_turns(row: Row) -> list[Turn]:
    """The answer: a text, the first of several, or messages. Thoughts of their own column come before it."""
    value = listed(row.find("response")) if not isinstance(row.find("response"), str) else row.find("response")
    if isinstance(value, Mapping) or _is_messages(value):
        found = [one for one in turns_of(value) if one.role != "user"]
    elif isinstance(value, list | tuple):
        found = [turn("assistant", as_text(value[0]))] if value else []
    else:
        found = [turn("assistant", as_text(value))]
    found = [one for one in found if not one.is_empty]
    thought = row.find("thinking") if row.is_mapped("thinking") else row.find("reasoning_content")
    return _after(thought, found)


def _after(thought: Any, turns: list[Turn]) -> list[Turn]:
    text = bare_thought(as_text(thought))
    if not text or not turns or any(piece.kind == "think" for piece in turns[0].pieces):
        return turns
    return [turns[0]._replace(pieces=(Piece("think", text), *turns[0].pieces)), *turns[1:]]


def chat_messages(sample: Mapping[str, Any], fields: Mapping[str, str] | None = None) -> list[dict[str, Any]]:
    """A row's conversation as the messages that chat templates take; [] where it has none. Tools stand in its text."""
    row = sample if isinstance(sample, Row) else Row(sample, fields)
    turns = with_media(row, chat_turns(row))
    return [message for message, _ in messages_of(turns, TOKENS, Ways())]


# --- what stands before the first turn


def with_system(row: Row, turns: list[Turn]) -> list[Turn]:
    """The row's system text and tools, each told once, also where the first turn tells them again."""
    given = row.find("system")
    system = given.strip().removeprefix("SYSTEM:").strip() if isinstance(given, str) else ""
    shown: tuple[Piece, ...] = ()
    if turns and turns[0].role == "system":
        first = turns[0].text
        shown = tuple(piece for piece in turns[0].pieces if piece.kind in KINDS)
        system = first if system in first else system if first.strip() in system else joined(system, first)
        turns = turns[1:]
    tools = tools_of(row.find("tools"))
    pieces = turn("system", system).pieces if system.strip() else ()
    if tools and not shows_tools(system, tools):
        told = f"{TOOLS}\n{tools_text(tools)}"
        pieces = (*pieces, Piece("tools", f"\n\n{told}" if pieces else told, tools))
    return [Turn("system", (*shown, *pieces)), *turns] if pieces or shown else turns

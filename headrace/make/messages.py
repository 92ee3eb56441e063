"""Turns as the messages that chat templates take. What a template has no way to write becomes words in our marks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from headrace.make.draft import marked, placeholder
from headrace.make.tokens import token
from headrace.make.turns import Piece, Turn
from headrace.make.values import parsed

Message: TypeAlias = dict[str, Any]

MEDIA = ("image", "video", "audio")


@dataclass(frozen=True, kw_only=True)
class Ways:
    """What a template writes by itself."""

    system: bool = True
    """A system's turn; else its text begins the user's first."""
    tools: bool = False
    """Descriptions of tools, given apart from the messages; else they stand in the system's text."""
    calls: bool = True
    words_and_calls: bool = True
    """Both in one turn; else the calls of a turn that says something are words as well."""
    results: bool = True
    """Turns of the role `tool`; else they are the user's, between marks."""
    thoughts: bool = True
    lists: bool = False
    """Contents are lists of parts, also where there is only a text."""
    media: Mapping[str, str] = field(default_factory=dict)
    """Kinds of media that may be parts of a content, and what it writes for each."""


def messages_of(turns: Sequence[Turn], tokens: Mapping[str, str], ways: Ways) -> list[tuple[Message, bool]]:
    """Each message, and whether it is learned. What code gave, in the middle of a turn, is a tool's message."""
    if not ways.system:
        turns = _without_system(turns)
    found = [
        (_message(part, tokens, ways), turn.role == part.role == "assistant" and turn.learned and not turn.is_empty)
        for turn in turns
        for part in _parts(turn)
    ]
    # A system that has told of tools only has nothing to say where they are given apart.
    return [(message, learned) for message, learned in found if message["role"] != "system" or message["content"]]


def _without_system(turns: Sequence[Turn]) -> list[Turn]:
    """What the system says as the beginning of what the user says next."""
    found: list[Turn] = []
    waiting: list[Piece] = []
    for turn in turns:
        if turn.role == "system":
            waiting += [*turn.pieces, Piece("text", "\n\n")]
        elif waiting and turn.role == "user":
            found.append(turn._replace(pieces=(*waiting, *turn.pieces)))
            waiting = []
        else:
            found.append(turn)
    return [*found, Turn("user", tuple(waiting[:-1]))] if waiting else found


def tools_in(turns: Sequence[Turn], ways: Ways) -> list[Any] | None:
    """The tools that are given apart from the messages."""
    found = [piece.data for turn in turns for piece in turn.pieces if piece.kind == "tools" and _apart(piece, ways)]
    return [_described(tool) for tools in found for tool in tools] or None


def _apart(piece: Piece, ways: Ways) -> bool:
    data = piece.data
    return ways.tools and isinstance(data, list) and bool(data) and all(isinstance(tool, Mapping) for tool in data)


def _described(tool: Mapping[str, Any]) -> dict[str, Any]:
    """In the form that templates know."""
    return dict(tool) if "function" in tool else {"type": "function", "function": dict(tool)}


def _parts(turn: Turn) -> Iterator[Turn]:
    """A turn cut where something came back in the middle of it."""
    if turn.role != "assistant" or not any(piece.kind in ("result", "error") for piece in turn.pieces):
        yield turn
        return
    said: list[Piece] = []
    for piece in turn.pieces:
        if piece.kind not in ("result", "error"):
            said.append(piece)
            continue
        if said:
            yield turn._replace(pieces=tuple(said))
        yield Turn("tool", (Piece("text", piece.text),))
        said = []
    if said:
        yield turn._replace(pieces=tuple(said))


def _message(turn: Turn, tokens: Mapping[str, str], ways: Ways) -> Message:
    thoughts, calls = [], []
    parts: list[dict[str, str]] = []

    def say(text: str) -> None:
        if parts and parts[-1]["type"] == "text":
            parts[-1]["text"] += text
        elif text:
            parts.append({"type": "text", "text": text})

    says = any(
        piece.kind not in ("call", "think") or (piece.kind == "think" and not ways.thoughts) for piece in turn.pieces
    )
    is_result = turn.role == "tool" and not ways.results
    say(token(tokens, "tool_result") if is_result else "")
    calls_apart = ways.calls and (ways.words_and_calls or not says)
    for piece in turn.pieces:
        if piece.kind == "think" and ways.thoughts:
            thoughts.append(piece.text)
        elif piece.kind == "call" and calls_apart and isinstance(call := parsed(piece.text), dict):
            calls.append({"type": "function", "function": call})
        elif piece.kind == "tools" and _apart(piece, ways):
            continue
        elif piece.kind in MEDIA and piece.kind in ways.media:
            parts.extend([{"type": piece.kind}] if piece.data is not None else [])
        else:
            say(_words(piece, tokens))
    say(token(tokens, "tool_result_end") if is_result else "")
    message: Message = {"role": "user" if is_result else turn.role, "content": _content(parts, ways)}
    if thoughts:
        message["reasoning_content"] = "\n".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    return message


def _content(parts: list[dict[str, str]], ways: Ways) -> str | list[dict[str, str]]:
    if ways.lists or any(part["type"] != "text" for part in parts):
        return parts
    return "".join(part["text"] for part in parts)


def _words(piece: Piece, tokens: Mapping[str, str]) -> str:
    if piece.kind in ("text", "tools", "commit"):
        return piece.text
    if piece.kind in MEDIA:
        return placeholder(tokens, piece.kind) if piece.data is not None else ""
    if piece.kind in ("code", "diff"):
        return f"```{'diff' if piece.kind == 'diff' else ''}\n{piece.text}\n```"
    return marked(tokens, piece.kind, piece.text)

"""Conversations in every form that data sets keep them, as one list of turns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

from headrace.make.calls import calls_of
from headrace.make.spans import bare_thought, split_spans
from headrace.make.values import as_text, is_empty, listed, whole

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
Kind: TypeAlias = Literal[
    "text", "think", "call", "code", "result", "error", "diff", "commit", "tools",
    "image", "video", "audio", "gen_image", "gen_video", "gen_audio",
]  # fmt: skip

_ROLES: dict[str, Role | Literal["call"]] = {
    **dict.fromkeys(("system", "instruction", "developer"), "system"),
    **dict.fromkeys(("user", "human", "prompter", "customer"), "user"),
    **dict.fromkeys(("assistant", "gpt", "chatgpt", "bing", "bard", "bot", "model", "ai", "chatbot"), "assistant"),
    **dict.fromkeys(("function_call", "tool_call", "tool_calls"), "call"),
    **dict.fromkeys(("tool", "function", "observation", "observations", "ipython", "environment"), "tool"),
    **dict.fromkeys(("function_response", "tool_response", "tool_result", "tool_results"), "tool"),
}
_ROLE_KEYS = ("role", "from", "speaker", "author")
_CONTENT_KEYS = ("content", "value", "text", "message")
_THINK_KEYS = ("reasoning_content", "thinking", "reasoning")
_LOSS_KEYS = ("loss", "weight", "train", "training", "trainable")
_PAIR_KEYS = (("user", "assistant"), ("human", "assistant"), ("human", "gpt"), ("question", "answer"), ("q", "a"))
_MEDIA_TYPES: dict[str, Kind] = {
    **dict.fromkeys(("image", "image_url", "input_image"), "image"),
    **dict.fromkeys(("video", "video_url", "input_video"), "video"),
    **dict.fromkeys(("audio", "audio_url", "input_audio"), "audio"),
}
_CHAT = re.compile(r"(?:^|\n)[ \t]*(SYSTEM|USER|HUMAN|ASSISTANT|GPT|FUNCTION RESPONSE|FUNCTION|TOOL)[ \t]*:[ \t]*")
_HUMAN = re.compile(r"(?:^|\n\n)[ \t]*(Human|Assistant):[ \t]*")
_RESPONSE = re.compile(r"\s*<tool_response>(.*)</tool_response>\s*", re.DOTALL)
_END_OF_TEXT = re.compile(r"\s*(?:<\|endoftext\|>|<\|im_end\|>|</s>)\s*$")


class Piece(NamedTuple):
    """A part of a turn."""

    kind: Kind
    text: str = ""
    data: Any = None
    """Of media that the turn itself carries; of tools, their descriptions."""
    number: int | None = None
    """Of media: which one of the row's list."""


class Turn(NamedTuple):
    role: Role
    pieces: tuple[Piece, ...]
    learned: bool = True
    """Of an assistant's turn; the others are never learned."""

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces if piece.kind == "text")

    @property
    def is_empty(self) -> bool:
        return all(piece.kind in ("text", "think") and not piece.text.strip() for piece in self.pieces)


def turn(role: Role, text: str, *, learned: bool = True, tagged: bool = True) -> Turn:
    """A turn of a text. `tagged`: an assistant's thoughts and calls are found by their marks."""
    if role == "assistant" and tagged:
        return Turn(role, tuple(Piece(kind, part) for kind, part in split_spans(text)), learned)
    if role == "tool":
        wrapped = _RESPONSE.fullmatch(text)
        text = wrapped[1].strip() if wrapped and "<tool_response>" not in wrapped[1] else text
    return Turn(role, (Piece("text", text),) if text else (), learned)


def role_of(value: Any) -> Role | Literal["call"] | None:
    """Whose turn it is, by any of its names; None where nobody is known by that name."""
    if isinstance(value, Mapping):
        value = value.get("role")
    if not isinstance(value, str):
        return None
    return _ROLES.get(value) or _ROLES.get(re.sub(r"[\s-]+", "_", value.strip().lower()))


# --- lists


def turns_of(value: Any) -> list[Turn]:
    """The turns of a list of messages, of pairs, of plain strings in turn, or of any of them written into a string."""
    value = listed(value)
    if isinstance(value, Mapping):
        value = _transposed(value)
    if isinstance(value, str):
        return split_chat(value)
    if not isinstance(value, list | tuple):
        return []
    if value and all(isinstance(item, str) for item in value):
        return alternating(value)
    return [turn for item in value for turn in _message(item)]


def alternating(texts: Iterable[Any]) -> list[Turn]:
    """Strings of user and assistant in turn; a last question that nobody answers is left out."""
    found = [turn("assistant" if i % 2 else "user", as_text(text)) for i, text in enumerate(texts)]
    return found[: len(found) // 2 * 2]


def split_chat(text: str) -> list[Turn]:
    """A dialogue in one string: `USER: ... ASSISTANT: ... FUNCTION RESPONSE: ...`, or `Human: ... Assistant: ...`."""
    text = text.lstrip()
    parts = (_HUMAN if text.startswith("Human:") else _CHAT).split(text)
    found: list[Turn] = []
    for name, said in zip(parts[1::2], parts[2::2], strict=True):
        role = role_of(name)
        assert role is not None
        assert role != "call"
        found.append(turn(role, _END_OF_TEXT.sub("", said).strip()))
    return found


def _transposed(value: Mapping[Any, Any]) -> Any:
    """A struct of lists (how a list of structs was kept once) as a list of structs; a lone message as a list of one."""
    for key in ("messages", "conversations", "conversation", "turns"):
        if isinstance(listed(value.get(key)), list):
            return listed(value[key])
    columns = {key: items for key, items in value.items() if isinstance(items, list | tuple)}
    keys = [key for key in (*_ROLE_KEYS, *_CONTENT_KEYS) if key in columns]
    if len(keys) < 2:
        return [value]
    count = len(columns[keys[0]])
    return [{key: items[i] for key, items in columns.items() if i < len(items)} for i in range(count)]


# --- one message


def _message(item: Any) -> list[Turn]:
    item = item if isinstance(item, dict) else listed(item)
    if isinstance(item, list | tuple) and len(item) == 2 and all(isinstance(part, str | None) for part in item):
        return [turn("user", as_text(item[0])), turn("assistant", as_text(item[1]))]
    if isinstance(item, str):
        return [turn("user", item)]
    if not isinstance(item, Mapping):
        return []
    key = next((key for key in _ROLE_KEYS if item.get(key) is not None), None)
    if key is None:
        return _pair(item)
    role = role_of(item[key]) or "user"
    content = next((item[key] for key in _CONTENT_KEYS if item.get(key) is not None), None)
    if role == "call":
        return [Turn("assistant", tuple(_called(content, item)), is_learned(item))]
    pieces, results = _content(content, role)
    if role == "assistant":
        pieces = [*_thoughts(item, pieces), *pieces, *_calls(item)]
    found = [Turn("tool", result) for result in results]
    if pieces or not results:
        found.append(Turn(role, tuple(pieces), is_learned(item)))
    return found


def _pair(item: Mapping[Any, Any]) -> list[Turn]:
    """`{"user": ..., "assistant": ...}`, or an object per turn: `{"user": ...}`."""
    for asked, answered in _PAIR_KEYS:
        if asked in item and answered in item:
            texts = as_text(item[asked]), as_text(item[answered])
            learned = is_learned(item)
            found = [turn("user", texts[0]), turn("assistant", texts[1], learned=learned)]
            return [one for one, text in zip(found, texts, strict=True) if text]
    for key, value in item.items():
        role = role_of(key)
        if role is not None and role != "call" and isinstance(value, str):
            return [turn(role, value)]
    text = next((item[key] for key in _CONTENT_KEYS if isinstance(item.get(key), str)), "")
    return [turn("user", text)] if text else []


def is_learned(item: Mapping[Any, Any]) -> bool:
    """Flags can only take a turn away: what nobody marked is learned."""
    for key in _LOSS_KEYS:
        value = item.get(key)
        if isinstance(value, str):
            value = value.strip().lower() not in ("", "0", "0.0", "false", "no")
        if value is not None and isinstance(value, bool | int | float) and not value:
            return False
    return True


def _called(content: Any, item: Mapping[Any, Any]) -> list[Piece]:
    """A turn that is a call: its text is JSON, or whatever the set writes."""
    calls = calls_of(content) or [piece.text for piece in _calls(item)] or [as_text(content).strip()]
    return [Piece("call", call) for call in calls if call]


def _calls(item: Mapping[Any, Any]) -> list[Piece]:
    for key in ("tool_calls", "function_call"):
        calls = calls_of(item.get(key))
        if calls:
            return [Piece("call", call) for call in calls]
    single = item.get("tool_call")
    if isinstance(single, str) and single.strip():
        calls = calls_of(single)
        return [Piece("call", call) for call in calls] or [Piece("code", single)]
    return [Piece("call", call) for call in calls_of(single)]


def _thoughts(item: Mapping[Any, Any], pieces: list[Piece]) -> list[Piece]:
    """Thoughts kept beside the content, unless the content has them too."""
    thought = next((item[key] for key in _THINK_KEYS if isinstance(item.get(key), str) and item[key].strip()), "")
    if not thought or any(piece.kind == "think" for piece in pieces):
        return []
    return [Piece("think", bare_thought(thought))]


def _content(content: Any, role: Role) -> tuple[list[Piece], list[tuple[Piece, ...]]]:
    """The pieces of a content, and results of tools that stand among them."""
    if isinstance(content, Mapping):
        content = content.get("parts", [content])
    if not isinstance(content, list | tuple):
        return list(turn(role, as_text(content)).pieces), []
    pieces: list[Piece] = []
    results: list[tuple[Piece, ...]] = []
    for part in content:
        if isinstance(part, Mapping) and part.get("type") == "tool_result":
            inner, _ = _content(part.get("content"), "tool")
            results.append(tuple(inner))
        else:
            pieces += _part(part, role)
    return pieces, results


def _part(part: Any, role: Role) -> list[Piece]:
    if not isinstance(part, Mapping):
        return list(turn(role, as_text(part)).pieces)
    kind = as_text(part.get("type")) or next((key for key in _MEDIA_TYPES if not is_empty(part.get(key))), "")
    if kind in _MEDIA_TYPES:
        return [Piece(_MEDIA_TYPES[kind], "", _media(part, kind), whole(part.get("index")))]
    if kind == "tool_use":
        return [Piece("call", call) for call in calls_of(part)]
    if kind in ("thinking", "reasoning"):
        return [Piece("think", as_text(part.get(kind) or part.get("text")))]
    text = next((part[key] for key in ("text", *_CONTENT_KEYS) if part.get(key) is not None), None)
    return list(turn(role, as_text(text)).pieces)


def _media(part: Mapping[Any, Any], kind: str) -> Any:
    """What a part carries; None: the next of the row's list."""
    for key in (kind, _MEDIA_TYPES[kind], "data", "bytes", "path", "url", "source"):
        value = part.get(key)
        if isinstance(value, Mapping) and isinstance(value.get("url"), str):
            return value["url"]
        if not is_empty(value) and not (isinstance(value, Mapping) and all(map(is_empty, value.values()))):
            return value
    return None

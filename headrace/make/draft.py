"""A sample in the making: text in segments, each learned or not, with the media that stand in it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from headrace.errors import DataError, SpecError
from headrace.make.tokens import token
from headrace.make.turns import Piece, Role, Turn
from headrace.make.values import media_status

Formatted: TypeAlias = dict[str, Any]
"""`text`, `segments`, `dtype`, `turns`, and what applies of media, targets and flags."""

LIST_KEYS = {"image": "images", "video": "videos", "audio": "audios"}
"""Under which name a sample has a medium of each kind, and several of them."""
_HEADERS: dict[Role, tuple[str, str]] = {
    "system": ("system_start", "system_end"),
    "user": ("user_start", "user_end"),
    "assistant": ("assistant_start", "assistant_end"),
}
_MARKS = {
    "think": ("think_start", "think_end"),
    "call": ("tool_call", "tool_call_end"),
    "code": ("exec", "exec_end"),
    "result": ("exec_result", "exec_result_end"),
    "error": ("exec_error", "exec_error_end"),
    **{name: (name, f"{name}_end") for name in ("diff", "commit", "gen_image", "gen_video", "gen_audio")},
}
"""What stands around a piece of a turn."""


def marked(tokens: Mapping[str, str], kind: str, text: str) -> str:
    """A piece of a turn between its marks."""
    start, end = _MARKS[kind]
    return f"{token(tokens, start)}{text}{token(tokens, end)}"


def placeholder(tokens: Mapping[str, str], kind: str) -> str:
    """What stands in a text for an image, a video or a sound."""
    return token(tokens, f"{kind}_start") + token(tokens, f"{kind}_end")


class Draft:
    def __init__(self, tokens: Mapping[str, str], tool: str = "tool_result") -> None:
        """`tool`: the mark of turns that tools take; where tools are interpreters, another one."""
        if not isinstance(tokens, Mapping):
            raise SpecError(f"tokens is a {type(tokens).__name__}; a mapping of names to strings is expected")
        self._tokens, self._tool = tokens, tool
        self._segments: list[tuple[str, bool]] = []
        self._whole: set[int] = set()
        self._media: dict[str, list[Any]] = {}
        self._turns: list[Turn] = []

    # --- parts

    def put(self, text: str, learned: bool = False) -> None:
        """More text; beside its like it becomes one segment with it."""
        if not text:
            return
        last = len(self._segments) - 1
        if last >= 0 and self._segments[last][1] == learned and last not in self._whole:
            self._segments[last] = (self._segments[last][0] + text, learned)
        else:
            self._segments.append((text, learned))

    def mark(self, name: str, learned: bool = False) -> None:
        self.put(token(self._tokens, name), learned)

    def medium(self, kind: str, value: Any) -> None:
        """Where media stand: their two marks, as a segment of their own."""
        self._segments.append((placeholder(self._tokens, kind), False))
        self._whole.add(len(self._segments) - 1)
        self._media.setdefault(kind, []).append(value)

    def turn(self, turn: Turn) -> None:
        self._turns.append(turn)
        start, end = _HEADERS.get(turn.role, (self._tool, f"{self._tool}_end"))
        # An answer without a word teaches nothing but to say nothing.
        learned = turn.role == "assistant" and turn.learned and not turn.is_empty
        self.mark(start)
        for piece in turn.pieces:
            self.piece(piece, learned)
        self.mark(end, learned)

    def piece(self, piece: Piece, learned: bool) -> None:
        if piece.kind in ("text", "tools"):
            self.put(piece.text, learned)
        elif piece.kind in LIST_KEYS:
            if piece.data is None:
                raise DataError(f"a part of the conversation stands for {piece.kind}, and nothing was found for it")
            self.medium(piece.kind, piece.data)
        else:
            start, end = _MARKS[piece.kind]
            learned = learned and piece.kind not in ("result", "error")
            self.mark(start, learned)
            self.put(piece.text, learned)
            self.mark(end, learned)

    def turns(self, turns: Iterable[Turn]) -> None:
        for turn in turns:
            self.turn(turn)

    # --- whole

    def sample(self, dtype: str, *, is_training: bool | None = None, **more: Any) -> Formatted | None:
        """The sample; None where there is nothing to learn from, or, if it is not for training, nothing at all."""
        if not any((learned or is_training is False) and text.strip() for text, learned in self._segments):
            return None
        found: Formatted = {
            "text": "".join(text for text, _ in self._segments),
            "segments": list(self._segments),
            "dtype": dtype,
        }
        if self._turns:
            found["turns"] = tuple(self._turns)
        status = {}
        for kind, values in self._media.items():
            key = kind if len(values) == 1 else LIST_KEYS[kind]
            found[key] = values[0] if len(values) == 1 else list(values)
            status[key] = media_status(values[0])
        for key in ("gen_images", "gen_videos", "target_audio", "speaker_ref"):
            if more.get(key) is not None:
                status[key] = media_status(more[key])
        if status:
            found["media_status"] = status
        if is_training is not None:
            found["is_training"] = is_training
        return found | {key: value for key, value in more.items() if value is not None}


def rendered(text: str, tokens: Mapping[str, str]) -> list[tuple[str, bool]]:
    """The segments of a text that has our marks in it already: the assistant's spans are learned; all of it, where
    nobody speaks."""
    start, end = token(tokens, "assistant_start"), token(tokens, "assistant_end")
    if not start or not end or start not in text:
        asks = token(tokens, "user_start")
        return [(text, not asks or asks not in text)] if text else []
    found: list[tuple[str, bool]] = []
    rest = text
    while start in rest:
        before, _, rest = rest.partition(start)
        said, closed, rest = rest.partition(end)
        found += [(before + start, False), (said + closed, True)]
    found.append((rest, False))
    return [(part, learned) for part, learned in found if part]

"""The strings that mark turns, media and tools in a rendered text, by name."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from types import MappingProxyType

from headrace.errors import SpecError, shown

log = logging.getLogger("headrace")

MOST_SHOWN = 5
"""Marks that a warning lists."""
UNWRITTEN = ("bos", "eos", "pad")
"""Names that no formatter of ours writes."""


def _pair(name: str, word: str, start: str = "_start") -> dict[str, str]:
    return {f"{name}{start}": f"<|{word}|>", f"{name}_end": f"<|/{word}|>"}


TOKENS: Mapping[str, str] = MappingProxyType(
    {
        "bos": "<|bos|>",
        "eos": "<|eos|>",
        "pad": "<|pad|>",
        **_pair("system", "system"),
        **_pair("user", "user"),
        **_pair("assistant", "assistant"),
        **_pair("think", "think"),
        **_pair("tool_call", "tool_call", ""),
        **_pair("tool_result", "tool_result", ""),
        **_pair("image", "image"),
        **_pair("video", "video"),
        **_pair("audio", "audio"),
        **_pair("gen_image", "gen_image", ""),
        **_pair("gen_video", "gen_video", ""),
        **_pair("gen_audio", "gen_audio", ""),
        **_pair("exec", "exec", ""),
        **_pair("exec_result", "exec_result", ""),
        **_pair("exec_error", "exec_error", ""),
        **_pair("diff", "diff", ""),
        **_pair("commit", "commit", ""),
        **_pair("document", "document", ""),
    }
)
"""Every name a formatter uses. A dict of one's own may leave names out: these stand in for them."""


def token(tokens: Mapping[str, str], name: str) -> str:
    """A token string: the given one, or ours where it is not given."""
    found = tokens.get(name, TOKENS[name])
    if not isinstance(found, str):
        raise SpecError(f"tokens[{name!r}] is {shown(found)!r} ({type(found).__name__}); a string is expected")
    return found


def full_tokens(tokens: Mapping[str, str] | None = None, *, ours_only: bool = False) -> dict[str, str]:
    """All names with their strings, ours where none is given; checked once, before rows flow.

    `ours_only`: the formatters are all ours, and use no other names.
    """
    given = {} if tokens is None else tokens
    if not isinstance(given, Mapping):
        raise SpecError(f"tokens is a {type(given).__name__}; a mapping of names to strings is expected")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SpecError(f"tokens[{shown(name)!r}] is {shown(value)!r}; names and values are strings")
        near = get_close_matches(name, TOKENS, n=1, cutoff=0.85) if name not in TOKENS else []
        if near and near[0] not in given:
            raise SpecError(f"tokens has {shown(name)!r}, which no formatter uses; {near[0]!r} is meant?")
        if ours_only and name not in TOKENS:
            raise _unknown(name)
    return {**TOKENS, **given}


def _unknown(name: str) -> SpecError:
    near = get_close_matches(name, TOKENS, n=1, cutoff=0.76)
    way = f"did you mean {near[0]!r}?" if near else f"the names are {', '.join(TOKENS)}"
    return SpecError(f"tokens has {shown(name)!r}, which none of these format functions uses; {way}")


def warn_of_split_marks(tokens: Mapping[str, str], pieces: Callable[[Sequence[str]], list[int]]) -> None:
    """One warning where marks are plain text to the tokenizer. `pieces`: of each text, the tokens it becomes; 0: it
    holds a token of the tokenizer's own, and is no plain text."""
    marks = list(dict.fromkeys(mark for name, mark in tokens.items() if name not in UNWRITTEN and mark))
    split = [(mark, count) for mark, count in zip(marks, pieces(marks), strict=True) if count > 1]
    if not split:
        return
    some = ", ".join(f"{shown(mark, 40)} ({count} tokens)" for mark, count in split[:MOST_SHOWN])
    log.warning(
        "tokens: the tokenizer does not know %d of %d marks and splits them like other text: %s%s. Samples are made "
        "all the same; for marks of one token each, add them to the tokenizer (add_special_tokens) and resize the "
        "model's embeddings, or give tokens={...} with marks that the tokenizer has",
        len(split),
        len(marks),
        some,
        ", …" if len(split) > MOST_SHOWN else "",
    )

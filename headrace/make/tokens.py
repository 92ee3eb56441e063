"""The strings that mark turns, media and tools in a rendered text, by name."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from types import MappingProxyType

from headrace.errors import SpecError, shown


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


def full_tokens(tokens: Mapping[str, str] | None = None) -> dict[str, str]:
    """All names with their strings, ours where none is given; checked once, before rows flow."""
    given = {} if tokens is None else tokens
    if not isinstance(given, Mapping):
        raise SpecError(f"tokens is a {type(given).__name__}; a mapping of names to strings is expected")
    for name, value in given.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise SpecError(f"tokens[{shown(name)!r}] is {shown(value)!r}; names and values are strings")
        near = get_close_matches(name, TOKENS, n=1, cutoff=0.85) if name not in TOKENS else []
        if near and near[0] not in given:
            raise SpecError(f"tokens has {shown(name)!r}, which no formatter uses; {near[0]!r} is meant?")
    return {**TOKENS, **given}

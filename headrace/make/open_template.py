"""A chat template opened: where it comes from, what it can write, and whether it tells what the assistant said."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

from headrace.errors import DataError, SpecError, Unreachable, described, shown
from headrace.make.load import INSTALL, transformers_tokenizer
from headrace.make.messages import MEDIA, Message, Ways
from headrace.make.template import Template, TooMuchOfIt, with_ids
from headrace.make.tokens import full_tokens

TODAY = datetime(2024, 7, 26)
"""What a template is told that asks for the date: a run that goes on tomorrow must give the same tokens."""

_DATE = re.compile(r"strftime_now\(\s*(['\"])([^'\"]*)\1\s*\)")
_ASKED, _SAID, _THOUGHT, _CALLED, _RESULT, _TOOL, _SYSTEM = (
    f"headrace{word}" for word in ("asks", "says", "thinks", "calls", "got", "tool", "rules")
)
_PRINTED = re.compile(r"""['"]type['"]""")
"""In what a template writes that does not know lists of parts, and prints them as they are."""
_BASE: list[Message] = [{"role": "user", "content": _ASKED}, {"role": "assistant", "content": _SAID}]
_TOOLS = [
    {
        "type": "function",
        "function": {
            "name": _TOOL,
            "description": "It looks something up.",
            "parameters": {"type": "object", "properties": {"word": {"type": "string", "description": "What."}}},
        },
    }
]
_TALK: list[Message] = [
    {"role": "system", "content": _SYSTEM},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"type": "function", "function": {"name": _TOOL, "arguments": {"word": _CALLED}}}],
    },
    {"role": "tool", "content": _RESULT},
]


def open_template(tokenizer: Any, tokens: Mapping[str, str], *, learn: bool) -> Template:
    """The template of a tokenizer: of transformers, a path or a name. `learn`: whether it must tell what the assistant
    said. What it can write is tried out."""
    owner = _owner(tokenizer)
    try:
        plain, with_tools = owner.get_chat_template(), owner.get_chat_template(tools=_TOOLS)
    except ValueError as error:
        raise SpecError(
            f"render='template': the tokenizer has no chat template ({shown(error)}); set tokenizer.chat_template, or "
            f"take render='tokens'"
        ) from error
    special = {name: value for name, value in owner.special_tokens_map.items() if isinstance(value, str | list)}
    made = Template(plain=_dated(plain), with_tools=_dated(with_tools), special=special, tokens=full_tokens(tokens))
    ways = _ways(made)
    asked = (_listed(_BASE) if ways.lists else _BASE)[:1]
    prompts = _tried(made, asked, prompt=True) != _tried(made, asked)
    made = replace(made, ways=ways, prompts=prompts)
    if learn:
        _prove(made)
    return made


def _owner(tokenizer: Any) -> Any:
    """The tokenizer of transformers that has the template."""
    name = getattr(getattr(tokenizer, "how", None), "tokenizer", tokenizer)
    if isinstance(name, Path):
        name = str(name)
    if not isinstance(name, str):
        if hasattr(tokenizer, "get_chat_template"):
            return tokenizer
        raise SpecError(
            f"render='template': a {type(tokenizer).__name__} has no chat template; give a tokenizer of transformers, "
            f"its folder, or its name on the Hub"
        )
    try:
        import transformers  # noqa: F401 - it is asked for below
    except ImportError as error:
        raise SpecError(f"render='template' takes transformers ({shown(error)}); {INSTALL}") from error
    path = Path(name).expanduser()
    try:
        return transformers_tokenizer(path.parent if path.is_file() else name)
    except Unreachable:
        raise
    except Exception as error:
        raise SpecError(
            f"render='template': transformers cannot open the tokenizer {shown(name)!r} for its template "
            f"({shown(error)}); give the tokenizer as an object"
        ) from error


def _dated(template: str) -> str:
    """The same template on a day that never changes."""
    found = _DATE.sub(lambda match: repr(TODAY.strftime(match[2])), template)
    if re.search(r"strftime_now\s*\(", found):
        raise SpecError(
            "render='template': the chat template asks for the date in a form that it makes up on the way; a run that "
            "goes on tomorrow would give other tokens; write the form into the template"
        )
    return found


def _ways(template: Template) -> Ways:
    """What a template writes of what it is given."""
    lists = not _shows(template, _BASE, _ASKED, _SAID)
    base = _listed(_BASE) if lists else _BASE
    if lists and (not _shows(template, base, _ASKED, _SAID) or _PRINTED.search(template.write(base)[0])):
        try:
            made = described(template.write(_BASE)[0])
        except DataError as error:
            made = str(error)
        raise SpecError(
            f"render='template': the chat template does not write a question and an answer: of two messages it makes "
            f"{made}; take render='tokens'"
        )
    tools = _shows(template, base, _TOOL, tools=_TOOLS)
    told = _listed(_TALK) if lists else _TALK
    talk, offered = with_ids([base[0], *told[1:], base[1]]), _TOOLS if tools else None
    calls = _shows(template, talk, _CALLED, tools=offered)
    both = [talk[0], {**talk[1], "content": base[1]["content"]}, talk[2]]
    return Ways(
        system=_shows(template, [*told[:1], *base], _SYSTEM, _ASKED),
        tools=tools,
        calls=calls,
        words_and_calls=calls and _shows(template, both, _CALLED, _SAID, tools=offered),
        results=_shows(template, talk if calls else [*base, talk[2], base[1]], _RESULT, tools=offered),
        thoughts=_shows(template, [base[0], {**base[1], "reasoning_content": _THOUGHT}], _THOUGHT, _SAID),
        lists=lists,
        media={kind: mark for kind in MEDIA if (mark := _media_mark(template, kind, base[1])) is not None},
    )


def _tried(template: Template, messages: Sequence[Message], tools: Any = None, *, prompt: bool = False) -> str:
    """What the template makes of them, or how it fails."""
    try:
        return template.write(messages, tools, prompt=prompt)[0]
    except TooMuchOfIt as error:
        raise SpecError(f"render='template': {error}, or take render='tokens'") from error
    except DataError as error:
        return str(error)


def _shows(template: Template, messages: Sequence[Message], *words: str, tools: Any = None) -> bool:
    text = _tried(template, messages, tools)
    return all(word in text for word in words)


def _listed(messages: Sequence[Message]) -> list[Message]:
    return [{**m, "content": [{"type": "text", "text": m["content"]}] if m["content"] else []} for m in messages]


def _media_mark(template: Template, kind: str, answer: Message) -> str | None:
    """What the template writes for a medium in a content; None: it knows no such part."""
    words = {"type": "text", "text": _ASKED}
    without, with_it = (
        _tried(template, [{"role": "user", "content": content}, answer])
        for content in ([words], [{"type": kind}, words])
    )
    if with_it == without or not (_ASKED in with_it and _ASKED in without) or _PRINTED.search(with_it):
        return None
    start = _same(with_it, without)
    stop = len(with_it) - _same(with_it[start:][::-1], without[start:][::-1])
    return with_it[start:stop]


def _same(one: str, two: str) -> int:
    """Characters that two texts begin with alike."""
    pairs = enumerate(zip(one, two, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(two)))


def _lengths(texts: Sequence[str]) -> str:
    """Of texts that are not quoted: the template's file may be a link to any other."""
    return " and ".join(described(text) for text in texts[:8]) or "nothing"


def _prove(template: Template) -> None:
    """That what counts as the assistant's is what it says. Longer conversations are looked at as they come."""
    base = _listed(_BASE) if template.ways.lists else _BASE
    if not template.has_generation():
        template.by_turns(base, [False, True], None)
        return
    talk = [*base, *base]
    text, spans = template.write(talk, marks=True)
    said = [text[start:stop] for start, stop in spans]
    if "".join(said).count(_SAID) != 2 or _ASKED in "".join(said):
        raise SpecError(
            f"learn='assistant': the generation marks of the chat template do not stand around the assistant's turns: "
            f"of two answers {_SAID!r} they stand around {_lengths(said)}; correct the template, or take learn='all'"
        )

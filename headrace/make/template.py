"""Conversations written by the tokenizer's own chat template, and which of their characters the assistant said.

A template is a small program out of the tokenizer's files. It runs in a sandbox that counts what it does; here it is
found out once what the template knows, and checked that what is learned is what the assistant said.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

from headrace.errors import DataError, SpecError, described, shown
from headrace.make.draft import placeholder
from headrace.make.load import INSTALL
from headrace.make.messages import MEDIA, Message, Ways, messages_of, tools_in
from headrace.make.tokens import token
from headrace.make.turns import is_learned

Span: TypeAlias = tuple[int, int]
"""Characters from the first number up to the second."""

_GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")


_THOUGHTS = ("reasoning_content", "thinking", "reasoning")
"""Names that templates and data have for what an assistant thinks."""


class TooMuchOfIt(DataError):
    """A template that would run for too long, or fill the memory."""


class Rendered(NamedTuple):
    text: str
    learned: list[Span]
    """What the assistant said; empty where nobody asked for it."""
    media_stop: int | None
    """Where the last of the sample's media ends; None: nobody knows."""


@dataclass(frozen=True, kw_only=True)
class Template:
    """Made by `open_template`."""

    plain: str
    with_tools: str
    special: Mapping[str, str | list[str]]
    """Special tokens of the tokenizer, by name, for the template to use."""
    tokens: Mapping[str, str]
    """Our marks, for what the template has no way to write."""
    ways: Ways = field(default_factory=Ways)
    prompts: bool = False
    """Whether it writes what comes before an assistant's turn when it is asked to."""

    @property
    def mark(self) -> str:
        """Changes with what comes out."""
        text = json.dumps([self.plain, self.with_tools, sorted(self.special.items())])
        return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()

    def render(self, sample: Mapping[str, Any], learn: bool) -> Rendered | None:
        """A sample that has `turns` (of a `Draft`) or `messages`; None: it is no conversation. `learn`: whether to
        find out what the assistant said."""
        if sample.get("turns"):
            pairs, tools = messages_of(sample["turns"], self.tokens, self.ways), tools_in(sample["turns"], self.ways)
        elif sample.get("messages"):
            pairs, tools = _checked(sample["messages"]), sample.get("tools") or None
        else:
            return None
        messages, learned = with_ids([message for message, _ in pairs]), [flag for _, flag in pairs]
        if not learn:
            text, _ = self.write(messages, tools)
            return Rendered(text, [], self._media_stop(text))
        if self.has_generation(tools):
            text, spans = self.by_marks(messages, learned, tools)
        else:
            text, spans = self.by_turns(messages, learned, tools)
        return Rendered(text, spans, self._media_stop(text))

    def has_generation(self, tools: Any = None) -> bool:
        """Whether the template says by itself what the assistant said."""
        return bool(_GENERATION.search(self._text(tools)))

    def write(
        self, messages: Sequence[Message], tools: Any = None, *, prompt: bool = False, marks: bool = False
    ) -> tuple[str, list[Span]]:
        """The text of a conversation. `prompt`: with what comes before an assistant's turn at its end. `marks`: also
        what stands between generation marks."""
        try:
            from jinja2.exceptions import TemplateAssertionError, TemplateSyntaxError

            from headrace.make import chat_budget, chat_sandbox
        except ImportError as error:
            raise SpecError(f"render='template' takes jinja2 3.1.6 or later ({shown(error)}); {INSTALL}") from error
        given = {"messages": _aliased(messages), "tools": tools, "documents": None, "add_generation_prompt": prompt}
        try:
            return chat_sandbox.write(self._text(tools), {**self.special, **given}, marks=marks)
        except chat_budget.TooMuch as error:
            raise TooMuchOfIt(f"the chat template {error}; correct the template") from error
        except TemplateSyntaxError as error:  # without its words: the file may be a link to any other
            what = "names a filter, test or block that Jinja does not take"
            what = what if isinstance(error, TemplateAssertionError) else "is not Jinja"
            kind = type(error).__name__
            raise DataError(
                f"the chat template fails: {kind} in line {error.lineno}, which {what}; correct it there"
            ) from None
        except Exception as error:  # it is a program that anyone may have written
            raise DataError(f"the chat template fails: {type(error).__name__}: {shown(error)}") from error

    def _text(self, tools: Any) -> str:
        return self.with_tools if tools else self.plain

    # --- what the assistant said

    def by_marks(self, messages: Sequence[Message], learned: Sequence[bool], tools: Any) -> tuple[str, list[Span]]:
        text, spans = self.write(messages, tools, marks=True)
        wanted = [flag for message, flag in zip(messages, learned, strict=True) if message["role"] == "assistant"]
        if any(wanted) and not any(text[start:stop].strip() for start, stop in spans):
            raise SpecError(
                "learn='assistant': the assistant's turns of a conversation stand outside of the chat template's "
                "generation marks, so that nothing would be learned; correct the template, or take learn='all'"
            )
        if all(wanted):
            return text, spans
        if len(spans) != len(wanted):
            raise SpecError(
                f"a conversation of {len(wanted)} assistant's turns, not all of which are learned, has {len(spans)} "
                f"generation marks, so that nobody can tell which is which; the template should have one around each "
                f"turn, or take learn='all'"
            )
        return text, [span for span, flag in zip(spans, wanted, strict=True) if flag]

    def by_turns(self, messages: Sequence[Message], learned: Sequence[bool], tools: Any) -> tuple[str, list[Span]]:
        """By what each assistant's turn adds to the text: the template must write what comes before it the same."""
        text, _ = self.write(messages, tools)
        spans = []
        for i, message in enumerate(messages):
            if not learned[i]:
                continue
            try:
                before, _ = self.write(messages[:i], tools, prompt=True)
                after, _ = self.write(messages[: i + 1], tools)
            except DataError as error:
                raise _untrusted(f"message {i}: without those after it {error}") from error
            if not text.startswith(after) or not after.startswith(before) or after == before:
                raise _untrusted(f"message {i} is written in another way where more or fewer messages follow")
            plain = not self.prompts and not message.keys() & {"reasoning_content", "tool_calls"}
            if plain and not after[len(before) :].lstrip().startswith(_words(message["content"]).strip()):
                raise _untrusted(f"what message {i} adds to the text does not begin with its content")
            spans.append((len(before), len(after)))
        return text, spans

    # --- media

    @property
    def marks(self) -> dict[str, str]:
        """What stands in a text for a medium of each kind."""
        return {kind: self.ways.media.get(kind) or placeholder(self.tokens, kind) for kind in MEDIA}

    def _media_stop(self, text: str) -> int | None:
        return media_stop(text, self.tokens, [mark for mark in self.ways.media.values() if mark])


def media_stop(text: str, tokens: Mapping[str, str], more: Sequence[str] = ()) -> int | None:
    """Where the last placeholder of media ends, or `more` that stand for them; None: there is none."""
    names = [*((f"{kind}_start", f"{kind}_end") for kind in MEDIA), *((f"gen_{k}", f"gen_{k}_end") for k in MEDIA)]
    marks = [token(tokens, start) + token(tokens, end) for start, end in names]
    found = [text.rfind(mark) + len(mark) for mark in [*marks, *more] if mark and mark in text]
    return max(found, default=None)


def _checked(messages: Any) -> list[tuple[Message, bool]]:
    """Messages that a formatter gives by itself; flags of theirs can take a turn away."""
    listed = isinstance(messages, list | tuple)
    wrong = [i for i, m in enumerate(messages) if not isinstance(m, Mapping) or not m.get("role")] if listed else []
    if wrong or not listed:
        item = f" of which number {wrong[0]} is {described(messages[wrong[0]])} without a role" if wrong else ""
        raise DataError(
            f"its formatter gave as messages {described(messages)}{item}; a list of dicts with role and content is "
            f"expected"
        )
    found = [{"content": "", **message} for message in messages]
    return [(one, one["role"] == "assistant" and is_learned(one)) for one in found]


def with_ids(messages: list[Message]) -> list[Message]:
    """Calls and results of tools with the numbers and names by which templates may ask for them."""
    calls: list[tuple[str, Any]] = []
    given, found = 0, []
    for message in messages:
        if message.get("tool_calls"):
            numbered = [{"id": f"call{len(calls) + k:05}", **call} for k, call in enumerate(message["tool_calls"])]
            given = len(calls)
            calls += [(call["id"], call.get("function", {}).get("name")) for call in numbered]
            message = {**message, "tool_calls": numbered}
        elif message["role"] == "tool" and given < len(calls) and "tool_call_id" not in message:
            number, name = calls[given]
            message, given = {**message, "tool_call_id": number, "name": name}, given + 1
        found.append(message)
    return found


def _aliased(messages: Sequence[Message]) -> list[Message]:
    """Messages with their thoughts under both names that templates read them by, as transformers gives them."""
    found = []
    for message in messages:
        thought = next((message[name] for name in _THOUGHTS if message.get(name) is not None), None)
        found.append(message if thought is None else {"thinking": thought, **message, "reasoning_content": thought})
    return found


def _words(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "".join(part.get("text", "") for part in content or () if isinstance(part, Mapping))


def _untrusted(why: str) -> SpecError:
    return SpecError(
        f"learn='assistant': the chat template does not tell which tokens are the assistant's, and they cannot be "
        f"found out: {why}; it needs {{% generation %}} and {{% endgeneration %}} around what the assistant says, or "
        f"take learn='all'"
    )

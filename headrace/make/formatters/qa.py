"""Questions, captions and conversations about images, videos and pages: what the formatters of seen things share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row, first_of
from headrace.make.formatters.answers import (
    answer_of,
    answered,
    asked,
    options_of,
    plain_answer,
    rationale_of,
)
from headrace.make.formatters.base import Tokens, flag_of
from headrace.make.formatters.chat import listed_turns, with_system
from headrace.make.formatters.media import require_media, span_of, with_media
from headrace.make.turns import Kind, Turn, turn
from headrace.make.values import as_text, joined, listed, texts


class Seen:
    """What a row shows, and the samples about it."""

    def __init__(self, row: Row, tokens: Tokens, dtype: str, kind: Kind, media: list[Any]) -> None:
        self.row, self.tokens, self.dtype, self.kind, self.media = row, tokens, dtype, kind, media

    def samples(self, describe: str) -> Iterator[Formatted | None]:
        """Of its conversation; else of its pairs; else of its question; else of its captions."""
        turns = listed_turns(self.row)
        if turns:
            yield self.sample(with_system(self.row, turns))
            return
        pairs = pairs_of(self.row)
        for question, answer in pairs:
            yield self.sample([turn("user", question), answered(answer)])
        if self.row.is_mapped("caption"):
            yield from self._captions(describe)
        elif not pairs:
            sample = self._answer()
            yield from [sample] if sample is not None else self._captions(describe)

    def sample(self, turns: list[Turn]) -> Formatted | None:
        draft = Draft(self.tokens)
        draft.turns(with_media(self.row, turns, {self.kind: self.media}, about=self.kind))
        return draft.sample(self.dtype, is_training=flag_of(self.row), clip=span_of(self.row))

    def _answer(self) -> Formatted | None:
        question = as_text(first_of(self.row, "question", "prompt"))
        options = options_of(self.row)
        answer = answer_of(self.row, options) if question.strip() else ""
        if not answer:
            return None
        context = self.row.text("context")
        return self.sample([turn("user", asked(question, options, context)), answered(answer, rationale_of(self.row))])

    def _captions(self, describe: str) -> Iterator[Formatted | None]:
        """One sample of each caption; none of a row whose question has no answer, or that may show nothing and does."""
        question = as_text(first_of(self.row, "question", "prompt"))
        if question and not self.row.is_mapped("caption"):
            return
        captions = captions_of(self.row)
        if not self.media:
            if captions:
                require_media(self.row, self.kind, about=True)
            return
        context = self.row.text("context") if self.row.is_mapped("context") else ""
        for caption in captions:
            yield self.sample([turn("user", joined(question or describe, context)), answered(caption)])


def pairs_of(row: Row) -> list[tuple[str, str]]:
    """Several questions of one row: a list of pairs, or two lists."""
    value = listed(row.find("qa_pairs"))
    found: list[tuple[str, str]] = []
    if isinstance(value, list | tuple):
        found = [_pair(item) for item in value if isinstance(item, Mapping)]
    else:
        questions, answers = texts(row.find("questions")), listed(row.find("answers"))
        if questions and isinstance(answers, list | tuple) and len(questions) == len(answers):
            found = [(q, plain_answer(a)) for q, a in zip(questions, answers, strict=True)]
        elif row.is_mapped("questions") and isinstance(answers, str):
            found = [(question, answers) for question in questions]
    return [(question, answer) for question, answer in found if question.strip() and answer.strip()]


def _pair(item: Mapping[Any, Any]) -> tuple[str, str]:
    question = next((item[key] for key in ("user", "question", "q", "human") if item.get(key)), "")
    answer = next((item[key] for key in ("assistant", "answer", "a", "gpt") if item.get(key)), "")
    return as_text(question), plain_answer(answer)


def captions_of(row: Row) -> list[str]:
    """Each caption of the row; one that is a struct has its text inside."""
    value = listed(row.find("caption"))
    if isinstance(value, Mapping):
        value = value.get("content", value.get("text"))
    if isinstance(value, list | tuple):
        value = [item.get("content") if isinstance(item, Mapping) else item for item in value]
    return texts(value)

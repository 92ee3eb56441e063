"""What is known and what is not: answers from a context, and saying so where it has none."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from headrace.make.draft import Draft, Formatted
from headrace.make.fields import Row
from headrace.make.formatters.answers import answer_of, answered, asked, options_of
from headrace.make.formatters.base import Tokens, flag_of, formatter, text_sample
from headrace.make.formatters.chat import listed_turns, with_system
from headrace.make.formatters.media import images_of, require_media, with_media
from headrace.make.turns import Turn, turn
from headrace.make.values import as_text, joined, listed, texts

ABSTAIN = "I don't know. The given context does not answer this question."
UNSURE = "I don't know."


@formatter
def format_anti_hallucination(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A question, with its context, and a right answer; where nothing answers it, the answer says that. A row with a
    column for pictures that holds none, and without a context in words, is an error."""
    turns = listed_turns(row) or _asked(row)
    if turns:
        images = images_of(row)
        if not images and row.has_column("images", "image") and not _context(row.find("context")):
            require_media(row, "image", about=True)
        draft = Draft(tokens)
        draft.turns(with_media(row, with_system(row, turns), {"image": images}))
        yield draft.sample("anti_hallucination", is_training=flag_of(row))
    else:
        yield text_sample(row, tokens, "anti_hallucination", row.text("text"))


def _asked(row: Row) -> list[Turn]:
    question = row.text("prompt") if row.is_mapped("prompt") else row.text("question")
    context = _context(row.find("context"))
    options = options_of(row)
    answer = _answer(row, options, context)
    if not question.strip() or not answer.strip():
        return []
    given = f"Context:\n{context}" if context else ""
    return [turn("user", asked(question, options, given)), answered(answer)]


def _answer(row: Row, options: list[str], context: str) -> str:
    """Where the row says that nothing answers the question (an empty list, a flag), the answer says so too."""
    found = answer_of(row, options)
    if found:
        return found
    value = row.find("answer") if row.is_mapped("answer") else row.get("answers")
    value = value.get("text") if isinstance(value, Mapping) else listed(value)
    if row.get("is_impossible") is not True and not (isinstance(value, list | tuple) and not value):
        return ""
    return ABSTAIN if context else UNSURE


def _context(value: Any) -> str:
    """Paragraphs, also where they are kept as titles and sentences."""
    value = listed(value) if not isinstance(value, str) else value
    if not isinstance(value, Mapping):
        return "\n\n".join(texts(value)) if isinstance(value, list) else as_text(value)
    titles, sentences = value.get("title"), value.get("sentences")
    if not isinstance(titles, list) or not isinstance(sentences, list):
        return as_text(value)
    parts = [joined(as_text(t), "".join(texts(s)), by="\n") for t, s in zip(titles, sentences, strict=False)]
    return joined(*parts)

"""Plain text: all of it is learned."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.make.draft import Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens, formatter, text_sample
from headrace.make.values import joined


def whole_text(row: Row) -> str:
    """The text, under its title where the row has one that is not the text's first line."""
    text, title = row.text("text"), row.text("title").strip()
    first = text.lstrip().partition("\n")[0].strip("# ")
    return joined(title, text) if text.strip() and title and first != title else text


@formatter
def format_text(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """Text of a page, an article, a file; with our marks in it, only the assistant's spans are learned."""
    yield text_sample(row, tokens, "text", whole_text(row))

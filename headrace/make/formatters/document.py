"""Documents: questions about their pages, pages to be read out, whole texts."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.make.draft import Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens, formatter, text_sample
from headrace.make.formatters.chat import chat_sample
from headrace.make.formatters.media import images_of, require_media
from headrace.make.formatters.qa import Seen
from headrace.make.formatters.text import whole_text

READ = "Read this document."


@formatter
def format_document(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """A document in pictures is seen, one in words is learned as it is, a question about it is answered. A row with a
    column for pictures that holds none, and without words of the document, is an error."""
    pages = images_of(row)
    if pages:
        yield from Seen(row, tokens, "document", "image", pages).samples(READ)
        return
    if row.has_column("images", "image") and not (row.text("text").strip() or row.text("context").strip()):
        require_media(row, "image", about=True)
    sample = chat_sample(row, tokens, "document")
    yield sample if sample is not None else text_sample(row, tokens, "document", whole_text(row))

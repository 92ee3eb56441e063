"""Images: questions, captions, conversations about them, pages to be written as code."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.make.draft import Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens, formatter
from headrace.make.formatters.media import pictures_of
from headrace.make.formatters.qa import Seen

DESCRIBE = "Describe this image."


@formatter
def format_vision(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """One sample of each question and of each caption. A row without an image is an error; where
    the map has `optional: =image`, its question is a text."""
    yield from Seen(row, tokens, "vision", "image", pictures_of(row)).samples(DESCRIBE)

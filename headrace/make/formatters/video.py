"""Videos: questions with or without options, captions, conversations about them."""

from __future__ import annotations

from collections.abc import Iterator

from headrace.make.draft import Formatted
from headrace.make.fields import Row
from headrace.make.formatters.base import Tokens, formatter
from headrace.make.formatters.media import videos_of
from headrace.make.formatters.qa import Seen

DESCRIBE = "Describe this video."


@formatter
def format_video(row: Row, tokens: Tokens) -> Iterator[Formatted | None]:
    """One sample of each question and of each caption. The video may be bytes, a file, an address or only a name. A
    row without one is an error; where the map has `optional: =video`, its question is a text."""
    yield from Seen(row, tokens, "video", "video", videos_of(row)).samples(DESCRIBE)

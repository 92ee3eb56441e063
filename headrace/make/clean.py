"""Texts made fit to learn from, where a catalog entry asks for it by name."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser

from headrace.errors import SpecError, shown

_SPOKEN = {"<COMMA>": ",", "<PERIOD>": ".", "<QUESTIONMARK>": "?", "<EXCLAMATIONPOINT>": "!"}
_NOT_SPOKEN = re.compile(r"<(?:SIL|MUSIC|NOISE|OTHER)>")
_BLOCKS = frozenset(
    {"p", "div", "ul", "ol", "table", "tr", "h1", "h2", "h3", "h4", "h5", "h6", "blockquote", "section"}
)


def lower(text: str) -> str:
    return text.lower()


def speech_tags(text: str) -> str:
    """Punctuation that was written as tags; a recording without speech has no text."""
    if _NOT_SPOKEN.search(text):
        return ""
    for tag, mark in _SPOKEN.items():
        text = text.replace(f" {tag}", mark).replace(tag, mark)
    return text


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._fenced = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "pre":
            self._fenced += 1
            self.parts.append("\n\n```\n")
        elif tag == "code" and not self._fenced:
            self.parts.append("`")
        elif tag == "li":
            self.parts.append("\n- ")
        elif tag == "br":
            self.parts.append("\n")
        elif tag in _BLOCKS and not self._fenced:
            self.parts.append("\n\n")

    def handle_endtag(self, tag: str) -> None:
        if tag == "pre" and self._fenced:
            self._fenced -= 1
            self.parts.append("\n```\n\n")
        elif tag == "code" and not self._fenced:
            self.parts.append("`")
        elif tag in _BLOCKS and not self._fenced:
            self.parts.append("\n\n")

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def html(text: str) -> str:
    """The text of a piece of HTML, with its paragraphs, lists and code; a text without tags stays as it is."""
    if not re.search(r"</?[a-zA-Z][^<>]*>", text):
        return text
    reader = _Reader()
    try:
        reader.feed(text)
        reader.close()
    except AssertionError:
        # What looks like a broken declaration ("<![") is no HTML.
        return text
    return re.sub(r"\n{3,}", "\n\n", "".join(reader.parts)).strip()


CLEANERS: dict[str, Callable[[str], str]] = {"html": html, "lower": lower, "speech_tags": speech_tags}


def cleaner(names: str) -> Callable[[str], str]:
    """A way to clean texts by its name; several, joined by commas, one after the other."""
    found = [name.strip() for name in names.split(",")]
    for name in found:
        if name not in CLEANERS:
            raise SpecError(f"clean={shown(name)!r} is no way to clean a text; there are {', '.join(sorted(CLEANERS))}")

    def clean(text: str) -> str:
        for name in found:
            text = CLEANERS[name](text)
        return text

    return clean

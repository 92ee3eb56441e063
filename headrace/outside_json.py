"""JSON from outside, whose values are counted before they are made: one of three bytes takes 60 in memory."""

from __future__ import annotations

import json
from typing import Any

VALUE_BYTES = 64
"""What a value of JSON takes in memory, with its share of what holds it."""
PARSED_BYTES = 64 << 20
"""All values of a reply or a file take about so much."""
MOST_VALUES = PARSED_BYTES // VALUE_BYTES


class TooManyValues(ValueError):
    """JSON that takes more memory than it may."""


def count_values(text: bytes | bytearray | str) -> int:
    """At least as many as there are: each stands after one of these, and those in texts count as well."""
    marks = (",", ":", "[", "{")
    return sum(text.count(mark) if isinstance(text, str) else text.count(mark.encode()) for mark in marks)


def parse(text: bytes | bytearray | str, most: int = MOST_VALUES, **options: Any) -> Any:
    """As `json.loads`; it raises `TooManyValues` where there are more than `most`."""
    found = count_values(text) if isinstance(text, str | bytes | bytearray) else 0  # json says what is wrong with it
    if found > most:
        raise TooManyValues(f"it has {found:,} values, more than the {most:,} that are read")
    return json.loads(text, **options)

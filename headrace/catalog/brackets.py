"""Whether bytes hold JSON of many levels, wherever in them it begins.

pyarrow before 26 reads some texts of a footer as JSON, and calls itself once for each level of them.
"""

from __future__ import annotations

import re

MOST_LEVELS = 100
"""Lists and objects inside each other."""

_OPENING, _QUOTE, _OTHER = b"[{", b'"'[0], b"\1"[0]
_VALUES = b"0123456789+-.eEtruefalsn,: \t\r\n"
"""Bytes of JSON outside of texts that open and close nothing."""
_OTHERS = bytes(set(range(256)) - set(_VALUES + b'[]{}"\0'))
_TO_MARKS = bytes.maketrans(_OTHERS, bytes([_OTHER]) * len(_OTHERS))
_RUN, _SEVERAL = re.compile(rb"[^\0]+"), re.compile(b"\1+")
"""No JSON goes on behind a zero."""


def is_deep(data: bytes) -> bool:
    """Whether JSON that begins anywhere in here may have more levels. It may be taken for deep where it is not, never
    the other way round."""
    if sum(map(data.count, (b"[", b"{"))) <= MOST_LEVELS:
        return False
    marks = data.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_TO_MARKS, _VALUES)
    marks = _SEVERAL.sub(b"\1", marks)
    return any(_is_deep(run[0]) for run in _RUN.finditer(marks) if len(run[0]) > MOST_LEVELS)


def _is_deep(marks: bytes) -> bool:
    """Two counts: what one who begins here takes for brackets is text to one who begins behind the next quote. JSON
    ends at a byte that may only be in its texts, for those who are outside of a text there."""
    levels, side = [0, 0], 0
    for mark in marks:
        if mark == _QUOTE:
            side ^= 1
        elif mark == _OTHER:
            levels[side] = 0
        elif mark in _OPENING:
            levels[side] += 1
            if levels[side] > MOST_LEVELS:
                return True
        elif levels[side]:
            levels[side] -= 1
    return False

"""Values of rows as texts, as lists, as JSON, and as references to media. Nothing here runs what it reads."""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Mapping
from numbers import Integral, Number
from typing import Any, Literal, TypeAlias

from headrace.errors import DataError, described, shown
from headrace.fetch.media.sniff import BYTES

Status: TypeAlias = Literal["data", "path", "url", "id"]
"""What a reference to media is: the bytes or samples themselves, a file, an address, or a name kept elsewhere."""

MOST_JSON = 16 * 2**20
MOST_REPR = 2**20
"""Longer strings are texts, whatever they look like."""
MOST_DEPTH = 64

_STRINGS = re.compile(r"'(?:[^'\\\n]|\\.)*'|\"(?:[^\"\\\n]|\\.)*\"", re.DOTALL)
_VALUES = re.compile(r"\b(?:True|False|None)\b|(?<![\w.])[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_NEIGHBOURS = re.compile(r"[0\])}][0\[({]")
"""Two values with nothing between them: a call, an index, an operation."""
_MEDIA_KEYS = ("bytes", "path", "array", "url")
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_LISTS = (list, tuple)
_SIZED = (dict, *_LISTS, *BYTES, Mapping)
_ADDRESS = re.compile(r"[a-zA-Z][a-zA-Z0-9+.\-]*:")
_SUFFIX = re.compile(r"\.[a-zA-Z0-9]{2,5}$")


# --- texts


def as_text(value: Any) -> str:
    """A value as the text a model reads. What is no text (nothing, raw bytes) is the empty one."""
    if isinstance(value, str):
        return value
    if value is None or isinstance(value, BYTES):
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        if isinstance(value, Number):
            return str(value)
        if isinstance(value, list | tuple) and all(isinstance(item, str) for item in value):
            return "\n".join(value)
        if isinstance(value, Mapping | list | tuple):
            return dumped(value)
        return str(value)
    except (ValueError, RecursionError) as error:
        raise DataError(f"a {type(value).__name__} cannot be written as text: {shown(error)}") from error


def dumped(value: Any, indent: int | None = None) -> str:
    """JSON as people write it: letters stay letters."""
    try:
        return json.dumps(value, ensure_ascii=False, indent=indent, default=_written)
    except (TypeError, ValueError, RecursionError) as error:
        raise DataError(f"a {type(value).__name__} cannot be written as JSON: {shown(error)}") from error


def _written(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(value)} bytes>"
    return value.item() if isinstance(value, Number) and hasattr(value, "item") else str(value)


def texts(value: Any) -> list[str]:
    """The texts of a list, also of one that was written into a string; a single text is a list of one."""
    value = listed(value)
    if value is None:
        return []
    found = [as_text(item) for item in value] if isinstance(value, list | tuple) else [as_text(value)]
    return [text for text in found if text.strip()]


def joined(*parts: str, by: str = "\n\n") -> str:
    return by.join(part for part in parts if part.strip())


def is_whole(value: Any) -> bool:
    """A whole number, of Python or numpy; True and False are none."""
    return isinstance(value, Integral) and not isinstance(value, bool)


def whole(value: Any) -> int | None:
    """A whole number as Python's; None where it is none."""
    return int(value) if is_whole(value) else None


def is_empty(value: Any) -> bool:
    """Whether a field says nothing. Arrays and decoded media are asked for nothing and say something."""
    if value is None:
        return True
    if isinstance(value, str):
        return not value.strip()
    return isinstance(value, _SIZED) and len(value) == 0


def said_of(name: str, value: Any) -> bool | None:
    """What a flag says: a number by whether it is 0, a text by its meaning. Nothing, also NaN, says nothing."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()  # of numpy or torch
    if is_empty(value) or (isinstance(value, float) and math.isnan(value)):
        return None
    if isinstance(value, str):
        found = _FLAGS.get(value.strip().lower())
    else:
        found = bool(value) if isinstance(value, int | float) else None
    if found is None:
        raise DataError(
            f"{name} is {described(value)}; true or false, a number, or one of {', '.join(_FLAGS)} is expected"
        )
    return found


# --- lists and objects inside strings


def parsed(value: Any) -> Any:
    """The list or object that a string holds as JSON; anything else as it is."""
    if value is None:
        return None
    if isinstance(value, (bytes, bytearray)):
        if len(value) > MOST_JSON or bytes(value[:1]) not in (b"{", b"["):
            return value
        try:
            value = bytes(value).decode()
        except UnicodeDecodeError:
            return value
    if not isinstance(value, str) or len(value) > MOST_JSON or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def listed(value: Any) -> Any:
    """As `parsed`; also lists and objects written the way Python prints them."""
    found = parsed(value)
    if not isinstance(found, str) or len(found) > MOST_REPR or found.strip()[:1] not in ("[", "{", "("):
        return found
    literal = _literal(found.strip())
    return found if literal is None else literal


def _literal(text: str) -> Any:
    """Only what `repr` gives for lists, dicts, texts and numbers is read: no operators, no names, no deep nesting."""
    rest = "".join(_VALUES.sub("0", _STRINGS.sub("0", text)).split())
    if set(rest) - set("0[](){},:") or _NEIGHBOURS.search(rest):
        return None
    depth = 0
    for c in rest:
        depth += (c in "[({") - (c in "])}")
        if not 0 <= depth <= MOST_DEPTH:
            return None
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        return None


def json_objects(text: str) -> list[Any]:
    """Every object of a string that holds several one after the other; [] where anything else stands between them."""
    found: list[Any] = []
    decoder, at = json.JSONDecoder(), 0
    if len(text) > MOST_JSON:
        return []
    while at < len(text):
        if text[at].isspace() or (text[at] == "," and found):
            at += 1
            continue
        if text[at] not in "{[":
            return []
        try:
            item, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            return []
        found.extend(item if isinstance(item, list) else [item])
    return found


# --- media


def is_media(value: Any) -> bool:
    """Whether something is there to be decoded or looked up."""
    if value is None or isinstance(value, bool):
        return False
    if isinstance(value, str):
        return bool(value.strip())
    if isinstance(value, BYTES):
        return len(value) > 0
    if isinstance(value, Mapping):
        return any(not is_empty(value.get(key)) for key in _MEDIA_KEYS)
    if isinstance(value, _LISTS):
        return any(is_media(item) for item in value)
    return True


def media_list(value: Any) -> list[Any]:
    """One reference or a list of them, without the missing ones."""
    if isinstance(value, _LISTS) and not all(isinstance(item, Number) for item in value):
        return [item for item in value if is_media(item)]
    return [value] if is_media(value) else []


def media_status(value: Any) -> Status:
    """What kind of reference it is; whether it may be opened is for the media policy to say."""
    if isinstance(value, Mapping):
        for key in ("bytes", "array"):
            if not is_empty(value.get(key)):
                return "data"
        path = value.get("path")
        return media_status(value.get("url") if is_empty(path) else path)
    if isinstance(value, _LISTS) and value:
        return media_status(value[0])
    if is_whole(value):
        return "id"
    if not isinstance(value, str):
        return "data"
    if _ADDRESS.match(value):
        return "url"
    return "path" if "/" in value or _SUFFIX.search(value) else "id"

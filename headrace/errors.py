"""Every error of Headrace, as one tree.

    HeadraceError
    ├── SpecError        (ValueError)    a spec or an argument that cannot mean anything
    ├── SourceError                      where the data is
    │   ├── NotFound     (FileNotFoundError)  no such repo, split, file, column
    │   ├── NotAllowed   (PermissionError)    gated, private, or refused by policy
    │   └── Changed                      the data is not what it was
    ├── FetchError       (OSError)       bytes that did not arrive
    │   ├── Unreachable                  the server did not answer, after all retries
    │   ├── Integrity                    the bytes are not the bytes that were promised
    │   ├── Stalled                      no progress before the deadline
    │   └── NoSpace                      the disk or the cache limit is too small
    ├── DataError        (ValueError)    a file or a row that cannot be read as what it says it is
    │   └── Refused      (NotAllowed)    media over a limit, or of a form that is not decoded here
    ├── StateError       (ValueError)    a checkpoint that does not fit
    └── WorkerError      (RuntimeError)  a worker process that died, hung, or failed in a way of its own

A message says what was given, why it cannot work, and what to do instead. Messages carry addresses, never tokens and
never the query part of a URL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit, urlunsplit

_LONG_NUMBER = 200
"""Bits of a whole number that is too long for a message."""
_QUOTE = r"""(?!'(?:t|s|re|ll|ve|d|m)\b)["'`]"""
_QUOTED = re.compile(f"{_QUOTE}(?:.*{_QUOTE}|.*)", re.DOTALL)
"""From the first quote to the last, as what is quoted may have quotes in it; where there is only one, to the end."""


class HeadraceError(Exception):
    """The root of the tree."""


class SpecError(HeadraceError, ValueError):
    """A spec or an argument that cannot mean anything."""


class SourceError(HeadraceError):
    """Something about where the data is."""


class NotFound(SourceError, FileNotFoundError):
    """No such repo, split, file or column."""


class NotAllowed(SourceError, PermissionError):
    """Gated, private, or refused by policy."""


class Changed(SourceError):
    """The data is not what it was when it was first seen."""


class FetchError(HeadraceError, OSError):
    """Bytes that did not arrive."""


class Unreachable(FetchError):
    """The server did not give the bytes, after all retries."""


class Integrity(FetchError):
    """The bytes are not the bytes that were promised."""


class Stalled(FetchError):
    """No progress before the deadline."""


class NoSpace(FetchError):
    """The disk or the cache limit is too small."""


class DataError(HeadraceError, ValueError):
    """A file or a row that cannot be read as what it says it is."""


class Refused(NotAllowed, DataError):
    """Media over a limit, or of a form that is not decoded here: a refusal, and data that cannot be read."""


class StateError(HeadraceError, ValueError):
    """A checkpoint that does not fit."""


class WorkerError(HeadraceError, RuntimeError):
    """A worker process that died, hung, or failed in a way of its own."""


def shown(value: object, limit: int = 200) -> str:
    """Text from outside, fit for a message: control characters escaped, length bounded."""
    text = str(value)[: limit + 1]
    if not text.isprintable():
        text = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    return text if len(text) <= limit else text[:limit] + "…"


def described(value: object) -> str:
    """What a value of a file is, for messages that must not quote it: the file may be a link to any other. Numbers are
    as they are."""
    with suppress(Exception):  # of a value that a user's own function made
        return _described(value)
    return f"a value of type {type(value).__name__}"


def _described(value: Any) -> str:
    if getattr(value, "shape", None) == () and hasattr(value, "item"):
        value = value.item()  # of numpy or torch
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, int) and value.bit_length() > _LONG_NUMBER:
        return f"a whole number of {value.bit_length():,} bits"
    if isinstance(value, int | float):
        return str(value)
    if isinstance(value, str):
        return f"text of {_counted(len(value), 'character')}"
    if isinstance(value, bytes | bytearray | memoryview):
        return _counted(len(value), "byte")
    if isinstance(value, Mapping):
        return f"an object of {_counted(len(value), 'key')}"
    if isinstance(value, list | tuple):
        return f"a list of {len(value):,}"
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"an array of {shown(value.dtype)} and shape {tuple(value.shape)}"
    return f"a value of type {type(value).__name__}"


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"


def unquoted(error: object) -> str:
    """What a library says, without what it quotes."""
    return shown(_QUOTED.sub("…", str(error)))


def plain_url(url: str) -> str:
    """A URL without user, password, query and fragment, so that no secret reaches a message or a log."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "an address that cannot be read"
    host, port = parts.hostname or "", parts.netloc.rpartition(":")[2]
    netloc = f"{host}:{port}" if re.fullmatch("[0-9]+", port) else host
    return shown(urlunsplit((parts.scheme, netloc, parts.path, "", "")))


def torch_is_here() -> bool:
    """Whether torch can be imported. It is not: that takes a second."""
    try:
        return find_spec("torch") is not None
    except (ImportError, ValueError):
        return False


def no_torch(what: str) -> SpecError:
    return SpecError(f"{what} take the package torch, which is not installed; pip install 'headrace[torch]'")

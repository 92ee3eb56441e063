"""State files: JSON of a loader's `state_dict()`, alone or inside a checkpoint of the user's own."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.errors import StateError, shown
from headrace.outside_json import TooManyValues, parse
from headrace.serve.state import merge_states
from headrace.serve.state_file import MOST_VALUES
from headrace.stage import State

MOST_BYTES = 64 << 20
MOST_DEPTH = 3
"""A state lies at most so deep inside a checkpoint."""


def read_states(paths: Sequence[Path]) -> State:
    """The state in a file, or in several that each hold one rank's part."""
    found = [read_state(path) for path in paths]
    return found[0] if len(found) == 1 else merge_states(found)


def read_state(path: Path) -> State:
    """The state in a file. Nothing in it is run, and no path in it is opened."""
    data = _read(path)
    if not data.strip():
        raise _unreadable(path, "it is empty; was the run killed while it was written?")
    try:
        value = parse(data, MOST_VALUES, parse_constant=_refused)
    except UnicodeDecodeError:
        kind = next((kind for start, kind in _STARTS.items() if data.startswith(start)), "not text")
        raise _unreadable(path, f"it is {kind}; {_SAVE}") from None
    except TooManyValues as error:
        raise _unreadable(path, str(error)) from None
    except (ValueError, RecursionError) as error:
        hint = "it may have been cut off" if data.lstrip()[:1] in b"{[" else _SAVE
        raise _unreadable(path, f"it is not JSON: {shown(error)}; {hint}") from None
    found = dict(_inside(value, ""))
    if not found:
        there = ", ".join(shown(key) for key in list(value)[:8]) if isinstance(value, dict) else type(value).__name__
        raise _unreadable(path, f"there is no state of a loader in it, only {there or 'nothing'}")
    if len(found) > 1:
        raise _unreadable(path, f"there are several states in it, under {', '.join(map(shown, sorted(found)))}")
    return next(iter(found.values()))


_STARTS = {b"\x80": "a pickle, not text", b"PK": "an archive such as torch.save writes, not text"}
_SAVE = "write json.dumps(loader.state_dict()) to a file (a pickle is not opened: it could run anything)"


def _read(path: Path) -> bytes:
    try:
        # Without O_NONBLOCK a pipe would be waited for.
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as file:
            if not stat.S_ISREG(os.fstat(fd).st_mode):
                raise _unreadable(path, "it is not a regular file")
            data = file.read(MOST_BYTES + 1)
    except (OSError, ValueError) as error:
        if isinstance(error, StateError):
            raise
        raise _unreadable(path, getattr(error, "strerror", None) or shown(error)) from None
    if len(data) > MOST_BYTES:
        raise _unreadable(path, f"it is larger than {MOST_BYTES:,} bytes, which no state is")
    return data


def _inside(value: Any, name: str, depth: int = 0) -> list[tuple[str, State]]:
    """The states in a value, each with the keys that lead to it."""
    if not isinstance(value, dict) or depth > MOST_DEPTH:
        return []
    if "format" in value and "lanes" in value:
        return [(name, value)]
    return [found for key, one in value.items() for found in _inside(one, f"{name}.{key}".lstrip("."), depth + 1)]


def _refused(word: str) -> None:
    raise ValueError(f"{word} is no number of a state")


def _unreadable(path: Path, why: str) -> StateError:
    return StateError(f"state file unreadable: {shown(path, 1000)} ({why}); nothing was changed")

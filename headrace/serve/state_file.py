"""State files of `TrueStreamingDataset`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from headrace.errors import StateError, shown
from headrace.files import read_whole
from headrace.outside_json import parse

LARGEST_STATE = 64 << 20
MOST_VALUES = 16 << 20
"""Values of JSON in a state: about as many as there are in the largest file."""


def is_missing(path: Path) -> bool:
    """A link that leads nowhere, or a folder that may not be looked into, is no reason to begin anew."""
    try:
        path.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass  # reading it says why
    return False


def read_state(path: Path) -> dict[str, Any]:
    try:
        found = parse(read_whole(path, LARGEST_STATE), MOST_VALUES)
    except (OSError, ValueError, RecursionError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise StateError(f"state file unreadable: {shown(path)} ({shown(why)}); nothing was changed") from error
    if not isinstance(found, dict):
        raise StateError(
            f"{shown(path)}: a state is a JSON object, this is {type(found).__name__}; nothing was changed"
        )
    return found

"""Versions of packages below which something is known to be wrong: one line in the log, and nothing more."""

from __future__ import annotations

import logging
import re
from importlib import metadata
from typing import NamedTuple

log = logging.getLogger(__name__)


class Floor(NamedTuple):
    version: tuple[int, ...]
    hole: str


FLOORS = {
    "Pillow": Floor((13, 0, 0), "CVE-2026-96639 (pixels of other images in multi-frame files) and GHSA-8g5g (JPEG)"),
    "urllib3": Floor((2, 5, 0), "CVE-2025-50181 (redirects are followed where they were switched off)"),
    "FFmpeg": Floor((8, 1, 3), "CVE-2026-107697 (playlists open other files) and CVE-2026-107695 (endless loops)"),
}

KEEPS_APART = (4, 56)
"""The first Transformers whose models keep packed documents apart by their `position_ids` alone."""

_SEEN: set[str] = set()


def note_floor(name: str, version: str) -> None:
    """Log it, once in this process, if `version` of `name` is older than its floor."""
    if name in _SEEN:
        return
    _SEEN.add(name)
    floor = FLOORS[name]
    found = _numbers(version)
    if found and found < floor.version:
        wanted = ".".join(map(str, floor.version))
        log.info("%s %s is in use; %s is closed in %s: upgrade when you can", name, version, floor.hole, wanted)


def warn_of_old_transformers() -> None:
    """Warn, once in this process, if models of the installed Transformers attend across packed documents."""
    if "Transformers" in _SEEN:
        return
    _SEEN.add("Transformers")
    try:
        version = metadata.version("transformers")
    except metadata.PackageNotFoundError:
        return
    if _numbers(version) < KEEPS_APART:
        log.warning(
            "Transformers %s is installed: its models attend across the documents of a packed sequence. Upgrade to %s "
            "or later, use pack='none', or make a mask of batch.document_ids",
            version,
            ".".join(map(str, KEEPS_APART)),
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(n) for n in re.findall(r"\d+", version)[:3])

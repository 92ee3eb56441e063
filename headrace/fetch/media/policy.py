"""What a media value in a row may lead to. By default: to the bytes in the row, and nothing else."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headrace.errors import DataError, NotAllowed, SpecError, shown
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.paths import SCHEME, read_under
from headrace.fetch.media.sniff import BYTES, Kind

_HOST = re.compile(r"(?:[a-z0-9_](?:[a-z0-9_\-]*[a-z0-9])?\.)*[a-z0-9][a-z0-9\-]*(?::\d{1,5})?")

_BRACKETS = re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True, kw_only=True)
class MediaPolicy(Budget):
    """Where media may come from, and how much of it one item may be."""

    root: Path | None = None
    """Rows may name files under this folder, such as the folder of the dataset itself. None: they name no files."""
    hosts: tuple[str, ...] = ()
    """Rows may hold http and https addresses of exactly these hosts ("host" or "host:port"). Empty: of none."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.root is not None and not isinstance(self.root, Path):
            raise SpecError(f"root={shown(self.root)!r}: a pathlib.Path is expected")
        if not isinstance(self.hosts, tuple):
            raise SpecError(f"hosts={shown(self.hosts)!r}: a tuple of host names is expected, like ('images.org',)")
        for host in self.hosts:
            if not isinstance(host, str) or not _HOST.fullmatch(host):
                raise SpecError(
                    f"hosts: {shown(host)!r} is no host name in lower case, such as 'images.org' or 'images.org:8080'"
                )


def open_media(value: Any, policy: MediaPolicy, kind: Kind) -> bytes:
    """The encoded bytes of a media value: bytes, a struct of `bytes` and `path`, a file name or an address.

    Where a struct has both, the bytes count, and the path is only a name.
    """
    if isinstance(value, Mapping):
        data, path = value.get("bytes"), value.get("path")
        if data is None and path is None:
            keys = ", ".join(shown(key, 20) for key in list(value)[:5])
            raise DataError(f"the {kind} has neither bytes nor a path (its fields: {keys or 'none'})")
        value = path if data is None else data
    if isinstance(value, BYTES):
        policy.require("max_bytes", len(value), f"the size in bytes of the {kind}")
        return bytes(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if not isinstance(value, str):
        raise DataError(
            f"the {kind} is of type {type(value).__name__}, not bytes, a struct of bytes and path, or a name"
        )
    if not value:
        raise DataError(f"the {kind} is an empty name")
    scheme = SCHEME.match(value)
    if scheme is None:
        return read_under(policy.root, value, policy)
    if scheme[1].lower() not in ("http", "https") or "::" in _BRACKETS.sub("", value):
        raise NotAllowed(
            f"a row names {shown(scheme[1] + ':…')!r} as {kind}, which is not opened: of all addresses only http and "
            f"https are ever followed"
        )
    from headrace.fetch.media.urls import fetch  # brings urllib3 and ssl along

    return fetch(value, policy)

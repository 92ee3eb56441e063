"""Which data set this is, wherever it lies and however its folder is spelled."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.lerobot.meta import Meta

CONTENT = "robot-"
"""Before the mark of the content of a data set in a folder, where a repo has its commit."""
PARTS = ("meta/", "data/", "videos/")


def place_name(given: str, meta: Meta) -> str:
    """What a data set in a folder is called where nobody named it: the folder's own name and a mark of its content, so
    that copies in other folders, and other spellings of one, draw the same frames."""
    last = [part for part in given.split("/") if part not in ("", ".")][-1:]
    return f"{''.join(last)}~{_hashed(_described(meta), 6)}"


def content_revision(meta: Meta) -> str:
    """Changes with what gives positions their meaning, and with the metadata and the sizes of all files; not with the
    folder or the dates of the files."""
    prefix, listing = len(meta.files.prefix), meta.files.listing
    files = [(path[prefix:], size) for path, size in zip(listing.paths, listing.sizes.tolist(), strict=True)]
    said: dict[str, Any] = {name: {k: v.tolist() for k, v in found.items()} for name, found in meta.stats.items()}
    beside = [meta.task_names, said, sorted(file for file in files if file[0].startswith(PARTS))]
    return CONTENT + _hashed([*_described(meta), *beside], 16)


def _described(meta: Meta) -> list[Any]:
    """meta/info.json, and of each episode its number, its rows and where they lie."""
    episodes = meta.episodes
    columns: list[Any] = [episodes.index, episodes.length, episodes.first, episodes.data_chunk, episodes.data_file]
    for name in sorted(episodes.videos):
        columns += [name.encode(), *episodes.videos[name]]
    return [meta.info.raw, *(c if isinstance(c, bytes) else c.astype("<i8").tobytes() for c in columns)]


def _hashed(values: list[Any], size: int) -> str:
    h = hashlib.blake2b(digest_size=size)
    for value in values:
        data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
        h.update(len(data).to_bytes(8, "little") + data)
    return h.hexdigest()

"""Which data set this is, wherever it lies and however its folder is spelled."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.errors import DataError

if TYPE_CHECKING:
    from headrace.lerobot.meta import Meta

CONTENT = "robot-"
"""Before the mark of the content of a data set in a folder, where a repo has its commit."""
PARTS = ("meta/", "data/", "videos/")
MOST_TASK_BYTES = 1 << 28
"""Of all tasks, as JSON. A text that comes again is in memory once, and hashed as often as it comes."""
PIECE = 1 << 16
"""Characters of a text that are written out at a time."""


def place_name(given: str, meta: Meta) -> str:
    """What a data set in a folder is called where nobody named it: the folder's own name and a mark of its content, so
    that copies in other folders, and other spellings of one, draw the same frames."""
    last = [part for part in given.split("/") if part not in ("", ".")][-1:]
    h = hashlib.blake2b(digest_size=6)
    _update(h, _described(meta))
    return f"{''.join(last)}~{h.hexdigest()}"


def content_revision(meta: Meta) -> str:
    """Changes with what gives positions their meaning, and with the metadata and the sizes of all files; not with the
    folder or the dates of the files."""
    prefix, listing = len(meta.files.prefix), meta.files.listing
    files = [(path[prefix:], size) for path, size in zip(listing.paths, listing.sizes.tolist(), strict=True)]
    said: dict[str, Any] = {name: {k: v.tolist() for k, v in found.items()} for name, found in meta.stats.items()}
    h = hashlib.blake2b(digest_size=16)
    _update(h, _described(meta))
    _update_with_tasks(h, meta)
    _update(h, [said, sorted(file for file in files if file[0].startswith(PARTS))])
    return CONTENT + h.hexdigest()


def _described(meta: Meta) -> list[Any]:
    """meta/info.json, and of each episode its number, its rows and where they lie."""
    episodes = meta.episodes
    columns: list[Any] = [episodes.index, episodes.length, episodes.first, episodes.data_chunk, episodes.data_file]
    for name in sorted(episodes.videos):
        columns += [name.encode(), *episodes.videos[name]]
    return [meta.info.raw, *(c if isinstance(c, bytes) else c.astype("<i8").tobytes() for c in columns)]


def _update(h: Any, values: list[Any]) -> None:
    for value in values:
        data = value if isinstance(value, bytes) else json.dumps(value, sort_keys=True).encode()
        h.update(len(data).to_bytes(8, "little") + data)


def _update_with_tasks(h: Any, meta: Meta) -> None:
    """As `_update` with the list of all tasks, which is never there as a whole: a few bytes of a file can stand for a
    long text in each of many rows."""
    names, size = meta.task_names, 2 * max(len(meta.task_names), 1)
    for name in names:
        size += sum(map(len, _as_json(name)))
        if size > MOST_TASK_BYTES:
            raise DataError(
                f"{meta.files.name}, meta/tasks.parquet: its {len(names):,} tasks take more than {MOST_TASK_BYTES:,} "
                f"bytes when they are written out, as they are to tell this data set from others; write the file with "
                f"each task once, or with shorter ones"
            )
    h.update(size.to_bytes(8, "little") + b"[")
    for i, name in enumerate(names):
        h.update(b", " if i else b"")
        for piece in _as_json(name):
            h.update(piece)
    h.update(b"]")


def _as_json(text: str) -> Iterator[bytes]:
    """What json.dumps makes of a text, in pieces."""
    if len(text) <= PIECE:
        yield json.dumps(text).encode()
        return
    yield b'"'
    for start in range(0, len(text), PIECE):
        yield json.dumps(text[start : start + PIECE])[1:-1].encode()
    yield b'"'

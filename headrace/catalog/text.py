"""Text shards: their plain bytes, and the index of their lines."""

from __future__ import annotations

from pathlib import Path

from headrace.catalog.lines import LineIndex, LineKind, PlainBytes, index_lines
from headrace.catalog.shard import Shard
from headrace.errors import Changed, shown
from headrace.fetch.seekable import open_text

FOLDER = "text_blocks"
"""Below the cache folder: compressed text, rewritten to be seekable."""


def open_shard(shard: Shard, cache_dir: Path) -> PlainBytes:
    """The plain bytes of a text shard, which still is the one that was listed."""
    text = open_text(shard.path, cache_dir / FOLDER)
    now = text.signature
    if (now.size, str(now.mtime_ns)) != (shard.size, shard.etag):
        text.close()
        raise Changed(
            f"{shown(shard.path)} changed since it was listed: it had {shard.size} bytes (mtime {shard.etag}), now "
            f"{now.size} (mtime {now.mtime_ns}); rows may have moved, so start anew on the changed file"
        )
    return text


def index_shard(shard: Shard, kind: LineKind, cache_dir: Path) -> LineIndex:
    with open_shard(shard, cache_dir) as text:
        return index_lines(text, kind)

"""Text shards: their plain bytes, and the index of their lines."""

from __future__ import annotations

from pathlib import Path

from headrace.catalog.lines import LineIndex, LineKind, index_lines
from headrace.catalog.local import require_listed
from headrace.catalog.plain import PlainBytes
from headrace.catalog.seekable import open_text
from headrace.catalog.shard import Shard

FOLDER = "text_blocks"
"""Below the cache folder: compressed text, rewritten to be seekable."""


def open_shard(shard: Shard, cache_dir: Path) -> PlainBytes:
    """The plain bytes of a text shard, which still is the one that was listed."""
    text = open_text(shard.path, cache_dir / FOLDER)
    try:
        require_listed(text.signature, shard)
    except BaseException:
        text.close()
        raise
    return text


def index_shard(shard: Shard, kind: LineKind, cache_dir: Path) -> LineIndex:
    with open_shard(shard, cache_dir) as text:
        return index_lines(text, kind)

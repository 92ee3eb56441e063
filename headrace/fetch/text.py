"""Text shards: their plain bytes, with compressed ones rewritten into the cache, and the index of their lines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from headrace.catalog.lines import LineIndex, LineKind, index_lines
from headrace.catalog.local import require_listed
from headrace.catalog.plain import PlainBytes, PlainFile
from headrace.catalog.seekable import SeekableFile, is_compressed, seekable_shard
from headrace.catalog.shard import Shard
from headrace.catalog.stop import stopped_by
from headrace.errors import Integrity
from headrace.fetch.cache import ShardCache
from headrace.fetch.leases import Lease


class LeasedText(SeekableFile):
    """The plain bytes of a compressed file; while it is open, its seekable form stays in the cache."""

    def __init__(self, lease: Lease, source: PlainFile) -> None:
        self._lease = lease
        super().__init__(lease.path, source.path, source.signature, source.label)

    def close(self) -> None:
        super().close()
        self._lease.release(keep=True)


def open_text(path: str | Path, cache: ShardCache, cap: int | None = None) -> PlainBytes:
    """The plain bytes of a text file: as it lies or, where its name says it is compressed, from its seekable form."""
    source = PlainFile(path)
    if not is_compressed(path):
        return source
    with source:
        shard = seekable_shard(source.path, source.signature, cap)
        try:
            return LeasedText(cache.acquire(shard), source)
        except Integrity:
            return LeasedText(cache.acquire(shard), source)  # the damaged one was removed


def open_text_shard(shard: Shard, cache: ShardCache) -> PlainBytes:
    """The same for a listed file, which still is the one that was listed."""
    text = open_text(shard.path, cache)
    try:
        require_listed(text.signature, shard)
    except BaseException:
        text.close()
        raise
    return text


def index_text_shard(shard: Shard, beat: Callable[[], None], *, kind: LineKind, cache: ShardCache) -> LineIndex:
    with stopped_by(None, on_beat=beat), open_text_shard(shard, cache) as text:
        return index_lines(text, kind, beat=beat)

"""From a source to its index, with what it takes to count lines."""

from __future__ import annotations

from functools import partial

from headrace.catalog.index import Index
from headrace.catalog.open import open_index
from headrace.catalog.source import Source
from headrace.fetch.cache import ShardCache
from headrace.fetch.text import index_text_shard
from headrace.run import Run


def cache_of(run: Run) -> ShardCache:
    return ShardCache(run.cache_dir, cleanup=run.cleanup, limit=run.cache_bytes)


def open_source(source: Source, run: Run, revision: str | None = None) -> Index:
    """The index of a source, at a pinned revision where one is given (a resume)."""
    if source.kind == "txt" or source.kind == "jsonl":
        count_lines = partial(index_text_shard, kind=source.kind, cache=cache_of(run))
        return open_index(source, run, revision, count_lines)
    return open_index(source, run, revision)

"""Shards by their names: of local files, of files of a file system, or of files in a source."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import overload

from headrace.catalog.listing import Listing, Shards
from headrace.catalog.local import list_local
from headrace.catalog.remote import list_remote
from headrace.catalog.shard import Shard
from headrace.catalog.source import Source, one_source
from headrace.errors import NotFound, SpecError, shown
from headrace.lazy import cached_property


class Names:
    """Turns names into shards, each when it is first asked for."""

    def __init__(self, source: str | Source | None, cache_dir: Path) -> None:
        """`source`: names are those of its files."""
        self._source = None if source is None else one_source(source)
        self._cache_dir = cache_dir
        self._known: dict[str, Shard] = {}

    def shards(self, given: Sequence[Shard] | Sequence[str | Path]) -> NamedShards:
        if isinstance(given, str | bytes | Path):
            raise SpecError(f"shards={shown(given)!r}: a list of shards or of file names is expected")
        return NamedShards(self, given)

    def shard(self, given: Shard | str | Path) -> Shard:
        if isinstance(given, Shard):
            return given
        if not isinstance(given, str | Path):
            raise SpecError(f"{shown(given)!r} is no shard: give those of list_shards(), or names of files")
        name = os.fspath(given)
        if name not in self._known:
            self._known[name] = self._found(name)
        return self._known[name]

    def _found(self, name: str) -> Shard:
        if self._source is not None:
            number = self._numbers.get(name)
            if number is None:
                raise NotFound(f"{self._source} has no file {shown(name)}; list_shards() gives those that it has")
            return self._listing.shard(number)
        if "://" in name and not name.startswith("file://"):
            return list_remote(Source(kind="parquet", path=name)).shard(0)
        path = name.removeprefix("file://")
        if not os.path.lexists(path):
            raise NotFound(
                f"{shown(name)}: no such file here; for a file of a Hub repo name the source, too: "
                f"ShardPrefetcher(..., source='hf:<repo>:<split>')"
            )
        return list_local(Source(kind="parquet", path=path)).shard(0)

    @cached_property
    def _listing(self) -> Listing:
        from headrace.fetch.sources import open_source
        from headrace.run import Run

        assert self._source is not None
        return open_source(self._source, Run.here(cache_dir=self._cache_dir)).listing

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Of each file, by its path, and by its name where that is unique."""
        listing = self._listing
        labels = {listing.label(i): i for i in range(len(listing))}
        return labels | {path: i for i, path in enumerate(listing.paths)}


class NamedShards(Sequence[Shard]):
    """Shards in the order in which they were given."""

    def __init__(self, names: Names, given: Sequence[Shard] | Sequence[str | Path]) -> None:
        self._names, self._given = names, given

    def __len__(self) -> int:
        return len(self._given)

    @overload
    def __getitem__(self, i: int) -> Shard: ...
    @overload
    def __getitem__(self, i: slice) -> Sequence[Shard]: ...
    def __getitem__(self, i: int | slice) -> Shard | Sequence[Shard]:
        if isinstance(i, slice):
            return NamedShards(self._names, self._given[i])
        return self._names.shard(self._given[i])

    def next_place(self, shard: Shard, start: int) -> int | None:
        """The first place of a shard from `start` on, and then from the beginning on."""
        count = len(self._given)
        if isinstance(self._given, Shards):
            return min(self._given.places(shard), key=lambda n: (n - start) % count, default=None)
        return next((n % count for n in range(start, start + count) if self[n % count] == shard), None)

"""Metadata that stays on this disk: it is small, every start needs it, and without a network it is all there is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from headrace.catalog.shard import Origin, Shard
from headrace.errors import Integrity, shown
from headrace.fetch.sources import cache_of
from headrace.lerobot.root import Root
from headrace.run import Run

LARGEST = 16 << 20
"""A larger file is read where it lies, and only the parts that are needed."""


@dataclass(frozen=True)
class Kept(Origin):
    """An origin whose small files are fetched whole, and read from the cache ever after."""

    inner: Origin
    run: Run

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", self.inner.name)
        object.__setattr__(self, "folder", self.inner.folder)

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        own = replace(shard, origin=self.inner)
        if not 0 <= shard.size <= LARGEST:
            return self.inner.read(own, start, stop)
        lease = cache_of(self.run).acquire(own)
        try:
            with lease.path.open("rb") as file:
                file.seek(start)
                data = file.read(stop - start)
        finally:
            lease.release(keep=True)
        if len(data) != stop - start:
            raise Integrity(f"{shard}: the cached file {shown(lease.path)} is cut short; remove it and start again")
        return data

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        return self.inner.stream(replace(shard, origin=self.inner), start)


def keeping(root: Root, run: Run) -> Root:
    """The same data set; what is read of it through this one stays on disk."""
    if root.listing.origin.folder is None:
        return root
    return replace(root, listing=replace(root.listing, origin=Kept(root.listing.origin, run)))

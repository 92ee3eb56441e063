"""What is fetched ahead: files or ranges of them, and the episodes that want them."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from pathlib import Path

from headrace.catalog.plain import PlainFile, Signature
from headrace.catalog.shard import Shard
from headrace.catalog.stop import Stop
from headrace.errors import Changed
from headrace.fetch.leases import Lease

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Want:
    """Frames [first, stop) of a file, which an episode will read."""

    path: str
    first: int
    stop: int
    part: Part | None = None
    over: bool = False
    """The episode has left."""
    losses: int = 0
    """How often its part was damaged or removed under us."""


@dataclass(eq=False)
class Part:
    """A file, or a range of it, that lies here or is on its way."""

    path: str
    start: int
    shard: Shard
    """Of its own, whose size is that of the part."""
    wants: set[Want] = field(default_factory=set)
    ending: Stop = field(default_factory=Stop)
    lease: Lease | None = None
    """None while it is on its way."""
    place: Path | None = None
    signature: Signature | None = None

    @property
    def stop(self) -> int:
        return self.start + self.shard.size

    def arrived(self, lease: Lease) -> PlainFile:
        """Its file, open, and from now on the only one that is taken for it."""
        file = PlainFile(lease.path, label=str(self.shard))
        if file.size != self.shard.size:
            file.close()
            raise Changed(f"{self.shard} has {file.size:,} bytes in the cache instead of {self.shard.size:,}")
        self.place, self.signature = lease.path, file.signature
        return file

    def opened(self) -> PlainFile:
        """The same file, open again; `Changed` or `NotFound` where another or none is in its place."""
        assert self.place is not None
        return PlainFile(self.place, label=str(self.shard), signature=self.signature)

"""What a cache does, scene by scene, in a process that may be killed at any moment. Imports little, to start fast."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headrace.catalog.shard import Origin, Shard
from headrace.fetch.cache import ShardCache

SIZE = 100_000
BODIES = {name: random.Random(name).randbytes(SIZE) for name in "abc"}


@dataclass(frozen=True)
class Memory(Origin):
    """Bytes from memory; how many were asked for is written down beside the cache."""

    log: Path
    name: str = "me/rows@00000000"
    folder: tuple[str, ...] | None = ("hf_shards", "me", "rows", "train")
    commit: str = "0" * 40

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        return BODIES[shard.path][start:stop]

    def stream(self, shard: Shard, start: int = 0) -> Iterator[bytes]:
        with self.log.open("a") as log:
            log.write(f"{SIZE - start}\n")
        for at in range(start, SIZE, SIZE // 3):
            yield BODIES[shard.path][at : at + SIZE // 3]


def shard_for(name: str, root: Path) -> Shard:
    return Shard(name, SIZE, hashlib.sha256(BODIES[name]).hexdigest(), Memory(log_of(root)))


def log_of(root: Path) -> Path:
    return root.with_suffix(".log")


def num_fetched(root: Path) -> int:
    """Bytes asked of the origin so far."""
    return sum(map(int, log_of(root).read_text().split())) if log_of(root).exists() else 0


def play(scene: str, root: Path) -> None:
    if scene in ("publish", "heal"):
        ShardCache(root).acquire(shard_for("a", root)).release(keep=True)
    elif scene == "clean up":
        ShardCache(root).acquire(shard_for("a", root)).release()
    elif scene == "evict":
        ShardCache(root, limit=2 * SIZE).acquire(shard_for("c", root)).release(keep=True)
    elif scene == "sweep":
        ShardCache(root).sweep()

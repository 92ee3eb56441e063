"""Row counts without files, for tests of plan and pool."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from headrace.rng import I64


class FakeCounts:
    def __init__(self, shards: Sequence[Sequence[int]], row_bytes: int = 10) -> None:
        self._shards = [np.array(s, dtype=np.int64) for s in shards]
        self._row_bytes = row_bytes

    @property
    def num_shards(self) -> int:
        return len(self._shards)

    @property
    def shard_bytes(self) -> I64:
        return self.shard_rows() * 7 + 100

    def shard_rows(self) -> I64:
        return np.array([int(s.sum()) for s in self._shards], dtype=np.int64)

    def groups(self, shard: int) -> tuple[I64, I64, I64]:
        nbytes = self._shards[shard] * self._row_bytes
        return self._shards[shard], nbytes, nbytes

    def all_rows(self) -> list[tuple[int, int]]:
        return [(shard, row) for shard, n in enumerate(self.shard_rows().tolist()) for row in range(n)]

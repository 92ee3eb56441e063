"""A source that lies in memory: for tests of everything after reading, thousands of times over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from headrace.catalog.shard import Shard
from headrace.fetch.chunk import OpenChunk
from headrace.fetch.plan import Chunk, Coordinate

if TYPE_CHECKING:
    from headrace.rng import I64


class MemorySource:
    """Rows in memory under the same plan as files: `groups` has the rows per row group of each shard.

    `row(shard, number)` makes a row; it must give the same one each time.
    """

    revision = "memory"
    window: int | None = None

    def __init__(
        self,
        spec: str,
        groups: Sequence[Sequence[int]],
        row: Callable[[int, int], dict[str, Any]],
        coordinate: Coordinate = "rows",
        atomic: bool = False,
    ) -> None:
        import numpy as np

        self.spec, self._row, self._coordinate, self.atomic = spec, row, coordinate, atomic
        self._groups = [np.array(sizes, dtype=np.int64) for sizes in groups]
        self._made: dict[tuple[int, int], dict[str, Any]] = {}
        self.opened = 0
        """Chunks that were read."""

    # --- what a plan asks

    @property
    def num_shards(self) -> int:
        return len(self._groups)

    @property
    def shard_bytes(self) -> I64:
        return self.shard_rows() + 1

    def shard_rows(self) -> I64:
        import numpy as np

        return np.array([int(sizes.sum()) for sizes in self._groups], dtype=np.int64)

    def groups(self, shard: int) -> tuple[I64, I64, I64]:
        sizes = self._groups[shard]
        return sizes, sizes, sizes

    # --- what a pipeline asks

    def coordinate(self, lanes: int) -> Coordinate:
        return self._coordinate

    def counts(self, columns: list[str] | None) -> MemorySource:
        return self

    def label(self, shard: int) -> str:
        return f"shard-{shard}"

    def shelf(self, columns: list[str] | None, by_range: bool = False) -> MemorySource:
        return self

    def held_bytes(self, shards: int) -> int:
        return 0

    is_fetched = False

    def files_of(self, shard: int, group: int) -> Iterable[Shard]:
        return []

    def has_lists(self, column: str) -> bool:
        return False

    def has_text(self, column: str) -> bool:
        return False

    # --- what a reader asks

    side_by_side = False
    is_counted = True

    def is_near(self, chunk: Chunk) -> bool:
        return True

    def plan(self, numbers: I64, cold: int) -> None:
        pass

    def want(self, chunks: Iterable[Chunk]) -> None:
        pass

    def open(self, chunk: Chunk, order: I64, epoch: int) -> OpenChunk:
        self.opened += 1
        rows = [self._made_row(chunk.shard, chunk.first + i) for i in range(chunk.rows)]
        return OpenChunk(chunk, rows, order, (self.spec, epoch, self.label(chunk.shard)))

    def finished(self, number: int) -> None:
        pass

    def keep_only(self, needed: set[int], saved: set[int]) -> None:
        pass

    def close(self) -> None:
        pass

    def _made_row(self, shard: int, number: int) -> dict[str, Any]:
        if (shard, number) not in self._made:
            self._made[shard, number] = self._row(shard, number)
        return self._made[shard, number]

"""A pool that draws ahead, and how far its consumer has come.

What is drawn ahead may be read, tokenized and kept ready in any way; the state is the consumer's, to the row.
"""

from __future__ import annotations

from collections import deque

from headrace.fetch.draws import Draws
from headrace.fetch.pool import Mark, Pool
from headrace.stage import State


class Cursor:
    def __init__(self, pool: Pool) -> None:
        self.pool = pool
        self._start()

    def _start(self) -> None:
        self._loaded = self.pool.state_dict()
        self._blocks: deque[tuple[Mark, Draws]] = deque()
        self._given = 0
        """Rows of the first block that the consumer has taken; all of it: the next one takes its place."""
        self._left = 0
        # Passes without a sample are counted here; the pool counts those without a row, since it drew one.
        self._passed, self.pool.passed = self.pool.passed, 0
        self._epoch = self.pool.epoch

    def ahead(self, most: int) -> tuple[Mark, Draws] | None:
        """Draw up to `most` more, or None where the source ends. The mark: the pool just before, with its chunks, to go
        back to: what was read of them is not read again."""
        mark = self.pool.mark()
        if not self.pool.fill():
            self.pool.go_to(mark)
            return None
        filled = self.pool.mark()
        done = self.pool.draw(most)
        assert done is not None
        self._blocks.append((filled, done))
        self._left += done.count
        return filled, done

    def undo(self, mark: Mark) -> None:
        """What was drawn last was not used: it will be drawn again."""
        self.pool.go_to(mark)
        self._left -= self._blocks.pop()[1].count

    @property
    def waiting(self) -> int:
        """Rows drawn that the consumer has not taken."""
        return self._left

    @property
    def blocks(self) -> int:
        """Blocks that rows were drawn in, from the one that the consumer is in on."""
        return len(self._blocks)

    def take(self) -> None:
        """The consumer has one more row."""
        if self._given == self._blocks[0][1].count:
            self._blocks.popleft()
            self._given = 0
        self._given += 1
        self._left -= 1
        epoch = self._blocks[0][1].epoch
        if epoch != self._epoch:
            self._passed += epoch - self._epoch
            self._epoch = epoch

    def skip(self, rows: int) -> None:
        """The consumer has so many rows more, where none is drawn ahead."""
        assert not self._left, "what is drawn ahead is taken first"
        left = self.pool.skip(rows)
        assert not left, f"{left} of {rows} rows are not there"
        self._start()

    def sampled(self) -> None:
        """The row taken last was of use: the source is alive."""
        self._passed = 0

    @property
    def is_barren(self) -> bool:
        """So many passes without a sample that no lane can have any left."""
        return self._passed > self.pool.lanes + 1

    def has_more(self) -> bool:
        """Whether there is a row to come. Chunks may be admitted and a pass be entered for that, as `ahead` does."""
        if self._left:
            return True
        mark = self.pool.mark()
        try:
            return self.pool.fill()
        finally:
            self.pool.go_to(mark)

    def state_dict(self) -> State:
        if not self._given:
            return {**self._loaded, "y": self._passed}
        mark, done = self._blocks[0]
        return self.pool.state_after(mark, done, self._given, self._passed)

    def load_state_dict(self, state: State) -> None:
        self.pool.load_state_dict(state)
        self._start()

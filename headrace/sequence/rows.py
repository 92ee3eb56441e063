"""Rows to batches of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from headrace.make.prepare import Ready
from headrace.sequence.pack import TO_THE_END, Fetch, Take, addresses
from headrace.stage import State


class RowBatcher:
    """So many rows make a batch."""

    truncated = 0

    def __init__(self, batch_size: int) -> None:
        self._batch = batch_size
        self._rows: list[Ready] = []
        """Of a batch that an exception ended: the next try goes on with them."""
        self._rest: deque[Ready] = deque()

    def make(self, take: Take, rounds: int) -> Sequence[Ready]:
        while len(self._rows) < self._batch:
            row = self._rest.popleft() if self._rest else take()
            if row is None:
                break
            self._rows.append(row)
        out, self._rows = self._rows, []
        return out

    def put_back(self, rows: Sequence[Ready]) -> None:
        """They could not be given: they come again."""
        self._rest.extendleft(reversed(rows))

    @property
    def first_put_back(self) -> Ready | None:
        return self._rest[0] if self._rest else None

    def drop_put_back(self) -> None:
        """The first of them is not given at all."""
        self._rest.popleft()

    @property
    def is_empty(self) -> bool:
        return not self._rows and not self._rest

    def state_dict(self) -> State:
        return {"held": [], "rest": [[r.source, r.epoch, r.position, 0, 0, TO_THE_END] for r in self._rest]}

    def load_state_dict(self, state: State, fetch: Fetch) -> None:
        """Rows that a packer held come first, whole."""
        parts = [*addresses("held", state), *addresses("rest", state)]
        rows = dict.fromkeys((c, e, p) for c, e, p, *_ in parts)
        self._rest = deque(row for row in fetch(list(rows)) if row.samples)
        self._rows = []

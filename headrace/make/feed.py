"""One source in one lane: rows are drawn ahead, made ready in blocks, and given out one by one.

The state is the consumer's. What lies ready is no part of it, and is made again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import repeat

from headrace.errors import DataError, HeadraceError, StateError, shown
from headrace.fetch.block import RowBlock, block_bytes, gather, pick
from headrace.fetch.chunk import OpenChunk
from headrace.fetch.cursor import Cursor
from headrace.fetch.draws import Draws, Slot
from headrace.fetch.memory import NoRoom
from headrace.fetch.open_chunks import OpenChunks, RowBytes, row_bytes
from headrace.fetch.plan import Chunk, Order
from headrace.fetch.pool import Mark, Pool
from headrace.fetch.sources import Opened
from headrace.make.faults import Fault, LaneFaults, SkipList
from headrace.make.groups import Groups
from headrace.make.prepare import KeepsErrors, Prepare, Ready, Samples
from headrace.stage import State

MOST_ROWS = 256
BLOCK_BYTES = 1 << 20
"""Rows are made ready in blocks of at most so many rows, and of about so many bytes."""
PYTHON_BYTES = 8 << 20
"""...and as Python values of no more bytes, unless it is a row alone."""
PYTHON_SHARE = 8
"""...nor of more than an eighth of what a chunk may take."""
FIRST_ROWS = 8
"""...that start small, each as large as all before it: the first batch after a resume waits for its own rows, not more.
"""
AHEAD_BYTES, AHEAD_BLOCKS = 8 << 20, 4
"""Rows that are made ready while nobody waits for them: of about so many bytes, and so many blocks, at most."""
KEPT_BLOCKS = 8
"""The shards of so many blocks back are kept: the state that was saved last may still need them."""


class _BlockTooLarge(Exception):
    """The rows of a block take too much as Python values; fewer are made ready at once."""


class Feed:
    def __init__(
        self,
        number: int,
        source: Opened,
        pool: Pool,
        prepare: Prepare,
        faults: LaneFaults,
        skipped: frozenset[tuple[str, int]] = frozenset(),
        by_range: bool = False,
        first_rows: int = FIRST_ROWS,
    ) -> None:
        """`faults`: of the lane; is told of rows that fail. `skipped`: rows, by shard and number, that are passed over
        and never read. `by_range`: shards are not fetched whole. `first_rows`: those that a batch needs, where it is
        known."""
        self.number, self._source, self._pool, self._prepare = number, source, pool, prepare
        self._faults, self._skipped = faults, SkipList(skipped, source.label)
        self._by_range, self._first_rows = by_range, min(first_rows, MOST_ROWS)
        self._cursor = Cursor(pool)
        self._open: OpenChunks | None = None
        self._groups: Groups | None = None
        self._closed = False
        self._start()

    def _start(self) -> None:
        self._ready: deque[Ready] = deque()
        self._rows = self._first_rows
        self._made_rows = 0
        self._planned = -1
        self._failed = False
        """What comes next failed when nobody waited for it."""
        self._row_bytes = RowBytes(0, 0)
        """In the chunks that rows were drawn from last."""
        self._recent: deque[set[int]] = deque(maxlen=KEPT_BLOCKS)

    def next(self) -> Ready | None:
        """The next row, or None where the source has ended. Where it fails, the next call tries the same row again."""
        if self._cursor.is_barren or not (self._ready or self._more()):
            return None
        if self._ready[0].fault is not None:
            self._faults.meet(self._ready[0])
        row = self._ready.popleft()
        self._cursor.take()
        if row.samples:
            self._cursor.sampled()
        return row

    def skip(self, rows: int) -> None:
        """Past so many rows, which there are, whether they give samples or not."""
        while rows and self._ready:
            self.next()
            rows -= 1
        if rows:
            self._cursor.skip(rows)

    def has_more(self) -> bool:
        """Whether there are rows to come; whether they give samples, nobody knows before."""
        return not self._cursor.is_barren and (bool(self._ready) or self._cursor.has_more())

    def fetch(self, places: Sequence[tuple[int, int]]) -> list[Ready]:
        """Rows by (epoch, position), made ready again: those that a packer held."""
        found: dict[tuple[int, int], Ready] = {}
        by_chunk: dict[tuple[int, int], tuple[Chunk, list[int]]] = {}
        for epoch, position in sorted(set(places)):
            try:
                chunk = self._pool.orders(epoch).chunk_at(position)
            except IndexError:
                raise StateError(
                    f"the state holds position {position} of {self._source.spec}, which it does not have"
                ) from None
            by_chunk.setdefault((epoch, chunk.start), (chunk, []))[1].append(position)
        for (epoch, _), (chunk, positions) in by_chunk.items():
            for row in self._fetch_from(chunk, self._pool.orders(epoch), positions):
                found[row.epoch, row.position] = row
        return [found[place] for place in places]

    def _fetch_from(self, chunk: Chunk, order: Order, positions: list[int]) -> list[Ready]:
        listed = self._skipped.positions(chunk, order)
        found = [self._left_out(chunk, order, position) for position in positions if position in listed]
        wanted = [position for position in positions if position not in listed]
        if not wanted:
            return found
        opened = self._opened()
        slot = next((s for s in self._pool.slots if s.chunk == chunk), None) if order is self._pool.order else None
        data = opened.read(chunk, order) if slot is None else opened.of(slot, self._pool.slots, order)
        try:
            return found + self._picked(data, order, wanted)
        finally:
            if slot is None:
                data.close()

    def _picked(self, data: OpenChunk, order: Order, positions: list[int]) -> list[Ready]:
        """Single rows of a chunk; where one fails, they are made one by one."""
        chunk = data.chunk
        try:
            turns = [p - chunk.start for p in positions]
            block = pick(data, turns, self._source.spec, order.epoch, self._prepare.arrays)
            samples = self._prepared(self._grouped(block, {chunk.shard}))
        except NoRoom:
            raise
        except DataError as error:
            if len(positions) > 1:
                return [row for position in positions for row in self._picked(data, order, [position])]
            row = self._failed_row(chunk, order, positions[0], error)
            if row.fault is not None:
                self._faults.meet(row)
            return [row]
        return self._made(order.epoch, positions, block.places, samples)

    # --- ahead

    def make_ready(self, rows: int) -> bool:
        """Make one more block ready, where less than so many rows are, and all of it lies on this disk.

        For who has nothing to do for the moment. What fails is not told of: it fails again when it is needed.
        """
        grouped = getattr(self._prepare, "group_by", None) is not None  # which looks into other chunks, too
        if self._open is None or self._failed or grouped or not self._shelf.is_counted:
            return False
        if (
            len(self._ready) >= min(rows, self._in_bytes(AHEAD_BYTES, AHEAD_BYTES))
            or self._cursor.blocks > AHEAD_BLOCKS
        ):
            return False
        try:
            drawn = self._ahead()
            if drawn is None:
                return False
            mark, done = drawn
            with self._or_undone(mark):
                is_near = done.epoch == self._planned and self._open.is_near(done)
                if is_near:
                    self._block(done)
            if not is_near:
                self._cursor.undo(mark)
        except Exception:
            self._failed = True
            return False
        return is_near

    def _more(self) -> bool:
        """Make the next block ready. One that fails is tried again row by row: what comes before a bad row is given."""
        self._failed = False
        while (drawn := self._ahead()) is not None:
            mark, done = drawn
            try:
                with self._or_undone(mark):
                    self._block(done)
            except Exception as error:
                if done.count == 1:
                    raise
                self._rows = max(1, done.count // 2) if isinstance(error, _BlockTooLarge) else 1
                self._made_rows = 0
                self._opened().keep_only(self._pool.slots)
            else:
                return True
        return False

    def _ahead(self) -> tuple[Mark, Draws] | None:
        """Draw the next block. It ends before a row on the skip list, which is a block of its own."""
        drawn = self._cursor.ahead(self._most())
        if drawn is None or not self._skipped:
            return drawn
        mark, done = drawn
        with self._or_undone(mark):
            first = self._skipped.first_in(done, self._pool.order)
        if first is None or done.count == 1:
            return drawn
        self._cursor.undo(mark)
        return self._cursor.ahead(max(1, first))

    @contextmanager
    def _or_undone(self, mark: Mark) -> Iterator[None]:
        """What was drawn since is drawn again later, where anything fails."""
        try:
            yield
        except BaseException:
            self._cursor.undo(mark)
            raise

    def _block(self, done: Draws) -> None:
        made = self._make(done)
        self._made_rows += done.count
        self._rows = min(self._made_rows, MOST_ROWS)
        self._row_bytes = row_bytes(done.slots, self._open)
        self._ready.extend(made)  # last: what was drawn is undone where anything above fails

    def _most(self) -> int:
        if not self._pool.slots:
            return min(self._rows, self._first_rows)
        return min(self._rows, self._in_bytes(BLOCK_BYTES, self._most_python()))

    def _most_python(self) -> int:
        """Bytes of a block as Python values: fewer where memory is short."""
        return PYTHON_BYTES if self._open is None else min(PYTHON_BYTES, self._open.most_bytes // PYTHON_SHARE)

    def _in_bytes(self, in_file: int, in_python: int) -> int:
        """Rows of about so many bytes, in the file and as Python values; one at least."""
        row = row_bytes(self._pool.slots, self._open) if self._pool.slots else self._row_bytes
        return max(1, min(in_file // max(row.file, 1), in_python // max(row.python, 1)))

    def _make(self, done: Draws) -> list[Ready]:
        opened = self._opened()
        if self._planned != done.epoch:
            self._shelf.plan(self._pool.shards_to_come(), self._pool.size.chunks)
            self._planned = done.epoch
        if self._skipped and done.count == 1 and self._skipped.first_in(done, self._pool.order) is not None:
            made = [self._left_out(_only_chunk(done), self._pool.order, int(done.positions[0]))]
        else:
            opened.want(done)
            made = self._read(done, partial(opened.of, slots=done.slots, order=self._pool.order))
        if len(opened) > len(self._pool.slots):
            opened.keep_only(self._pool.slots)
        self._recent.append(self._pool.shards_in_use())
        self._shelf.keep_only(self._recent[-1], set().union(*self._recent))
        return made

    def _read(self, done: Draws, chunk_of: Callable[[Slot], OpenChunk]) -> list[Ready]:
        for slot, _, count in done.parts():
            if count:
                chunk_of(slot)  # what fails here is a file, not a row
        if done.count > 1 and block_bytes(chunk_of, done, self._prepare.arrays) > self._most_python():
            raise _BlockTooLarge
        try:
            block = gather(chunk_of, done, self._source.spec, self._prepare.arrays)
            samples = self._prepared(self._grouped(block, {slot.chunk.shard for slot in done.slots}))
        except NoRoom:
            raise
        except DataError as error:
            if done.count > 1:
                raise  # row by row, to know which
            return [self._failed_row(_only_chunk(done), self._pool.order, int(done.positions[0]), error)]
        return self._made(done.epoch, done.positions.tolist(), block.places, samples)

    def _left_out(self, chunk: Chunk, order: Order, position: int, samples: Samples = ()) -> Ready:
        """A row that is not read: it has no sample."""
        row = chunk.first + int(order.rows_of(chunk)[position - chunk.start])
        return Ready(self.number, order.epoch, position, self._source.label(chunk.shard), row, samples)

    def _failed_row(self, chunk: Chunk, order: Order, position: int, error: DataError) -> Ready:
        """A row that failed, where the lane may leave it out; else its error, with what to do about it."""
        row = self._left_out(chunk, order, position)
        kept: Samples | None = self._prepare.failed(error) if isinstance(self._prepare, KeepsErrors) else None
        if kept is not None:  # whoever gives out samples decides about it
            return row._replace(samples=kept)
        if self._faults.skips:
            return row._replace(fault=Fault(chunk.shard, error.with_traceback(None)))
        raise self._faults.told(error, row)

    def _prepared(self, block: RowBlock) -> list[Samples]:
        """What goes wrong in there says at which row, and is never taken for the end of the data."""
        try:
            return self._prepare(block)
        except BaseException as error:
            first, more = shown(block.addresses[0], 1000), f" and {len(block) - 1} more" if len(block) > 1 else ""
            if isinstance(error, StopIteration):
                said = f"StopIteration while {first}{more} was made ready: {error}"
                raise RuntimeError(said) from error  # noqa: TRY004 - no type was wrong
            if not isinstance(error, HeadraceError):
                error.add_note(f"while {first}{more} was made ready")
            raise

    def _grouped(self, block: RowBlock, shards: set[int]) -> RowBlock:
        """Where rows belong together: each row that a group begins with as all of its rows, None for the others."""
        column = getattr(self._prepare, "group_by", None)
        if column is None:
            return block
        if self._groups is None:
            self._groups = Groups(self._pool.counts, self._pool.rules, column, self._shelf.open)
        numbers = {self._source.label(shard): shard for shard in shards}
        rows = [self._groups.of(numbers[label], row) for label, row in block.places]
        return RowBlock(block.source, block.epoch, {"rows": rows}, *zip(*block.places, strict=True))

    def _made(
        self, epoch: int, positions: list[int], places: list[tuple[str, int]], samples: list[Samples]
    ) -> list[Ready]:
        shards, rows = zip(*places, strict=True)
        return list(map(Ready, repeat(self.number), repeat(epoch), positions, shards, rows, samples))

    def _opened(self) -> OpenChunks:
        """Opened when first used: a lane that only waits for its turn holds no file and no thread."""
        if self._closed:
            raise HeadraceError(f"{self._source.spec}: this feed was closed")
        if self._open is None:
            self._shelf = self._source.shelf(self._prepare.columns, self._by_range)
            self._shelf.plan(self._pool.shards_to_come(), self._pool.size.chunks)
            self._planned = self._pool.epoch
            self._open = OpenChunks(self._shelf, self._source.label, self._pool)
        return self._open

    # --- state

    def state_dict(self) -> State:
        return self._cursor.state_dict()

    def load_state_dict(self, state: State) -> None:
        self._cursor.load_state_dict(state)
        self._let_go()
        self._start()

    def close(self) -> None:
        """State can still be asked for, rows no more."""
        self._let_go()
        self._closed = True

    def _let_go(self) -> None:
        if self._open is not None:
            self._open.close()
            self._shelf.close()
            self._open = None
            self._groups = None


def _only_chunk(done: Draws) -> Chunk:
    """Of one draw."""
    return next(slot.chunk for slot, _, count in done.parts() if count)


class CountingFeed(Feed):
    """Draws rows and reads none: each counts as one sample. Good to see where a state lies."""

    def _make(self, done: Draws) -> list[Ready]:
        return self._counted(done.epoch, done.positions.tolist())

    def fetch(self, places: Sequence[tuple[int, int]]) -> list[Ready]:
        return [row for epoch, position in places for row in self._counted(epoch, [position])]

    def _counted(self, epoch: int, positions: list[int]) -> list[Ready]:
        return [Ready(self.number, epoch, position, "", -1, (None,)) for position in positions]

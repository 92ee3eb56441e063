"""The rows of a source as a stage: drawn by the pool, read from shards, resumed at any row by seeking."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial, wraps
from itertools import islice
from operator import index as index_of
from operator import itemgetter, length_hint
from typing import Any, Concatenate, ParamSpec, TypeVar

from headrace.address import Row
from headrace.catalog.identity import Trust
from headrace.catalog.index import Counts, Index
from headrace.errors import Changed, HeadraceError, SpecError, StateError, shown
from headrace.fetch.block import RowBlock, as_block, block_bytes, gather
from headrace.fetch.draws import Draws
from headrace.fetch.needs import Need, mark_of_shard
from headrace.fetch.open_chunks import OpenChunks
from headrace.fetch.plan import Orders
from headrace.fetch.pool import Mark, Pool
from headrace.fetch.resume import FORMAT, Place, Reading, restored
from headrace.fetch.shelf import Shelf
from headrace.fetch.sources import cache_of
from headrace.run import Run
from headrace.stage import Stage, State

P = ParamSpec("P")
T = TypeVar("T")
log = logging.getLogger("headrace")

BLOCK_ROWS = 1024
BLOCK_SHARE = 4
"""Rows by the block take no more than this part of the memory budget, or are one row."""
_NO_ROWS: Iterator[Row] = iter(())
_SECOND = itemgetter(1)


def _one_at_a_time(method: Callable[Concatenate[Rows, P], T]) -> Callable[Concatenate[Rows, P], T]:
    """Refuse a call while another one is in progress: in between, where the rows are is not known."""

    @wraps(method)
    def checked(rows: Rows, /, *args: P.args, **options: P.kwargs) -> T:
        if rows._is_in_use:
            raise rows._used_at_once()
        try:
            rows._is_in_use = True
            return method(rows, *args, **options)
        finally:
            rows._is_in_use = False

    return checked


class Rows(Stage[Row]):
    """One pass over a lane's share of a source."""

    _open: OpenChunks
    _need: Need | None
    _mark: Mark
    _turns: Iterator[int]
    _ready: Iterator[Row]

    def __init__(self, index: Index, run: Run, reading: Reading) -> None:
        self.run = run
        self._saved: deque[set[int]] = deque(maxlen=2)
        self._closed = self._is_in_use = False
        self._start(index, reading)
        self._begin()

    def _start(self, index: Index, reading: Reading) -> None:
        self.index, self.reading = index, reading
        orders = Orders(Counts(index, reading.counted), reading.rules)
        self._pool = Pool(orders, reading.size, reading.lane, reading.lanes, reading.epoch, reading.epoch + 1)
        self._shelf = Shelf(index, self.run, reading.columns)
        self._open = OpenChunks(self._shelf, index.listing.label, self._pool)
        self._need = self._new_need()

    def _new_need(self) -> Need | None:
        """Where it is noted what this stage needs of the cache; None where nothing is fetched, or all is kept."""
        if self.run.cleanup != "auto" or self.index.listing.origin.folder is None:
            return None
        r = self.reading
        text = "\n".join(["rows", str(r.rules.seed), str(r.rules.shuffle), str(self.index.listing.source)])
        return cache_of(self.run).need(text, r.lane, r.lanes)

    def _marks(self, shards: set[int]) -> set[str]:
        return {mark_of_shard(self.index.listing.shard(number)) for number in shards}

    def _begin(self) -> None:
        """Go on from where the pool is, with nothing drawn ahead."""
        self._next_draws = 1  # and twice as many each time: the first row waits for one chunk, not for the whole pool
        self._nothing_drawn()
        if self._need is not None:
            self._need.begin(self, self._marks(self._pool.shards_in_use()))
        self._shelf.plan(self._pool.shards_to_come(), cold=self.reading.size.chunks)

    # --- items

    # A block of draws is made at once, but each row only when it is asked for, all of it in C: `_turns` counts the
    # draws of the block, `_ready` turns each into its row. Few rows live at a time, so the garbage collector sleeps.

    def __next__(self) -> Row:
        if self._is_in_use:  # not `_one_at_a_time`: a call more for each row would be a tenth of it
            raise self._used_at_once()
        try:
            self._is_in_use = True
            try:
                for row in self._ready:
                    return row
            except BaseException:
                self._come_back(self._mark, self._given - 1)  # its turn was taken, its row was not made
                raise
            mark, given = self._mark, self._given
            try:
                if self._draw():
                    mark, given = self._mark, 0
                    for row in self._ready:
                        return row
            except BaseException:
                self._come_back(mark, given)
                raise
        finally:
            self._is_in_use = False
        raise StopIteration

    def _used_at_once(self) -> HeadraceError:
        return HeadraceError(
            f"{self.index.listing.source}: these rows are used by two threads at once, or by a signal handler while "
            f"they are read; this call changed nothing. Give each thread rows of its own (lane=, lanes=), or hold a "
            f"lock around each call; let a signal handler set a flag, and look at it after next()"
        )

    @property
    def _given(self) -> int:
        """Draws of the block whose rows were given out."""
        return self._drawn_rows - length_hint(self._turns)

    def _draw(self) -> bool:
        """The next block of draws, with the chunks that they come from open."""
        assert not length_hint(self._turns), "a chunk gave fewer rows than it has"
        mark, done = self._drawn(self._next_draws)
        if done is None:
            return False
        self._next_draws = min(2 * self._next_draws, BLOCK_ROWS)
        turns = iter(range(done.count) if done.picks is None else done.picks.tolist())
        opened = partial(self._open.of, slots=done.slots, order=self._pool.order)
        feeds = [opened(slot).rows(first, n) if n else _NO_ROWS for slot, first, n in done.parts()]
        ready: Iterator[Row] = map(next, map(feeds.__getitem__, turns))
        if done.picks is None:
            ready = map(_SECOND, zip(turns, feeds[0]))  # noqa: B905 - the turns end, the feed may go on
        self._mark, self._drawn_rows, self._turns, self._ready = mark, done.count, turns, ready
        return True

    def _come_back(self, mark: Mark, given: int) -> None:
        """To `given` draws after a mark: what was drawn since was not given out, and will be drawn again."""
        self._pool.go_to(mark)
        self._pool.skip(given)
        self._open.close()
        self._nothing_drawn()

    def _nothing_drawn(self) -> None:
        self._mark, self._drawn_rows, self._turns, self._ready = self._pool.mark(), 0, iter(()), iter(())

    @_one_at_a_time
    def next_block(self, most: int = BLOCK_ROWS) -> RowBlock | None:
        """Up to `most` of the next rows as columns, or None at the end. The same rows as item by item, only sooner.

        There are fewer where they would take more than a quarter of the memory budget."""
        if (most := index_of(most)) < 1:
            raise SpecError(f"next_block({most}): the number of rows wanted, 1 or more")
        mark, given = self._mark, self._given
        try:
            if left := length_hint(self._turns):
                return as_block(list(islice(self._ready, min(most, left))))
            self._check_open()
            self._tidy()
            self._pool.fill()  # before the mark to go back to, so that chunks stay open where fewer rows are drawn
            while True:
                before, done = self._drawn(most)
                if done is None:
                    return None
                opened = partial(self._open.of, slots=done.slots, order=self._pool.order)
                fits = block_bytes(opened, done) <= self.run.memory_bytes // BLOCK_SHARE
                if fits or done.count == 1:
                    break
                self._pool.go_to(before)
                most = done.count // 2
            block = gather(opened, done, str(self.index.listing.source))
            self._nothing_drawn()
        except BaseException:
            self._come_back(mark, given)
            raise
        return block

    def _drawn(self, most: int) -> tuple[Mark, Draws | None]:
        """Draw, and have what was drawn fetched; with the moment before, to come back to."""
        self._check_open()
        self._tidy()
        mark = self._pool.mark()
        done = self._pool.draw(most)
        if done is not None:
            self._open.want(done)
        return mark, done

    def _check_open(self) -> None:
        if self._closed:
            raise HeadraceError(f"{self.index.listing.source}: these rows were closed")

    def _tidy(self) -> None:
        """All that was drawn was given out: let go of the chunks that are used up, and of the shards behind us."""
        if len(self._open) <= len(self._pool.slots):
            return
        self._open.keep_only(self._pool.slots)
        self._shelf.keep_only(self._pool.shards_in_use(), set().union(*self._saved))

    # --- state

    @_one_at_a_time
    def state_dict(self) -> State:
        pool, here = self._pool, self._pool.mark()
        try:
            if length_hint(self._turns):
                pool.go_to(self._mark)
                pool.skip(self._given)
            # The state before this one counts too: this one is not written yet.
            self._saved.append(pool.shards_in_use())
            if self._need is not None:
                self._need.save(self._marks(self._saved[-1]))
            return self._state(pool)
        finally:
            pool.go_to(here)

    def _state(self, pool: Pool) -> State:
        r, listing = self.reading, self.index.listing
        return {
            "format": FORMAT,
            "spec": str(listing.source),
            **({} if r.rules.source == str(listing.source) else {"name": r.rules.source}),
            "revision": listing.revision,
            **self._identity(pool),
            "seed": r.rules.seed,
            "shuffle": r.rules.shuffle,
            "chunk_rows": r.rules.chunk_rows,
            "chunk_bytes": r.rules.chunk_bytes,
            "shard_window": r.rules.shard_window,
            "coordinate": r.rules.coordinate,
            "counted": None if r.counted is None else list(r.counted),
            "K": r.size.chunks,
            "pool_bytes": r.size.nbytes,
            "lane": r.lane,
            "lanes": r.lanes,
            "epoch": r.epoch,
            "source": pool.state_dict(),
            "resume_state": {"datasets": [self._entry(pool)]},
        }

    def _identity(self, pool: Pool) -> dict[str, Any]:
        """What tells its files from others, should they be moved. A commit needs none."""
        if self.index.listing.source.kind == "hf":
            return {}
        found = self.index.identity()
        if not found.shape:  # counted when they are opened
            found = replace(found, opened={i: self.index.mark(i) for i in sorted(pool.shards_in_use())})
        return {"identity": found.to_text()}

    def _entry(self, pool: Pool) -> dict[str, Any]:
        """The row offset, for people; exact by itself where there is no shuffle."""
        shard, offset = self._next_row(pool)
        listing = self.index.listing
        entry: dict[str, Any] = {
            "spec": str(listing.source),
            "revision": listing.revision,
            "shard": shard,
            "row_offset": pool.draws,
            "offset": offset,
        }
        lane, lanes = self.reading.lane, self.reading.lanes
        if self.reading.rules.shuffle:
            entry["shuffled"] = True
        if lanes > 1:
            here = {"lane": lane, "lanes": lanes, "shard": shard, "row_offset": pool.draws, "offset": offset}
            entry["per_lane"] = [here]
        return entry

    def _next_row(self, pool: Pool) -> tuple[str, int]:
        """(shard, row in it) of the next row; shuffled: of the oldest chunk in the pool. At the end: after the last."""
        place = pool.next_place()
        if place is None:
            return self._after_last(pool)
        chunk, position = place
        row = chunk.first + int(pool.order.rows_of(chunk)[position - chunk.start])
        return self.index.listing.label(chunk.shard), row

    def _after_last(self, pool: Pool) -> tuple[str, int]:
        if not pool.ranges or not self.index.num_shards:
            return "", 0
        shard = int(pool.order.window_shards(pool.ranges[-1][0], pool.ranges[-1][1])[-1])
        return self.index.listing.label(shard), int(pool.counts.groups(shard)[0].sum())

    @_one_at_a_time
    def load_state_dict(
        self, state: State, *, trust_moved: bool = False, trust_changed: bool | Iterable[str] = False
    ) -> None:
        """Go on from there. `trust_moved`: files that cannot be told to be those of the state are. `trust_changed`:
        shards, by path or name, that may have other contents in as many rows; True: any."""
        trust = Trust.given(trust_moved, trust_changed)
        index, reading, place = restored(state, self.index, self.reading, self.run, trust)
        before = self._shelf, self.index, self.reading, self._pool, self._open, self._need
        try:
            self._start(index, reading)
            self._go_to(place)
        except BaseException:
            self._shelf, self.index, self.reading, self._pool, self._open, self._need = before
            raise
        before[0].close()
        before[4].close()
        if before[5] is not None:
            before[5].end(self)
        self._closed = False
        self._begin()
        self._saved.append(self._pool.shards_in_use())
        shard, offset = self._next_row(self._pool)
        spec = shown(index.listing.source, 1000)
        said = shown(shard, 1000)
        log.info("resume: spec=%s sample_row=%d shard=%s offset=%d", spec, self._pool.draws, said, offset)

    def _go_to(self, place: Place) -> None:
        if place.state is not None:
            self._pool.load_state_dict(place.state)
            return
        spec, rows = self.index.listing.source, place.rows
        missing = self._pool.skip(rows)
        if missing:
            raise StateError(f"the checkpoint has seen {rows} rows of {spec}, but there are only {rows - missing}")
        shard = self._next_row(self._pool)[0]
        if place.shard and self._pool.next_place() is not None and shard != place.shard:
            raise Changed(
                f"{spec}: row {rows} lies in {shown(shard)}, the checkpoint says {shown(place.shard)}; "
                f"the files changed since it was written"
            )

    def close(self) -> None:
        if not self._closed:
            self._come_back(self._mark, self._given)
            self._closed = True
            self._shelf.close()
            if self._need is not None:
                self._need.end(self)

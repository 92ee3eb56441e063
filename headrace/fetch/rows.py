"""The rows of a source as a stage: drawn by the pool, read from shards, resumed at any row by seeking."""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, islice, repeat
from operator import index as index_of
from operator import length_hint
from typing import Any

from headrace.address import Row
from headrace.catalog.identity import Trust
from headrace.catalog.index import Counts, Index
from headrace.errors import Changed, HeadraceError, SpecError, StateError, shown
from headrace.fetch.block import RowBlock, as_block, gather
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

log = logging.getLogger("headrace")

BLOCK_ROWS = 1024
_NO_ROWS: Iterator[Row] = iter(())
_TAKEN: Iterator[Row] = iter(())
"""Stands where the rows are while a thread is in there."""


class Rows(Stage[Row]):
    """One pass over a lane's share of a source."""

    _open: OpenChunks
    _need: Need | None
    _mark: Mark
    _turns: Iterator[Any]
    _drawn_ready: Iterator[Row]
    """The rows of the block of draws that were not given out."""
    _ready: Iterator[Row]
    """The same for the thread that takes it, and leaves `_TAKEN` there until it is done."""

    def __init__(self, index: Index, run: Run, reading: Reading) -> None:
        self.run = run
        self._saved: deque[set[int]] = deque(maxlen=2)
        self._closed = False
        self._start(index, reading)
        self._begin()
        self._ready = self._drawn_ready

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
    #
    # Threads may share us. A lock would cost a fifth of a row, so whoever comes in takes `_ready` and leaves `_TAKEN`
    # there: no call comes between the two, and the interpreter changes threads (and looks for signals) only at calls
    # and at jumps back. Whoever finds `_TAKEN` waits.

    def __next__(self) -> Row:
        while True:
            self._ready, ready = _TAKEN, self._ready  # in this order: what `ready` was may run code when it goes
            try:
                for row in ready:
                    self._ready = ready
                    return row
            except BaseException:
                self._undo(self._mark, self._given - 1)  # its turn was taken, its row was not made
                raise
            if ready is _TAKEN:
                self._wait()
                continue
            try:
                is_over = not self._draw()
            finally:
                self._ready = self._drawn_ready
            if is_over:
                raise StopIteration

    def _wait(self) -> None:
        """Until the thread that is in here is done."""
        frame = sys._getframe(1).f_back
        while frame is not None:
            if frame.f_code.co_filename == __file__ and frame.f_locals.get("self") is self:
                raise HeadraceError(
                    f"{self.index.listing.source}: a signal handler asked these rows for something while this thread "
                    f"is in next() or state_dict() of them, so where they are is not known; let it set a flag, and "
                    f"look at the flag after next()"
                )
            frame = frame.f_back
        pauses = chain(repeat(0.0, 32), repeat(0.001))
        while self._ready is _TAKEN:
            time.sleep(next(pauses))

    @property
    def _given(self) -> int:
        """Draws of the block whose rows were given out."""
        return self._drawn_rows - length_hint(self._turns)

    def _draw(self) -> bool:
        """The next block of draws, with the chunks that they come from open."""
        before, given = self._mark, self._given
        try:
            assert not length_hint(self._turns), "a chunk gave fewer rows than it has"
            mark, done = self._drawn(self._next_draws)
            if done is None:
                return False
            self._next_draws = min(2 * self._next_draws, BLOCK_ROWS)
            opened = partial(self._open.of, slots=done.slots, order=self._pool.order)
            feeds = [opened(slot).rows(first, n) if n else _NO_ROWS for slot, first, n in done.parts()]
            turns: Iterator[Any] = repeat(feeds[0], done.count)  # they end; the feed may go on
            ready: Iterator[Row] = map(next, turns)
            if done.picks is not None:
                turns = iter(done.picks.tolist())
                ready = map(next, map(feeds.__getitem__, turns))
            self._mark, self._drawn_rows, self._turns, self._drawn_ready = mark, done.count, turns, ready
        except BaseException:
            self._come_back(before, given)
            raise
        return True

    def _undo(self, mark: Mark, given: int) -> None:
        """An error ends this thread's turn."""
        try:
            self._come_back(mark, given)
        finally:
            self._ready = self._drawn_ready

    def _come_back(self, mark: Mark, given: int) -> None:
        """To `given` draws after a mark: what was drawn since was not given out, and will be drawn again."""
        self._pool.go_to(mark)
        self._pool.skip(given)
        self._open.close()
        self._nothing_drawn()

    def _nothing_drawn(self) -> None:
        self._mark, self._drawn_rows, self._turns, self._drawn_ready = self._pool.mark(), 0, iter(()), iter(())

    def next_block(self, most: int = BLOCK_ROWS) -> RowBlock | None:
        """Up to `most` of the next rows as columns, or None at the end. The same rows as item by item, only sooner."""
        if (most := index_of(most)) < 1:
            raise SpecError(f"next_block({most}): the number of rows wanted, 1 or more")
        while self._ready is _TAKEN:
            self._wait()
        self._ready = _TAKEN
        try:
            return self._next_block(most)
        finally:
            self._ready = self._drawn_ready

    def _next_block(self, most: int) -> RowBlock | None:
        mark, given = self._mark, self._given
        try:
            if left := length_hint(self._turns):
                return as_block(list(islice(self._drawn_ready, min(most, left))))
            _, done = self._drawn(most)
            if done is None:
                return None
            opened = partial(self._open.of, slots=done.slots, order=self._pool.order)
            block = gather(opened, done, str(self.index.listing.source))
            self._nothing_drawn()
        except BaseException:
            self._come_back(mark, given)
            raise
        return block

    def _drawn(self, most: int) -> tuple[Mark, Draws | None]:
        """Draw, and have what was drawn fetched; with the moment before, to come back to."""
        if self._closed:
            raise HeadraceError(f"{self.index.listing.source}: these rows were closed")
        if len(self._open) > len(self._pool.slots):
            self._tidy()
        mark = self._pool.mark()
        done = self._pool.draw(most)
        if done is not None:
            self._open.want(done)
        return mark, done

    def _tidy(self) -> None:
        """All that was drawn was given out: let go of the chunks that are used up, and of the shards behind us."""
        self._open.keep_only(self._pool.slots)
        self._shelf.keep_only(self._pool.shards_in_use(), set().union(*self._saved))

    # --- state

    def state_dict(self) -> State:
        while self._ready is _TAKEN:
            self._wait()
        self._ready = _TAKEN
        try:
            return self._saved_state()
        finally:
            self._ready = self._drawn_ready

    def _saved_state(self) -> State:
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

    def load_state_dict(
        self, state: State, *, trust_moved: bool = False, trust_changed: bool | Iterable[str] = False
    ) -> None:
        """Go on from there. `trust_moved`: files that cannot be told to be those of the state are. `trust_changed`:
        shards, by path or name, that may have other contents in as many rows; True: any."""
        trust = Trust.given(trust_moved, trust_changed)
        while self._ready is _TAKEN:
            self._wait()
        self._ready = _TAKEN
        try:
            self._load(state, trust)
        finally:
            self._ready = self._drawn_ready

    def _load(self, state: State, trust: Trust) -> None:
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
        log.info("resume: spec=%s sample_row=%d shard=%s offset=%d", spec, self._pool.draws, shard, offset)

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
        while self._ready is _TAKEN:
            self._wait()
        self._ready = _TAKEN
        try:
            self._close()
        finally:
            self._ready = self._drawn_ready

    def _close(self) -> None:
        if not self._closed:
            self._come_back(self._mark, self._given)
            self._closed = True
            self._shelf.close()
            if self._need is not None:
                self._need.end(self)

"""A lane: the whole pipeline on its own share of the rows. It makes whole micro-batches, each with a receipt."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from headrace.address import Address
from headrace.batch import Batch
from headrace.errors import HeadraceError, StateError, shown
from headrace.make.faults import LaneFaults
from headrace.make.feed import FIRST_ROWS, CountingFeed, Feed
from headrace.make.prepare import AsRows, Ready
from headrace.mix.mixer import Mixer, share
from headrace.mix.turns import Turns
from headrace.sequence.collate import IGNORED, collate_packed, collate_rows, one_row
from headrace.sequence.pack import PACKERS, Packer
from headrace.sequence.piece import Piece
from headrace.sequence.rows import RowBatcher
from headrace.sequence.samples import SampleBatcher
from headrace.serve.lane_state import OVER_LATE, canonical, lane_of
from headrace.serve.pipeline import Pipeline
from headrace.serve.redeal import rows_left
from headrace.stage import State

SAMPLES_ADVICE = "to leave out rows that fail, up to a bound: configure(faults=Faults(policy='skip'))"


class Lane:
    def __init__(self, pipeline: Pipeline, number: int, lanes: int, epoch: int = 0, *, counting: bool = False) -> None:
        """`counting`: rows are drawn, but not read."""
        self.pipeline, self.number, self.lanes, self.epoch = pipeline, number, lanes, epoch
        self._names = [part.name for part in pipeline.recipe.parts]
        kind = CountingFeed if counting else Feed
        self.faults = LaneFaults(
            pipeline.recipe.faults,
            [part.name for part in pipeline.recipe.parts],
            "" if pipeline.samples is None else SAMPLES_ADVICE,
        )
        self._feeds = [
            kind(
                i,
                pipeline.sources[i],
                pipeline.pool(i, number, lanes, epoch),
                AsRows() if counting else pipeline.prepares[i],
                self.faults,
                pipeline.skipped[i],
                pipeline.reads_by_range(lanes),
                _first_rows(pipeline),
            )
            for i in range(len(pipeline.recipe.parts))
        ]
        self._mixer, self._packer = self._stages()
        self._given = 0
        self._over = self._over_late = False
        self._extra = 0
        """Micro-batches given since the data ended."""
        self._again: Lane | None = None
        """What fills a tail up is made by another lane, from the start of the epoch."""
        self._spent: list[Lane] = []
        """Such lanes that ended: what they gave may not be made yet, and needs their files."""
        self._remade = 0
        self._first: Sequence[Any] | None = None
        """The first items of the epoch, once they were made again: all padding is made of them."""
        self.receipt = self._receipt()

    def _stages(self) -> tuple[Mixer | Turns, Packer | RowBatcher | SampleBatcher]:
        """What chooses rows, and what makes micro-batches of them."""
        pipeline, recipe = self.pipeline, self.pipeline.recipe
        if pipeline.samples is not None:
            specs = [source.spec for source in pipeline.sources]
            turns = pipeline.samples.mixer(self._feeds, specs, (self.number, self.lanes), self._fetch)
            return turns, pipeline.samples.batcher(recipe.batch_size, self._names, turns, pipeline.helpers)
        mixer = Mixer(
            self._feeds,
            pipeline.weights,
            stop=recipe.mix.stop or ("loop" if pipeline.passes is None else "all_exhausted"),
            by_tokens=recipe.mix.by == "tokens",
            lane=self.number,
            lanes=self.lanes,
            quotas=[
                None if part.tokens is None else share(part.tokens, self.number, self.lanes) for part in recipe.parts
            ],
        )
        if recipe.pack is None:
            return mixer, RowBatcher(recipe.batch_size)
        limited = {i for i, part in enumerate(recipe.parts) if part.tokens is not None}
        return mixer, PACKERS[recipe.pack.method](recipe.pack, recipe.batch_size, limited)

    @property
    def is_over(self) -> bool:
        """Whether all that the lane has in this epoch was given out."""
        return self._over

    @property
    def is_bare(self) -> bool:
        """Whether it gave nothing, and has nothing to give."""
        return not self._given and self._packer.is_empty and not self._mixer.has_more()

    @property
    def is_filling(self) -> bool:
        """Whether the micro-batch given last was only there to fill its slot."""
        return self._extra > 0

    def next(self, m: int, *, receipt: bool = True) -> Batch:
        """Micro-batch `m`, with the lane's receipt. Where the lane is over: what the tail policy says.

        `receipt`: whether it is written now, or when it is asked for.
        """
        before = self._over, self._over_late, self._extra
        items = self.advance(m)
        try:
            batch = self._filler() if items is None else self._batch_of(items)
        except BaseException:
            if items is None:  # it was not given, and comes again
                self._over, self._over_late, self._extra = before
            raise
        finally:
            self._close_spent()
        self._given += 1
        batch.m = m
        batch.receipt = self.receipt = self._receipt() if receipt else b""
        return batch

    def _batch_of(self, items: Sequence[Any]) -> Batch:
        try:
            return self._collated(self._filled_up(items, 1) if self.pipeline.recipe.tail == "wrap" else items)
        except BaseException:
            if isinstance(self._packer, RowBatcher):  # what is made as late as here can fail, and was not given
                self._packer.put_back(items)
                self._over = False
            raise

    @property
    def failed(self) -> Ready | None:
        """The row that could not be given, and comes again."""
        return self._packer.first_put_back if isinstance(self._packer, RowBatcher) else None

    def leave_out(self) -> None:
        """That row was drawn, and is not given."""
        assert isinstance(self._packer, RowBatcher), "rows that come again"
        self._packer.drop_put_back()
        self._over = self._packer.is_empty and not self._mixer.has_more()
        self.receipt = b""

    def pass_by(self, m: int) -> None:
        """Micro-batch `m` without the batch: only the receipt comes of it."""
        if isinstance(self._packer, SampleBatcher):
            self._packer.only_count()
        self.advance(m)
        self._given += 1
        self.receipt = self._receipt()

    def spare_rows(self) -> int | None:
        """Rows that can be passed before one of the sources ends; None: as many as you like; 0: it is not known."""
        if not self._packer.is_empty or not isinstance(self._mixer, Mixer):
            return 0
        found: int | None = None
        for i in range(len(self._feeds)):
            if i in self._mixer.ended:
                continue
            pool = self.pipeline.pool(i, self.number, self.lanes, self.epoch)
            if pool.last is not None:
                if pool.rules.coordinate != "rows":
                    return 0
                pool.load_state_dict(self._feeds[i].state_dict())
                left = rows_left(pool)
                found = left if found is None else min(found, left)
        return found

    def leap(self, count: int, m: int) -> None:
        """Past so many micro-batches from `m` on, of rows that are only counted, and of which there are more."""
        if self._over:
            self._extra += count
        else:
            assert isinstance(self._mixer, Mixer)
            for feed, rows in zip(self._feeds, self._mixer.pass_by(m, count * self._batch_size), strict=True):
                feed.skip(rows)
        self._given += count
        self.receipt = b""

    def advance(self, m: int) -> Sequence[Any] | None:
        """What goes into micro-batch `m`; None: the data does not reach it."""
        items = [] if self._over else self._items(m)
        if items and not (len(items) < self._batch_size and self.pipeline.recipe.tail == "drop"):
            if not self.pipeline.is_endless:
                self._over = self._packer.is_empty and not self._mixer.has_more()
            return items
        if self.pipeline.is_endless:
            ended = ", ".join(shown(part.name) for part in self.pipeline.recipe.parts)
            raise HeadraceError(
                f"lane {self.number} of {self.lanes} has no source left: {ended} ended, or gave no sample in "
                f"{self.lanes + 1} passes; an endless run needs a source that goes on"
            )
        self._over_late = self._over_late or not self._over
        self._over = True
        self._extra += 1
        return None

    def look_again(self) -> None:
        """Find out anew what has ended: the recipe may have changed since."""
        self._mixer.look_again()
        finite = not self.pipeline.is_endless
        self._over = finite and self._given > 0 and self._packer.is_empty and not self._mixer.has_more()

    @property
    def _batch_size(self) -> int:
        return self.pipeline.recipe.batch_size

    @property
    def dropped(self) -> int:
        return self._mixer.dropped

    @property
    def truncated(self) -> int:
        return self._packer.truncated

    def _items(self, m: int) -> Sequence[Any]:
        """Sequences or rows. A micro-batch on the skip list is made, and the next one given in its place."""
        take: Callable[[], Any] = partial(self._mixer.take, m)
        if m in self.pipeline.recipe.skip.steps:
            with self.faults.all_pass():
                self._packer.make(take, self._given)
        return self._packer.make(take, self._given)

    def _filler(self) -> Batch:
        """For a slot that the data does not reach."""
        items = self._filled_up([], self._extra) if self.pipeline.recipe.tail == "wrap" else []
        if items:
            return self._collated(items)
        batch = self._padding()
        if self.pipeline.samples is not None and "labels" in batch:
            batch["labels"].fill_(IGNORED)
        batch.pad = True
        return batch

    def _padding(self) -> Batch:
        """Nothing to learn from. It does not depend on what came before, so a resume makes the same."""
        import numpy as np

        pack = self.pipeline.recipe.pack
        if pack is None:
            if self._first is None:
                self._first = self._from_the_start(1)
            return self._collated(self._first)
        # Tokens that are attended to like others: a row that nothing is attended in gives NaN in some models.
        tokens = np.full(pack.seq_len, self.pipeline.pad_id, dtype=np.int32)
        silent = np.zeros(pack.seq_len, dtype=np.bool_)
        piece = Piece(0, 0, 0, 0, 0, pack.seq_len, 0, tokens, silent, "", -1)
        return self._collated([[piece]] * self._batch_size)

    def _filled_up(self, items: Sequence[Any], number: int) -> Sequence[Any]:
        """A whole micro-batch, with what comes from micro-batch `number` of this epoch on."""
        while len(items) < self._batch_size and (more := self._from_the_start(number)):
            items = [*items, *more][: self._batch_size]
            number += 1
        return items

    def _from_the_start(self, number: int) -> Sequence[Any]:
        """The items of micro-batch `number` of this epoch, made once more.

        Counted from 1: the lane's own, then those of the lanes after it, and round again. None where no lane has any.
        """
        if self._again is None or self._remade >= number:
            self._forget_again()
            self._again, self._remade = self._other(self.number), 0
        items: Sequence[Any] = []
        empty = 0
        while self._remade < number and empty <= self.lanes:
            items = self._again._items(self._again._given)
            self._again._given += 1
            if items:
                self._remade, empty = self._remade + 1, 0
            else:
                self._spent.append(self._again)
                self._again, empty = self._other((self._again.number + 1) % self.lanes), empty + 1
        return items

    def _other(self, number: int) -> Lane:
        other = Lane(self.pipeline, number, self.lanes, self.epoch)
        if isinstance(other._mixer, Mixer):
            other._mixer.leave_out_limited()
        other.faults.is_silent = True
        if isinstance(other._packer, SampleBatcher):
            other._packer.picture_size = None  # what it makes may be given more than once
        return other

    def _collated(self, items: Sequence[Any]) -> Batch:
        pack, names = self.pipeline.recipe.pack, self._names
        if self.pipeline.samples is not None:
            return self.pipeline.samples.collated(items, names, self.pipeline.helpers)
        if pack is not None:
            return collate_packed(items, pack.seq_len, self.pipeline.pad_id, names, self._batch_size)
        rows = [(Address(names[r.source], r.epoch, r.shard, r.row), r.samples[0]) for r in items]
        return one_row(*rows[0]) if self.pipeline.single else collate_rows(rows)

    # --- state

    def last_receipt(self) -> bytes:
        return self.receipt or self._receipt()

    def _receipt(self) -> bytes:
        return canonical(self.state_dict())

    def state_dict(self) -> State:
        return {
            "n": self._given,
            "o": OVER_LATE if self._over and self._over_late else int(self._over),
            "z": self._extra,
            "src": [feed.state_dict() for feed in self._feeds],
            **self._mixer.state_dict(),
            **self._packer.state_dict(),
            **self.faults.state_dict(),
        }

    def load(self, receipt: bytes) -> None:
        self.load_state_dict(lane_of(receipt))

    def load_state_dict(self, state: State) -> None:
        try:
            sources, numbers = state["src"], [state[name] for name in ("n", "o", "z")]
        except (KeyError, TypeError) as error:
            raise StateError(f"lane {self.number}: this is not the state of a lane: {shown(state)!r}") from error
        if not isinstance(sources, list) or len(sources) != len(self._feeds):
            raise StateError(f"lane {self.number}: src: the states of {len(self._feeds)} sources are expected")
        if not all(type(n) is int and n >= 0 for n in numbers):
            raise StateError(f"lane {self.number}: n, o, z: whole numbers from 0 on are expected, not {numbers}")
        self.faults.load_state_dict(state)
        for feed, one in zip(self._feeds, sources, strict=True):
            feed.load_state_dict(one)
        self._mixer.load_state_dict(state)
        self._packer.load_state_dict(state, self._fetch)
        self._given, self._over, self._extra = numbers[0], bool(numbers[1]), numbers[2]
        self._over_late = numbers[1] == OVER_LATE
        self._forget_again()
        self.receipt = self._receipt()

    def _fetch(self, places: Sequence[tuple[int, int, int]]) -> list[Ready]:
        found: dict[tuple[int, int, int], Ready] = {}
        for i, feed in enumerate(self._feeds):
            own = [(e, p) for c, e, p in places if c == i]
            if own:
                found.update({(i, r.epoch, r.position): r for r in feed.fetch(own)})
        missing = [place for place in places if place not in found]
        if missing:
            raise StateError(
                f"lane {self.number}: the state holds a piece of source {missing[0][0]}, of which there is none"
            )
        return [found[place] for place in places]

    def close(self) -> None:
        self._forget_again()
        self._close_spent()
        for feed in self._feeds:
            feed.close()

    def _close_spent(self) -> None:
        for lane in self._spent:
            lane.close()
        self._spent = []

    def _forget_again(self) -> None:
        if self._again is not None:
            self._again.close()
            self._again = None


def _first_rows(pipeline: Pipeline) -> int:
    """Rows of each source that the first batch needs, as far as it can be known."""
    recipe = pipeline.recipe
    if recipe.pack is not None or pipeline.samples is not None:
        return FIRST_ROWS
    return -(-recipe.batch_size // len(recipe.parts))

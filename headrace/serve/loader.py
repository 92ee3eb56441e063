"""The loader: an ordinary iterable of batches whose state is what the trainer has received.

Micro-batch m of the run comes from lane m mod L, and m never restarts. Rank r takes every R-th; its lanes are dealt to
its workers. So the sequence of micro-batches depends on the recipe and L alone.
"""

from __future__ import annotations

import json
import logging
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from headrace.address import skip_text
from headrace.batch import Batch
from headrace.catalog.identity import Trust
from headrace.errors import Changed, SpecError, StateError, shown
from headrace.floors import warn_of_old_transformers
from headrace.make.faults import Place as FaultPlace
from headrace.make.faults import places_in
from headrace.outside_json import parse
from headrace.serve.budgets import check_memory, tell_layout, tell_skips
from headrace.serve.crew import Crew
from headrace.serve.epoch import (
    Ending,
    end_of,
    epoch_steps,
    first_place,
    is_sized,
    next_epoch,
    token_counts,
    with_token_counts,
)
from headrace.serve.first_rank import FirstRank
from headrace.serve.lane_state import lane_of
from headrace.serve.offsets import from_offsets, is_offsets, revisions_in
from headrace.serve.peers import Peers, Tally, group_is_up
from headrace.serve.pipeline import Fact, Pipeline, joined_marks
from headrace.serve.readable import Entries, Readable
from headrace.serve.recognised import facts_with_marks
from headrace.serve.resume import Place, placed, saved_of
from headrace.serve.state import Saved
from headrace.serve.state_file import MOST_VALUES
from headrace.serve.statistics import Statistics
from headrace.serve.steps import Steps
from headrace.serve.wrappers import Reader, reader, refuse_second_split, refuse_wrapping
from headrace.stage import State

if TYPE_CHECKING:
    from headrace.serve.dataset import LaneDataset

log = logging.getLogger("headrace")

KEPT_STEPS = 64
"""So many steps back a state can still be asked for."""


@dataclass(frozen=True, kw_only=True)
class Serving:
    """How batches reach this trainer. Nothing here changes what they are, but `lanes`."""

    num_workers: int = 0
    lanes: int | None = None
    """Of a new run or a re-deal, rounded up to a multiple of the ranks. None: ranks times workers."""
    steps_per_epoch: int | None = None
    """`iter()` ends after so many steps of a rank, and the next one goes on from there."""
    ahead: int = 2
    """Batches that a worker makes ahead."""
    start_method: str | None = None
    """fork, spawn or forkserver; None: the platform's."""
    persistent_workers: bool = False
    device: Any = None
    """Batches are copied there ahead of time."""


class Loader:
    """Made by `headrace.load`."""

    def __init__(self, pipeline: Pipeline, serving: Serving) -> None:
        self._given, self._pipeline, self._serving = pipeline, pipeline, serving
        self._ranks, self._rank = pipeline.run.world_size, pipeline.run.rank
        self._statistics = Statistics()
        self._place: Place | None = None
        self._past: deque[tuple[Place, tuple[Fact, ...]]] = deque(maxlen=KEPT_STEPS)
        """Where we were before each step, newest last, with what was fixed about the sources then."""
        self._live: weakref.ref[Steps] | None = None
        self._crew: Crew | None = None
        self._peers: Peers | None = None
        self._tally: Tally | None = None
        """What other ranks say of the tokens that their lanes gave, until it is read."""
        self._reader: Reader | None = None
        """What iterates over us and may read ahead, until the first batch is delivered to it."""
        self._ahead: tuple[str, int] | None = None
        """Who reads batches ahead since the last `iter()`, and how many."""
        self._first_rank = FirstRank(pipeline)
        self._ending: Ending | None = None
        self._dataset: LaneDataset | None = None
        self._jobs = 0
        self._readable = Readable(pipeline)
        self._reasons: dict[FaultPlace, str] = {}
        """Why rows were left out, as far as this process saw it."""
        if pipeline.recipe.pack is not None and pipeline.recipe.pack.method != "none":
            warn_of_old_transformers()

    # --- batches

    def __iter__(self) -> Iterator[Batch]:
        refuse_second_split(self._ranks, "loader")
        live = self._open_steps()
        if live is not None:
            live.close()
        self._take_back()
        self._reader = reader()
        steps = Steps(self, self._here)
        self._live = weakref.ref(steps)
        return steps

    def __len__(self) -> int:
        """Steps of a whole epoch on this rank, where that is known."""
        return epoch_steps(self)

    def _delivered(self, batch: Batch, receipts: Mapping[int, bytes], waited: float) -> Place:
        """Where we are when the trainer has this batch. The iterator, which calls this, goes there."""
        place = self._here
        self._past.append((place, self._pipeline.facts))
        if self._reader is not None:
            ahead = self._reader.batches_ahead()
            self._ahead, self._reader = (self._reader.name, ahead) if ahead else None, None
        self._statistics.count(batch, waited)
        lanes = place.lanes.copy()
        for lane, receipt in receipts.items():
            lanes[lane] = receipt
        m = batch.m - self._rank + self._ranks
        return replace(place, lanes=lanes, m=m, is_whole=self._ranks == 1)

    def _end_of_epoch(self) -> Ending:
        """Of the epoch that we are in. It is the same for all iterators over it: it knows what ranks have voted."""
        if self._ending is None or not self._ending.is_of(self._here):
            self._ending = Ending(self._pipeline, self._here, self._serving.steps_per_epoch, self._other_ranks)
        return self._ending

    def _ended(self, end: int | None, receipts: Mapping[int, bytes]) -> Place:
        """Where we are when the trainer's epoch is over. The iterator, which calls this, goes there. `end`: the first
        micro-batch that no lane had, where that is known. `receipts`: of own lanes, at their end."""
        here = self._here
        self._past.append((here, self._pipeline.facts))
        self._ahead = None
        lanes = [receipts.get(number, lane) for number, lane in enumerate(here.lanes)]
        return self._begun(next_epoch(self._pipeline, replace(here, lanes=lanes), end=end))

    def set_epoch(self, epoch: int) -> None:
        """To the start of an epoch; nothing where it is the current one. An endless run goes on where it is."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise SpecError(f"set_epoch({shown(epoch)}): a whole number from 0 on is expected")
        if epoch != self._here.epoch:
            self._no_iterator("set_epoch")
            self._place = self._begun(next_epoch(self._pipeline, self._here, epoch, self._end_if_over()))
            self._past.clear()
            self._ending = self._ahead = None

    def _begun(self, place: Place) -> Place:
        """The start of an epoch. A rank may get lanes there that were another's, and token limits go on in them."""
        counts = token_counts(self._pipeline, place) if self._ranks > 1 and self._peers is not None else None
        if counts is not None:
            self._tally = self._other_ranks().tally(counts)
        return place

    def _end_if_over(self) -> int | None:
        """Where the epoch ended, if we are past its end and only filled slots since."""
        if self._pipeline.is_endless or self._serving.steps_per_epoch is not None or not is_sized(self._pipeline):
            return None
        return min(self._here.m, end_of(self._pipeline, self._here))

    # --- who makes them

    def _free_crew(self) -> Crew:
        """Workers that are free to begin a job."""
        crew, self._crew = self._crew, None
        workers = self._num_workers(len(self._here.lanes))
        if crew is not None and (crew.pipeline is not self._pipeline or crew.num_workers != workers):
            crew.close()
            crew = None
        return crew or Crew(self._pipeline, workers, self._serving.ahead, self._serving.start_method)

    def _release(self, crew: Crew, broken: bool) -> None:
        """A job is done."""
        if self._serving.persistent_workers and not broken and self._crew is None:
            crew.rest()
            self._crew = crew
        else:
            crew.close()

    def _next_job(self) -> int:
        self._jobs += 1
        return self._jobs

    def _num_workers(self, lanes: int) -> int:
        asked, most = self._serving.num_workers, lanes // self._ranks
        if asked > most:
            log.info("num_workers=%d: %d are used, one for each lane; lanes= sets more for a new run", asked, most)
        return min(asked, most)

    def _other_ranks(self) -> Peers:
        if self._peers is None:
            self._peers = Peers()
        return self._peers

    # --- state

    @property
    def _here(self) -> Place:
        """Where we are. At the first start the lanes are decided here, and all that is fixed with them."""
        if self._place is None:
            lanes = self._wanted_lanes()
            self._tell_lanes(lanes)
            self._first_rank.take_names(self._pipeline)
            self._pipeline.fix(lanes)
            self._first_rank.compare(self._pipeline)
            self._check_memory(self._pipeline, lanes)
            self._place = first_place(self._pipeline, lanes)
        if self._tally is not None:
            self._place = with_token_counts(self._place, self._tally.answer())
            self._tally = None
        return self._place

    def state_dict(self, *, at: int | None = None, gather: bool = True) -> State:
        """Everything delivered so far. `at`: as it was when so many micro-batches of the run were delivered; where an
        epoch ended then, that is its end, and not yet the start of the next one.

        With several ranks and a process group this is a collective, and gives all ranks the same whole state;
        `gather=False`, or no group: this rank's part, for `merge_states`.

        Under a wrapper that reads batches ahead (Accelerate's loaders; Lightning, where the length is not known) `at`
        is needed: after the batch that was trained on last, it is `batch.m - rank + ranks`.
        """
        if at is None:
            self._refuse_read_ahead()
        place, facts = (self._here, self._pipeline.facts) if at is None else self._back_to(at)
        lanes: list[bytes | None] = [lane if self._is_own(i, place) else None for i, lane in enumerate(place.lanes)]
        self._pipeline.needs.saved(lanes)
        told: dict[str, Any] = {}
        same = True
        if self._ranks > 1 and gather and group_is_up():
            lanes, told, same = self._gathered(place, facts, lanes)
        saved = saved_of(self._pipeline, place, lanes)
        saved = replace(saved, **{"facts": _as_they_were(saved.facts, facts), **told})
        entries = self._readable.entries(lanes)
        return saved.to_state(entries if same else Entries.of(self._other_ranks().gather(entries.datasets)[0]))

    def load_state_dict(
        self,
        state: State,
        *,
        force: bool = False,
        trust_moved: bool = False,
        trust_changed: bool | Iterable[str] = False,
    ) -> None:
        """Resume from there: on these ranks and workers, with this recipe.

        `force`: take a state that was edited since it was saved, as far as it can be one.

        Files that were moved, touched or renamed are recognised by what is in them. `trust_moved`: those that cannot be
        told are the same, too. `trust_changed`: shards, by path or name, that may have other contents in as many rows
        (one that was mended); True: any.
        """
        self._no_iterator("load_state_dict")
        trust = Trust.given(trust_moved, trust_changed)
        if is_offsets(state):
            pipeline = self._given.resumed(revisions=revisions_in(state, self._given.recipe), trust=trust)
            self._first_rank.take_names(pipeline)
            place = from_offsets(state, pipeline, self._wanted_lanes(), self._serving.steps_per_epoch)
        else:
            saved = Saved.from_state(state, force=force)
            pipeline = self._given.resumed(saved.kept, saved.size, trust=trust)
            place = placed(saved, pipeline, self._ranks, self._wanted_lanes())
        self._check_memory(pipeline, len(place.lanes))
        self._tell_lanes(len(place.lanes))
        self._pipeline, self._place, self._tally = pipeline, place, None
        self._readable = Readable(pipeline)
        self._statistics = Statistics()
        self._past.clear()
        self._ending = self._ahead = None
        if log.isEnabledFor(logging.INFO):
            self._readable.log_places(place.lanes)

    @property
    def stateful(self) -> StateAsText:
        """For `torch.distributed.checkpoint`: `save({"model": ..., "loader": loader.stateful})`."""
        return StateAsText(self)

    def _wanted_lanes(self) -> int:
        """Of a first start, or of a re-deal: the ranks divide them."""
        asked = self._serving.lanes or self._ranks * max(self._serving.num_workers, 1)
        return -(-asked // self._ranks) * self._ranks

    def _tell_lanes(self, lanes: int) -> None:
        """Where they are not those that were asked for."""
        asked = self._serving.lanes
        if asked is None or asked == lanes:
            return
        if lanes == self._wanted_lanes():
            log.info("lanes=%d: %d are used, the next number that %d ranks divide", asked, lanes, self._ranks)
        elif self._rank == 0:
            log.warning(
                "lanes=%d: the state has %d lanes and keeps them, as %d ranks divide them; lanes= is for a new run, or "
                "for ranks that do not",
                asked,
                lanes,
                self._ranks,
            )

    def _check_memory(self, pipeline: Pipeline, lanes: int) -> None:
        tell_layout(pipeline, lanes)
        tell_skips(pipeline)
        own = lanes // self._ranks
        check_memory(pipeline, -(-own // max(1, min(self._serving.num_workers, own))), pipeline.run.memory_bytes)

    def _is_own(self, lane: int, place: Place) -> bool:
        return (lane - place.m - self._rank) % self._ranks == 0

    def _back_to(self, at: int) -> tuple[Place, tuple[Fact, ...]]:
        kept = [*self._past, (self._here, self._pipeline.facts)]
        found = [one for one in reversed(kept) if one[0].m == at]
        if not found:
            steps = [place.m for place, _ in kept]
            raise StateError(f"state_dict(at={at}): what is kept are the steps from m={min(steps)} to m={max(steps)}")
        begins = found[0][0].m == found[0][0].m_epoch
        return found[1] if begins and len(found) > 1 else found[0]

    def _refuse_read_ahead(self) -> None:
        """What was read ahead was delivered, but not to the trainer."""
        here = self._steps_here()
        if self._ahead is None or not here:
            return
        name, count = self._ahead
        hint = "; with steps_per_epoch= Lightning knows the length and reads nothing ahead"
        raise StateError(
            f"state_dict(): {name} reads {count} batch{'es' if count > 1 else ''} ahead, so the state would leave out "
            f"what the trainer has not received yet; use state_dict(at=m), where m counts the micro-batches that were "
            f"trained on: batch.m + 1 of the last batch, or batch.m - rank + {self._ranks} on several ranks (one batch "
            f"back from what was read is at={here[-min(count, len(here))].m})"
            f"{hint if name.startswith('Lightning') else ''}"
        )

    def _steps_here(self) -> list[Place]:
        """Where we were before each of the last steps of this epoch."""
        now = self._here
        return [one for one, _ in self._past if (one.epoch, one.m_epoch) == (now.epoch, now.m_epoch)]

    def _take_back(self) -> None:
        """A loop that was left while a wrapper read ahead: what it had read and not given on comes again."""
        here = self._steps_here()
        if self._ahead is not None and here:
            count = min(self._ahead[1], len(here))
            log.info("the loop before was left with a batch that %s had read ahead: it is given again", self._ahead[0])
            self._place = here[-count]
            for _ in range(count):
                self._past.pop()
        self._ahead = None

    def _gathered(
        self, place: Place, facts: tuple[Fact, ...], own: list[bytes | None]
    ) -> tuple[list[bytes | None], dict[str, Any], bool]:
        """The lanes of all ranks; what the first one says of its sources; and whether all write their paths like it,
        for each may have its own copy of the files."""
        recipe = self._pipeline.recipe
        told: dict[str, Any] = {"recipe": recipe.text, "fingerprint": recipe.fingerprint()}
        told["facts"] = _as_they_were(facts_with_marks(self._pipeline, own), facts)
        found = self._other_ranks().gather((place.m, place.m_plan, place.epoch, told, own))
        steps = [one[:3] for one in found]
        if len(set(steps)) > 1:
            raise StateError(f"state_dict() was called at different steps: (m, m_plan, epoch) of the ranks: {steps}")
        first = found[0][3]
        for rank, (*_, other, _) in enumerate(found):
            for one, two in zip(first["facts"], other["facts"], strict=True):
                if not one.is_of(two):
                    raise Changed(
                        f"the ranks read different data: rank 0 {shown(one, 500)}, and rank {rank} {shown(two, 500)}"
                    )
        merged: list[bytes | None] = [None] * len(own)
        for *_, lanes in found:
            merged = [mine or theirs for mine, theirs in zip(merged, lanes, strict=True)]
        ways = {(told["recipe"], *(fact.revision for fact in told["facts"])) for *_, told, _ in found}
        return merged, {**first, "facts": joined_marks([one[3]["facts"] for one in found])}, len(ways) == 1

    def _open_steps(self) -> Steps | None:
        """The iterator that is in use. (Lightning sets `_iterator` of any loader that has one to None.)"""
        live = self._live() if self._live is not None else None
        return live if live is not None and live.is_open else None

    def _no_iterator(self, what: str) -> None:
        if self._open_steps() is not None:
            raise StateError(
                f"{what} while an iterator over this loader is in use, which would go on as before; "
                f"do it before iter(), after the loop, or after loader.close()"
            )

    # --- around it

    def stats(self) -> dict[str, Any]:
        """What was delivered since the loader was made or a state loaded: batches, tokens, fill, waiting time.

        `sources` has, for each part by name, its `rows` (those that begin in a delivered batch), its `tokens` where
        there are sequences, and two shares, of rows or (`Mix.by`) of tokens: `share_asked`, which its weight asks for
        at the current micro-batch, and `share`, which it had of all that was delivered.
        """
        recipe = self._pipeline.recipe
        known = self._place is not None or recipe.mix.temperature is None  # which needs the rows of all sources
        weights = self._pipeline.weights(max(0, self._place.m - 1) if self._place is not None else 0) if known else None
        found = self._statistics.as_dict(recipe, self._pipeline.samples is not None)
        return {**found, "sources": self._statistics.by_source(recipe, weights)}

    @property
    def faults(self) -> list[LeftOut]:
        """The rows that the lanes of this rank left out because they failed, over the whole run; see `Faults`."""
        lanes = [lane_of(lane) for i, lane in enumerate(self._here.lanes) if self._is_own(i, self._here)]
        found = dict.fromkeys(place for lane in lanes for place in places_in(lane))
        return [LeftOut(self._skip_text(place), self._reasons.get(place, "")) for place in found]

    def _skip_text(self, place: FaultPlace) -> str:
        shard = self._pipeline.sources[place.source].label(place.shard)
        return skip_text(self._pipeline.recipe.parts[place.source].name, shard, place.row)

    def _note_left_out(self, rows: Sequence[tuple[FaultPlace, str]]) -> None:
        """Remember why these rows were left out."""
        self._reasons.update(rows)

    @property
    def dataset(self) -> LaneDataset:
        """The same batches for a `torch.utils.data.DataLoader` or `StatefulDataLoader`, with `batch_size=None`. It
        begins where we are, and moves nothing here."""
        refuse_wrapping()
        from headrace.serve.dataset import LaneDataset

        if self._dataset is None or self._dataset.begun is not self._here:
            self._dataset = LaneDataset(self._pipeline, self._here, self._serving.steps_per_epoch, self._other_ranks)
        return self._dataset

    def describe(self) -> str:
        """The recipe as a tree, with rows and shares."""
        self._pipeline.fix(len(self._here.lanes))
        parts = zip(self._pipeline.recipe.parts, self._pipeline.facts, strict=True)
        known = [(i, part.name) for i, (part, fact) in enumerate(parts) if fact.coordinate == "rows"]
        return self._pipeline.recipe.describe({name: self._pipeline.rows(i) for i, name in known})

    def close(self) -> None:
        """End workers and threads, close files. State can still be asked for, and iter() begins anew from there."""
        live = self._open_steps()
        if live is not None:
            live.close()
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def __getstate__(self) -> dict[str, Any]:
        """A copy goes on from where we are, with workers and peers of its own."""
        _ = self._here  # what a first start fixes is fixed here, the same for all copies
        return {
            **self.__dict__,
            "_given": self._pipeline,
            **dict.fromkeys(("_live", "_crew", "_peers", "_reader", "_ending", "_dataset")),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def _as_they_were(facts: Sequence[Fact], before: Sequence[Fact]) -> tuple[Fact, ...]:
    """Facts with the origins of the digests that they had at an earlier step."""
    pairs = zip(facts, before, strict=True)
    return tuple(replace(fact, epoch=then.epoch, digest=then.digest) for fact, then in pairs)


class LeftOut(NamedTuple):
    """A row that failed and was left out."""

    address: str
    """As `Skip(addresses=...)` takes it."""
    reason: str
    """Empty where it was left out before the state that the run resumed from; it was logged then."""


class StateAsText:
    """A loader's state as one text. torch's distributed checkpoints look into lists, and refuse one of another length:
    a loader with other lanes or sources could not be loaded from them."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, str]:
        return {"state": json.dumps(self._loader.state_dict())}

    def load_state_dict(self, state: dict[str, str]) -> None:
        try:
            found = parse(state["state"], MOST_VALUES)
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"this is not a loader's state as text: {shown(error)}; nothing was changed") from error
        self._loader.load_state_dict(found)

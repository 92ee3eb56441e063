"""The loader: an ordinary iterable of batches whose state is what the trainer has received.

Micro-batch m of the run comes from lane m mod L, and m never restarts. Rank r takes every R-th; its lanes are dealt to
its workers. So the sequence of micro-batches depends on the recipe and L alone.
"""

from __future__ import annotations

import json
import logging
import weakref
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.batch import Batch
from headrace.errors import Changed, SpecError, StateError, shown
from headrace.serve.budgets import check_memory, tell_layout
from headrace.serve.crew import Crew
from headrace.serve.epoch import epoch_steps, first_place, next_epoch
from headrace.serve.offsets import from_offsets, is_offsets
from headrace.serve.peers import Peers, group_is_up
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place, entries, log_places, placed, readable, saved_of
from headrace.serve.state import Saved
from headrace.serve.statistics import Statistics
from headrace.serve.steps import Steps
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
    """None: ranks times workers."""
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
        self._given, self.pipeline, self.serving = pipeline, pipeline, serving
        self.ranks, self.rank = pipeline.run.world_size, pipeline.run.rank
        self.statistics = Statistics()
        self._place: Place | None = None
        self._history: deque[tuple[int, int, bytes]] = deque(maxlen=KEPT_STEPS)
        """(m, lane, the receipt that was replaced), newest last."""
        self._live: weakref.ref[Steps] | None = None
        self._crew: Crew | None = None
        self._peers: Peers | None = None
        self._jobs = 0

    # --- batches

    def __iter__(self) -> Iterator[Batch]:
        live = self._iterator()
        if live is not None:
            live.close()
        steps = Steps(self, self.place)
        self._live = weakref.ref(steps)
        return steps

    def __len__(self) -> int:
        """Steps of a whole epoch on this rank, where that is known."""
        return epoch_steps(self)

    def delivered(self, batch: Batch, receipt: bytes, waited: float) -> Place:
        """Where we are when the trainer has this batch. The iterator, which calls this, goes there."""
        place, lane = self.place, batch.m % len(self.place.lanes)
        self._history.append((place.m, lane, place.lanes[lane]))
        self.statistics.count(batch, waited)
        lanes = place.lanes.copy()
        lanes[lane] = receipt
        return replace(place, lanes=lanes, m=batch.m - self.rank + self.ranks)

    def ended(self) -> Place:
        """Where we are when the trainer's epoch is over. The iterator, which calls this, goes there."""
        self._history.clear()
        return next_epoch(self.pipeline, self.place)

    def set_epoch(self, epoch: int) -> None:
        """To the start of an epoch; nothing where it is the current one. An endless run goes on where it is."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise SpecError(f"set_epoch({shown(epoch)}): a whole number from 0 on is expected")
        if epoch != self.place.epoch:
            self._no_iterator("set_epoch")
            self._place = next_epoch(self.pipeline, self.place, epoch)
            self._history.clear()

    # --- who makes them

    def crew(self) -> Crew:
        """Workers that are free to begin a job."""
        crew, self._crew = self._crew, None
        workers = self._num_workers(len(self.place.lanes))
        if crew is not None and (crew.pipeline is not self.pipeline or crew.num_workers != workers):
            crew.close()
            crew = None
        return crew or Crew(self.pipeline, workers, self.serving.ahead, self.serving.start_method)

    def release(self, crew: Crew, broken: bool) -> None:
        """A job is done."""
        if self.serving.persistent_workers and not broken and self._crew is None:
            crew.rest()
            self._crew = crew
        else:
            crew.close()

    def next_job(self) -> int:
        self._jobs += 1
        return self._jobs

    def _num_workers(self, lanes: int) -> int:
        asked, most = self.serving.num_workers, lanes // self.ranks
        if asked > most:
            log.info("num_workers=%d: %d are used, one for each lane; lanes= sets more for a new run", asked, most)
        return min(asked, most)

    def peers(self) -> Peers:
        if self._peers is None:
            self._peers = Peers()
        return self._peers

    # --- state

    @property
    def place(self) -> Place:
        """Where we are. At the first start the lanes are decided here, and all that is fixed with them."""
        if self._place is None:
            lanes = self._wanted_lanes()
            self.pipeline.fix(lanes)
            self._check_memory(self.pipeline, lanes)
            self._place = first_place(self.pipeline, lanes)
        return self._place

    @place.setter
    def place(self, place: Place) -> None:
        self._place = place

    def state_dict(self, *, at: int | None = None, gather: bool = True) -> State:
        """Everything delivered so far. `at`: as it was when so many micro-batches of the run were delivered.

        With several ranks and a process group this is a collective, and gives all ranks the same whole state;
        `gather=False`, or no group: this rank's part, for `merge_states`.
        """
        place = self.place if at is None else self._back_to(at)
        lanes: list[bytes | None] = [lane if self._is_own(i, place) else None for i, lane in enumerate(place.lanes)]
        self.pipeline.needs.saved(lanes)
        if self.ranks > 1 and gather and group_is_up():
            lanes = self._gathered(place, lanes)
        saved = saved_of(self.pipeline, place, lanes)
        states = [None if lane is None else json.loads(lane) for lane in lanes]
        return saved.to_state(readable(entries(self.pipeline, states), len(lanes)))

    def load_state_dict(self, state: State) -> None:
        """Go on from there: on these ranks and workers, with this recipe."""
        self._no_iterator("load_state_dict")
        if is_offsets(state):
            pipeline = self._given.resumed()
            place = from_offsets(state, pipeline, self._wanted_lanes())
        else:
            saved = Saved.from_state(state)
            pipeline = self._given.resumed(saved.facts, saved.size)
            place = placed(saved, pipeline, self.ranks, self._wanted_lanes())
        self._check_memory(pipeline, len(place.lanes))
        self.pipeline, self._place = pipeline, place
        self.statistics = Statistics()
        self._history.clear()
        if log.isEnabledFor(logging.INFO):
            log_places(entries(pipeline, [json.loads(lane) for lane in place.lanes]))

    @property
    def stateful(self) -> StateAsText:
        """For `torch.distributed.checkpoint`: `save({"model": ..., "loader": loader.stateful})`."""
        return StateAsText(self)

    def _wanted_lanes(self) -> int:
        """Of a first start, or of a re-deal."""
        lanes = self.serving.lanes
        return lanes if lanes is not None and lanes % self.ranks == 0 else self.ranks * max(self.serving.num_workers, 1)

    def _check_memory(self, pipeline: Pipeline, lanes: int) -> None:
        tell_layout(pipeline, lanes)
        own = lanes // self.ranks
        check_memory(pipeline, -(-own // max(1, min(self.serving.num_workers, own))), pipeline.run.memory_bytes)

    def _is_own(self, lane: int, place: Place) -> bool:
        return (lane - place.m - self.rank) % self.ranks == 0

    def _back_to(self, at: int) -> Place:
        place = self.place
        lanes, m = list(place.lanes), place.m
        for before, lane, receipt in reversed(self._history):
            if m <= at:
                break
            lanes[lane], m = receipt, before
        if m != at:
            first = self._history[0][0] if self._history else place.m
            raise StateError(f"state_dict(at={at}): what is kept are the steps from m={first} to m={place.m}")
        return replace(place, lanes=lanes, m=m)

    def _gathered(self, place: Place, own: list[bytes | None]) -> list[bytes | None]:
        found = self.peers().gather((place.m, place.m_plan, place.epoch, self.pipeline.facts, own))
        steps = [one[:3] for one in found]
        if len(set(steps)) > 1:
            raise StateError(f"state_dict() was called at different steps: (m, m_plan, epoch) of the ranks: {steps}")
        odd = next((facts for *_, facts, _ in found if facts != self.pipeline.facts), None)
        if odd is not None:
            raise Changed(f"the ranks read different data: {shown(odd, 500)} and {shown(self.pipeline.facts, 500)}")
        merged: list[bytes | None] = [None] * len(own)
        for *_, lanes in found:
            merged = [mine or theirs for mine, theirs in zip(merged, lanes, strict=True)]
        return merged

    def _iterator(self) -> Steps | None:
        live = self._live() if self._live is not None else None
        return live if live is not None and live.is_open else None

    def _no_iterator(self, what: str) -> None:
        if self._iterator() is not None:
            raise StateError(
                f"{what} while an iterator over this loader is in use, which would go on as before; "
                f"do it before iter(), after the loop, or after loader.close()"
            )

    # --- around it

    def stats(self) -> dict[str, Any]:
        """What was delivered since the loader was made or a state loaded: batches, tokens, fill, waiting time."""
        return self.statistics.as_dict(self.pipeline.recipe, self.pipeline.samples is not None)

    @property
    def dataset(self) -> LaneDataset:
        """The same batches for a `torch.utils.data.DataLoader` or `StatefulDataLoader`, with `batch_size=None`."""
        from headrace.serve.dataset import LaneDataset

        return LaneDataset(self.pipeline, self.place)

    def describe(self) -> str:
        """The recipe as a tree, with rows and shares."""
        self.pipeline.fix(len(self.place.lanes))
        known = [(i, fact.name) for i, fact in enumerate(self.pipeline.facts) if fact.coordinate == "rows"]
        return self.pipeline.recipe.describe({name: self.pipeline.rows(i) for i, name in known})

    def close(self) -> None:
        """End workers and threads, close files. State can still be asked for, and iter() begins anew from there."""
        live = self._iterator()
        if live is not None:
            live.close()
        if self._crew is not None:
            self._crew.close()
            self._crew = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


class StateAsText:
    """A loader's state as one text. torch's distributed checkpoints look into lists, and refuse one of another length:
    a loader with other lanes or sources could not be loaded from them."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def state_dict(self) -> dict[str, str]:
        return {"state": json.dumps(self._loader.state_dict())}

    def load_state_dict(self, state: dict[str, str]) -> None:
        try:
            found = json.loads(state["state"])
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"this is not a loader's state as text: {shown(error)}; nothing was changed") from error
        self._loader.load_state_dict(found)

"""`StreamingLeRobotDataset`: frames of LeRobot v3 data sets, where they lie, in random order over a pool of episodes.

It only describes: the data set becomes a recipe with one source, and the house does the work.
"""

from __future__ import annotations

import json
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from torch.utils.data import IterableDataset, get_worker_info

from headrace.catalog.frames import Frames
from headrace.catalog.source import Source
from headrace.errors import SpecError, StateError, shown
from headrace.fetch.plan import length
from headrace.lerobot.source import Means, Robot, open_robot
from headrace.mix.describe import Mix, Part, whole
from headrace.recipe import Order, Recipe
from headrace.run import Run, use_token
from headrace.serve.consumers import Consumed, after_batches, is_of_a_trainer
from headrace.serve.going import Going, Start, worker_job, worker_state
from headrace.serve.loader import Loader, Serving
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place, placed, saved_of
from headrace.serve.state import Saved, canonical
from headrace.serve.turnstile import Turnstile
from headrace.serve.worker import Job
from headrace.stage import State

if TYPE_CHECKING:
    from headrace.lerobot.meta import Meta

POOL_BYTES = 4 << 30
"""Of tabular rows, in one lane's pool: a pool is counted in episodes, and this only keeps it from eating a machine."""


class StreamingLeRobotDataset(IterableDataset[dict[str, Any]]):
    """Frames of robot episodes; items are exactly those of LeRobot's own `LeRobotDataset`.

    Each consumer (a worker of a rank) has its own episodes, holds `episode_pool_size` of them and draws frames evenly
    over these. Each `iter()` is an epoch: the next one is shuffled anew, with persistent workers or without.

    `repo_id`: a repo on the Hub, or a folder. `root`: the folder or URL (`hf://buckets/owner/name`, `s3://...`) that
    the data set lies in. `max_num_shards`: episodes are mixed over so many data files at a time; None: over all.
    `streaming=False` keeps what was fetched for later epochs and runs. `tail`: how consumers that have fewer frames
    than others end: None gives each its own frames, once; "drop" ends all with the first, "wrap" goes on from the
    start.

    To go on: `load_state_dict({"batches_consumed": n, "batch_size": b})` with what a trainer knows, on all ranks alike,
    or a whole `state_dict()`. `loader()` gives batches with workers and an exact state on any number of ranks.
    """

    def __init__(
        self,
        repo_id: str,
        root: str | Path | None = None,
        episodes: Sequence[int] | None = None,
        image_transforms: Callable[[Any], Any] | None = None,
        delta_timestamps: Mapping[str, Sequence[float]] | None = None,
        tolerance_s: float = 1e-4,
        revision: str | None = None,
        force_cache_sync: bool = False,
        streaming: bool = True,
        episode_pool_size: int = 64,
        buffer_size: int | None = None,
        max_num_shards: int | None = None,
        seed: int = 42,
        rng: Any = None,
        shuffle: bool = True,
        return_uint8: bool = False,
        rank: int | None = None,
        world_size: int | None = None,
        video_decoder_cache_size: int | None = None,
        prefetch_videos: bool = True,
        video_prefetch_workers: int = 4,
        token: str | None = None,
        *,
        tail: Literal["drop", "wrap"] | None = None,
        depth_output_unit: Literal["mm", "m"] = "mm",
        cache_dir: str | Path | None = None,
    ) -> None:
        check_asked(buffer_size, tail)
        frames = Frames(
            delta_timestamps={name: tuple(times) for name, times in (delta_timestamps or {}).items()},
            episodes=None if episodes is None else tuple(episodes),
            tolerance_s=tolerance_s,
            return_uint8=return_uint8,
            depth_unit=depth_output_unit,
            window=max_num_shards,
        )
        pool = whole("episode_pool_size", episode_pool_size, 1)
        seed = seed if rng is None else int(rng.integers(1 << 62))
        order = Order(shuffle=shuffle, seed=seed, pool_chunks=pool, pool_bytes=POOL_BYTES)
        source = Source(kind="lerobot", path=_where(repo_id, root), revision=revision, frames=frames)
        parts = (Part(source=source, name=str(repo_id)),)
        self._recipe = Recipe(parts=parts, mix=Mix(), order=order, batch_size=1, epochs=1)
        self._means = Means(
            transforms=image_transforms,
            decoders=video_decoder_cache_size,
            pool=pool,
            prefetch=prefetch_videos,
            prefetch_workers=whole("video_prefetch_workers", video_prefetch_workers, 1, 256),
            fresh=force_cache_sync,
        )
        self._tail = tail
        use_token(token)
        self._run = Run.here(cache_dir=cache_dir, rank=rank, world_size=world_size)
        self._begin(streaming)

    def _begin(self, streaming: bool) -> None:
        if not streaming:
            self._run = replace(self._run, cleanup="keep")
        opener = partial(open_robot, means=self._means)
        self._pipeline = Pipeline(self._recipe, self._run, opener=opener, single=True)
        self._pipeline.fix(1)
        _ = self._robot.items  # wrong windows, names or statistics are said now
        self._turnstile, self._entered = Turnstile(), 0
        self._name = secrets.token_hex(8)
        self._going: Going | None = None
        self._own: State | None = None
        """What a worker was told to go on from, and no other."""

    def __getstate__(self) -> dict[str, Any]:
        """On its way to a worker: without what is open here."""
        return {**self.__dict__, "_going": None}

    # --- what it is

    @property
    def _robot(self) -> Robot:
        found = self._pipeline.sources[0]
        assert isinstance(found, Robot)
        return found

    @property
    def meta(self) -> Meta:
        return self._robot.meta

    @property
    def num_frames(self) -> int:
        """Of all episodes that are read, on all ranks."""
        return int(self.meta.episodes.length.sum())

    @property
    def num_episodes(self) -> int:
        return len(self.meta.episodes)

    @property
    def fps(self) -> int:
        return self.meta.info.fps

    @property
    def features(self) -> dict[str, Any]:
        return self.meta.features

    def stats(self) -> dict[str, Any]:
        """Of this process: frames decoded and what they took, files fetched, how often a video was open already."""
        return self._robot.stats()

    # --- items

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        key = self._key()
        epoch, resume = self._turnstile.enter(key)
        self._entered += 1
        resume, self._own = self._own or resume, None
        start = self._start(epoch, resume, workers)
        if resume is not None:
            self._turnstile.settle(key, start.place.epoch)
        number = (number + start.first) % workers
        if start.job is None:
            self._going = Going(self._pipeline, self._run, start.place, number, workers)
        else:
            self._going = Going.of(self._pipeline, start.place, start.job)
        return self._items(self._going)

    def _key(self) -> str:
        """The same in all workers of one `iter()`, and another in the next."""
        worker = get_worker_info()
        base = f"{self._name}/{os.getpid()}" if worker is None else str(worker.seed - worker.id)
        return f"{base}/{self._entered}"

    def _items(self, going: Going) -> Iterator[dict[str, Any]]:
        left = self._to_give(going)
        try:
            while (left is None or left > 0) and (item := going.next()) is not None:
                left = None if left is None else left - 1
                yield item
        finally:
            going.close()
        if left:
            yield from self._again(going, left)

    def _to_give(self, going: Going) -> int | None:
        """Items until this consumer ends, where consumers end together; None: when it has no more."""
        if self._tail is None:
            return None
        lanes = len(going.place.lanes)
        given: int = sum(state["n"] + state["z"] for state in map(json.loads, going.job.states.values()))
        return max(0, self._end_of(self._sizes(going.place.epoch, lanes)) * len(going.job.states) - given)

    def _end_of(self, sizes: Sequence[int]) -> int:
        """How many frames each lane gives, where all give as many."""
        return min(sizes) if self._tail == "drop" else max(sizes)

    def _again(self, going: Going, count: int) -> Iterator[dict[str, Any]]:
        """Frames of this epoch from its start, to end when the others do. A consumer without frames gives others'."""
        epoch, lanes = going.place.epoch, len(going.place.lanes)
        skip = sum(json.loads(state)["z"] for state in going.job.states.values())
        order = [*sorted(going.job.states), *(lane for lane in range(lanes) if lane not in going.job.states)]
        while count:
            for lane in order:
                start = canonical(self._pipeline.fresh_lane(lane, lanes, epoch))
                job = Job(number=0, epoch=epoch, states={lane: start}, lanes=lanes, m=lane, ranks=lanes)
                again = Going.of(self._pipeline, going.place, job)
                try:
                    skip -= again.pass_by(skip)
                    while count and (item := again.next()) is not None:
                        count -= 1
                        yield item
                finally:
                    again.close()

    # --- where to begin

    def _start(self, epoch: int, resume: Any, workers: int) -> Start:
        lanes = self._run.world_size * workers
        if self.num_episodes < lanes:
            warnings.warn(
                f"{self.num_episodes} episodes for {lanes} consumers: an episode is never cut, so some have nothing to "
                f"give; use fewer ranks or workers",
                stacklevel=3,
            )
        if is_of_a_trainer(resume):
            return self._after_batches(Consumed.read(resume), lanes, workers)
        if resume is not None:
            return self._from_state(resume, lanes)
        return Start(self._after(epoch, [0] * lanes, [0] * lanes))

    def _after(self, epoch: int, given: Sequence[int], extra: Sequence[int]) -> Place:
        """An epoch of which each lane has given so many frames, and `extra` ones again. Nothing is read for that."""
        lanes, states = len(given), []
        for lane, count in enumerate(given):
            state = self._pipeline.fresh_lane(lane, lanes, epoch)
            if count:
                pool = self._pipeline.pool(0, lane, lanes, epoch)
                if pool.skip(count):
                    raise StateError(f"consumer {lane} gave {count} frames, and has not so many")
                state |= {"src": [pool.state_dict()], "tok": [count], "n": count, "o": int(not pool.fill())}
            states.append(canonical(state | {"z": extra[lane]}))
        return Place(lanes=states, m=0, m_plan=0, m_epoch=0, epoch=epoch)

    def _sizes(self, epoch: int, lanes: int) -> list[int]:
        """The frames of each lane."""
        order = self._pipeline.orders[0](epoch)
        return [length(order.share(lane, lanes)) for lane in range(lanes)]

    def _after_batches(self, consumed: Consumed, lanes: int, workers: int) -> Start:
        """As a DataLoader would go on that was not interrupted: one lane is one worker's."""
        run = self._run
        own = [run.rank + worker * run.world_size for worker in range(workers)]

        def to_give(epoch: int) -> list[int]:
            sizes = self._sizes(epoch, lanes)
            return [sizes[lane] if self._tail is None else self._end_of(sizes) for lane in own]

        epoch, given, first = after_batches(consumed, to_give)
        sizes = self._sizes(epoch, lanes)
        counts, extra = [0] * lanes, [0] * lanes
        for lane, count in zip(own, given, strict=True):
            counts[lane], extra[lane] = min(count, sizes[lane]), max(0, count - sizes[lane])
        return Start(self._after(epoch, counts, extra), first)

    def _from_state(self, state: State, lanes: int) -> Start:
        if "of" in state:
            job = worker_job(self._pipeline, state)
            unknown = [b""] * job.lanes
            place = Place(lanes=unknown, m=0, m_plan=0, m_epoch=0, epoch=job.epoch)
            return Start(place, job=job)
        saved = Saved.from_state(state)
        self._pipeline = self._pipeline.resumed(saved.facts, saved.size)
        place = placed(saved, self._pipeline, lanes, lanes)
        if all(json.loads(lane)["o"] for lane in place.lanes):
            return Start(self._after(place.epoch + 1, [0] * lanes, [0] * lanes))
        return Start(place)

    # --- state

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` gives this epoch."""
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise SpecError(f"set_epoch({shown(epoch)}): a whole number from 0 on is expected")
        self._turnstile.leave(epoch=epoch)

    def state_dict(self) -> State:
        """The point just after the last item that this process gave. With several ranks, this rank's part of it.

        Under `StatefulDataLoader` each worker is asked for its own. A plain DataLoader keeps what its workers have to
        itself: say `{"batches_consumed": n, "batch_size": b}` instead, or use `loader()`.
        """
        if self._going is not None and get_worker_info() is not None:
            return worker_state(self._pipeline, self._going)
        if self._going is not None:
            place, known = self._going.now()
            return saved_of(self._pipeline, place, known).to_state([])
        epoch, resume = self._turnstile.peek()
        if resume is not None:
            return dict(resume)
        return saved_of(self._pipeline, self._after(epoch, *[[0] * self._run.world_size] * 2)).to_state([])

    def load_state_dict(self, state: State) -> None:
        """The next `iter()` goes on from there; those after it are whole epochs."""
        if not isinstance(state, Mapping):
            raise StateError(f"a state is a mapping, not {type(state).__name__}; nothing was changed")
        if is_of_a_trainer(state):
            Consumed.read(dict(state))
        elif "of" in state:
            worker_job(self._pipeline, dict(state))
        else:
            Saved.from_state(dict(state))
        self._going = None
        if get_worker_info() is None:
            self._turnstile.leave(resume=dict(state))
        else:
            self._own = dict(state)

    def loader(self, batch_size: int = 8, *, tail: Literal["drop", "pad", "wrap"] = "pad", **serving: Any) -> Loader:
        """Batches, with workers and an exact state, on any number of ranks. `serving`: fields of `Serving`."""
        recipe = replace(self._recipe, batch_size=whole("batch_size", batch_size, 1), tail=tail)
        return Loader(Pipeline(recipe, self._run, opener=partial(open_robot, means=self._means)), Serving(**serving))


def check_asked(buffer_size: int | None, tail: str | None) -> None:
    if buffer_size is not None:
        warnings.warn(
            "buffer_size is deprecated and ignored: frames are drawn from a pool of whole episodes; set "
            "episode_pool_size",
            DeprecationWarning,
            stacklevel=3,
        )
    if tail not in (None, "drop", "wrap"):
        raise SpecError(f"tail={shown(tail)!r}: None, 'drop' or 'wrap' is expected (batches can 'pad': loader())")


def _where(repo_id: str, root: str | Path | None) -> str:
    """The folder or URL, where there is one, else the repo."""
    if root is None or ("://" not in str(root) and not Path(root, "meta", "info.json").exists()):
        return str(repo_id)
    return str(root)

"""`StreamingLeRobotDataset`: frames of LeRobot v3 data sets, where they lie, in random order over a pool of episodes.

It only describes: the data set becomes a recipe with one source, and the house does the work.
"""

from __future__ import annotations

import logging
import os
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

from headrace.address import Address
from headrace.catalog.frames import Frames
from headrace.catalog.source import Source, spelled
from headrace.errors import DataError, SpecError, StateError, shown
from headrace.fetch.plan import length
from headrace.lerobot.identity import place_name
from headrace.lerobot.info import VERSION
from headrace.lerobot.root import is_on_hub, is_pin, kept_at
from headrace.lerobot.source import Means, Robot, open_robot
from headrace.make.describe import Faults
from headrace.make.prepare import Ready
from headrace.mix.describe import Mix, Part, whole, whole_or_none
from headrace.recipe import Order, Recipe
from headrace.run import Run, use_token
from headrace.serve.consumers import Consumed, after_batches, is_of_a_trainer
from headrace.serve.epoch import num_rows_left
from headrace.serve.first_rank import FirstRank
from headrace.serve.going import Going, Items, Start, job_of, worker_start, worker_state
from headrace.serve.lane_state import canonical, lane_of
from headrace.serve.loader import Loader, Serving
from headrace.serve.pipeline import Pipeline
from headrace.serve.resume import Place, placed, saved_of
from headrace.serve.robot_arguments import check_asked, checked_faults, data_files, drawn_seed, place_of, plain
from headrace.serve.state import Saved
from headrace.serve.turnstile import Entry, Turnstile
from headrace.serve.worker import Job
from headrace.serve.wrappers import ReadAhead, refuse_second_split
from headrace.stage import State
from headrace.torch_data import IterableDataset, get_worker_info

log = logging.getLogger("headrace")

WAYS_OUT = (
    'count the batches that were trained on and resume with load_state_dict({"batches_consumed": n, "batch_size": b}), '
    "or iterate over loader() as it is: its state_dict() is exact",
    "iterate over DataLoader(dataset, num_workers=0) as it is: state_dict() is exact then",
)
"""Where a wrapper reads ahead: in general, and where frames that fail are left out."""
POOL_BYTES = 4 << 30
"""Of tabular rows, in one lane's pool: a pool is counted in episodes, and this only keeps it from eating a machine."""


class StreamingLeRobotDataset(IterableDataset[dict[str, Any]]):
    """Frames of robot episodes; items are exactly those of LeRobot's own `LeRobotDataset`.

    Each consumer (a worker of a rank) has its own episodes, holds `episode_pool_size` of them and draws frames evenly
    over these. Each `iter()` is an epoch: the next one is shuffled anew, with persistent workers or without.

    `repo_id`: a repo on the Hub, or a folder; a folder is known by its own name and by what it holds, wherever it lies.
    `root`: the folder or URL (`hf://buckets/owner/name`, `s3://...`) that the data set lies in; `revision` is then only
    for what is fetched from a repo. `repo_type="bucket"`: `repo_id` is a bucket. `max_num_shards`: episodes are mixed
    over so many data files at a time; None or 0: over all. `download_videos=False`: items come without videos.
    `faults=Faults(policy="skip")`: frames that cannot be read (a damaged or missing file) are left out, up to a budget
    on each rank since it started, logged, and listed in `faults`; by default the first ends the run.
    `rng`: where the seed is drawn from, on all ranks alike. `streaming=False` keeps what was fetched for later epochs
    and runs. `tail`: how consumers that have fewer frames
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
        repo_type: Literal["dataset", "bucket"] | None = None,
        download_videos: bool = True,
        video_backend: str | None = None,
        tail: Literal["drop", "wrap"] | None = None,
        faults: Faults | None = None,
        depth_output_unit: Literal["mm", "m"] = "mm",
        cache_dir: str | Path | None = None,
    ) -> None:
        check_asked(buffer_size, tail, video_backend, download_videos)
        self._faults = checked_faults(faults, tail)
        read: dict[str, Any] = {
            "return_uint8": return_uint8,
            "depth_unit": depth_output_unit,
            "tolerance_s": tolerance_s,
        }
        windows = plain(delta_timestamps or {})
        frames = Frames(delta_timestamps=windows, episodes=plain(episodes), window=data_files(max_num_shards), **read)
        decoders = whole_or_none("video_decoder_cache_size", video_decoder_cache_size)
        self._means = Means(
            transforms=image_transforms,
            decoders=decoders,
            pool=whole("episode_pool_size", episode_pool_size, 1),
            prefetch=prefetch_videos,
            prefetch_workers=whole("video_prefetch_workers", video_prefetch_workers, 1, 256),
            fresh=force_cache_sync,
        )
        self._means = replace(self._means, videos=download_videos, lenient=self._faults.policy == "skip")
        use_token(token)
        self._run = Run.here(cache_dir=cache_dir, rank=rank, world_size=world_size)
        self.repo_id, self.image_transforms, self.episodes = str(repo_id), image_transforms, episodes
        self.delta_timestamps, self.tolerance_s, self.shuffle = delta_timestamps, tolerance_s, shuffle
        self.revision, self.streaming, self.seed = revision or VERSION, streaming, seed
        self.buffer_size, self.video_backend, self._tail = buffer_size, video_backend or "pyav", tail
        drawn, self.rng = drawn_seed(rng, seed, self._run.world_size)
        self._begin(self._part(root, repo_type, revision, frames), drawn)

    def _part(self, root: str | Path | None, repo_type: str | None, revision: str | None, frames: Frames) -> Part:
        place = place_of(self.repo_id, root, repo_type)
        self._spelled = self.repo_id, str(root if root is not None and place == spelled(str(root)) else self.repo_id)
        """The name and the place as they were given."""
        hub = is_on_hub(place)
        own = revision if hub or is_pin(revision) else None
        source = Source(kind="lerobot", path=place, revision=own, frames=frames)
        if root is not None or repo_type == "bucket" or hub:
            return Part(source=source, name=spelled(self.repo_id))
        return Part(source=source, name=place_name(place, open_robot(source, self._run, None, self._means).whole))

    def _begin(self, part: Part, seed: int) -> None:
        if not self.streaming:
            self._run = replace(self._run, cleanup="keep")
        order = Order(shuffle=self.shuffle, seed=seed, pool_chunks=self._means.pool, pool_bytes=POOL_BYTES)
        self._recipe = Recipe(parts=(part,), mix=Mix(), order=order, batch_size=1, epochs=1)
        opener = partial(open_robot, means=self._means)
        self._pipeline = Pipeline(self._recipe, self._run, opener=opener, single=True)
        FirstRank(self._pipeline).take_names(self._pipeline)
        self._pipeline.fix(1)
        _ = self._robot.items  # wrong windows, names or statistics are said now
        self._turnstile, self._entered = Turnstile(), 0
        self._name = secrets.token_hex(8)
        self._going: Going | None = None
        self._ahead = ReadAhead()
        self._own: State | None = None
        """What a worker was told to go on from, and no other."""
        place = kept_at(self._robot.whole.files, self._run)
        self.meta = replace(self._robot.whole, repo_id=self.repo_id, revision=self.revision, place=place)
        """Of the whole data set, also where some episodes are chosen: what LeRobot has under this name."""

    def __getstate__(self) -> dict[str, Any]:
        """On its way to a worker: without what is open here."""
        refuse_second_split(self._run.world_size, "dataset")
        return {**self.__dict__, "_going": None, "_ahead": ReadAhead()}

    # --- what it is

    @property
    def _robot(self) -> Robot:
        found = self._pipeline.sources[0]
        assert isinstance(found, Robot)
        return found

    @property
    def root(self) -> Path | str:
        """The folder that the data set lies in, or that what was fetched of it lies in; a URL where there is none."""
        return self.meta.root

    @property
    def pinned(self) -> str:
        """The commit of a repo, or a mark of what a folder holds. As `revision=` it stands for exactly this data."""
        return self._robot.pinned

    @property
    def num_frames(self) -> int:
        """Of all episodes that are read, on all ranks."""
        return int(self._robot.meta.episodes.length.sum())

    @property
    def num_episodes(self) -> int:
        return len(self._robot.meta.episodes)

    @property
    def num_shards(self) -> int:
        """Data files whose episodes are mixed at a time."""
        files = self._robot.counts(None).num_shards
        return min(self._robot.frames.window or files, files)

    @property
    def fps(self) -> int:
        return self.meta.info.fps

    @property
    def features(self) -> dict[str, Any]:
        return self.meta.features

    @property
    def delta_indices(self) -> dict[str, list[int]] | None:
        """The time windows in frames."""
        if self.delta_timestamps is None:
            return None
        return {name: found.tolist() for name, found in self._robot.items.offsets.items()}

    @property
    def stats(self) -> dict[str, dict[str, Any]]:
        """The data set's own statistics: of each feature its mean, std, min, max and others."""
        return self.meta.stats

    def counters(self) -> dict[str, Any]:
        """Of this process: frames decoded and what they took, files fetched, how often a video was open already."""
        return self._robot.counters()

    # --- items

    def __iter__(self) -> Iterator[dict[str, Any]]:
        refuse_second_split(self._run.world_size, "dataset")
        worker = get_worker_info()
        number, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        key = self._key()
        entry = self._turnstile.enter(key, None if worker is None else number)
        try:
            start = self._start(key, entry, workers)
        except BaseException:
            self._turnstile.undo(key)
            raise
        if worker is None:
            self._ahead.begin()
        else:
            self._entered += 1
        number = (number + start.first) % workers
        job = start.job or job_of(start.place, self._run, number, workers)
        self._going = Going(self._pipeline, start, job, key, self._leave_out if self._means.lenient else None)
        return Items(self._going, self._to_give(self._going), self._again(self._going))

    @property
    def faults(self) -> dict[str, str]:
        """Frames that were left out because they cannot be read, by address, and why. Of all workers of this rank."""
        return self._turnstile.notes()

    def _leave_out(self, row: Ready, error: Exception) -> None:
        address, budget = str(Address(self._recipe.parts[0].name, row.epoch, row.shard, row.row)), self._faults.budget
        why = "; ".join([str(error), *getattr(error, "__notes__", ())])
        number = self._turnstile.note(f"{row.shard}:{row.row}", shown(why, 300), budget)
        if number is None:
            raise DataError(
                f"{address}: {why}; {budget} frames were left out before it, and faults=Faults(policy='skip', "
                f"budget={budget}) allows no more; raise the budget, or leave episodes out with episodes="
            ) from error
        log.warning("left out (%d of at most %d): %s: %s", number, budget, shown(address, 1000), shown(why, 1000))

    def _key(self) -> str:
        """The same in all workers of one `iter()`, and another in the next."""
        worker = get_worker_info()
        if worker is not None:
            return f"{worker.seed - worker.id}/{self._entered}"
        if self._going is not None and self._going.is_begun:
            self._entered += 1
        return f"{self._name}/{os.getpid()}/{self._entered}"

    def _to_give(self, going: Going) -> int | None:
        """Items until this consumer ends, where consumers end together; None: when it has no more."""
        if self._tail is None:
            return None
        given: int = sum(lane_of(state)["n"] for state in going.job.states.values())
        return max(0, self._end_of(going.start.bounds) * len(going.job.states) - given)

    def _end_of(self, bounds: tuple[int, int]) -> int:
        """How many frames each lane gives, where all give as many."""
        return bounds[0] if self._tail == "drop" else bounds[1]

    def _again(self, going: Going) -> Iterator[Going]:
        """This epoch from its start, lane by lane, to end when the others do. A consumer without frames gives others'.

        What was given again before is left out."""
        epoch, lanes = going.start.place.epoch, len(going.start.place.lanes)
        sizes = self._sizes(epoch, lanes)
        skip = sum(lane_of(state)["z"] for state in going.job.states.values()) % max(1, sum(sizes))
        order = [*sorted(going.job.states), *(lane for lane in range(lanes) if lane not in going.job.states)]
        while True:
            for lane in order:
                count = min(skip, sizes[lane])
                skip -= count
                if count < sizes[lane]:
                    start = self._given(epoch, (lane, lanes), count, 0)
                    job = Job(number=0, epoch=epoch, states={lane: start}, lanes=lanes, m=lane, ranks=lanes)
                    yield Going(self._pipeline, going.start, job)

    # --- where to begin

    def _start(self, key: str, entry: Entry, workers: int) -> Start:
        lanes = self._run.world_size * workers
        few = f"{self.num_episodes} episodes for {lanes} consumers"
        if self.num_episodes < lanes and self._run.rank == 0 and self._turnstile.is_first(few):
            warnings.warn(
                f"{few}: an episode is never cut, so some have nothing to give; use fewer ranks or workers",
                stacklevel=3,
            )
        resume, self._own = self._own or entry.resume, None
        if resume is None:
            return self._fresh(entry.epoch, lanes)
        if is_of_a_trainer(resume):
            start = self._after_batches(Consumed.read(resume), lanes, workers)
        else:
            start = self._from_state(resume, lanes)
        if entry.asked and start.place.epoch != entry.epoch:
            return self._fresh(entry.epoch, lanes)
        self._turnstile.settle(key, start.place.epoch)
        return start

    def _fresh(self, epoch: int, lanes: int) -> Start:
        self._pipeline.start_digests([(epoch, 0)])
        states = [canonical(self._pipeline.fresh_lane(lane, lanes, epoch)) for lane in range(lanes)]
        sizes = self._sizes(epoch, lanes)
        return Start(Place(lanes=states, m=0, m_plan=0, m_epoch=0, epoch=epoch), (min(sizes), max(sizes)))

    def _sizes(self, epoch: int, lanes: int) -> list[int]:
        """The frames of each lane."""
        order = self._pipeline.orders[0](epoch)
        return [length(order.share(lane, lanes)) for lane in range(lanes)]

    def _after_batches(self, consumed: Consumed, lanes: int, workers: int) -> Start:
        """As a DataLoader would go on that was not interrupted: one lane is one worker's. Nothing is read for that."""
        run = self._run
        own = [run.rank + worker * run.world_size for worker in range(workers)]

        def to_give(epoch: int) -> list[int]:
            sizes = self._sizes(epoch, lanes)
            return [sizes[lane] if self._tail is None else self._end_of((min(sizes), max(sizes))) for lane in own]

        epoch, given, first = after_batches(consumed, to_give)
        start, sizes = self._fresh(epoch, lanes), self._sizes(epoch, lanes)
        found = [b""] * lanes
        for lane, count in zip(own, given, strict=True):
            found[lane] = self._given(epoch, (lane, lanes), min(count, sizes[lane]), max(0, count - sizes[lane]))
        place = replace(start.place, lanes=found if any(given) else start.place.lanes, m=lanes * max(given))
        return Start(place, start.bounds, first)

    def _given(self, epoch: int, lane: tuple[int, int], count: int, extra: int) -> bytes:
        """A lane that has given so many frames of an epoch, and `extra` ones again."""
        state = self._pipeline.fresh_lane(*lane, epoch) | {"n": count + extra, "z": extra, "o": int(extra > 0)}
        if count:
            pool = self._pipeline.pool(0, *lane, epoch)
            if pool.skip(count):
                raise StateError(f"consumer {lane[0]} gave {count} frames, and has not so many")
            state |= {"src": [pool.state_dict()], "tok": [count], "o": int(not pool.fill())}
        return canonical(state)

    def _from_state(self, state: State, lanes: int) -> Start:
        if "of" in state:
            return self._worker_start(state)
        saved = Saved.from_state(state)
        pipeline = self._pipeline.resumed(saved.kept, saved.size)
        place = placed(saved, pipeline, lanes, lanes)
        self._pipeline = pipeline
        states = [lane_of(lane) for lane in place.lanes]
        left = [num_rows_left(pipeline, i, one, len(states), place.epoch) for i, one in enumerate(states)]
        sizes = [one["n"] - one["z"] + rows for one, rows in zip(states, left, strict=True)]
        bounds, given = (min(sizes), max(sizes)), sum(one["n"] for one in states)
        if not any(left) if self._tail is None else given >= self._end_of(bounds) * len(states):
            return self._fresh(place.epoch + 1, lanes)
        return Start(place, bounds)

    def _worker_start(self, state: State) -> Start:
        try:
            return worker_start(self._pipeline, state)
        except StateError:
            before = self._as_before()
            if before is None:
                raise
            start, self._pipeline = worker_start(before, state), before
            return start

    def _as_before(self) -> Pipeline | None:
        """As version 0.1.0 opened it: names and places as they were spelled, folders by the dates of their files."""
        robot, recipe, name, path = self._robot, self._recipe, *self._spelled
        dated = robot.whole.files.revision + robot.revision.removeprefix(robot.pinned)
        source = replace(recipe.parts[0].source)
        object.__setattr__(source, "path", path)
        recipe = replace(recipe, parts=(Part(source=source, name=name),))
        fact = replace(self._pipeline.facts[0], name=name, spec=str(source), revision=dated)
        if fact == self._pipeline.facts[0]:
            return None
        opener = partial(open_robot, means=self._means)
        found = Pipeline(recipe, self._run, opener=opener, kept=[fact], size=self._pipeline.size, single=True)
        found.fix(1)
        return found

    # --- state

    def set_epoch(self, epoch: int) -> None:
        """The next `iter()` gives this epoch; where a state was loaded that lies in it, from there on."""
        refuse_second_split(self._run.world_size, "dataset")
        if isinstance(epoch, bool) or not isinstance(epoch, int) or epoch < 0:
            raise SpecError(f"set_epoch({shown(epoch)}): a whole number from 0 on is expected")
        if self._going is not None and not self._going.is_open:
            self._going = None
        self._turnstile.leave(epoch=epoch)
        self._entered += 1

    def state_dict(self) -> State:
        """The point just after the last item that this process gave. With several ranks, this rank's part of it.

        Under `StatefulDataLoader` each worker is asked for its own. A plain DataLoader keeps what its workers have to
        itself: say `{"batches_consumed": n, "batch_size": b}` instead, or use `loader()`.
        """
        going = self._going
        if get_worker_info() is not None and going is not None:
            return worker_state(self._pipeline, going)
        epoch, resume, last = self._turnstile.peek()
        if last and not last.startswith(self._name):  # workers came since
            going = None
            if resume is None:
                warnings.warn(
                    f"the workers of a DataLoader give the items, and what they gave is not known here: this state is "
                    f"the start of epoch {epoch}; say {{'batches_consumed': ..., 'batch_size': ...}}, or use loader()",
                    stacklevel=2,
                )
        if going is not None:
            if going.is_begun and not going.is_over:
                self._ahead.refuse("state_dict()", WAYS_OUT[self._means.lenient])
            place, known = going.now()
            self._pipeline.needs.saved(known)
            return saved_of(self._pipeline, place, known).to_state()
        if resume is not None:
            return dict(resume)
        return saved_of(self._pipeline, self._fresh(epoch, self._run.world_size).place).to_state()

    def load_state_dict(self, state: State) -> None:
        """The next `iter()` goes on from there; those after it are whole epochs."""
        if not isinstance(state, Mapping):
            raise StateError(f"a state is a mapping, not {type(state).__name__}; nothing was changed")
        if is_of_a_trainer(state):
            if self._means.lenient and Consumed.read(dict(state)).batches:
                raise StateError(
                    "batches_consumed does not say which frames were left out, so with faults=Faults(policy='skip') "
                    "some would come again; load a state_dict() of this data set, or of a StatefulDataLoader over it"
                )
            Consumed.read(dict(state))
        elif "of" in state:
            self._worker_start(dict(state))
        else:
            Saved.from_state(dict(state))
        self._going = None
        if get_worker_info() is None:
            self._turnstile.leave(resume=dict(state))
            self._entered += 1
        else:
            self._own = dict(state)

    def loader(self, batch_size: int = 8, *, tail: Literal["drop", "pad", "wrap"] = "pad", **serving: Any) -> Loader:
        """Batches, with workers and an exact state, on any number of ranks. `serving`: fields of `Serving`."""
        if self._means.lenient:
            raise SpecError(
                "faults=Faults(policy='skip'): batches of loader() are counted before they are read, so no "
                "frame of them can be left out; iterate over the data set itself, or leave faults out"
            )
        recipe = replace(self._recipe, batch_size=whole("batch_size", batch_size, 1), tail=tail)
        return Loader(Pipeline(recipe, self._run, opener=partial(open_robot, means=self._means)), Serving(**serving))

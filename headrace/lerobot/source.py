"""A robot data set as one more source: each episode is a chunk, whole, and each frame a row.

A chunk's rows are light: an item is made of one when it is given out. So a pool of many episodes is their tabular rows
in RAM and no more, and whoever counts rows decodes nothing.
"""

from __future__ import annotations

import hashlib
import logging
import os
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headrace.catalog.frames import Frames
from headrace.catalog.local import LocalOrigin
from headrace.catalog.shard import Shard
from headrace.catalog.source import Source
from headrace.errors import Changed, DataError, NotFound, SpecError, shown
from headrace.fetch.chunk import OpenChunk
from headrace.fetch.memory import NoRoom
from headrace.fetch.plan import Chunk, Coordinate
from headrace.fetch.sources import cache_of
from headrace.lazy import cached_property
from headrace.lerobot.decoders import VideoDecoderCache
from headrace.lerobot.files import VideoFiles
from headrace.lerobot.identity import CONTENT, content_revision
from headrace.lerobot.items import Episode, Frame, Items, Unread
from headrace.lerobot.kept import keeping
from headrace.lerobot.meta import Meta
from headrace.lerobot.root import Root
from headrace.lerobot.table import Tables
from headrace.lerobot.videos import Videos
from headrace.run import Run

if TYPE_CHECKING:
    from headrace.rng import I64

log = logging.getLogger("headrace")

MOST_DECODERS = 128
SHARED = ("items", "videos", "files", "tables")
"""What the lanes of a process share, made when it is first needed."""
SELECTION = "+episodes-"
"""Between a revision and a mark of the episodes that were chosen of it."""


@dataclass(frozen=True, kw_only=True)
class Means:
    """How a data set is read; what is given does not depend on it, but for the transforms, which may be code."""

    transforms: Callable[[Any], Any] | None = None
    decoders: int | None = None
    """Videos that are kept open; None: as many as a pool of episodes has, and never more than 128."""
    pool: int = 64
    """The size of that pool."""
    fresh: bool = False
    """What lies in the cache already is fetched again."""
    prefetch: bool = True
    prefetch_workers: int = 4
    lenient: bool = False
    """An episode whose rows cannot be read does not end the run before one of its frames is given out."""
    videos: bool = True
    """False: items come without videos, and none is fetched."""


class EpisodeCounts:
    """What a plan must know: the data files in order, and the lengths of the episodes in each."""

    def __init__(self, meta: Meta) -> None:
        import numpy as np

        episodes = meta.episodes
        places = np.stack([episodes.data_chunk, episodes.data_file])
        files, owner = np.unique(places, axis=1, return_inverse=True)
        self.files: list[tuple[int, int]] = [(int(chunk), int(file)) for chunk, file in files.T]
        self.episodes: list[I64] = [np.flatnonzero(owner.reshape(-1) == i) for i in range(len(self.files))]
        """Of each file, the places of its episodes in the metadata."""
        self._lengths = [episodes.length[numbers] for numbers in self.episodes]
        self._row_bytes = row_bytes(meta)

    @property
    def num_shards(self) -> int:
        return len(self.files)

    @property
    def shard_bytes(self) -> I64:
        return self.shard_rows() * self._row_bytes

    def shard_rows(self) -> I64:
        import numpy as np

        return np.array([int(lengths.sum()) for lengths in self._lengths], dtype=np.int64)

    def groups(self, shard: int) -> tuple[I64, I64, I64]:
        nbytes = self._lengths[shard] * self._row_bytes
        return self._lengths[shard], nbytes, nbytes


def row_bytes(meta: Meta) -> int:
    """About what a frame takes in RAM, without its videos. An image is counted as half of its pixels."""
    total = 64
    for feature in meta.info.features.values():
        size = 1
        for one in feature.shape:
            size *= one
        if feature.is_image:
            total += size // 2
        elif not feature.is_video:
            total += size * (4 if feature.dtype.startswith("float") else 8)
    return total


class Robot:
    """An opened data set. Its files and decoders are shared by the lanes of a process, and let go with the last."""

    atomic = True

    def __init__(self, source: Source, meta: Meta, run: Run, means: Means, pinned: str | None = None) -> None:
        """`pinned`: its revision, where that is not the one which a folder has today."""
        frames = source.frames or Frames()
        self.whole, self.pinned = meta, pinned or pinned_revision(meta)
        if frames.episodes is not None:
            meta = meta.selected(frames.episodes)
            if not len(meta.episodes):
                raise SpecError(f"episodes={shown(frames.episodes)}: {shown(source)} has none of them")
        self.source, self.meta, self.run, self.means, self.frames = source, meta, run, means, frames
        self._counts = EpisodeCounts(meta)
        size = min(MOST_DECODERS, means.pool * max(1, len(meta.info.video_keys)))
        self.decoders = VideoDecoderCache(size if means.decoders is None else means.decoders)
        self._pid, self._shelves, self._decoded = os.getpid(), 0, 0
        self._video_seconds = 0.0

    @property
    def spec(self) -> str:
        return str(self.source)

    @property
    def revision(self) -> str:
        if self.frames.episodes is None:
            return self.pinned
        chosen = ",".join(map(str, self.meta.episodes.index.tolist()))
        return self.pinned + SELECTION + hashlib.blake2b(chosen.encode(), digest_size=6).hexdigest()

    @property
    def window(self) -> int | None:
        """Data files whose episodes are mixed at a time: all, unless fewer are asked for."""
        return self.frames.window or max(1, self._counts.num_shards)

    def coordinate(self, lanes: int) -> Coordinate:
        return "rows"

    def counts(self, columns: list[str] | None) -> EpisodeCounts:
        return self._counts

    def label(self, shard: int) -> str:
        return self.meta.info.data_file(*self._counts.files[shard])

    def shelf(self, columns: list[str] | None, by_range: bool = False) -> EpisodeShelf:
        if self._pid != os.getpid():  # what a fork brought along is the parent's, to read from and to let go
            self._pid, self._shelves = os.getpid(), 0
            for name in SHARED:
                self.__dict__.pop(name, None)
        self._shelves += 1
        return EpisodeShelf(self)

    def held_bytes(self, shards: int) -> int:
        return 0

    @property
    def is_fetched(self) -> bool:
        return self.meta.files.listing.origin.folder is not None

    def files_of(self, shard: int, group: int) -> Iterable[Shard]:
        """Of an episode, its table and its videos."""
        numbers = self._counts.episodes[shard]
        paths = {self.label(shard)}
        for number in numbers.tolist() if group < 0 else [int(numbers[group])]:
            paths.update(path for path, _, _ in self.videos_of(number))
        return [self.meta.files.shard(path) for path in sorted(paths) if self.meta.files.has(path)]

    def videos_of(self, number: int) -> list[tuple[str, int, int]]:
        """Of the episode at this place in the metadata, each video with its first frame and the one behind its last."""
        episodes, wanted = self.meta.episodes, []
        for name, (chunks, files, firsts) in episodes.videos.items() if self.means.videos else ():
            info = self.meta.info
            path, times = info.video_file(name, int(chunks[number]), int(files[number])), info.speed(name)
            first, stop = int(firsts[number]), int(firsts[number] + episodes.length[number])
            wanted.append((path, int(first * times), -int(-stop * times // 1)))
        return wanted

    def has_lists(self, column: str) -> bool:
        return False

    def has_text(self, column: str) -> bool:
        return False

    # --- what the lanes of a process share

    @cached_property
    def files(self) -> VideoFiles:
        means = self.means
        return VideoFiles(self.meta.files, cache_of(self.run), workers=means.prefetch_workers, prefetch=means.prefetch)

    @cached_property
    def tables(self) -> Tables:
        return Tables(self.meta, cache_of(self.run).passing(), self.run.memory_bytes)

    @cached_property
    def videos(self) -> Videos:
        found = Videos(self.meta, self.files, self.decoders, self.frames.tolerance_s)
        found.decoded, found.seconds = self._decoded, self._video_seconds
        return found

    @cached_property
    def items(self) -> Items:
        videos = self.videos if self.means.videos else None
        return Items(self.meta, self.frames, videos, self.means.transforms)

    def counters(self) -> dict[str, Any]:
        """What this process has read so far."""
        files, videos = self.__dict__.get("files"), self.__dict__.get("videos")
        return {
            "frames_decoded": videos.decoded if videos is not None else self._decoded,
            "video_seconds": videos.seconds if videos is not None else self._video_seconds,
            "video_decoder_cache": self.decoders.stats(),
            "video_files": files.stats() if files is not None else {},
        }

    def leave(self) -> None:
        """A shelf was closed. With the last one all that is open goes."""
        self._shelves -= 1
        if self._shelves <= 0:
            self.decoders.clear()
            videos = self.__dict__.get("videos")
            if videos is not None:
                self._decoded, self._video_seconds = videos.decoded, videos.seconds
            for name in SHARED:
                found = self.__dict__.pop(name, None)
                if name in ("files", "tables") and found is not None:
                    found.close()


class EpisodeShelf:
    """Where a lane's episodes come from."""

    side_by_side = is_counted = False

    def __init__(self, robot: Robot) -> None:
        self._robot = robot
        self._wanted: dict[int, object] = {}
        """Episodes that are fetched ahead and were not opened yet, with the keys of their files."""
        self._closed = False

    def is_near(self, chunk: Chunk) -> bool:
        return False  # nobody knows before

    def plan(self, numbers: I64, cold: int) -> None:
        pass

    def want(self, chunks: Iterable[Chunk]) -> None:
        """Have the videos of these episodes fetched in the background."""
        for chunk in chunks:
            number = self._number(chunk)
            if number not in self._wanted:
                self._wanted[number] = self._admitted(number)

    def open(self, chunk: Chunk, order: I64, epoch: int) -> OpenChunk:
        robot, number = self._robot, self._number(chunk)
        place = (robot.spec, epoch, robot.label(chunk.shard))
        try:
            columns = robot.tables.read(number)
        except (DataError, NotFound) as error:
            if not robot.means.lenient or isinstance(error, NoRoom):
                raise
            return OpenChunk(chunk, [{"frame": Unread(str(error))}] * chunk.rows, order, place)
        key = self._wanted.pop(number, None) or self._admitted(number)
        episode = Episode(number, int(robot.meta.episodes.index[number]), columns, robot.items)
        weakref.finalize(episode, robot.files.release, key).atexit = False
        rows = [{"frame": Frame(episode, row)} for row in range(chunk.rows)]
        return OpenChunk(chunk, rows, order, place)

    def _number(self, chunk: Chunk) -> int:
        return int(self._robot.counts(None).episodes[chunk.shard][chunk.group])

    def _admitted(self, number: int) -> object:
        key = object()
        self._robot.files.admit(key, self._robot.videos_of(number))
        return key

    def finished(self, number: int) -> None:
        """Frames are read from files to the end."""

    def keep_only(self, needed: set[int], saved: set[int]) -> None:
        """An episode's files are let go with the last of its frames."""

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            for key in self._wanted.values():
                self._robot.files.release(key)
            self._wanted.clear()
            self._robot.leave()


def open_robot(source: Source, run: Run, revision: str | None, means: Means | None = None) -> Robot:
    """`revision`: of a state, where the run goes on from one."""
    pin = revision.partition(SELECTION)[0] if revision else source.revision
    means, root = means or Means(), Root.open(source.path, run, None if pin and pin.startswith(CONTENT) else pin)
    if means.fresh and revision is None:
        cache_of(run).forget(root.listing.origin)
    meta = replace(Meta.open(keeping(root, run), run.memory_bytes), files=root)
    if pin and pin.startswith(CONTENT) and pin != pinned_revision(meta):
        raise Changed(
            f"{root.name}: revision: {pin} is asked for, and this is another data set (its metadata, or the name or "
            f"the size of a file differs); rows may have moved, so start anew"
        )
    return Robot(source, meta, run, means, root.revision if pin == root.revision else None)


def pinned_revision(meta: Meta) -> str:
    """The commit of a repo; of a folder, what it holds, wherever it lies; else a signature of the files."""
    local = isinstance(meta.files.listing.origin, LocalOrigin)
    return content_revision(meta) if local else meta.files.revision

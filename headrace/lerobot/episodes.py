"""`meta/episodes` of a LeRobot v3 data set: which rows, and which frames of which videos, each episode has.

Kept as columns of numpy; of a hundred thousand episodes that is a few megabytes. The statistics that stand in the same
files are never read.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from headrace.catalog.shard import Shard
from headrace.catalog.threads import Threads
from headrace.errors import DataError, NotFound, shown
from headrace.lerobot.episode_rows import EpisodeRows, Subscripted
from headrace.lerobot.info import MOST_FRAMES, Info
from headrace.lerobot.projection import Allowance, read_columns, real_numbers, whole_numbers
from headrace.limits import starting

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from headrace.rng import I64

log = logging.getLogger(__name__)

READERS = 4
"""Files that are read at the same time."""
MOST_FILES = 10**9
"""Numbers of chunks and files stay below it."""

_WHOLE = {
    "index": "episode_index",
    "length": "length",
    "first": "dataset_from_index",
    "stop": "dataset_to_index",
    "data_chunk": "data/chunk_index",
    "data_file": "data/file_index",
}


class Videos(NamedTuple):
    """Where one camera's frames lie, per episode."""

    chunk: I64
    file: I64
    first_frame: I64
    """The number of the episode's first frame in the video file."""


class Episodes(Subscripted):
    """Episodes in the order of their numbers. `index` has the numbers; with gaps in them, a place is not a number."""

    def __init__(
        self,
        columns: dict[str, Any],
        videos: dict[str, Videos],
        starts: dict[str, Any],
        ends: dict[str, Any],
        rows: EpisodeRows | None = None,
    ) -> None:
        self.rows = rows
        self.index: I64 = columns["index"]
        self.length: I64 = columns["length"]
        self.first: I64 = columns["first"]
        """The number of the first row in the whole data set."""
        self.data_chunk: I64 = columns["data_chunk"]
        self.data_file: I64 = columns["data_file"]
        self.videos = videos
        self.starts: dict[str, NDArray[np.float64]] = starts
        """Per camera, the time in the video file at which the episode begins, as it is written."""
        self.ends: dict[str, NDArray[np.float64]] = ends
        """...and at which the next one in the file does; infinite for the last."""

    @property
    def num_frames(self) -> int:
        return int(self.length.sum())

    @classmethod
    def read(cls, files: Sequence[Shard], info: Info, memory_bytes: int) -> Self:
        """From the parquet files of `meta/episodes`; what cannot be is said with the episode's number."""
        if not files:
            raise NotFound("there are no parquet files in meta/episodes; without them no episode can be found")
        remote = files[0].origin.local_path(files[0]) is None
        wanted, allowance = _columns(info), Allowance(memory_bytes)

        def read(shard: Shard) -> dict[str, Any]:
            table = read_columns(shard, lambda schema: _present(shard, wanted, schema.names), allowance)
            return {name: _column(table, column, str(shard)) for name, column in wanted.items()}

        if remote and len(files) > 1:
            with starting("threads that read metadata"), Threads(READERS, "headrace-episodes") as threads:
                parts = list(threads.map(read, files))
        else:
            parts = [read(shard) for shard in files]
        return cls._of(parts, info, _folder(files[0]), EpisodeRows(files, memory_bytes))

    @classmethod
    def _of(cls, parts: list[dict[str, Any]], info: Info, where: str, rows: EpisodeRows) -> Self:
        import numpy as np

        found = parts[0]
        if len(parts) > 1:
            found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if (found["index"][1:] < found["index"][:-1]).any():
            order = np.argsort(found["index"], kind="stable")
            found = {name: column[order] for name, column in found.items()}
        found = _without_twins(found, where)
        _check_rows(found, info, where)
        videos, starts, ends = {}, {}, {}
        for key in info.video_keys:
            chunk, file, start = (found[f"{key}/{name}"] for name in ("chunk", "file", "start"))
            for name, numbers in (("chunk_index", chunk), ("file_index", file)):
                _check_number(found["index"], numbers, f"videos/{key}/{name}", where)
            videos[key] = Videos(chunk, file, _first_frames(found["index"], key, start, info.fps, where))
            starts[key], ends[key] = start, _ends(chunk, file, start)
        return cls(found, videos, starts, ends, rows)

    def select(self, numbers: Iterable[int]) -> Self:
        """Those with these numbers, in the order of the data set. Numbers of none are left out, with a warning."""
        import numpy as np

        wanted = np.unique(np.fromiter(numbers, dtype=np.int64))
        places = np.flatnonzero(np.isin(self.index, wanted))
        missing = np.setdiff1d(wanted, self.index)
        if len(missing):
            some = ", ".join(map(str, missing[:5].tolist())) + (", …" if len(missing) > 5 else "")
            log.warning("%d of the episodes asked for are not in the data set: %s", len(missing), some)
        return self.at(places)

    def at(self, places: I64) -> Self:
        """Those at these places."""
        names = ("index", "length", "first", "data_chunk", "data_file")
        videos = {key: Videos(*(column[places] for column in camera)) for key, camera in self.videos.items()}
        starts, ends = ({key: column[places] for key, column in one.items()} for one in (self.starts, self.ends))
        return type(self)({name: getattr(self, name)[places] for name in names}, videos, starts, ends, self.rows)

    def place(self, number: int) -> int:
        """Where the episode with this number is."""
        import numpy as np

        place = int(np.searchsorted(self.index, number))
        if place == len(self) or self.index[place] != number:
            last = f"; the last is {self.index[-1]}" if len(self) else ""
            raise NotFound(f"there is no episode {shown(number)} among the {len(self):,} here{last}")
        return place


# --- reading


def _columns(info: Info) -> dict[str, str]:
    """Our names of the columns and theirs."""
    out = dict(_WHOLE)
    for key in info.video_keys:
        out[f"{key}/chunk"] = f"videos/{key}/chunk_index"
        out[f"{key}/file"] = f"videos/{key}/file_index"
        out[f"{key}/start"] = f"videos/{key}/from_timestamp"
    return out


def _present(shard: Shard, wanted: dict[str, str], names: list[str]) -> list[str]:
    missing = [column for column in wanted.values() if column not in names]
    if missing:
        some = ", ".join(repr(shown(name)) for name in missing[:3]) + (", …" if len(missing) > 3 else "")
        raise DataError(
            f"{shard} has no column {some}; without it an episode's frames cannot be found, so mend the metadata"
        )
    return list(wanted.values())


def _column(table: Any, column: str, where: str) -> Any:
    read = real_numbers if column.endswith("/from_timestamp") else whole_numbers
    return read(table, column, where)


def _folder(shard: Shard) -> str:
    """`meta/episodes` of the data set that a file of it belongs to, for messages."""
    name = str(shard)
    return name[: name.rfind("meta/episodes") + len("meta/episodes")] if "meta/episodes" in name else name


# --- checks


def _refuse(bad: Any, index: I64, where: str, why: Callable[[int], str]) -> None:
    """Raise for the first of the episodes that are marked as bad."""
    if bad.any():
        i = int(bad.argmax())
        more = f" (and {int(bad.sum()) - 1:,} more episodes)" if bad.sum() > 1 else ""
        raise DataError(
            f"{where}: episode {index[i]}: {why(i)}{more}; mend the metadata, or have LeRobot write it again"
        )


def _without_twins(found: dict[str, Any], where: str) -> dict[str, Any]:
    """Rows that stand twice in the metadata, as stale copies of its files have them, count once."""
    import numpy as np

    index = found["index"]
    again = np.flatnonzero(index[1:] == index[:-1]) + 1
    if not len(again):
        return found
    differ = np.zeros(len(index), dtype=np.bool_)
    for column in found.values():
        differ[again] |= column[again] != column[again - 1]
    _refuse(differ, index, where, lambda i: "it is there twice, and the two differ")
    log.warning("%s: %d episodes are there twice; they are taken once", where, len(again))
    keep = np.ones(len(index), dtype=np.bool_)
    keep[again] = False
    return {name: column[keep] for name, column in found.items()}


def _check_rows(found: dict[str, Any], info: Info, where: str) -> None:
    import numpy as np

    index, length, first, stop = (found[name] for name in ("index", "length", "first", "stop"))
    _refuse(index < 0, index, where, lambda i: "its number is below 0")
    _refuse((length <= 0) | (length > MOST_FRAMES), index, where, lambda i: f"its length is {length[i]} frames")
    _refuse(
        (first < 0) | (stop < first) | (stop > (info.total_frames or MOST_FRAMES)),
        index,
        where,
        lambda i: f"its rows {first[i]} to {stop[i]} are outside the {info.total_frames:,} frames of meta/info.json",
    )
    _refuse(
        stop - first != length,
        index,
        where,
        lambda i: f"its length is {length[i]}, but its rows go from {first[i]} to {stop[i]}",
    )
    order = np.argsort(first, kind="stable")
    over = np.zeros(len(index), dtype=np.bool_)
    over[order[1:]] = first[order[1:]] < stop[order[:-1]]
    _refuse(over, index, where, lambda i: f"its rows {first[i]} to {stop[i]} are those of another episode too")
    for name in ("data_chunk", "data_file"):
        _check_number(index, found[name], _WHOLE[name], where)


def _first_frames(index: I64, key: str, start: Any, fps: int, where: str) -> I64:
    """Times are sums of many floats, so the nearest frame is the one that is meant."""
    import numpy as np

    with np.errstate(all="ignore"):
        first = np.rint(start * fps)
    bad = ~((first >= 0) & (first <= MOST_FRAMES))
    name = shown(f"videos/{key}/from_timestamp")
    _refuse(bad, index, where, lambda i: f"its {name} is {start[i]}, which is no time in a video")
    return np.asarray(first.astype(np.int64))


def _ends(chunk: I64, file: I64, start: Any) -> Any:
    import numpy as np

    order = np.lexsort((start, file, chunk))
    here, after = order[:-1], order[1:]
    same = (chunk[here] == chunk[after]) & (file[here] == file[after])
    ends = np.full(len(start), np.inf)
    ends[here[same]] = start[after[same]]
    return ends


def _check_number(index: I64, numbers: I64, column: str, where: str) -> None:
    bad = (numbers < 0) | (numbers >= MOST_FILES)
    _refuse(bad, index, where, lambda i: f"its {shown(column)} is {numbers[i]}, which is the number of no file")

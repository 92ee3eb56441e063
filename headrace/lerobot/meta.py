"""All metadata of a LeRobot v3 data set, under the names that LeRobot has for it too."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from headrace.catalog.shard import Shard
from headrace.catalog.threads import Threads
from headrace.errors import DataError, shown
from headrace.lazy import cached_property
from headrace.lerobot.episodes import Episodes
from headrace.lerobot.info import VERSION, Info
from headrace.lerobot.projection import MOST_BYTES, Allowance, read_columns, texts, whole_numbers
from headrace.lerobot.root import INFO, LARGEST, Root
from headrace.limits import starting
from headrace.outside_json import MOST_VALUES, VALUE_BYTES, TooManyValues, parse

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

TASKS = "meta/tasks.parquet"
SUBTASKS = "meta/subtasks.parquet"
STATS = "meta/stats.json"
LARGEST_STATS, MOST_STATS = 64 << 20, 4 << 20
"""Its bytes and values, where there is as much memory; it may always have as many as other metadata."""
_DEEPEST = 16
"""Lists of statistics in lists."""
LANGUAGE = ("language_persistent", "language_events")
"""Features whose values are lists of messages."""
EPISODES = "meta/episodes/"


@dataclass(frozen=True, eq=False)
class Meta:
    """What a data set says of itself."""

    files: Root
    info: Info
    episodes: Episodes
    task_names: list[str] = field(repr=False)
    """The task with number n, at place n."""
    stats: dict[str, dict[str, NDArray[np.generic]]] = field(repr=False)
    """Feature to statistic; empty where there are none."""
    subtask_names: list[str] | None = field(default=None, repr=False)
    """The same of subtasks; None where there are none."""
    repo_id: str = ""
    revision: str = VERSION
    """As it was asked for."""
    place: str | Path | None = None
    """Where it lies on this disk, or what was fetched of it does."""

    @classmethod
    def open(cls, root: Root, memory_bytes: int = MOST_BYTES) -> Self:
        """Read and checked. Remote files are read side by side."""
        info = Info.parse(root.read(INFO), f"{root.name}, {INFO}")
        files = [root.shard(path) for path in root.paths() if path.startswith(EPISODES) and path.endswith(".parquet")]
        with starting("threads that read metadata"), Threads(3, "headrace-meta") as threads:
            episodes = threads.submit(Episodes.read, files, info, memory_bytes)
            tasks = threads.submit(lambda: _tasks(root.shard(TASKS), "task", memory_bytes))
            stats = threads.submit(lambda: _stats(root, memory_bytes) if root.has(STATS) else {})
            subtasks = _tasks(root.shard(SUBTASKS), "subtask", memory_bytes) if root.has(SUBTASKS) else None
            return cls(root, info, episodes.result(), tasks.result(), stats.result(), subtasks)

    def selected(self, numbers: Iterable[int]) -> Self:
        """With these episodes only."""
        return replace(self, episodes=self.episodes.select(numbers))

    # --- LeRobot's names

    @property
    def features(self) -> dict[str, dict[str, Any]]:
        """Each as it is declared, with its shape as a tuple."""
        return {name: feature.raw for name, feature in self.info.features.items()}

    @property
    def fps(self) -> int:
        return self.info.fps

    @property
    def robot_type(self) -> str | None:
        return self.info.robot_type

    @property
    def video_keys(self) -> list[str]:
        return self.info.video_keys

    @property
    def image_keys(self) -> list[str]:
        return self.info.image_keys

    @property
    def camera_keys(self) -> list[str]:
        return self.info.camera_keys

    @property
    def depth_keys(self) -> list[str]:
        return self.info.depth_keys

    @property
    def names(self) -> dict[str, Any]:
        return {name: feature.names for name, feature in self.info.features.items()}

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: feature.shape for name, feature in self.info.features.items()}

    @property
    def total_episodes(self) -> int:
        """Of the whole data set, whatever was selected."""
        return self.info.total_episodes or len(self.episodes)

    @property
    def total_frames(self) -> int:
        return self.info.total_frames or self.episodes.num_frames

    @property
    def total_tasks(self) -> int:
        return self.info.whole("total_tasks", len(self.task_names))

    @property
    def chunks_size(self) -> int:
        """Files in a folder, at most."""
        return self.info.whole("chunks_size", 1000)

    @property
    def data_files_size_in_mb(self) -> int:
        return self.info.whole("data_files_size_in_mb", 100)

    @property
    def video_files_size_in_mb(self) -> int:
        return self.info.whole("video_files_size_in_mb", 200)

    @property
    def data_path(self) -> str:
        """A template, for `str.format`."""
        return self.info.data_path.text

    @property
    def video_path(self) -> str | None:
        return None if self.info.video_path is None else self.info.video_path.text

    @property
    def has_language_columns(self) -> bool:
        return any(name in self.info.features for name in LANGUAGE)

    @cached_property
    def tasks(self) -> pd.DataFrame:
        """A table of pandas with the tasks as its index and their numbers as `task_index`."""
        return _table(self.task_names, "task")

    @cached_property
    def subtasks(self) -> pd.DataFrame | None:
        return None if self.subtask_names is None else _table(self.subtask_names, "subtask")

    def get_task_index(self, task: str) -> int | None:
        return self.task_names.index(task) if task in self.task_names else None

    @property
    def root(self) -> Path | str:
        """A folder; or a URL, where nothing of it lies on this disk."""
        return self.url_root if self.place is None else self.place

    @property
    def url_root(self) -> str:
        return self.files.url

    def get_data_file_path(self, ep_index: int) -> Path:
        """Inside the data set."""
        episodes, i = self.episodes, self.episodes.place(ep_index)
        return Path(self.info.data_file(int(episodes.data_chunk[i]), int(episodes.data_file[i])))

    def get_video_file_path(self, ep_index: int, vid_key: str) -> Path:
        """Inside the data set."""
        camera, i = self.episodes.videos[vid_key], self.episodes.place(ep_index)
        return Path(self.info.video_file(vid_key, int(camera.chunk[i]), int(camera.file[i])))


def _table(names: list[str], what: str) -> pd.DataFrame:
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError(f"the {what}s as a table need pandas: pip install pandas") from error
    return pd.DataFrame({f"{what}_index": range(len(names))}, index=pd.Index(names, name=what, dtype=object))


def _tasks(shard: Shard, what: str, memory_bytes: int) -> list[str]:
    """The texts of `meta/tasks.parquet`, which stand in the index of a pandas table, whatever its name."""
    import numpy as np

    allowance = Allowance(memory_bytes)
    table = read_columns(shard, lambda schema: _task_columns(shard, schema, what), allowance)
    name = table.column_names[0]
    allowance.check_python({name: table.column(name)}, str(shard))
    found = texts(table, name)
    if f"{what}_index" in table.column_names:
        numbers = whole_numbers(table, f"{what}_index", str(shard))
        if (numbers != np.arange(len(numbers))).any():
            # LeRobot goes by the row all the same.
            log.warning("%s: its %s_index is not 0, 1, 2, … down the rows; %s n is the one in row n", shard, what, what)
    return found


def _task_columns(shard: Shard, schema: Any, what: str) -> list[str]:
    import pyarrow as pa

    def is_text(name: Any) -> bool:
        if not isinstance(name, str) or name not in schema.names:
            return False
        kind = schema.field(name).type
        kind = kind.value_type if pa.types.is_dictionary(kind) else kind
        return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))

    own = [name for name in (what, *_pandas_index(schema), *schema.names) if is_text(name)]
    if not own:
        raise DataError(
            f"{shard} has no column of texts, which {what}s are, but {', '.join(shown(n) for n in schema.names[:5])}"
        )
    return [own[0], *([f"{what}_index"] if f"{what}_index" in schema.names else [])]


def _pandas_index(schema: Any) -> list[Any]:
    try:
        found = parse((schema.metadata or {})[b"pandas"])["index_columns"]
    except (KeyError, ValueError, TypeError, RecursionError):
        return []
    return found if isinstance(found, list) else []


def _is_of_numbers(value: Any, depth: int = 0) -> bool:
    """A number, or lists of them. numpy would make each text of a list as long as the longest."""
    if isinstance(value, list):
        return depth < _DEEPEST and all(_is_of_numbers(one, depth + 1) for one in value)
    return isinstance(value, int | float)


def _stats(root: Root, memory_bytes: int) -> dict[str, dict[str, NDArray[np.generic]]]:
    """They have nine numbers and more for each of a frame, which may be a grid of many sensors."""
    import numpy as np

    where, room = f"{root.name}, {STATS}", memory_bytes // 2
    try:
        raw = root.read(STATS, max(LARGEST, min(room // 4, LARGEST_STATS)))
        values = parse(raw, max(MOST_VALUES, min(room // VALUE_BYTES, MOST_STATS)))
    except TooManyValues as error:
        raise DataError(f"{where}: {error}; remove it, or write it again") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where} is not JSON ({shown(error)}); remove it, or write it again") from error
    if not isinstance(values, dict) or not all(isinstance(found, dict) for found in values.values()):
        raise DataError(f"{where} is not an object of statistics by feature; remove it, or write it again")
    out: dict[str, dict[str, NDArray[np.generic]]] = {}
    for feature, found in values.items():
        out[feature] = {}
        for name, value in found.items():
            try:
                array = np.atleast_1d(np.array(value if _is_of_numbers(value) else None))
            except ValueError:
                array = np.array(None)
            if array.dtype.kind not in "buif":
                what = f"{shown(name)!r} of feature {shown(feature)!r}"
                raise DataError(f"{where}: {what} is not an array of numbers; remove it, or write it again")
            out[feature][name] = array
    return out

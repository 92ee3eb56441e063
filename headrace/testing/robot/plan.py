"""What a robot data set holds, how it lies in its files, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from headrace.errors import SpecError, shown

MOST_EPISODES = 512
MOST_FRAMES = 8192
MOST_CAMERAS = 16
"""What the pixels of a frame can tell apart."""

EVERY_KIND: dict[str, tuple[str, tuple[int, ...]]] = {
    "observation.grid": ("float32", (3, 4)),
    "observation.pose": ("float64", (3,)),
    "observation.buttons": ("bool", (2,)),
    "observation.counts": ("int32", (3,)),
    "observation.touch": ("uint8", (4,)),
    "next.reward": ("float32", (1,)),
    "next.done": ("bool", (1,)),
    "note": ("string", (1,)),
}
"""Features of every kind that a data file can hold, for `extra_features`."""


@dataclass(frozen=True)
class Camera:
    """One camera: its size, how its frames are stored, and how many episodes share a file."""

    height: int = 48
    width: int = 64
    codec: str = "av1"
    """`av1`, `h264`, `hevc` or `vp9`; depth videos are always lossless `hevc`."""
    episodes_per_file: int | tuple[int, ...] = 3
    """Of each mp4; of a tuple, the last number holds for the rest."""
    kind: str = "video"
    """`video`, or `image`: PNG (TIFF for depth) inside the data files."""
    depth: bool = False
    depth_unit: str = "mm"
    """How a depth image is stored: `mm` as uint16, `m` as float32."""
    gop: int = 2
    """Key frames are at most this far apart."""
    options: tuple[tuple[str, str], ...] = ()
    """More options of the encoder, as pairs."""
    channels_first: bool = False
    """Declare the shape as [C, H, W], as some data sets do; the frames are the same."""

    @property
    def is_video(self) -> bool:
        return self.kind == "video"

    @property
    def stored_codec(self) -> str:
        return "hevc" if self.depth else self.codec

    @property
    def channels(self) -> int:
        return 1 if self.depth else 3


@dataclass(frozen=True, kw_only=True)
class Dirt:
    """What is wrong with a data set, as it is found with public ones. Nothing, unless asked for."""

    stale_file_index: bool = False
    """meta/episodes says that all rows are in the first data file."""
    orphan_rows: bool = False
    """The last data file ends with the rows of an episode that meta/episodes does not list."""
    orphan_file: bool = False
    """A data file holds only such rows."""
    shadow_file: bool = False
    """A data file that no episode refers to repeats the numbers of episode 0 with other values."""
    ragged_column: bool = False
    """The data files hold the ragged column `language_events`, which info.json does not declare."""
    hardware_timestamps: bool = False
    """`timestamp` is the clock of a device instead of frame_index / fps."""
    missing_frames: Mapping[int, int] = field(default_factory=dict)
    """Episode to number of frames that its videos lack at the end; its rows are all there."""
    drift_s: float = 0.0
    """Seconds by which `from_timestamp` grows too large with every episode in an mp4."""
    shuffled_columns: bool = False
    """Each file of meta/episodes has its columns in another order."""
    no_stats: bool = False
    """No stats.json and no stats in meta/episodes."""


def _two_cameras() -> dict[str, Camera]:
    return {
        "observation.images.top": Camera(episodes_per_file=2),
        "observation.images.wrist": Camera(codec="h264", episodes_per_file=(1, 3)),
    }


@dataclass(frozen=True, kw_only=True)
class RobotPlan:
    """The whole data set."""

    episodes: Sequence[int] = (7, 12, 5, 9, 11, 6)
    """The length of each episode."""
    fps: int = 10
    cameras: Mapping[str, Camera] = field(default_factory=_two_cameras)
    extra_features: Mapping[str, tuple[str, tuple[int, ...]]] = field(default_factory=dict)
    """Name to dtype and shape, besides `observation.state` and `action`."""
    tasks: Sequence[str] = ("pick up the cube", "put it into the box", "wait")
    """Every other episode changes its task half way."""
    subtasks: Sequence[str] = ()
    """With some, there is a feature `subtask_index`, which changes every other frame."""
    episodes_per_data_file: int | tuple[int, ...] = 4
    episodes_per_meta_file: int | tuple[int, ...] = 1000
    files_per_chunk: int = 1000
    row_groups: str = "episode"
    """`episode`: one each. `unaligned`: of equal size. `one`: one for the whole file."""
    lists: str = "fixed"
    """`fixed`: as LeRobot writes vectors. `plain`: as pandas does for converted data sets, without metadata."""
    tasks_index: str | None = "task"
    """The name of the index in tasks.parquet; None leaves it without one."""
    data_path: str = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
    video_path: str = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
    dirt: Dirt = field(default_factory=Dirt)
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.episodes or len(self.episodes) > MOST_EPISODES or len(self.cameras) > MOST_CAMERAS:
            raise SpecError(
                f"{len(self.episodes)} episodes and {len(self.cameras)} cameras: the frames can tell 1 to "
                f"{MOST_EPISODES} episodes and {MOST_CAMERAS} cameras apart; write fewer"
            )
        if not all(0 < self.frames(e) <= n <= MOST_FRAMES for e, n in enumerate(self.episodes)):
            raise SpecError(f"an episode has 1 to {MOST_FRAMES} frames, not {shown(list(self.episodes))}")
        for given, known in ((self.row_groups, ("episode", "unaligned", "one")), (self.lists, ("fixed", "plain"))):
            if given not in known:
                raise SpecError(f"{shown(given)!r} is none of {known}; choose one of them")

    @property
    def videos(self) -> dict[str, Camera]:
        return {key: camera for key, camera in self.cameras.items() if camera.is_video}

    @property
    def images(self) -> dict[str, Camera]:
        return {key: camera for key, camera in self.cameras.items() if not camera.is_video}

    def number(self, key: str) -> int:
        """The number that a camera writes into its frames: its place among the cameras."""
        return list(self.cameras).index(key)

    def first(self, episode: int) -> int:
        """The global number of the episode's first row; also for the episode after the last."""
        return sum(self.episodes[:episode])

    def frames(self, episode: int) -> int:
        """How many frames the episode's videos have."""
        return self.episodes[episode] - self.dirt.missing_frames.get(episode, 0)

    def task_of(self, episode: int, frame: int) -> int:
        late = episode % 2 == 1 and 2 * frame >= self.episodes[episode]
        return (episode + late) % len(self.tasks)

    def files(self, per_file: int | tuple[int, ...]) -> Iterator[tuple[int, int, list[int]]]:
        """Chunk, file and episodes of every file, when so many episodes are in each."""
        sizes = per_file if isinstance(per_file, tuple) else (per_file,)
        start = number = 0
        while start < len(self.episodes):
            stop = start + sizes[min(number, len(sizes) - 1)]
            yield (
                number // self.files_per_chunk,
                number % self.files_per_chunk,
                list(range(len(self.episodes)))[start:stop],
            )
            start, number = stop, number + 1

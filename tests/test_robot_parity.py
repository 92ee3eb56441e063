"""Every item is, bit by bit, what a plain map-style reader gives for the same frame."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from robots import CAMERAS, EPISODES, FPS, NUM_FRAMES, assert_same, numbers, small_set

from headrace import StreamingLeRobotDataset
from headrace.errors import DataError, SpecError
from headrace.lerobot.windows import frame_offsets
from headrace.testing import EVERY_KIND, Camera, Dirt, MapStyleRobotDataset, write_robot_dataset


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("robots") / "everything"
    return write_robot_dataset(
        folder, episodes=EPISODES, fps=FPS, cameras=CAMERAS, extra_features=EVERY_KIND, episodes_per_data_file=(1, 3, 2)
    )


def stream(folder: Path, tmp_path: Path, **options: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset("org/robot", root=folder, cache_dir=tmp_path / "cache", **options)


def assert_parity(folder: Path, tmp_path: Path, **options: Any) -> None:
    wanted = MapStyleRobotDataset(folder, **options)
    found = 0
    plain = MapStyleRobotDataset(folder, episodes=options.get("episodes"))
    place = {int(plain[i]["index"]): i for i in range(len(plain))}
    for item in stream(folder, tmp_path, episode_pool_size=3, **options):
        number = int(item["index"])
        assert_same(item, wanted[place[number]])
        found += 1
    assert found == len(wanted)


def test_without_windows(everything: Path, tmp_path: Path) -> None:
    assert_parity(everything, tmp_path)


WINDOWS = [
    [-0.2, -0.1, 0.0],
    [0.0, 0.1, 0.3],
    [0.4, -1.1, 0.0, 0.0, 0.1, 2.0],
    [0.1],
    [round(0.1 * i, 1) for i in range(-30, 31, 6)],
]


@pytest.mark.parametrize("times", WINDOWS, ids=str)
@pytest.mark.parametrize("as_bytes", [False, True])
def test_with_past_and_future_windows_on_all_keys(
    everything: Path, tmp_path: Path, times: list[float], as_bytes: bool
) -> None:
    keys = [key for key in stream(everything, tmp_path).features if key not in ("note", "index")]
    assert_parity(everything, tmp_path, delta_timestamps=dict.fromkeys(keys, times), return_uint8=as_bytes)


def test_what_is_written_into_an_item_changes_no_other(everything: Path, tmp_path: Path) -> None:
    """A trainer may scale, clip or clear what it got, in place."""
    windows: dict[str, Any] = {"action": [0.0, 0.1], "observation.images.top": [-0.1, 0.0, 0.1]}
    plain = [
        {name: value.clone() if isinstance(value, torch.Tensor) else value for name, value in item.items()}
        for item in stream(everything, tmp_path, delta_timestamps=windows, seed=3)
    ]
    found = 0
    for item, wanted in zip(stream(everything, tmp_path, delta_timestamps=windows, seed=3), plain, strict=True):
        assert_same(item, wanted)
        for value in item.values():
            if isinstance(value, torch.Tensor):
                value.zero_()
        found += 1
    assert found == NUM_FRAMES


@pytest.mark.parametrize("fps", [5, 10, 15, 24, 25, 30, 50, 60, 100, 120])
def test_seconds_fall_on_the_frame_that_is_meant(fps: int) -> None:
    """Whatever their last binary digit: 0.29 s of 100 frames a second are 28.999999999999996 of them."""
    frames = list(range(-3 * fps, 3 * fps + 1))
    for seconds in ([n / fps for n in frames], [round(n / fps, 5) for n in frames], [n * (1 / fps) for n in frames]):
        assert frame_offsets({"x": seconds}, ["x"], fps, 1e-4)["x"].tolist() == frames


def test_chosen_episodes_and_transforms(everything: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def flipped(image: torch.Tensor) -> torch.Tensor:
        return image.flip(-1)

    stream(everything, tmp_path, episodes=[4, 1, 99])
    assert "not in the data set: 99" in caplog.text
    assert_parity(everything, tmp_path, episodes=[4, 1], image_transforms=flipped)
    data = stream(everything, tmp_path, episodes=[4, 1])
    assert (data.num_episodes, data.num_frames) == (2, EPISODES[1] + EPISODES[4])


@pytest.mark.parametrize("row_groups", ["episode", "unaligned", "one"])
@pytest.mark.parametrize("lists", ["fixed", "plain"])
def test_row_groups_and_lists_of_all_kinds(tmp_path: Path, row_groups: str, lists: str) -> None:
    assert_parity(small_set(tmp_path / "set", row_groups=row_groups, lists=lists), tmp_path)


@pytest.mark.parametrize(
    "dirt",
    [
        Dirt(stale_file_index=True),
        Dirt(orphan_rows=True, orphan_file=True),
        Dirt(shadow_file=True),
        Dirt(ragged_column=True),
        Dirt(hardware_timestamps=True),
        Dirt(drift_s=0.01),
        Dirt(shuffled_columns=True, no_stats=True),
    ],
    ids=lambda dirt: next(name for name, value in vars(dirt).items() if value),
)
@pytest.mark.parametrize("row_groups", ["episode", "one"])
def test_dirty_data_survives(tmp_path: Path, dirt: Dirt, row_groups: str) -> None:
    assert_parity(small_set(tmp_path / "set", dirt=dirt, row_groups=row_groups), tmp_path)


@pytest.mark.parametrize("codec", ["av1", "h264", "hevc", "vp9"])
@pytest.mark.parametrize("gop", [2, 30])
def test_codecs(tmp_path: Path, codec: str, gop: int) -> None:
    camera = Camera(height=48, width=64, codec=codec, gop=gop, episodes_per_file=2)
    folder = small_set(tmp_path / "set", cameras={"observation.images.top": camera})
    assert_parity(folder, tmp_path, delta_timestamps={"observation.images.top": [-0.5, 0.0, 0.2]})


def test_shuffle_off_gives_frames_in_order(everything: Path, tmp_path: Path) -> None:
    assert numbers(stream(everything, tmp_path, shuffle=False)) == list(range(NUM_FRAMES))


def test_nothing_is_decoded_before_it_is_given_out(everything: Path, tmp_path: Path) -> None:
    data = stream(everything, tmp_path, episode_pool_size=64)
    items = iter(data)
    assert data.counters()["frames_decoded"] == 0
    for given in range(1, 6):
        next(items)
        assert data.counters()["frames_decoded"] == 3 * given, "one frame of each of three video cameras"


def test_going_ahead_decodes_nothing(everything: Path, tmp_path: Path) -> None:
    data = stream(everything, tmp_path)
    data.load_state_dict({"batches_consumed": NUM_FRAMES - 1, "batch_size": 1})
    assert len(list(data)) == 1
    assert data.counters()["frames_decoded"] == 3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delta_timestamps": {"observation.nothing": [0.1]}}, "no feature 'observation.nothing'"),
        ({"delta_timestamps": {"action": [0.1, 0.14]}}, "0.14 s is between two frames"),
        ({"delta_timestamps": {"action": [float("nan")]}}, "nan"),
        ({"episode_pool_size": 0}, "episode_pool_size"),
        ({"video_prefetch_workers": 0}, "video_prefetch_workers"),
        ({"tail": "pad"}, "tail"),
        ({"seed": -1}, "seed"),
        ({"max_num_shards": -1}, "window"),
        ({"tolerance_s": -1.0}, "tolerance_s"),
        ({"episodes": []}, "episode"),
        ({"rank": 3, "world_size": 2}, "rank"),
    ],
)
def test_wrong_arguments_are_said_at_once(everything: Path, tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        stream(everything, tmp_path, **options)


def test_a_buffer_size_is_ignored_with_a_warning(everything: Path, tmp_path: Path) -> None:
    with pytest.warns(DeprecationWarning, match="episode_pool_size"):
        data = stream(everything, tmp_path, buffer_size=1000)
    assert len(numbers(data)) == NUM_FRAMES


def test_a_tolerance_lets_odd_times_through(everything: Path, tmp_path: Path) -> None:
    data = stream(everything, tmp_path, delta_timestamps={"action": [0.12]}, tolerance_s=0.03)
    exact = stream(everything, tmp_path, delta_timestamps={"action": [0.1]})
    for one, other in zip(data, exact, strict=True):
        assert_same(one, other)


def test_missing_frames_are_said_with_file_episode_and_frame(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set", dirt=Dirt(missing_frames={5: 2}))
    with pytest.raises(DataError) as caught:
        list(stream(folder, tmp_path, shuffle=False))
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "episode 5, frame 4" in told
    assert "videos/observation.images.top/chunk-000/file-002.mp4" in told
    assert len(list(stream(folder, tmp_path, episodes=[0, 1, 2, 3, 4]))) == sum(EPISODES[:5])


def test_a_frame_of_the_next_episode_is_never_given_for_a_missing_one(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set", dirt=Dirt(missing_frames={3: 2}))
    with pytest.raises(DataError, match=r"episode 3, frame 7.*file-002.mp4.*another one begins after 7"):
        list(stream(folder, tmp_path, shuffle=False))
    with pytest.raises(DataError, match="another one begins after 7"):
        list(stream(folder, tmp_path, shuffle=False, episodes=[3]))
    assert len(list(stream(folder, tmp_path, episodes=[0, 1, 2, 4, 5]))) == NUM_FRAMES - EPISODES[3]


def _cut(path: Path) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: len(data) * 2 // 3])


def _no_moov(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"moov", b"free"))


def _playlist(path: Path) -> None:
    path.write_text("#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n")


def _concat(path: Path) -> None:
    path.write_text("ffconcat version 1.0\nfile /etc/passwd\n")


@pytest.mark.parametrize("spoil", [_cut, _no_moov, _playlist, _concat, lambda path: path.write_bytes(b"")])
def test_a_broken_video_names_file_episode_and_frame(tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    folder = small_set(tmp_path / "set")
    spoil(folder / "videos/observation.images.top/chunk-000/file-001.mp4")
    with pytest.raises(DataError) as caught:
        list(stream(folder, tmp_path, shuffle=False))
    told = "\n".join([str(caught.value), *getattr(caught.value, "__notes__", [])])
    assert "episode 2, frame" in told
    assert "file-001.mp4" in told
    assert len(list(stream(folder, tmp_path, episodes=[0, 1, 4]))) == EPISODES[0] + EPISODES[1] + EPISODES[4]


def test_a_video_of_another_rate_is_said_with_its_distance(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    info = folder / "meta" / "info.json"
    info.write_text(info.read_text().replace('"fps": 10', '"fps": 11'))
    with pytest.raises(DataError, match=r"frame \d+ of the video is shown"):
        list(stream(folder, tmp_path, shuffle=False))


def test_a_video_with_a_gap_between_episodes_is_read_by_the_times_it_says(tmp_path: Path) -> None:
    """Files that were put together of many have such gaps, and meta/episodes says where each episode really begins."""
    camera = Camera(height=48, width=64, codec="h264", episodes_per_file=3)
    folder = small_set(tmp_path / "set", cameras={"observation.images.top": camera})
    wanted = MapStyleRobotDataset(folder)
    items = [wanted[i] for i in range(len(wanted))]
    path = folder / "videos/observation.images.top/chunk-000/file-000.mp4"
    starts = [0.0, EPISODES[0] / FPS + 0.06, (EPISODES[0] + EPISODES[1]) / FPS + 0.12]
    shifted = tmp_path / "shifted.mp4"
    with av.open(str(path)) as old, av.open(str(shifted), "w") as new:
        stream_in = old.streams.video[0]
        stream_out = new.add_stream_from_template(stream_in)
        unit = float(stream_in.time_base or 0)
        for packet in old.demux(stream_in):
            if packet.pts is None or packet.dts is None:
                continue
            frame = round(packet.pts * unit * FPS)
            late = 0.0 if frame < EPISODES[0] else 0.06 if frame < EPISODES[0] + EPISODES[1] else 0.12
            packet.pts += round(late / unit)
            packet.dts += round(late / unit)
            packet.stream = stream_out
            new.mux(packet)
    shifted.replace(path)
    meta = folder / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(meta)
    name = "videos/observation.images.top/from_timestamp"
    values = [*starts, *table.column(name).to_pylist()[3:]]
    pq.write_table(table.set_column(table.column_names.index(name), name, pa.array(values)), meta)
    found = list(stream(folder, tmp_path))
    assert len(found) == NUM_FRAMES
    for item in found:
        assert_same(item, items[int(item["index"])])


def test_a_missing_video_is_said(tmp_path: Path) -> None:
    folder = small_set(tmp_path / "set")
    (folder / "videos/observation.images.top/chunk-000/file-001.mp4").unlink()
    with pytest.raises(FileNotFoundError, match=r"file-001\.mp4"):
        list(stream(folder, tmp_path, shuffle=False))

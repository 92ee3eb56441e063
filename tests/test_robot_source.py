"""`lerobot:` as one more source: loaded, mixed with others, from folders and from the Hub."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from robots import EPISODES, NUM_FRAMES, SMALL, assert_same, numbers, small_set
from torch.utils.data import DataLoader

import headrace
from headrace import Frames, Part, Recipe, Source, StreamingLeRobotDataset
from headrace.errors import HeadraceError, SpecError
from headrace.lerobot.ahead import Ahead
from headrace.mix.describe import Mix
from headrace.testing import Camera, LocalHub, MapStyleRobotDataset, write_parquet, write_robot_dataset


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_set(tmp_path_factory.mktemp("robots") / "set")


def test_a_spec_is_loaded_in_batches(folder: Path, tmp_path: Path) -> None:
    with headrace.load(f"lerobot:{folder}", batch_size=5, cache_dir=tmp_path) as loader:
        assert len(loader) == 10
        seen = [number for batch in loader for number in batch["index"].tolist()]
        assert sorted(seen) == list(range(NUM_FRAMES))
        again = [number for batch in loader for number in batch["index"].tolist()]
    assert sorted(again) == sorted(seen)
    assert again != seen


def test_two_robots_are_mixed_by_weight_with_their_own_names_and_statistics(folder: Path, tmp_path: Path) -> None:
    other = write_robot_dataset(
        tmp_path / "other", episodes=[8, 9], fps=5, cameras={"cam": next(iter(SMALL.values()))}, seed=3
    )
    camera = "observation.images.top"
    parts = [
        Part(
            source=Source(kind="lerobot", path=str(folder), frames=Frames(normalize={"action": "mean_std"})),
            name="first",
            weight=3,
        ),
        Part(
            source=Source(
                kind="lerobot",
                path=str(other),
                frames=Frames(rename={"cam": camera}, normalize={"action": "min_max"}, delta_timestamps={"cam": [0.0]}),
            ),
            name="second",
            weight=1,
        ),
    ]
    recipe = Recipe(parts=tuple(parts), mix=Mix(stop="loop"), batch_size=8)
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    counts: dict[str, int] = {}
    with headrace.load(recipe, cache_dir=tmp_path / "cache") as loader:
        for n, batch in enumerate(loader):
            for address in batch.addresses:
                counts[address.source] = counts.get(address.source, 0) + 1
            assert batch[camera].shape == (8, 3, 32, 64)
            assert "cam" not in batch
            if n == 9:
                break
    assert counts == {"first": 60, "second": 20}


def test_values_are_scaled_by_the_set_s_own_statistics(folder: Path, tmp_path: Path) -> None:
    plain = {int(item["index"]): item for item in StreamingLeRobotDataset("r", root=folder, cache_dir=tmp_path)}
    source = Source(kind="lerobot", path=str(folder), frames=Frames(normalize={"action": "mean_std"}))
    with headrace.load(source, batch_size=NUM_FRAMES, cache_dir=tmp_path) as loader:
        batch = next(iter(loader))
    raw = torch.stack([plain[number]["action"] for number in batch["index"].tolist()])
    stats = StreamingLeRobotDataset("r", root=folder, cache_dir=tmp_path).meta.stats["action"]
    mean, std = (torch.tensor(stats[name], dtype=torch.float32) for name in ("mean", "std"))
    assert torch.allclose(batch["action"], (raw - mean) / std)
    assert torch.allclose(batch["action"].mean(0), torch.zeros(raw.shape[1]), atol=0.2)


def test_the_flags_of_a_window_are_renamed_with_it(folder: Path, tmp_path: Path) -> None:
    windows = {"action": [-0.1, 0.0], "observation.state": [0.0, 0.1]}
    frames = Frames(rename={"action": "a", "observation.images.top": "top"}, delta_timestamps=windows)
    with headrace.load(
        Source(kind="lerobot", path=str(folder), frames=frames), batch_size=4, cache_dir=tmp_path
    ) as one:
        found = set(next(iter(one)))
    assert {"a", "a_is_pad", "top", "observation.state", "observation.state_is_pad"} <= found
    assert not {"action", "action_is_pad", "observation.images.top", "top_is_pad"} & found


@pytest.mark.parametrize("how", ["mean_std", "min_max"])
def test_a_value_that_never_changes_is_only_moved_where_values_are_scaled(tmp_path: Path, how: str) -> None:
    folder = small_set(tmp_path / "set")
    path = folder / "meta" / "stats.json"
    stats = json.loads(path.read_text())
    stats["action"]["std"][0], stats["action"]["max"][0] = 0.0, stats["action"]["min"][0]
    path.write_text(json.dumps(stats))
    first = torch.tensor(stats["action"]["mean" if how == "mean_std" else "min"][0], dtype=torch.float32)
    plain = {int(item["index"]): item for item in StreamingLeRobotDataset("r", root=folder, cache_dir=tmp_path)}
    source = Source(kind="lerobot", path=str(folder), frames=Frames(normalize={"action": how}))
    with headrace.load(source, batch_size=NUM_FRAMES, cache_dir=tmp_path) as loader:
        batch = next(iter(loader))
    raw = torch.stack([plain[number]["action"] for number in batch["index"].tolist()])
    assert torch.allclose(batch["action"][:, 0], raw[:, 0] - first)
    assert torch.isfinite(batch["action"]).all()


def test_robots_and_rows_of_other_kinds_share_a_batch(folder: Path, tmp_path: Path) -> None:
    write_parquet(tmp_path / "rows", [[20]])
    with headrace.load([f"lerobot:{folder}", f"parquet:{tmp_path}/rows/*.parquet"], cache_dir=tmp_path) as loader:
        batch = next(iter(loader))
        kinds = {address.source.partition(":")[0] for address in batch.addresses}
        assert kinds == {"lerobot", "parquet"}
        assert isinstance(batch["action"], list)
        assert any(value is None for value in batch["action"])
        total = len(batch.addresses) + sum(len(one.addresses) for one in loader if not one.pad)
    assert total >= NUM_FRAMES


def test_frames_are_not_tokenized(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="not tokenized"):
        next(iter(headrace.load(f"lerobot:{folder}", seq_len=16, cache_dir=tmp_path)))


@pytest.mark.parametrize("name", ["nothing", "task"])
def test_names_and_statistics_that_are_not_there_are_said(folder: Path, tmp_path: Path, name: str) -> None:
    for frames in (Frames(rename={name: "x"}), Frames(normalize={name: "min_max"})):
        with pytest.raises(SpecError, match=name):
            next(iter(headrace.load(Source(kind="lerobot", path=str(folder), frames=frames), cache_dir=tmp_path)))


# --- from the Hub


@pytest.fixture
def served(hub: LocalHub, folder: Path, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    hub.push("org/robot", folder)
    hub.push("org/robot", folder, branch="refs/tags/v3.0")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    return hub


def test_the_hub_gives_the_same_items(served: LocalHub, folder: Path, tmp_path: Path) -> None:
    wanted = MapStyleRobotDataset(folder)
    found = list(StreamingLeRobotDataset("org/robot", cache_dir=tmp_path, episode_pool_size=2))
    assert sorted(numbers(found)) == list(range(NUM_FRAMES))
    for item in found:
        assert_same(item, wanted[int(item["index"])])


def test_the_order_does_not_depend_on_where_the_data_lies(served: LocalHub, folder: Path, tmp_path: Path) -> None:
    remote = StreamingLeRobotDataset("org/robot", cache_dir=tmp_path)
    local = StreamingLeRobotDataset("org/robot", root=folder, cache_dir=tmp_path)
    assert numbers(remote) == numbers(local)


def kept(folder: Path) -> list[Path]:
    found = [path for path in folder.rglob("*") if path.is_file() and "meta" not in path.parts]
    return [path for path in found if path.name.endswith((".mp4", ".parquet"))]


def keep_all(folder: Path) -> None:
    """Read all, and keep it. What is read before it has come is not kept, but at most once for each file."""
    for _ in range(4):
        list(StreamingLeRobotDataset("org/robot", cache_dir=folder, streaming=False))
        if sum(path.name.endswith(".mp4") for path in kept(folder)) == 3:
            return
    pytest.fail("not all videos were kept")


def test_what_was_fetched_is_removed_or_kept(served: LocalHub, tmp_path: Path) -> None:
    list(StreamingLeRobotDataset("org/robot", cache_dir=tmp_path / "a"))
    assert kept(tmp_path / "a") == []
    keep_all(tmp_path / "b")
    before = fetches(served)
    list(StreamingLeRobotDataset("org/robot", cache_dir=tmp_path / "b", streaming=False))
    assert fetches(served) == before, "the second run has all it needs"
    list(StreamingLeRobotDataset("org/robot", cache_dir=tmp_path / "b", streaming=False, force_cache_sync=True))
    assert fetches(served) > before, "a forced one fetches anew"


def test_what_is_kept_is_not_asked_for_where_the_threads_are_late(
    served: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def late(self: Ahead, part: Any) -> None:
        time.sleep(0.2)
        bring(self, part)

    keep_all(tmp_path)
    before, bring = fetches(served), Ahead._bring
    monkeypatch.setattr(Ahead, "_bring", late)
    list(StreamingLeRobotDataset("org/robot", cache_dir=tmp_path, streaming=False))
    assert fetches(served) == before


def test_without_a_network_what_was_kept_is_enough(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalHub() as hub:
        hub.push("org/robot", folder, branch="refs/tags/v3.0")
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        wanted = list(StreamingLeRobotDataset("org/robot", cache_dir=tmp_path, streaming=False))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    found = list(StreamingLeRobotDataset("org/robot", cache_dir=tmp_path, streaming=False))
    assert len(found) == NUM_FRAMES
    for item, other in zip(found, wanted, strict=True):
        assert_same(item, other)


def fetches(hub: LocalHub) -> int:
    return sum(hub.count(method="GET", path=f"*file-00{i}.mp4") for i in range(3))


@pytest.mark.parametrize("ahead", [True, False])
def test_videos_are_fetched_ahead_unless_asked_not_to(served: LocalHub, tmp_path: Path, ahead: bool) -> None:
    data = StreamingLeRobotDataset("org/robot", cache_dir=tmp_path, prefetch_videos=ahead)
    for n, _ in enumerate(data):
        if n == 40:
            stats: dict[str, Any] = data.counters()
            break
    fetched = stats["video_files"]["files"] + stats["video_files"]["ranges"]
    assert fetched > 0 if ahead else fetched == 0


def test_as_many_videos_are_open_as_asked(folder: Path, tmp_path: Path) -> None:
    def decoders(**options: Any) -> dict[str, Any]:
        data = StreamingLeRobotDataset("r", root=folder, cache_dir=tmp_path, **options)
        list(data)
        found: dict[str, Any] = data.counters()["video_decoder_cache"]
        return found

    assert decoders()["evictions"] == 0, "the pool's three files are all kept open"
    assert decoders(video_decoder_cache_size=1)["evictions"] > 10


def test_a_token_opens_a_private_data_set(served: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    served.restrict("org/robot", "private")
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HeadraceError, match="authenticate|token|log in|private"):
        StreamingLeRobotDataset("org/robot", cache_dir=tmp_path / "a")
    data = StreamingLeRobotDataset("org/robot", cache_dir=tmp_path / "b", token="hf_local")
    assert len(list(data)) == NUM_FRAMES


def test_workers_share_the_cache(served: LocalHub, tmp_path: Path) -> None:
    loader: Any = DataLoader(StreamingLeRobotDataset("org/robot", cache_dir=tmp_path), batch_size=4, num_workers=2)
    for _ in range(2):
        assert sorted(n for batch in loader for n in batch["index"].tolist()) == list(range(NUM_FRAMES))


def test_few_episodes_for_many_consumers_are_warned_of(folder: Path, tmp_path: Path) -> None:
    data = StreamingLeRobotDataset("r", root=folder, rank=0, world_size=len(EPISODES) + 1, cache_dir=tmp_path)
    with pytest.warns(UserWarning, match="an episode is never cut"):
        list(data)
    list(data)  # and not again in the next epoch


MANY = """
import sys, warnings
from torch.utils.data import DataLoader
from headrace import StreamingLeRobotDataset

if __name__ == "__main__":
    folder, cache, rank, persistent, method = sys.argv[1:]
    data = StreamingLeRobotDataset("r", root=folder, rank=int(rank), world_size=3, cache_dir=cache)
    options = {"persistent_workers": persistent == "True", "multiprocessing_context": method}
    loader = DataLoader(data, batch_size=None, num_workers=3, **options)
    for _ in range(2):
        for item in loader:
            pass
"""


@pytest.mark.parametrize(("persistent", "method"), [(True, "fork"), (False, "fork"), (False, "spawn")])
def test_few_episodes_are_said_once_for_all_workers_ranks_and_epochs(
    folder: Path, tmp_path: Path, persistent: bool, method: str
) -> None:
    (tmp_path / "many.py").write_text(MANY)
    said = 0
    for rank in range(3):
        command = [sys.executable, tmp_path / "many.py", folder, tmp_path / "cache", rank, persistent, method]
        done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=300)
        assert done.returncode == 0, done.stderr
        said += done.stderr.count("6 episodes for 9 consumers")
    assert said == 1


# --- what it holds


@pytest.mark.parametrize("where", ["folder", "hub"])
def test_workers_start_while_this_process_reads(served: LocalHub, folder: Path, tmp_path: Path, where: str) -> None:
    """What is open here is not used by those who are forked from here, and not let go by them."""
    wanted = MapStyleRobotDataset(folder)
    place: dict[str, Any] = {"root": folder} if where == "folder" else {}
    data = StreamingLeRobotDataset("org/robot", cache_dir=tmp_path, episode_pool_size=2, **place)
    here = iter(data)
    mine = [next(here) for _ in range(10)]
    loader: Any = DataLoader(data, batch_size=None, num_workers=2)
    theirs = iter(loader)
    found = []
    for item in theirs:
        found.append(item)
        mine += [one for one in [next(here, None)] if one is not None]
    mine += list(here)
    for items in (mine, found):
        assert sorted(numbers(items)) == list(range(NUM_FRAMES))
        for item in items:
            assert_same(item, wanted[int(item["index"])])


def test_a_pool_of_many_episodes_takes_as_much_memory_as_their_numbers(tmp_path: Path) -> None:
    """64 episodes of 60 frames of 128 x 128 pixels would be 755 MB, decoded."""
    camera = Camera(height=128, width=128, codec="h264", episodes_per_file=16)
    wide = write_robot_dataset(tmp_path / "set", episodes=[60] * 64, cameras={"observation.images.top": camera})
    data = StreamingLeRobotDataset("r", root=wide, episode_pool_size=64, cache_dir=tmp_path)
    items = iter(data)
    next(items)
    before = resident_mib()
    for _ in range(640):
        next(items)
    assert resident_mib() - before < 40
    assert data.counters()["frames_decoded"] == 641


def test_nothing_stays_open_after_an_epoch_or_a_break(served: LocalHub, tmp_path: Path) -> None:
    data = StreamingLeRobotDataset("org/robot", cache_dir=tmp_path)
    list(data)
    before = held()
    for n, _ in enumerate(data):
        if n == 20:
            break
    list(data)
    assert held() == before


def held() -> tuple[int, list[str]]:
    """Files that are open, and our threads. Not the connections that are kept for the next request: the Hub answers
    them in this process, each with a thread and two sockets."""
    gc.collect()
    places = [str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    files = [place for place in places if not place.startswith("socket:")]
    named = sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("headrace"))
    return len(files), named


def resident_mib() -> float:
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Rss:")) / 1024

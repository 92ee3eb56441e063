"""What the user owns is only read: after any kind of run, its files and folders are to the byte what they were."""

from __future__ import annotations

import gzip
import os
import stat
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from fetching import noise, shard_on
from media_files import clip, encoded, photo, sound, tone
from robots import CAMERAS, NUM_FRAMES, small_set
from streaming import RATE, World, write_table

import headrace
from headrace import StreamingLeRobotDataset, rows
from headrace.fetch.cache import ShardCache
from headrace.fetch.media.policy import MediaPolicy
from headrace.fetch.prefetch import ShardPrefetcher
from headrace.testing import LocalHub, write_jsonl, write_parquet, write_txt
from headrace.testing.tokenizers import write_tokenizer

MODE = 0o640
"""One that nothing here would set by itself."""


class Look(NamedTuple):
    """All that can be seen of a file or folder, but when it was last read."""

    mode: int
    inode: int
    links: int
    owner: tuple[int, int]
    mtime: int
    ctime: int
    """The system sets it at any change, also of a mode that was set back afterwards."""
    attributes: tuple[tuple[str, bytes], ...]
    content: bytes | tuple[str, ...]


def look_at(path: Path) -> Look:
    found = path.lstat()
    attributes = tuple((name, os.getxattr(path, name)) for name in sorted(os.listxattr(path)))
    is_folder = stat.S_ISDIR(found.st_mode)
    content = tuple(sorted(below.name for below in path.iterdir())) if is_folder else path.read_bytes()
    owner = (found.st_uid, found.st_gid)
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return Look(found.st_mode, found.st_ino, found.st_nlink, owner, *times, attributes, content)


def manifest(folder: Path) -> dict[str, Look]:
    return {str(path.relative_to(folder)): look_at(path) for path in [folder, *sorted(folder.rglob("*"))]}


def is_left_alone(folder: Path, work: Callable[[], None]) -> bool:
    """Whether all below a folder of the user's looks after the work as it did before."""
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(MODE)
    before = manifest(folder)
    assert len(before) > 1
    work()
    assert manifest(folder) == before
    return True


def read_all(spec: str, data: Path) -> None:
    """Several passes, with workers, a state on the way and a resume from it."""
    state: Any = None
    for workers in (0, 2):
        with headrace.load(spec, batch_size=5, epochs=2, num_workers=workers, cache_dir=data) as loader:
            if state is not None:
                loader.load_state_dict(state)
            list(islice(loader, 4))
            state = loader.state_dict()
            list(loader)
    with rows(spec, shuffle=True, cache_dir=data) as stage:
        assert len(list(stage)) == 60


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "jsonl.gz", "txt", "txt.gz"])
def test_files_of_rows_are_left_as_they_were(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "in"
    if kind == "parquet":
        paths = write_parquet(folder, [[25, 5], [30]])
    else:
        paths = (write_txt if kind.startswith("txt") else write_jsonl)(folder, [30, 30])
    for path in paths if kind.endswith(".gz") else ():
        path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    spec = f"{kind.partition('.')[0]}:{folder}/*.{kind}"
    assert is_left_alone(folder, lambda: read_all(spec, tmp_path / "data"))


def test_files_that_a_prefetcher_is_given_are_left_as_they_were(tmp_path: Path) -> None:
    """Under `auto` cleanup and a limit that they exceed: what was passed is removed, but not what is the user's."""
    paths = write_parquet(tmp_path / "in", [[40], [40], [40]])

    def work() -> None:
        with ShardPrefetcher(paths, tmp_path / "data", cleanup="auto", limit=1) as prefetch:
            for path in paths:
                assert prefetch.wait_for(path) == path
                prefetch.release(path)
        ShardCache(tmp_path / "data", cleanup="auto", limit=1).sweep()

    assert is_left_alone(tmp_path / "in", work)


@pytest.mark.parametrize("workers", [0, 2])
def test_a_robot_s_files_are_left_as_they_were(tmp_path: Path, workers: int) -> None:
    folder = small_set(tmp_path / "set", cameras=CAMERAS)

    def work() -> None:
        with headrace.load(f"lerobot:{folder}", batch_size=7, num_workers=workers, cache_dir=tmp_path / "data") as one:
            assert sum(len(batch["index"]) for batch in one) == NUM_FRAMES
        dataset = StreamingLeRobotDataset("me/set", root=folder, delta_timestamps={"action": [0.0, 0.1]})
        assert sum(1 for _ in dataset) == NUM_FRAMES

    assert is_left_alone(folder, work)


def test_media_that_rows_name_their_rows_and_the_tokenizer_are_left_as_they_were(tmp_path: Path) -> None:
    world = World(tmp_path / "user")
    world.folder.mkdir()
    media = world.folder / "media"
    media.mkdir()
    (media / "a.png").write_bytes(encoded(photo(), "PNG"))
    (media / "a.wav").write_bytes(sound(tone(RATE), RATE))
    (media / "a.mp4").write_bytes(clip([1, 2, 3], size=(16, 16)))
    named = {
        "vision": [{"image": {"bytes": None, "path": "a.png"}, "question": "what?", "answer": "it"}] * 4,
        "voice_asr": [{"audio": {"bytes": None, "path": "a.wav"}, "text": "said"}] * 4,
        "video": [{"video": {"bytes": None, "path": "a.mp4"}, "question": "what?", "answer": "it"}] * 4,
    }
    configs = {}
    for category, found in named.items():
        path = write_table(world.folder / f"{category}-named.parquet", found)
        configs[category] = [{"name": category, "path": str(path), "split": "train"}]
    world.entry("conversation")
    assert world.opened

    def work() -> None:
        dataset = world.make(
            {**configs, **world.configs("conversation")},
            media=MediaPolicy(root=media),
            cache_dir=tmp_path / "data",
            max_per_epoch=20,
        )
        kinds = [sample["dtype"] for sample in dataset]
        assert {"images", "videos", "audio"} <= {name for sample in dataset for name in sample}
        assert len(set(kinds)) == 4

    assert is_left_alone(world.folder, work)


def test_a_tokenizer_s_folder_is_left_as_it_was(tmp_path: Path) -> None:
    write_txt(tmp_path / "in", [40])
    tokenizer = write_tokenizer(tmp_path / "tokenizer")

    def work() -> None:
        options: dict[str, Any] = {"batch_size": 2, "seq_len": 32, "epochs": 1, "cache_dir": tmp_path / "data"}
        with headrace.load(f"txt:{tmp_path}/in/*.txt", tokenizer=str(tokenizer), **options) as loader:
            assert list(loader)

    assert is_left_alone(tokenizer, work)


@pytest.mark.usefixtures("quick")
def test_a_file_that_lay_in_the_cache_before_us_is_left_as_it_was(hub: LocalHub, tmp_path: Path) -> None:
    body = noise(20_000)
    shard = shard_on(hub, body)
    cache = ShardCache(tmp_path / "data", cleanup="auto", limit=30_000)
    place = cache.path_of(shard)
    place.parent.mkdir(parents=True, mode=0o700)
    for folder in (place.parent, *place.parent.parents):
        if folder == tmp_path:
            break
        folder.chmod(0o700)
    place.write_bytes(body)
    place.chmod(MODE)
    before = look_at(place)
    for _ in range(2):
        with cache.acquire(shard) as lease:
            assert lease.path == place
        assert look_at(place) == before
        os.utime(place, ns=(before.mtime, before.mtime + 1))  # it looks different now, and is read again
        before = look_at(place)
    cache.sweep()
    assert look_at(place) == before

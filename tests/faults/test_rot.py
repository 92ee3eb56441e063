"""T9: cached shards that are cut, changed, replaced or taken away while a run reads, and between runs."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fetching import wait_until

import headrace
from headrace import rows
from headrace.testing import LocalHub, is_whole, write_parquet
from headrace.testing.hub import Exchange, Flip

SHARDS = 4
ROWS = 90


def cut(path: Path) -> None:
    path.chmod(0o644)
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flipped(path: Path) -> None:
    """Each byte of what holds rows; the footer stays."""
    path.chmod(0o644)
    with path.open("r+b") as file:
        data = file.read(path.stat().st_size * 3 // 4)
        file.seek(4)
        file.write(bytes(byte ^ 255 for byte in data[4:]))


def gone(path: Path) -> None:
    path.unlink()


def a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def another(path: Path) -> None:
    """Of the same size, at the same place."""
    data = path.read_bytes()
    path.unlink()
    path.write_bytes(data[::-1])


HARMS = [cut, flipped, gone, a_folder, another]


@pytest.fixture
def cache(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> Path:
    write_parquet(tmp_path / "repo", [[ROWS // 3] * 3] * SHARDS, write_page_checksum=True)
    hub.push("me/rows", tmp_path / "repo")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HF_SHARD_CACHE_CLEANUP", "keep")
    return tmp_path / "data"


def shard(cache: Path, number: int) -> Path:
    return next(iter(cache.rglob(f"train-{number:05d}-of-{SHARDS:05d}.parquet")))


def is_known(cache: Path, number: int) -> bool:
    """Whether it was fetched, and what it looks like was written down."""
    sidecars = list(cache.rglob(f".train-{number:05d}-*.meta.json"))
    return any(json.loads(path.read_bytes())["look"] is not None for path in sidecars)


def all_right(uids: list[str]) -> bool:
    return sorted(uids) == sorted(
        f"train-{i:05d}-of-{SHARDS:05d}.parquet:{r}" for i in range(SHARDS) for r in range(ROWS)
    )


@pytest.mark.parametrize("harm", HARMS)
def test_shards_that_are_harmed_between_two_runs_come_again_once(
    hub: LocalHub, cache: Path, harm: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        with rows("hf:me/rows", cache_dir=cache) as stage:
            list(stage)
    wait_until(lambda: len(list(cache.rglob("train-*.parquet"))) == SHARDS)
    harm(shard(cache, 1))
    hub.clear_log()
    caplog.set_level(logging.INFO)
    with rows("hf:me/rows", cache_dir=cache) as stage:
        found = [row.data for row in stage]
    assert all_right([row["uid"] for row in found])
    assert all(map(is_whole, found))
    whole = [request.path for request in hub.requests if request.range is None and request.method == "GET"]
    assert [path.rpartition("/")[2] for path in whole if "resolve" in path] == ["train-00001-of-00004.parquet"]
    assert harm is a_folder or "train-00001-of-00004.parquet" in caplog.text


@pytest.mark.parametrize("harm", HARMS)
@pytest.mark.parametrize("which", [0, 1, 2])
def test_a_shard_that_is_harmed_during_a_run_is_noticed_and_comes_again(
    hub: LocalHub, cache: Path, harm: Callable[[Path], None], which: int
) -> None:
    """The one that was read, the one that is being read, or the one that was fetched ahead."""
    found: list[dict[str, Any]] = []
    with rows("hf:me/rows", cache_dir=cache) as stage:
        while len(found) < ROWS + 10:
            found.append(next(stage).data)
        wait_until(lambda: is_known(cache, 2))
        harm(shard(cache, which))
        found += [row.data for row in stage]
    assert all(map(is_whole, found))
    assert all_right([row["uid"] for row in found])
    whole = Counter(r.path for r in hub.requests if r.range is None and "/train-" in r.path)
    assert sorted(whole.values()) in ([1] * SHARDS, [1] * (SHARDS - 1) + [2])


@pytest.mark.parametrize("which", [1, 2])
def test_bytes_that_change_in_a_file_without_checksums_are_noticed_too(
    hub: LocalHub, tmp_path: Path, cache: Path, which: int
) -> None:
    write_parquet(tmp_path / "plain", [[ROWS // 3] * 3] * SHARDS, compression="none", use_dictionary=False)
    hub.push("me/rows", tmp_path / "plain")
    with rows("hf:me/rows", cache_dir=cache) as stage:
        found = [next(stage).data for _ in range(ROWS + 10)]
        wait_until(lambda: is_known(cache, 2))
        path = shard(cache, which)
        path.chmod(0o644)
        data = path.read_bytes()
        with path.open("r+b") as file:  # texts remain texts
            file.write(re.sub(rb"w\d\d", lambda match: b"x" + match[0][1:], data))
        found += [row.data for row in stage]
    assert all(map(is_whole, found))
    assert all_right([row["uid"] for row in found])


@dataclass(frozen=True)
class FlipRange:
    """Flips a byte of answers to those who ask for some rows: not for the whole file, nor for its footer."""

    index: int

    def acts_on(self, exchange: Exchange) -> bool:
        asked = exchange.headers.get("range", "")
        return re.fullmatch(r"bytes=[1-9]\d*-\d+", asked) is not None and Flip(self.index).acts_on(exchange)

    def act(self, exchange: Exchange) -> None:
        Flip(self.index).act(exchange)


@pytest.mark.parametrize("room", [True, False], ids=["room for shards", "by range only"])
def test_bytes_that_change_on_the_way_of_a_range_are_asked_for_again(
    hub: LocalHub, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, room: bool
) -> None:
    """Where the file has checksums; there is no hash for a part of a file."""
    write_parquet(tmp_path / "small groups", [[ROWS // 9] * 9] * SHARDS, write_page_checksum=True)
    hub.push("me/rows", tmp_path / "small groups")
    if not room:
        monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(10_000))
    with headrace.load("hf:me/rows", cache_dir=cache, batch_size=10, shuffle=False, lanes=2) as loader:
        fault = hub.fault("*train-00000*", FlipRange(300), times=3)
        found = [row for batch in loader for row in zip(batch["uid"], batch["text"], batch["crc"], strict=True)]
    assert all_right([uid for uid, *_ in found])
    assert all(is_whole({"text": text, "crc": crc}) for _, text, crc in found)
    assert fault.hits >= 1

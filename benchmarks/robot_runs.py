"""Who reads a robot data set: a plain loop over its files, and our stream, with workers and from afar."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from memory import resident_megabytes
from robot_hub import REPO, Far
from torch.utils.data import DataLoader

from headrace import StreamingLeRobotDataset

SKIPPED = 2
"""Batches of each worker before the clock starts."""


class PlainLoop:
    """What one writes by hand: tables in memory, videos kept open, each frame sought for, decoded and made a tensor."""

    def __init__(self, root: Path, fps: int) -> None:
        self._root, self._fps = root, fps
        rows = pq.read_table(sorted(root.glob("data/*/*.parquet"))).combine_chunks()
        self._columns = {name: _tensor(rows[name]) for name in rows.column_names}
        episodes = pq.read_table(sorted(root.glob("meta/episodes/*/*.parquet")))
        self._episodes = episodes.to_pylist()
        self._keys = sorted({name.split("/")[1] for name in episodes.column_names if name.startswith("videos/")})
        self._tasks = pq.read_table(root / "meta/tasks.parquet")["task"].to_pylist()
        self._open: dict[str, Any] = {}

    def item(self, index: int) -> dict[str, Any]:
        item: dict[str, Any] = {name: column[index].clone() for name, column in self._columns.items()}
        episode = self._episodes[int(item["episode_index"])]
        for key in self._keys:
            chunk, file = episode[f"videos/{key}/chunk_index"], episode[f"videos/{key}/file_index"]
            path = f"videos/{key}/chunk-{chunk:03d}/file-{file:03d}.mp4"
            first = round(episode[f"videos/{key}/from_timestamp"] * self._fps)
            pixels = torch.from_numpy(self._frame(path, first + int(item["frame_index"])))
            item[key] = pixels.permute(2, 0, 1).contiguous().float().div_(255)
        item["task"] = self._tasks[int(item["task_index"])]
        return item

    def close(self) -> None:
        for container in self._open.values():
            container.close()

    def _frame(self, path: str, number: int) -> Any:
        import av

        container = self._open.get(path)
        if container is None:
            container = self._open[path] = av.open(str(self._root / path))
            container.streams.video[0].thread_count = 1
        stream: Any = container.streams.video[0]
        time_of_frame = round(number / self._fps / stream.time_base)
        container.seek(time_of_frame, stream=stream)
        frame = next(frame for frame in container.decode(stream) if frame.pts >= time_of_frame)
        return frame.to_ndarray(format="rgb24")


def _tensor(column: Any) -> torch.Tensor:
    array = column.combine_chunks()
    if hasattr(array, "flatten") and array.type.num_fields:
        return torch.from_numpy(array.flatten().to_numpy().reshape(len(array), -1).copy())
    return torch.from_numpy(array.to_numpy(zero_copy_only=False).copy())


def stream(where: str | Path, cache: Path, pool: int, **more: Any) -> StreamingLeRobotDataset:
    """`where`: a folder, or a repo."""
    root = where if isinstance(where, Path) else None
    return StreamingLeRobotDataset(REPO, root=root, cache_dir=cache, episode_pool_size=pool, **more)


def order_of(data: StreamingLeRobotDataset, count: int) -> list[int]:
    """The numbers of the first frames that it gives."""
    return [int(item["index"]) for item in itertools.islice(data, count)]


def assert_the_same(loop: PlainLoop, data: StreamingLeRobotDataset, count: int) -> None:
    """Or the comparison would be of two different things."""
    for item in itertools.islice(data, count):
        other = loop.item(int(item["index"]))
        assert set(other) == set(item)
        for name, value in item.items():
            same = torch.equal(value, other[name]) if isinstance(value, torch.Tensor) else value == other[name]
            assert same, name


# --- workers


def per_second_with_workers(folder: Path, cache: Path, workers: int, items: int, pool: int) -> float:
    """Items a second on the wall through a DataLoader, once every worker has begun."""
    loader: Any = DataLoader(stream(folder, cache, pool), batch_size=8, num_workers=workers)
    batches = iter(loader)
    for _ in range(SKIPPED * workers):
        next(batches)
    count, began = 0, time.perf_counter()
    while count < items:
        count += len(next(batches)["index"])
    return count / (time.perf_counter() - began)


# --- in a process of its own


def in_fresh_process(function: Callable[..., dict[str, Any]], *given: Any) -> dict[str, Any]:
    """In one that has imported what is needed, and has done nothing yet."""
    context = get_context("forkserver")
    context.set_forkserver_preload(["robot_runs"])
    with ProcessPoolExecutor(1, mp_context=context) as process:
        return process.submit(function, *given).result()


# --- from afar


def local_and_remote(folder: Path, cache: Path, hub: Far, items: int, pool: int) -> dict[str, Any]:
    """Items a second on the wall of both, in turns, after the remote one has its pool here.

    From the middle of an epoch, where episodes come and go.
    """
    os.environ.update(hub.env)
    shutil.rmtree(cache, ignore_errors=True)
    near, far = stream(folder, cache / "near", pool), stream(REPO, cache / "far", pool)
    for data in (near, far):
        data.load_state_dict({"batches_consumed": data.num_frames // 3, "batch_size": 1})
    streams = {"local": iter(near), "remote": iter(far)}
    for items_of in streams.values():
        next(items_of)
    until = time.monotonic() + 60
    while far.counters()["video_files"]["waiting"] and time.monotonic() < until:
        time.sleep(0.02)
    hub.sent()
    before, seconds = far.counters()["video_files"], dict.fromkeys(streams, 0.0)
    turn = 25
    for _ in range(items // turn):
        for name, items_of in streams.items():
            began = time.perf_counter()
            for _ in range(turn):
                next(items_of)
            seconds[name] += time.perf_counter() - began
    files, sent = far.counters()["video_files"], hub.sent()
    for items_of in streams.values():
        items_of.close()  # type: ignore[attr-defined]
    done = items // turn * turn
    found: dict[str, Any] = {f"{name}_per_second": done / one for name, one in seconds.items()}
    waited = {name: files[name] - before[name] for name in ("seconds_waited", "direct_reads", "direct_bytes")}
    return {**found, "items": done, **waited, "fetched": sent}


def first_batch(cache: Path, hub: Far, batch: int, **more: Any) -> dict[str, Any]:
    """From an empty cache and no connection, in a fresh process: what the first batch takes and fetches."""
    shutil.rmtree(cache, ignore_errors=True)
    hub.sent()
    found = in_fresh_process(_first_batch, hub.env, cache, batch, more)
    return {**found, **hub.sent()}


def _first_batch(env: dict[str, str], cache: Path, batch: int, more: dict[str, Any]) -> dict[str, Any]:
    os.environ.update(env)
    torch.set_num_threads(1)
    began = time.perf_counter()
    data = stream(REPO, cache, 64, **more)
    opened = time.perf_counter()
    items = iter(data)
    for _ in range(batch):
        next(items)
    done, files = time.perf_counter(), data.counters()["video_files"]
    facts = {"direct_bytes": files["direct_bytes"], "direct_reads": files["direct_reads"]}
    return {"seconds": done - began, "seconds_to_open": opened - began, **facts}


# --- memory


def memory(folder: Path, cache: Path, pool: int, items: int) -> dict[str, float]:
    """In a fresh process: MB once a pool is open, and after so many items; and what its frames would take decoded."""
    return in_fresh_process(_memory, folder, cache, pool, items)


def _memory(folder: Path, cache: Path, pool: int, items: int) -> dict[str, float]:
    torch.set_num_threads(1)
    data = stream(folder, cache, pool)
    before = resident_megabytes()
    given = iter(data)
    item = next(given)
    opened = resident_megabytes()
    for _ in range(items):
        next(given)
    lengths = np.sort(data.meta.episodes.length)[::-1][:pool]
    pixels = sum(value.nbytes for value in item.values() if isinstance(value, torch.Tensor) and value.ndim == 3)
    decoded = int(lengths.sum()) * pixels / 1e6
    found = {"mb_before": before, "mb_pool_open": opened, "mb_after_items": resident_megabytes()}
    return {**found, "items": items, "pool_frames": int(lengths.sum()), "mb_if_decoded": decoded}

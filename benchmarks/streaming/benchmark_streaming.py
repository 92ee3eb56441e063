"""How fast robot episodes come to a consumer that does nothing with them: on any source, any number of nodes.

    python benchmarks/streaming/benchmark_streaming.py --root /data/robocasa --num-workers 8
    torchrun --nnodes=2 --nproc-per-node=8 ... benchmarks/streaming/benchmark_streaming.py org/name --mode sarm

Speed is counted on the wall, after warm-up, in samples and in decoded camera frames; of a node it is the sum of its
ranks. The latency of a sample is measured where it is made, in the worker, so that reading ahead hides nothing of it.
Results go to <out>/<name>.json, and as one line to <out>/benchmark_streaming.csv. Exits 1 when not one frame came.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import platform
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from headrace import StreamingLeRobotDataset

STEPS, APART_S = 8, 1.0
"""Of the mode `sarm`: so many steps, so many seconds apart, the last one now."""
COLUMNS = ("worker", "took", "video", "waited", "hits", "misses", "evictions", "direct", "fetched", "rss")
"""What is noted with each sample; from `video` to `fetched` they are counted from the start of its process."""
COUNTED = slice(COLUMNS.index("video"), COLUMNS.index("fetched") + 1)
RSS_EVERY = 16


# --- where samples are made


class Noted(IterableDataset[dict[str, Any]]):
    """The samples of a data set, each with what it took where it was made."""

    def __init__(self, data: StreamingLeRobotDataset) -> None:
        self._data = data

    def __iter__(self) -> Iterator[dict[str, Any]]:
        worker, items = get_worker_info(), iter(self._data)
        number, count, rss = 0 if worker is None else worker.id, 0, 0.0
        while True:
            began = time.perf_counter()
            item = next(items, None)
            took = time.perf_counter() - began
            if item is None:
                return
            if count % RSS_EVERY == 0:
                rss = peak_rss_gb()
            count += 1
            yield {**item, "noted": torch.tensor([number, took, *counted(self._data), rss], dtype=torch.float64)}


def counted(data: StreamingLeRobotDataset) -> list[float]:
    now = data.counters()
    decoders, files = now["video_decoder_cache"], now["video_files"]
    return [
        now["video_seconds"],
        files.get("seconds_waited", 0.0),
        *(decoders[name] for name in ("hits", "misses", "evictions")),
        files.get("direct_bytes", 0),
        files.get("bytes", 0),
    ]


def peak_rss_gb() -> float:
    # Not getrusage: a child's maximum there begins with what its parent had.
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e9 for line in lines if line.startswith("VmHWM:"))


# --- one rank


def open_data(args: argparse.Namespace) -> StreamingLeRobotDataset:
    how: dict[str, Any] = {
        "root": args.root,
        "revision": args.revision,
        "episode_pool_size": args.episode_pool_size,
        "video_decoder_cache_size": args.video_decoder_cache_size,
        "prefetch_videos": args.prefetch_videos,
        "video_prefetch_workers": args.video_prefetch_workers,
        "return_uint8": args.dtype == "uint8",
        "seed": args.seed,
        "cache_dir": args.cache_dir,
    }
    name = args.repo_id or str(args.root)
    data = StreamingLeRobotDataset(name, **how)
    if args.mode == "single":
        return data
    vectors = [key for key in ("observation.state", "action") if key in data.features]
    keys = ["action"] if args.window_on == "action" else [*data.meta.camera_keys, *vectors]
    times = [APART_S * (step + 1 - STEPS) for step in range(STEPS)]
    return StreamingLeRobotDataset(name, delta_timestamps=dict.fromkeys(keys, times), **how)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """What this rank found."""
    began = time.perf_counter()
    data = open_data(args)
    opened = time.perf_counter()
    more: dict[str, Any] = {"persistent_workers": True, "prefetch_factor": args.prefetch_factor}
    loader: Any = DataLoader(
        Noted(data), batch_size=args.batch_size, num_workers=args.num_workers, **(more if args.num_workers else {})
    )
    batches, log = endless(loader), Log()
    for batch in itertools.islice(batches, 1):
        log.base(batch)
    first = time.perf_counter()
    for batch in itertools.islice(batches, args.warmup_batches - 1):
        log.base(batch)
    if dist.is_initialized():
        dist.barrier()
    start, waited = time.perf_counter(), 0.0
    for _ in range(args.num_batches):
        asked = time.perf_counter()
        if (found := next(batches, None)) is None:
            break
        waited += time.perf_counter() - asked
        log.add(found, data.meta.camera_keys)
        time.sleep(args.step_ms / 1000)
    steady = time.perf_counter() - start
    times = {"open_s": opened - began, "first_batch_latency_s": first - began, "steady_time_s": steady}
    times |= {"total_time_s": time.perf_counter() - began, "data_wait_share": waited / steady}
    return {**times, **facts(data), **log.found(steady, args.num_workers)}


def endless(loader: Any) -> Iterator[dict[str, Any]]:
    """Epoch after epoch, unless one has nothing."""
    while True:
        given = 0
        for batch in loader:
            given += 1
            yield batch
        if not given:
            return


def facts(data: StreamingLeRobotDataset) -> dict[str, Any]:
    features = data.meta.info.features
    shapes = {key: list(features[key].shape) for key in data.meta.camera_keys}
    return {"fps": data.fps, "num_cameras": len(shapes), "image_shapes": shapes, "node": socket.gethostname()}


class Log:
    """What the batches of a rank say about themselves."""

    def __init__(self) -> None:
        self._before: dict[int, Any] = {}
        """The last row of each worker."""
        self._sums = np.zeros(len(COLUMNS))
        self._peaks: dict[int, float] = {}
        self._took: list[float] = []
        self._indices: list[int] = []
        self._episodes: list[int] = []
        self._frames = 0

    def base(self, batch: dict[str, Any]) -> None:
        """A batch of the warm-up."""
        for row in batch["noted"].numpy():
            self._before[int(row[0])] = row
            self._peaks[int(row[0])] = row[-1]

    def add(self, batch: dict[str, Any], cameras: list[str]) -> None:
        for row in batch["noted"].numpy():
            last = self._before.get(int(row[0]), np.zeros_like(row))
            self._sums += np.where(row < last, row, row - last)  # a new epoch counts anew
            self._before[int(row[0])] = row
        self.base(batch)
        self._took += batch["noted"][:, 1].tolist()
        self._indices += batch["index"].tolist()
        self._episodes.append(len(batch["episode_index"].unique()))
        shapes = [batch[key].shape for key in cameras]
        self._frames += sum(shape[0] * (shape[1] if len(shape) == 5 else 1) for shape in shapes)

    def found(self, steady_s: float, num_workers: int) -> dict[str, Any]:
        video, waited, hits, misses, evictions, direct, fetched = self._sums[COUNTED].tolist()
        making = sum(self._took) or 1.0
        p50, p95, p99 = (1000 * np.percentile(self._took or [0.0], [50, 95, 99])).tolist()
        workers = sum(self._peaks.values()) if num_workers else 0.0  # without workers it is this process
        return {
            "samples_measured": len(self._took),
            "frames_measured": self._frames,
            "samples_per_s": len(self._took) / steady_s,
            "frames_per_s": self._frames / steady_s,
            "p50_sample_latency_ms": p50,
            "p95_sample_latency_ms": p95,
            "p99_sample_latency_ms": p99,
            "decode_s_total": video - waited,
            "fetch_s_total": waited,
            "decode_pct_worker_time": 100 * (video - waited) / making,
            "fetch_pct_worker_time": 100 * waited / making,
            "fetched_mb": (direct + fetched) / 1e6,
            "video_decoder_cache": {
                "hits": int(hits),
                "misses": int(misses),
                "evictions": int(evictions),
                "hit_rate": hits / (hits + misses) if hits + misses else 0.0,
            },
            "episodes_per_batch_mean": float(np.mean(self._episodes or [0])),
            "index_position_corr": abs_corr(self._indices),
            "peak_rss_gb": peak_rss_gb() + workers,
        }


def abs_corr(indices: list[int]) -> float:
    """|correlation| of a frame's number and its place in the stream: 1 in file order, near 0 when well mixed."""
    if len(set(indices)) < 2:
        return 1.0
    return float(abs(np.corrcoef(indices, range(len(indices)))[0, 1]))


# --- all ranks


def gathered(mine: dict[str, Any]) -> list[dict[str, Any]]:
    if not dist.is_initialized():
        return [mine]
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def summed(ranks: list[dict[str, Any]], args: argparse.Namespace) -> dict[str, Any]:
    """One report of all ranks: sums where they add up, else means; the worst of latencies."""
    nodes = len({rank["node"] for rank in ranks})

    def total(name: str) -> float:
        return float(sum(rank[name] for rank in ranks))

    found: dict[str, Any] = {f"{name}_s_total": total(f"{name}_s_total") for name in ("decode", "fetch")}
    for name in ("samples_per_s", "frames_per_s"):
        found |= {f"{name}_node": total(name) / nodes, f"{name}_total": total(name)}
    means = ("decode_pct_worker_time", "fetch_pct_worker_time", "data_wait_share", "episodes_per_batch_mean")
    for name in (*means, "index_position_corr"):
        found[name] = total(name) / len(ranks)
    for name in ("p50", "p95", "p99"):
        found[f"{name}_sample_latency_ms"] = max(rank[f"{name}_sample_latency_ms"] for rank in ranks)
    for name in ("open_s", "first_batch_latency_s", "steady_time_s", "total_time_s"):
        found[name] = max(rank[name] for rank in ranks)
    found |= {name: int(total(name)) for name in ("samples_measured", "frames_measured")}
    found |= {"fetched_mb": total("fetched_mb"), "peak_rss_gb_node": total("peak_rss_gb") / nodes}
    caches = [rank["video_decoder_cache"] for rank in ranks]
    cache: dict[str, Any] = {name: sum(one[name] for one in caches) for name in ("hits", "misses", "evictions")}
    cache["hit_rate"] = cache["hits"] / max(1, cache["hits"] + cache["misses"])
    asked = {name: value for name, value in vars(args).items() if name not in ("out", "name", "cache_dir", "serve")}
    asked |= {} if args.serve else {"latency_ms": None, "mb_per_second": None}
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "source": source_of(args),
        **asked,
        "nodes": nodes,
        "world_size": len(ranks),
        **{name: ranks[0][name] for name in ("fps", "num_cameras", "image_shapes")},
        **found,
        "video_decoder_cache": cache,
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def source_of(args: argparse.Namespace) -> str:
    if args.serve:
        return "served"
    if args.root is not None:
        return str(args.root).partition("://")[0] if "://" in str(args.root) else "local"
    return "hub"


def write(found: dict[str, Any], args: argparse.Namespace) -> Path:
    args.out.mkdir(parents=True, exist_ok=True)
    shape = f"{found['nodes']}x{found['world_size'] // found['nodes']}"
    name = args.name or f"{found['source']}-{args.mode}-{shape}-workers{args.num_workers}-batch{args.batch_size}"
    path = Path(args.out, f"{name}.json")
    path.write_text(json.dumps(found, indent=1) + "\n")
    flat = {key: value for key, value in found.items() if not isinstance(value, dict)}
    flat |= {f"video_decoder_cache.{key}": value for key, value in found["video_decoder_cache"].items()}
    table = args.out / "benchmark_streaming.csv"
    heads = table.read_text().partition("\n")[0].strip().split(",") if table.exists() else None
    if heads not in (None, list(flat)):
        sys.exit(f"{path} is written, but {table} has other columns: move it away")
    with table.open("a", newline="") as file:
        lines = csv.DictWriter(file, list(flat))
        if heads is None:
            lines.writeheader()
        lines.writerow(flat)
    return path


def say(found: dict[str, Any], path: Path) -> None:
    cache = found["video_decoder_cache"]
    print(
        f"{found['source']}, {found['mode']}: {found['samples_per_s_node']:,.1f} samples/s and "
        f"{found['frames_per_s_node']:,.1f} camera frames/s per node ({found['nodes']} nodes, {found['world_size']} "
        f"ranks); a sample takes {found['p50_sample_latency_ms']:.1f} / {found['p95_sample_latency_ms']:.1f} / "
        f"{found['p99_sample_latency_ms']:.1f} ms (p50/p95/p99), {found['decode_pct_worker_time']:.0f}% decoding, "
        f"{found['fetch_pct_worker_time']:.0f}% fetching; first batch after {found['first_batch_latency_s']:.2f} s; "
        f"decoders open already {cache['hit_rate']:.1%}; {found['episodes_per_batch_mean']:.1f} episodes a batch, "
        f"|corr| {found['index_position_corr']:.3f}; {found['peak_rss_gb_node']:.2f} GB per node\n{path}"
    )


# --- the start


def main(words: list[str] | None = None) -> int:
    args = parse(words)
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    try:
        with served(args):
            ranks = gathered(measure(args))
        if not sum(rank["frames_measured"] for rank in ranks):
            print("not one camera frame came: there is nothing to report", file=sys.stderr)
            return 1
        if not dist.is_initialized() or dist.get_rank() == 0:
            found = summed(ranks, args)
            say(found, write(found, args))
        return 0
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def served(args: argparse.Namespace) -> Iterator[None]:
    """With --serve, the folder comes from a Hub of this machine, which is as far away as is asked for."""
    if not args.serve:
        yield
        return
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from robot_hub import REPO, far_hub

    before = dict(os.environ)
    with far_hub(Path(args.root), args.latency_ms / 1000, args.mb_per_second * 1e6) as hub:
        os.environ.update(hub.env)
        args.repo_id, args.root = REPO, None
        try:
            yield
        finally:
            os.environ.clear()
            os.environ.update(before)


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Measure how fast robot episodes are streamed.")
    parser.add_argument("repo_id", nargs="?", help="a LeRobot v3 data set on the Hub")
    parser.add_argument("--root", help="the folder or URL (hf://buckets/owner/name, s3://...) that it lies in")
    parser.add_argument("--revision", help="a branch, tag or commit of the repo")
    parser.add_argument("--mode", choices=["single", "sarm"], default="single", help="one frame, or 8 steps 1 s apart")
    parser.add_argument("--window-on", choices=["all", "action"], default="all", help="what has the steps of sarm")
    parser.add_argument("--dtype", choices=["uint8", "float32"], default="uint8", help="of pixels")
    numbers = {"batch-size": 64, "num-batches": 200, "warmup-batches": 5, "num-workers": 4, "prefetch-factor": 2}
    for name, value in (numbers | {"episode-pool-size": 64, "video-prefetch-workers": 4, "seed": 42}).items():
        parser.add_argument(f"--{name}", type=int, default=value, help="default: %(default)s")
    parser.add_argument("--video-decoder-cache-size", type=int, help="default: what the pool needs")
    parser.add_argument("--no-prefetch-videos", dest="prefetch_videos", action="store_false")
    parser.add_argument("--step-ms", type=float, default=0.0, help="a training step to wait for after each batch")
    parser.add_argument("--cache-dir", type=Path, help="what is fetched lies here; best on a disk of the node")
    parser.add_argument("--serve", action="store_true", help="serve the folder --root from a Hub on this machine...")
    parser.add_argument("--latency-ms", type=float, default=20.0, help="...each of whose answers comes so late...")
    parser.add_argument("--mb-per-second", type=float, default=50.0, help="...and which sends so much in all")
    parser.add_argument("--out", type=Path, default=Path("outputs/benchmark_streaming"), help="default: %(default)s")
    parser.add_argument("--name", help="of the JSON file; default: what was measured")
    args = parser.parse_args(words)
    if args.repo_id is None and args.root is None:
        parser.error("name a repo on the Hub, or give --root")
    if args.serve and (args.root is None or "://" in args.root):
        parser.error("--serve needs --root with a folder")
    if args.warmup_batches < 1:
        parser.error("--warmup-batches: the first batch is always one")
    return args


if __name__ == "__main__":
    sys.exit(main())

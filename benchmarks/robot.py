"""How fast robot episodes become tensors: against a plain loop over the same files, with workers, and from afar.

Two cameras, 240 x 320 and 480 x 640, AV1 with a key frame every other frame, frames in random order. The plain loop
keeps tables in memory and videos open, seeks, decodes and makes the same tensors with the same decoder; both run on one
core, in turns, and what is judged is the time of a core. The Hub is a process of its own: each answer comes 20 ms late,
and all of them share 50 MB/s.

    python benchmarks/robot.py [--quick] [--check] [--data DIR] [--out DIR] [--repeats N]
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import robot_runs
import torch
from common import (
    Target,
    at_least,
    at_most,
    best_seconds_of_both,
    console,
    data_folder,
    options,
    print_table,
    print_targets,
    save,
)
from robot_corpus import FPS, robots
from robot_hub import Far, far_hub

PLAIN = "PyAV: seek, decode, to_ndarray, tensor"
OURS = "headrace: StreamingLeRobotDataset"
CAMERAS = 2
LATENCY_S, BYTES_PER_SECOND = 0.02, 50e6
BATCH = 8
POOL = 8
"""From afar, so that episodes come and go while it is measured."""


def main() -> int:
    parser = options("Camera frames per second against a plain loop, with workers and from a far Hub.")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each contender; the best counts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with data_folder(args.data) as folder:
        episodes, clip = (4, 24) if args.quick else (24, 300)
        data = robots(folder / f"robots-{episodes}", episodes, clip=clip)
        cache = folder / "cache"
        speed = on_one_core(lambda: one_core(data, cache, args))
        workers = with_workers(data, cache, args)
        with far_hub(data, LATENCY_S, BYTES_PER_SECOND) as hub:
            remote = from_afar(data, cache, hub, args)
        memory = robot_runs.memory(data, cache, 64, 5 if args.quick else 100)
    show(workers, remote, memory)
    targets = judge(speed, workers, remote, memory)
    print_targets(targets)
    found = {"speed": speed, "workers": workers, "remote": remote, "memory": memory}
    return save("robot", args, found, targets, _headline(speed, workers, remote))


# --- one core


def on_one_core(run: Callable[[], Any]) -> Any:
    """With this process, and the threads that it starts, kept to one of its cores."""
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        return run()
    finally:
        os.sched_setaffinity(0, cores)


def one_core(data: Path, cache: Path, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Each from nothing open to its last item."""
    count = 20 if args.quick else 600
    order = robot_runs.order_of(robot_runs.stream(data, cache, 64), count)

    def plainly() -> int:
        loop = robot_runs.PlainLoop(data, FPS)
        found = sum(1 for _ in map(loop.item, order))
        loop.close()
        return found

    def ours() -> int:
        return sum(1 for _ in itertools.islice(robot_runs.stream(data, cache, 64), count))

    robot_runs.assert_the_same(robot_runs.PlainLoop(data, FPS), robot_runs.stream(data, cache, 64), min(count, 40))
    best = best_seconds_of_both({PLAIN: plainly, OURS: ours}, 2 if args.quick else args.repeats, count)
    bare, frames = best[PLAIN], CAMERAS * count
    lines: list[dict[str, Any]] = []
    for name, (core, wall) in best.items():
        line = {"name": name, "frames_per_second": frames / core, "of_plain": bare[0] / core}
        lines.append(line | {"of_plain_wall": bare[1] / wall})
    shown = [
        (one["name"], f"{one['frames_per_second']:,.0f}", f"{one['of_plain']:.2f}", f"{one['of_plain_wall']:.2f}")
        for one in lines
    ]
    heads = ("", "camera frames/s of a core", "of the plain loop", "on the wall")
    print_table(f"{count:,} items of {CAMERAS} cameras, random order, one core", heads, shown)
    return lines


# --- workers


def with_workers(data: Path, cache: Path, args: argparse.Namespace) -> dict[str, Any]:
    items, turns = (16, 1) if args.quick else (400, 3)
    best = {1: 0.0, 2: 0.0}
    for _ in range(turns):
        for workers in best:
            speed = robot_runs.per_second_with_workers(data, cache, workers, items, 64)
            best[workers] = max(best[workers], speed)
    return {
        "items": items,
        "frames_per_second": {str(workers): CAMERAS * speed for workers, speed in best.items()},
        "two_of_one": best[2] / best[1],
        "cores": len(os.sched_getaffinity(0)),
    }


# --- from afar


def from_afar(data: Path, cache: Path, hub: Far, args: argparse.Namespace) -> dict[str, Any]:
    env = dict(os.environ)
    try:
        first = [robot_runs.first_batch(cache / "first", hub, BATCH) for _ in range(1 if args.quick else 3)]
        alone = robot_runs.first_batch(cache / "alone", hub, BATCH, prefetch_videos=False)
        steady = robot_runs.local_and_remote(data, cache / "steady", hub, 25 if args.quick else 800, POOL)
    finally:
        os.environ.clear()
        os.environ.update(env)
    line = {"latency_s": LATENCY_S, "bytes_per_second": BYTES_PER_SECOND}
    return {**line, "first_batches": first, "first_batch_without_prefetch": alone, "steady": steady}


# --- judgement


def judge(
    speed: list[dict[str, Any]], workers: dict[str, Any], remote: dict[str, Any], memory: dict[str, float]
) -> list[Target]:
    ours = next(line for line in speed if line["name"] == OURS)
    steady = remote["steady"]
    grown = memory["mb_after_items"] - memory["mb_before"]
    return [
        at_least("random access on one core: of the plain loop", ours["of_plain"], 0.85),
        at_least("two workers: times one", workers["two_of_one"], 1.5),
        at_least("remote after warm-up: of local", steady["remote_per_second"] / steady["local_per_second"], 0.9),
        at_most(f"first remote batch of {BATCH}", first_seconds(remote), 3, " s"),
        at_most("memory of a pool of 64 episodes: of its frames decoded", grown / memory["mb_if_decoded"], 0.1),
    ]


def first_seconds(remote: dict[str, Any]) -> float:
    return float(statistics.median(one["seconds"] for one in remote["first_batches"]))


def show(workers: dict[str, Any], remote: dict[str, Any], memory: dict[str, float]) -> None:
    speeds = ", ".join(f"{n}: {speed:,.0f} frames/s" for n, speed in workers["frames_per_second"].items())
    console.print(f"workers {speeds} ({workers['two_of_one']:.2f} times, {workers['cores']} cores)")
    steady, alone = remote["steady"], remote["first_batch_without_prefetch"]
    near, far = CAMERAS * steady["local_per_second"], CAMERAS * steady["remote_per_second"]
    came = steady["fetched"]["video_bytes"] / 1e6
    console.print(f"after warm-up: local {near:,.0f} frames/s, remote {far:,.0f}, while {came:.1f} MB of videos came")
    for one in [*remote["first_batches"], alone]:
        console.print(
            f"first batch of {BATCH}: {one['seconds']:.2f} s (opened after {one['seconds_to_open']:.2f} s); "
            f"{one['direct_bytes'] / 1e3:,.0f} kB of videos read for it in {one['direct_reads']:.0f} reads; "
            f"{one['bytes'] / 1e6:.1f} MB came in {one['requests']} requests{'' if one is alone else ', with prefetch'}"
        )
    console.print(
        f"memory: {memory['mb_before']:.0f} MB, {memory['mb_pool_open']:.0f} with the pool, "
        f"{memory['mb_after_items']:.0f} after {memory['items']:.0f} items; decoded its frames were "
        f"{memory['mb_if_decoded']:,.0f}"
    )


def _headline(speed: list[dict[str, Any]], workers: dict[str, Any], remote: dict[str, Any]) -> str:
    ours, steady = next(line for line in speed if line["name"] == OURS), remote["steady"]
    of_local = steady["remote_per_second"] / steady["local_per_second"]
    return (
        f"{ours['frames_per_second']:,.0f} camera frames/s of a core ({ours['of_plain']:.2f} of a plain loop); "
        f"two workers {workers['two_of_one']:.2f} times one; remote {of_local:.2f} of local; first remote batch "
        f"{first_seconds(remote):.2f} s"
    )


if __name__ == "__main__":
    sys.exit(main())

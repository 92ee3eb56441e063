"""Behaviour cloning on streamed robot episodes, on any number of nodes. Kill it at any moment; --resume goes on.

    python examples/scaling/train_streaming_multinode.py --out small                     # data made here, one process
    torchrun --nproc-per-node=2 examples/scaling/train_streaming_multinode.py org/name --out run --workers 4
    torchrun --nproc-per-node=2 examples/scaling/train_streaming_multinode.py org/name --out run --workers 4 --resume
    torchrun --nproc-per-node=2 examples/scaling/train_streaming_multinode.py org/name --workers 4 --dummy

There is no DistributedSampler, and the loader is not prepared by Accelerate: the data set finds its rank by itself and
gives each consumer, which is a worker of a rank, its own episodes. Ranks may have different numbers of frames, so a run
is counted in steps: each rank goes on into its next epoch when it has to, and all take part in every step.

A checkpoint holds the model, the optimizer and what a trainer knows of the stream, {batches_consumed, batch_size}: the
same for all ranks. On one thread the losses after a resume are those of an uninterrupted run, to the last bit.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import shutil
import socket
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from torch import Tensor, nn
from torch.utils.data import DataLoader

from headrace import StreamingLeRobotDataset

KEEP = 2
"""Checkpoints that stay: the last one, and the one before in case the disk spoils the last."""
STATE, ACTION = "observation.state", "action"


# --- the policy


class Policy(nn.Module):
    """Cameras and state in, the next actions out: a small convolution for each camera, and an MLP over all."""

    def __init__(self, data: StreamingLeRobotDataset, width: int, horizon: int) -> None:
        super().__init__()
        features = data.meta.info.features
        self.cameras = [key for key in data.meta.camera_keys if not features[key].is_depth]
        self.horizon, self.actions = horizon, features[ACTION].shape[0]
        states = features[STATE].shape[0] if STATE in features else 0
        self.eyes = nn.ModuleList(_eye(width) for _ in self.cameras)
        self.mlp = nn.Sequential(
            nn.Linear(len(self.cameras) * 4 * width + states, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, horizon * self.actions),
        )
        self.state, self.action = Scale(data, STATE, states), Scale(data, ACTION, self.actions)

    def forward(self, batch: dict[str, Any]) -> Tensor:
        """The mean error of the actions, in standard deviations, without those after the end of an episode."""
        seen = [eye(_as_floats(batch[key])) for key, eye in zip(self.cameras, self.eyes, strict=True)]
        if STATE in batch:
            seen.append(self.state(batch[STATE]))
        found = self.mlp(torch.cat(seen, dim=1)).unflatten(1, (self.horizon, self.actions))
        wanted = self.action(batch[ACTION])
        real = ~batch[f"{ACTION}_is_pad"][..., None]
        errors: Tensor = ((found - wanted).abs() * real).sum() / (real.sum() * self.actions)
        return errors


class Scale(nn.Module):
    """Values less their mean, in standard deviations, where the data set knows them."""

    mean: Tensor
    std: Tensor

    def __init__(self, data: StreamingLeRobotDataset, name: str, size: int) -> None:
        super().__init__()
        known = data.meta.stats.get(name, {})
        std = torch.tensor(known.get("std", [1.0] * size), dtype=torch.float32)
        self.register_buffer("mean", torch.tensor(known.get("mean", [0.0] * size), dtype=torch.float32))
        self.register_buffer("std", torch.where(std > 0, std, torch.ones_like(std)))

    def forward(self, values: Tensor) -> Tensor:
        return (values - self.mean) / self.std


def _eye(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, width, 8, stride=4, padding=2),
        nn.GELU(),
        nn.Conv2d(width, width, 4, stride=2, padding=1),
        nn.GELU(),
        Quarters(),
        nn.Flatten(),
    )


class Quarters(nn.Module):
    """The means of the four quarters of a picture of any size; unlike torch's own, deterministic on GPUs too."""

    def forward(self, x: Tensor) -> Tensor:
        rows = [half.mean(2) for half in x.tensor_split(2, dim=2)]
        return torch.stack([half.mean(2) for row in rows for half in row.tensor_split(2, dim=2)], dim=-1)


def _as_floats(pixels: Tensor) -> Tensor:
    """They travel from workers as bytes, a quarter of the size."""
    return pixels.float().div_(255) if pixels.dtype == torch.uint8 else pixels


# --- the stream


def open_data(options: argparse.Namespace, pinned: str | None) -> StreamingLeRobotDataset:
    """`pinned`: the revision that a run goes on with. Rank and world size are found by the data set itself."""
    how: dict[str, Any] = {
        "root": options.root,
        "revision": pinned or options.revision,
        "episode_pool_size": options.pool,
        "seed": options.seed,
        "return_uint8": True,
        "cache_dir": options.cache_dir,
    }
    name = options.repo or str(options.root)
    fps = StreamingLeRobotDataset(name, **how).fps
    windows = {ACTION: [step / fps for step in range(options.horizon)]}
    return StreamingLeRobotDataset(name, delta_timestamps=windows, **how)


def endless(loader: DataLoader[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Epoch after epoch. Small last batches are given too: dropped, they were lost once for each worker and epoch."""
    while True:
        given = 0
        for batch in loader:
            given += 1
            yield batch
        if not given:
            sys.exit("this rank has no episode: the data set has fewer than there are ranks; start fewer of them")


def make_demo_data(folder: Path) -> None:
    """A small data set as LeRobot writes them. It is there whole or not at all."""
    from headrace.testing import Camera, write_robot_dataset

    if folder.exists():
        return
    part = folder.with_name(f"{folder.name}.{socket.gethostname()}.{os.getpid()}.part")
    cameras = {"observation.images.top": Camera(episodes_per_file=3), "observation.images.wrist": Camera()}
    write_robot_dataset(part, episodes=[20 + 7 * n % 13 for n in range(8)], cameras=cameras)
    try:
        part.rename(folder)
    except OSError:  # another node with the same disk was faster
        shutil.rmtree(part)


# --- checkpoints


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Whole or not at all, also after a power cut: written under another name, synced, renamed, the folder synced."""
    part = folder / ".checkpoint.part"
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(folder / f"step-{step:08d}.pt")
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    for old in checkpoints(folder)[:-KEEP]:
        old.unlink()


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("step-*.pt"))


def last_checkpoint(options: argparse.Namespace, shape: dict[str, Any]) -> dict[str, Any] | None:
    """Batches are counted per rank and dealt out by workers: a count means nothing to a run of another shape."""
    found = checkpoints(options.out)
    if not found:
        return None
    if not options.resume:
        sys.exit(f"{options.out} holds a run already: go on with it with --resume, or give another --out")
    state: dict[str, Any] = torch.load(found[-1], map_location="cpu", weights_only=True)
    shape = {**shape, "batch_size": options.batch_size}
    if (of := {**state["shape"], "batch_size": state["stream"]["batch_size"]}) != shape:
        sys.exit(f"{found[-1]} is of a run with {of}, and this is one with {shape}; start it as it was")
    return state


# --- the run


class Learner:
    """What is learned. Accelerate has the model and the optimizer, and not the loader."""

    def __init__(self, accelerator: Accelerator, data: StreamingLeRobotDataset, options: argparse.Namespace) -> None:
        model = Policy(data, options.width, options.horizon)
        optimizer = torch.optim.AdamW(model.parameters(), lr=options.rate)
        self._accelerator = accelerator
        self._model, self._optimizer = accelerator.prepare(model, optimizer)

    def learn(self, batch: dict[str, Any]) -> float:
        """One step of all ranks; the mean of their losses."""
        device = self._accelerator.device
        loss = self._model({name: one.to(device) if isinstance(one, Tensor) else one for name, one in batch.items()})
        self._optimizer.zero_grad(set_to_none=True)
        self._accelerator.backward(loss)
        self._accelerator.clip_grad_norm_(self._model.parameters(), 1.0)
        self._optimizer.step()
        mean: Any = self._accelerator.reduce(loss.detach(), reduction="mean")
        return float(mean)

    def state_dict(self) -> dict[str, Any]:
        model = self._accelerator.unwrap_model(self._model).state_dict()
        return {"model": model, "optimizer": self._optimizer.state_dict()}

    def save(self, folder: Path, step: int, state: dict[str, Any]) -> None:
        """One file for all ranks."""
        if self._accelerator.is_main_process:
            save(folder, step, {**state, **self.state_dict()})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._accelerator.unwrap_model(self._model).load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])


@dataclass
class Speed:
    """What this rank has done since it was asked last."""

    cameras: int
    samples: int = 0
    waited: float = 0.0
    since: float = field(default_factory=time.perf_counter)

    def of_all(self) -> dict[str, Any]:
        """Of all ranks together; all of them must ask."""
        took = time.perf_counter() - self.since
        mine = {"node": socket.gethostname(), "samples": self.samples / took, "waited": self.waited / took}
        ranks = gather_object([mine])
        self.samples, self.waited, self.since = 0, 0.0, time.perf_counter()
        total, nodes = sum(rank["samples"] for rank in ranks), len({rank["node"] for rank in ranks})
        return {
            "samples_per_second": total,
            "frames_per_second": total * self.cameras,
            "samples_per_second_per_node": total / nodes,
            "frames_per_second_per_node": total * self.cameras / nodes,
            "data_wait_share": sum(rank["waited"] for rank in ranks) / len(ranks),
            "nodes": nodes,
            "ranks": len(ranks),
        }


def run(
    data: StreamingLeRobotDataset, learner: Learner | None, state: dict[str, Any], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Step by step, as many on each rank, with a record of each. `state`: what is saved along, which it keeps up."""
    data.load_state_dict(state["stream"])
    loader: DataLoader[dict[str, Any]] = DataLoader(
        data,
        batch_size=options.batch_size,
        num_workers=options.workers,
        persistent_workers=options.workers > 0,
        pin_memory=torch.cuda.is_available(),
    )
    batches, speed = endless(loader), Speed(len(data.meta.camera_keys))
    for step in range(state["stream"]["batches_consumed"] + 1, options.steps + 1):
        asked = time.perf_counter()
        batch = next(batches)
        waited, samples = time.perf_counter() - asked, len(batch["index"])
        speed.samples, speed.waited = speed.samples + samples, speed.waited + waited
        record: dict[str, Any] = {"step": step, "samples": samples, "wait_ms": round(1000 * waited, 3)}
        if learner is not None:
            record["loss"] = learner.learn(batch).hex()
        if step % options.log_every == 0 or step == options.steps:
            record |= speed.of_all()
        yield record
        state["stream"]["batches_consumed"] = step
        if learner is not None and (step % options.save_every == 0 or step == options.steps):
            learner.save(options.out, step, state)


def train(options: argparse.Namespace) -> None:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("headrace").setLevel(logging.INFO)
    # On CPUs Accelerate takes every rank of torchrun for the only process, unless it is told that there is no GPU.
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    started = int(os.environ.get("WORLD_SIZE", "1"))
    if accelerator.num_processes != started:
        sys.exit(f"{started} ranks were started, but Accelerate sees {accelerator.num_processes}; each would go alone")
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True, warn_only=True)
    options.out.mkdir(parents=True, exist_ok=True)
    if options.repo is None and options.root is None:
        options.root = options.out / "demo"
        if accelerator.is_local_main_process:
            make_demo_data(options.root)
        accelerator.wait_for_everyone()
    shape = {"ranks": started, "workers": options.workers, "seed": options.seed}
    saved = None if options.dummy else last_checkpoint(options, shape)
    data = open_data(options, saved["revision"] if saved else None)
    learner = None if options.dummy else Learner(accelerator, data, options)
    stream = {"batches_consumed": 0, "batch_size": options.batch_size}
    if saved and learner:
        learner.load_state_dict(saved)
        stream = saved["stream"]
    state = {"stream": stream, "shape": shape, "revision": data.pinned}
    kept = options.out / ("dummy.jsonl" if options.dummy else "log.jsonl")
    with (kept if accelerator.is_main_process else Path(os.devnull)).open("ab", buffering=0) as log:
        for record in run(data, learner, state, options):
            log.write(json.dumps(record).encode() + b"\n")  # one write: a kill leaves a whole line or none
            if accelerator.is_main_process:
                say(record)
    accelerator.end_training()


def say(record: dict[str, Any]) -> None:
    if "nodes" not in record:
        return
    loss = f" loss {float.fromhex(record['loss']):.4f}," if "loss" in record else ""
    print(
        f"step {record['step']}:{loss} {record['samples_per_second_per_node']:,.1f} samples/s and "
        f"{record['frames_per_second_per_node']:,.1f} frames/s per node; {record['samples_per_second']:,.1f} and "
        f"{record['frames_per_second']:,.1f} on {record['nodes']} nodes with {record['ranks']} ranks; "
        f"{record['data_wait_share']:.1%} of the time spent waiting for data",
        flush=True,
    )


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small policy on robot episodes that are streamed.")
    parser.add_argument("repo", nargs="?", help="a LeRobot v3 data set on the Hub; without one, a small set is made")
    parser.add_argument("--root", help="the folder or URL (hf://buckets/owner/name, s3://...) that it lies in")
    parser.add_argument("--revision", help="a branch, tag or commit; a resumed run stays with the commit it began on")
    parser.add_argument("--out", type=Path, default=Path("outputs/streaming"), help="checkpoints and log.jsonl go here")
    parser.add_argument("--cache-dir", type=Path, help="what is fetched lies here; best on a disk of the node")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint, if there is one")
    parser.add_argument("--dummy", action="store_true", help="load data and do nothing with it")
    numbers = {"steps": 200, "save-every": 50, "log-every": 10, "batch-size": 8, "workers": 0, "threads": 1}
    for name, default in (numbers | {"pool": 64, "horizon": 8, "width": 16, "seed": 0}).items():
        parser.add_argument(f"--{name}", type=int, default=default, help="default: %(default)s")
    parser.add_argument("--rate", type=float, default=1e-3, help="the learning rate")
    return parser.parse_args(words)


if __name__ == "__main__":
    train(parse())

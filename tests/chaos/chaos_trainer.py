"""One rank of a chaos run: a training loop that steps, saves, writes down what it was given, and may die at any time.

    python chaos_trainer.py <job.json> <rank>

Its exit status: 0 it was to end and has ended, 3 an error of the family, 4 a peer is gone; all else is a failure.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import json
import logging
import os
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos_recipes import RECIPES, Job

if TYPE_CHECKING:
    from headrace.batch import Batch
    from headrace.serve.loader import Loader

FAMILY, PEER = 3, 4
KEPT = 4
"""So many checkpoints stay."""


class Pen:
    """Writes a rank's ledger: one system call for each line."""

    def __init__(self, job: Job, rank: int) -> None:
        self._launch = job.launch
        path = Path(job.folder, f"ledger-{rank}.jsonl")
        torn = path.exists() and path.stat().st_size and not path.read_bytes().endswith(b"\n")
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if torn:
            os.write(self._fd, b"\n")

    def write(self, kind: str, *fields: Any) -> None:
        os.write(self._fd, (json.dumps([kind, self._launch, *fields], separators=(",", ":")) + "\n").encode())


class Shelf:
    """Checkpoints: JSON files that appear whole. Of several ranks without a group, each brings its part."""

    def __init__(self, job: Job, rank: int, pen: Pen) -> None:
        self._job, self._rank, self._pen = job, rank, pen
        self.folder = Path(job.folder, "checkpoints")
        self.folder.mkdir(exist_ok=True)

    def save(self, loader: Loader, epoch: int, step: int) -> None:
        job, name = self._job, f"{self._job.launch:05d}-{step:07d}-{epoch:05d}"
        state = loader.state_dict()
        value = {"launch": job.launch, "step": step, "epoch": epoch, "loader": state}
        if job.ranks == 1 or job.group:
            if self._rank == 0:
                self._publish(self.folder / f"at-{name}.json", value)
        else:
            self._publish(self.folder / f"part-{name}-{self._rank}.json", value)
            self._join(name, value)
        if self._rank == 0:
            self._tidy()

    def _join(self, name: str, value: dict[str, Any]) -> None:
        """Whoever comes last makes one state of all parts; if two of them think so, they write the same."""
        from headrace import merge_states

        parts = [self.folder / f"part-{name}-{rank}.json" for rank in range(self._job.ranks)]
        try:
            states = [json.loads(part.read_text())["loader"] for part in parts]
        except FileNotFoundError:
            return
        self._publish(self.folder / f"at-{name}.json", {**value, "loader": merge_states(states)})

    def _publish(self, path: Path, value: dict[str, Any]) -> None:
        draft = path.with_name(f".{path.name}.{os.getpid()}")
        with draft.open("w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        draft.rename(path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
        if path.name.startswith("at-"):
            self._pen.write("commit", value["step"], value["epoch"])

    def _tidy(self) -> None:
        whole = sorted(self.folder.glob("at-*.json"))
        if len(whole) > KEPT:
            oldest = whole[-KEPT].name[3:16]
            for path in self.folder.glob("*-*.json"):
                if path.name.split("-", 1)[1][:13] < oldest:
                    path.unlink(missing_ok=True)

    def restore(self, loader: Loader) -> int:
        """The newest checkpoint that can be read and is taken; the epoch in which it lies."""
        from headrace.errors import StateError

        refused = []
        for path in sorted(self.folder.glob("at-*.json"), reverse=True):
            try:
                value = json.loads(path.read_text())
                loader.load_state_dict(value["loader"])
            except (ValueError, KeyError, StateError) as error:
                refused.append(f"{path.name}: {error}"[:200])
                continue
            self._pen.write("load", [value["launch"], value["step"]], value["epoch"], len(loader._here.lanes), refused)
            return int(value["epoch"])
        self._pen.write("load", None, 0, len(loader._here.lanes), refused)
        return 0


def given(loader: Loader, pen: Pen) -> Iterator[Batch]:
    """The batches of an epoch. A worker that died costs nothing but the time to replace it."""
    from headrace.errors import WorkerError

    batches = iter(loader)
    while True:
        try:
            batch = next(batches)
        except StopIteration:
            return
        except WorkerError as error:
            pen.write("worker", str(error))
            continue
        yield batch


def train(job: Job, rank: int, pen: Pen) -> None:
    recipe = RECIPES[job.kind](job)
    with recipe.open() as loader:
        shelf = Shelf(job, rank, pen)
        first = epoch = shelf.restore(loader)
        step = 0
        for epoch in count(first):
            for batch in given(loader, pen):
                entries = [] if batch.pad else recipe.entries(batch)
                pen.write("batch", epoch, step, entries)
                if not step:
                    pen.write("first", round(time.time() - job.at, 3))
                step += 1
                time.sleep(job.pause)
                if step % job.every == 0:
                    shelf.save(loader, epoch, step)
            pen.write("epoch", epoch, step)
            shelf.save(loader, epoch + 1, step)
            if job.epochs is not None and epoch + 1 >= first + job.epochs:
                break
    pen.write("end", step, left_behind(job))


def left_behind(job: Job) -> dict[str, Any]:
    """What a loader that is closed has still open in this process."""
    open_files = []
    for entry in Path("/proc/self/fd").iterdir():
        try:
            open_files.append(str(entry.readlink()))
        except OSError:
            continue
    return {
        "threads": [thread.name for thread in threading.enumerate() if thread.name.startswith("headrace")],
        "files": [name for name in open_files if name.startswith(job.cache)],
    }


def main() -> int:
    job, rank = Job(**json.loads(Path(sys.argv[1]).read_text())), int(sys.argv[2])
    stacks = Path(job.folder, "said", f"stacks-{job.launch:05d}-{rank}.txt").open("w")  # noqa: SIM115 - until the end
    faulthandler.enable(stacks)
    logging.basicConfig(level=logging.INFO, format="%(process)d %(asctime)s %(name)s %(message)s")
    pen = Pen(job, rank)
    pen.write("start", rank, dataclasses.asdict(job))
    if job.group:
        import torch.distributed as dist

        dist.init_process_group(
            "gloo", init_method=f"file://{job.folder}/meet-{job.launch}", rank=rank, world_size=job.ranks
        )
    from headrace.errors import HeadraceError

    try:
        train(job, rank, pen)
        if job.group:
            dist.destroy_process_group()
    except HeadraceError as error:
        traceback.print_exc()
        pen.write("error", type(error).__name__, str(error))
        return FAMILY
    except RuntimeError as error:
        traceback.print_exc()
        if not job.group:
            raise
        pen.write("peer", str(error))
        return PEER
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    if status == PEER:
        os._exit(status)  # a group whose peers are gone waits for them at its end
    sys.exit(status)

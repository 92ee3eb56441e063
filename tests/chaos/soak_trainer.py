"""One job of a soak run: a training loop that steps at an even pace until its time is over.

    python soak_trainer.py <task.json>

The task: `job`, the fields of a `Job`; `name`; `samples`, the file to write samples to; `every`, the seconds between
two; `seconds`, how long it runs from its first batch on; `leak` and `leak_mb`: who keeps how much of each batch.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from chaos_recipes import RECIPES, Job
from soak_watch import Watch

if TYPE_CHECKING:
    from headrace.batch import Batch
    from headrace.serve.loader import Loader

EVERY = 50
"""Steps between two states."""

kept: list[bytes] = []
"""What a planted leak keeps."""


def main() -> None:
    task = json.loads(Path(sys.argv[1]).read_text())
    job = Job(**task["job"])
    nbytes = int(task["leak_mb"] * 1e6)
    if task["leak"] == "worker":
        _leak_in_workers(nbytes)
    import torch  # noqa: F401  as every trainer has it

    loader = RECIPES[job.kind](job).open()
    watch = Watch(Path(task["samples"]), task["name"], task["every"])
    watch.begin()
    steps, end = 0, float("inf")
    for _ in _batches(loader):
        if not steps:
            end = time.monotonic() + task["seconds"]
        steps += 1
        if task["leak"] == "trainer":
            kept.append(b"\1" * nbytes)
        if steps % EVERY == 0:
            loader.state_dict()
        if time.monotonic() > end:
            break
        time.sleep(job.pause)
    watch.over.set()
    loader.close()
    print(json.dumps({"steps": steps, "epochs": loader.state_dict()["epoch"]}))


def _batches(loader: Loader) -> Iterator[Batch]:
    """Epoch after epoch."""
    while True:
        yield from loader


def _leak_in_workers(nbytes: int) -> None:
    """Workers are forked from here, and leak as we would."""
    from headrace.serve import worker

    make = worker.Maker.make

    def leaking(*given: Any, **more: Any) -> Any:
        kept.append(b"\1" * nbytes)
        return make(*given, **more)

    setattr(worker.Maker, "make", leaking)  # noqa: B010  a planted fault


if __name__ == "__main__":
    main()

"""What one rank of a run over robot episodes does. Started by torchrun; it writes down what it saw, for the test."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.utils.data import DataLoader

from headrace import StreamingLeRobotDataset

BATCH, EPOCHS = 4, 4


def stream(given: dict[str, Any]) -> StreamingLeRobotDataset:
    """It is not told its rank."""
    return StreamingLeRobotDataset("org/robot", root=given["folder"], episode_pool_size=3, cache_dir=given["cache"])


def seen(data: StreamingLeRobotDataset, workers: int, epochs: int) -> list[list[list[int]]]:
    """The frames of each batch of each epoch."""
    loader: Any = DataLoader(data, batch_size=BATCH, num_workers=workers)
    return [[batch["index"].tolist() for batch in loader] for _ in range(epochs)]


def by_environment(given: dict[str, Any]) -> dict[str, Any]:
    """RANK and WORLD_SIZE are all there is; no process group, no Accelerate."""
    assert not dist.is_initialized()
    assert "accelerate" not in sys.modules
    return {str(workers): seen(stream(given), workers, EPOCHS) for workers in (0, 2)}


def by_accelerate_alone(given: dict[str, Any]) -> dict[str, Any]:
    """On CPUs an Accelerate that is told nothing takes each rank for the only one."""
    from accelerate import PartialState

    state = PartialState()
    found = {"accelerate": [state.process_index, state.num_processes], "0": seen(stream(given), 0, EPOCHS)}
    PartialState._reset_state()
    return found


def by_accelerate(given: dict[str, Any]) -> dict[str, Any]:
    """As the example does it."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True)
    found = {"accelerate": [accelerator.process_index, accelerator.num_processes]}
    return found | {str(workers): seen(stream(given), workers, 2) for workers in (0, 2)}


def resumed(given: dict[str, Any]) -> dict[str, Any]:
    """From the file that all ranks share, at each point of it."""
    found: dict[str, Any] = {}
    for name, state in json.loads(Path(given["states"]).read_text()).items():
        data = stream(given)
        data.load_state_dict(state)
        found[name] = seen(data, int(name.split("/")[0]), 2)
    return found


def half(given: dict[str, Any]) -> dict[str, Any]:
    """A few steps of the loader, and its state, which is the same from every rank."""
    with stream(given).loader(batch_size=3) as loader:
        batches = iter(loader)
        frames = [next(batches)["index"].tolist() for _ in range(3)]
        return {"seen": frames, "state": loader.state_dict()}


def rest(given: dict[str, Any]) -> dict[str, Any]:
    """On from such a state, which other ranks have left."""
    with stream(given).loader(batch_size=3) as loader:
        loader.load_state_dict(json.loads(Path(given["state"]).read_text()))
        return {"seen": [batch["index"].tolist() for batch in loader if not batch.pad]}


SCENES = {scene.__name__: scene for scene in (by_environment, by_accelerate_alone, by_accelerate, resumed, half, rest)}
"""In this order: from `by_accelerate` on there is a process group."""


def main() -> None:
    given = json.loads(Path(sys.argv[1]).read_text())
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    for name, scene in SCENES.items():
        if name in given["scenes"]:
            path = Path(given["out"], f"{name}-{rank}-of-{size}.json")
            path.write_text(json.dumps(scene(given)))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

"""What one rank does whose sources are written in its own way. Started by torchrun; see `test_spelled_ranks.py`."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch.distributed as dist

import headrace
from headrace.errors import HeadraceError


def main(folder: Path, given: dict[str, Any]) -> None:
    rank = int(os.environ["RANK"])
    os.chdir(folder / given["cwd"][rank])
    found: dict[str, Any] = {}
    if not given.get("late"):
        dist.init_process_group("gloo")
    if given.get("robot"):
        found = robots(given["specs"][rank], folder, given["robot"])
        (folder / f"{given['name']}-{rank}.json").write_text(json.dumps(found))
        dist.barrier()
        dist.destroy_process_group()
        return
    loader = headrace.load(given["specs"][rank], batch_size=4, cache_dir=folder / "data", **given.get("options", {}))
    if given.get("late"):
        dist.init_process_group("gloo")
    if given.get("peek") == rank:
        found["peek"] = [len(loader), loader.describe()]
    try:
        if given.get("state"):
            loader.load_state_dict(json.loads((folder / given["state"]).read_text()))
        batches = iter(loader)
        found["before"] = [next(batches)["text"] for _ in range(given["steps"])]
        found["state"] = loader.state_dict() if given["steps"] else None
        found["after"] = [batch["text"] for batch in batches if not batch.pad]
    except HeadraceError as error:
        found["error"] = f"{type(error).__name__}: {error}"
    loader.close()
    (folder / f"{given['name']}-{rank}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


def robots(place: str, folder: Path, way: str) -> dict[str, Any]:
    """The frames of one rank, and the names of the data in its state."""
    if way == "load":
        loader = headrace.load(f"lerobot:{place}", batch_size=2, cache_dir=folder / "data")
    else:
        data = headrace.StreamingLeRobotDataset(place, cache_dir=folder / "data")
        if way == "items":
            return {"frames": [int(item["index"]) for item in data]}
        loader = data.loader(batch_size=2)
    with loader:
        frames = [int(i) for batch in loader if not batch.pad for i in batch["index"]]
        return {"frames": frames, "state": loader.state_dict()}


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

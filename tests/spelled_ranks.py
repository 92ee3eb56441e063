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


if __name__ == "__main__":
    main(Path(sys.argv[1]), json.loads(sys.argv[2]))

"""What one rank of a run does, scene by scene. Started by torchrun; writes down what it saw for the test to judge."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from serving import loader_of

from headrace.batch import Batch
from headrace.errors import HeadraceError, WorkerError
from headrace.serve.loader import Loader


def noted(batch: Batch) -> list[Any]:
    """m, whether it only fills a step, and the rows or tokens in it."""
    if not batch.packed:
        return [batch.m, batch.pad, batch["uid"]]
    return [batch.m, batch.pad, batch["input_ids"][batch.document_ids > 0].tolist()]


def some(loader: Loader, steps: int | None) -> list[Any]:
    found: list[Any] = []
    for batch in loader:
        found.append(noted(batch))
        if len(found) == steps:
            break
    return found


def epochs(loader: Loader, given: dict[str, Any]) -> dict[str, Any]:
    """Whole epochs, one after the other."""
    length = len(loader) if given["kind"] == "rows" else None
    return {"epochs": [some(loader, None) for _ in range(given.get("epochs_run", 1))], "len": length}


def half(loader: Loader, given: dict[str, Any]) -> dict[str, Any]:
    """Some steps, a state and this rank's part of one, and the rest."""
    before = some(loader, given["steps"])
    found = {"before": before, "state": loader.state_dict(), "part": loader.state_dict(gather=False)}
    early = [loader.state_dict(at=loader._here.m - back * loader._ranks) for back in range(3)]
    return {**found, "early": early, "after": some(loader, None)}


def go_on(loader: Loader, given: dict[str, Any]) -> dict[str, Any]:
    loader.load_state_dict(json.loads(Path(given["state"]).read_text()))
    state = loader.state_dict()
    return {"state": state, "after": some(loader, None), "next": some(loader, None)}


def apart(loader: Loader, given: dict[str, Any]) -> dict[str, Any]:
    """One rank is a step ahead when the state is asked for; later it is not."""
    batches = iter(loader)
    for _ in range(4 if loader._rank == 0 else 3):
        next(batches)
    said = ""
    try:
        loader.state_dict()
    except HeadraceError as error:
        said = f"{type(error).__name__}: {error}"
    if loader._rank != 0:
        next(batches)
    return {"said": said, "state": loader.state_dict()}


def killed(loader: Loader, given: dict[str, Any]) -> dict[str, Any]:
    """On one rank a worker dies, and the trainer there tries again: the ranks still end together."""
    found: list[Any] = []
    errors: list[str] = []
    batches: Any = iter(loader)
    while True:
        try:
            batch = next(batches, None)
        except WorkerError as error:
            errors.append(str(error))
            continue
        if batch is None:
            return {"epochs": [found], "errors": errors}
        found.append(noted(batch))
        if loader._rank == 1 and len(found) in (3, 6):
            os.kill(batches._slots._crew._workers[0].pid, signal.SIGKILL)


def saved(loader: Loader, given: dict[str, Any]) -> dict[str, Any]:
    """Through torch's distributed checkpoints, into a loader that has given nothing yet."""
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    before = some(loader, given["steps"])
    state = loader.state_dict()
    save({"loader": state}, checkpoint_id=given["folder"])
    with made(given) as fresh:
        tree = {"loader": fresh.state_dict()}
        load(tree, checkpoint_id=given["folder"])
        fresh.load_state_dict(tree["loader"])
        return {"before": before, "same": fresh.state_dict() == state, "after": some(fresh, None)}


def restored(loader: Loader, given: dict[str, Any]) -> dict[str, Any]:
    """...into one with other lanes, or on other ranks: all of it, or an error."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.state_dict_loader import load

    tree = {"loader": loader.state_dict()}
    said = ""
    try:
        planner = DefaultLoadPlanner(allow_partial_load=given["partial"])
        load(tree, checkpoint_id=given["folder"], planner=planner)
        loader.load_state_dict(tree["loader"])
    except BaseException as error:  # torch's own kind is no Exception
        said = f"{type(error).__name__}: {error}"
    return {"said": said, "lanes": len(loader._here.lanes), "after": [] if said else some(loader, None)}


def saved_text(loader: Loader, given: dict[str, Any]) -> dict[str, Any]:
    """Through torch's distributed checkpoints as one text."""
    from torch.distributed.checkpoint.state_dict_saver import save

    before = some(loader, given["steps"])
    save({"loader": loader.stateful}, checkpoint_id=given["folder"])
    return {"before": before}


def restored_text(loader: Loader, given: dict[str, Any]) -> dict[str, Any]:
    from torch.distributed.checkpoint.state_dict_loader import load

    load({"loader": loader.stateful}, checkpoint_id=given["folder"])
    return {"after": some(loader, None)}


def again(loader: Loader, given: dict[str, Any]) -> dict[str, Any]:
    """A state of another number of ranks; the loop is left at its last step, and begun once more. In each step the
    ranks meet, so none may have one more than others."""
    state = json.loads(Path(given["state"]).read_text())
    with made(given) as counted:
        counted.load_state_dict(state)
        steps = len(some(counted, None))
    loader.load_state_dict(state)
    loops = []
    for most in (steps, None, None):
        found: list[Any] = []
        for batch in loader:
            dist.all_reduce(torch.ones(1))
            found.append(noted(batch))
            if len(found) == most:
                break
        loops.append(found)
    return {"loops": loops}


SCENES = {
    scene.__name__: scene
    for scene in (epochs, half, go_on, apart, killed, saved, restored, saved_text, restored_text, again)
}


def made(given: dict[str, Any]) -> Loader:
    return loader_of(given["kind"], given["pattern"], **given.get("options", {}))


def main() -> None:
    scenes, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    dist.init_process_group("gloo")
    for name, given in scenes.items():
        with made(given) as loader:
            found = SCENES[given["scene"]](loader, given)
        (folder / f"{name}-{dist.get_rank()}-of-{dist.get_world_size()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

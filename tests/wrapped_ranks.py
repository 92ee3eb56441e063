"""What one rank of a job does that wraps data sets with Accelerate. Started by torchrun; it writes down what it saw."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from accelerate import Accelerator, DataLoaderConfiguration
from serving import loader_of
from streaming import World
from torch.utils.data import DataLoader, IterableDataset
from torchdata.stateful_dataloader import StatefulDataLoader

import headrace
from headrace import StreamingLeRobotDataset
from headrace.errors import HeadraceError
from headrace.serve.loader import Loader

MODES: dict[str, dict[str, Any]] = {
    "shards": {"dispatch_batches": False},
    "dispatched": {"dispatch_batches": True},
    "as it likes": {},
    "split": {"dispatch_batches": False, "split_batches": True},
    "split and dispatched": {"dispatch_batches": True, "split_batches": True},
    "stateful": {"dispatch_batches": False, "use_stateful_dataloader": True},
}


def robots(given: dict[str, Any], **whom: Any) -> Any:
    return StreamingLeRobotDataset("org/robot", root=given["robots"], cache_dir=given["cache"], **whom)


def samples(given: dict[str, Any]) -> Any:
    folder = Path(given["world"]) / str(dist.get_rank())  # ranks would write the same files at the same time
    folder.mkdir(parents=True, exist_ok=True)
    return World(folder).make(["code"], max_per_epoch=12, max_per_dataset=12, sample_repeat=1)


def loader(given: dict[str, Any], **whom: Any) -> Loader:
    return loader_of("rows", given["pattern"], lanes=4, **whom)


class Around(IterableDataset[Any]):
    """A loader in a data set of the user's own."""

    def __init__(self, loader: Loader) -> None:
        self._loader = loader

    def __iter__(self) -> Any:
        yield from self._loader


def wrapped(data: Any, mode: str, **options: Any) -> tuple[str, list[Any]]:
    """What is said, or what comes out."""
    torch_loader: Any = StatefulDataLoader if mode == "stateful" else DataLoader
    found: list[Any] = []
    try:
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**MODES[mode]))
        found.extend(batch["index"].tolist() for batch in accelerator.prepare(torch_loader(data, **options)))
    except (HeadraceError, RuntimeError, TypeError, ValueError) as error:
        return f"{type(error).__name__}: {error}", found
    return "", found


def refused(given: dict[str, Any]) -> dict[str, Any]:
    """Each data set in each way of wrapping it."""
    makers: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "robots": (robots, {"batch_size": 4}),
        "samples": (samples, {"batch_size": 2, "collate_fn": headrace.collate_fn}),
        "lanes": (lambda given: loader(given).dataset, {"batch_size": None}),
        "around": (lambda given: Around(loader(given)), {"batch_size": 2, "collate_fn": list}),
    }
    found: dict[str, Any] = {}
    for name, (make, options) in makers.items():
        for mode in MODES:
            if mode.startswith("split") and options["batch_size"] is None:
                continue  # Accelerate itself wants a batch size there
            if name == "around" and mode not in ("shards", "split"):
                continue  # of a data set that is not ours, only the first rank would hear: the others wait for it
            said, _ = wrapped(make(given), mode, **options)
            found[f"{name}, {mode}"] = said
            dist.barrier()
        for method in ("fork", "spawn"):
            more = {"num_workers": 1, "multiprocessing_context": method}
            if name in ("robots", "samples"):
                said, _ = wrapped(make(given), "dispatched", **options, **more)
                found[f"{name}, dispatched, {method}"] = said
                dist.barrier()
    said, _ = wrapped(robots(given), "shards", batch_size=4, num_workers=1)
    return {**found, "robots, shards, worker": said}


def passed_on(given: dict[str, Any]) -> dict[str, Any]:
    """A loader goes through `prepare` as it is, and gives each row once."""
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(dispatch_batches=False))
    with loader(given) as rows:
        prepared = accelerator.prepare(rows)
        found = [uid for batch in prepared if not batch.pad for uid in batch["uid"]]
    with loader(given) as rows:
        said = ""
        try:
            accelerator.prepare_data_loader(rows)
        except HeadraceError as error:
            said = str(error)
    return {"same": prepared is rows or isinstance(prepared, Loader), "uids": found, "said": said}


def split_once(given: dict[str, Any]) -> dict[str, Any]:
    """Data that is not split by us may be split by Accelerate."""
    said, found = wrapped(robots(given, rank=0, world_size=1), "shards", batch_size=4, drop_last=True)
    return {"said": said, "index": found}


def limits(given: dict[str, Any]) -> dict[str, Any]:
    """Epochs of a part with a token limit, from a state after which the lanes of the ranks change."""
    found: dict[str, Any] = {}
    for name, state in json.loads(Path(given["states"]).read_text()).items():
        part = headrace.Part(source=headrace.Source.parse(f"parquet:{given['pattern']}:ids"), tokens=given["limit"])
        recipe = headrace.Recipe.of([part], batch_size=2, epochs=1, pack=headrace.Pack(seq_len=48))
        with headrace.load(recipe, cache_dir=given["cache"]) as limited:
            limited.load_state_dict(state)
            batches = [batch for _ in range(4) for batch in limited if not batch.pad]
            found[name] = sum(batch.num_tokens for batch in batches)
    return found


SCENES = {scene.__name__: scene for scene in (refused, passed_on, split_once, limits)}


def main() -> None:
    given, folder = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    Accelerator(cpu=True)
    for name, scene in SCENES.items():
        found = scene(given)
        (folder / f"{name}-{dist.get_rank()}.json").write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

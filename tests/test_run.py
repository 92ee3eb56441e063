"""Who we are: rank and world size come from the first place that knows them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from headrace.errors import SpecError
from headrace.run import Run

TORCHRUN = {"RANK": "3", "WORLD_SIZE": "8"}
SLURM = {"SLURM_PROCID": "5", "SLURM_NTASKS": "6"}


@dataclass(frozen=True)
class Around:
    """What surrounds a process: a process group, Accelerate's shared state, the environment."""

    group: tuple[int, int] | None = None
    accelerate: Mapping[str, Any] | None = None
    env: Mapping[str, str] = field(default_factory=dict)

    def put(self, monkeypatch: pytest.MonkeyPatch) -> None:
        rank, size = self.group or (-1, -1)
        functions = {
            "is_available": lambda: True,
            "is_initialized": lambda: self.group is not None,
            "get_rank": lambda: rank,
            "get_world_size": lambda: size,
        }
        monkeypatch.setitem(sys.modules, "torch.distributed", module("torch.distributed", **functions))
        if self.accelerate is None:
            monkeypatch.delitem(sys.modules, "accelerate.state", raising=False)
        else:
            state = SimpleNamespace(_shared_state=dict(self.accelerate))  # calling it would be an error: never made
            monkeypatch.setitem(sys.modules, "accelerate.state", module("accelerate.state", PartialState=state))


def module(name: str, **names: Any) -> ModuleType:
    made = ModuleType(name)
    vars(made).update(names)
    return made


READY = {"process_index": 2, "num_processes": 4, "device": "cpu"}


@pytest.mark.parametrize(
    ("around", "arguments", "expected"),
    [
        (Around((1, 2), READY, TORCHRUN | SLURM), {"rank": 6, "world_size": 7}, (6, 7)),
        (Around((1, 2), READY, TORCHRUN | SLURM), {"rank": 0, "world_size": 1}, (0, 1)),
        (Around((1, 2), READY, TORCHRUN | SLURM), {}, (1, 2)),
        (Around((0, 1), READY, TORCHRUN | SLURM), {}, (0, 1)),
        (Around(None, READY, TORCHRUN | SLURM), {}, (2, 4)),
        (Around(None, {}, TORCHRUN | SLURM), {}, (3, 8)),
        (Around(None, {"_cpu": True}, TORCHRUN), {}, (3, 8)),
        (Around(None, {"process_index": 0, "num_processes": 1}, TORCHRUN), {}, (3, 8)),
        (Around(None, {"process_index": 0, "num_processes": 1}), {}, (0, 1)),
        (Around(None, None, TORCHRUN | SLURM), {}, (3, 8)),
        (Around(None, None, {"WORLD_SIZE": "8"} | SLURM), {}, (5, 6)),
        (Around(None, None, SLURM), {}, (5, 6)),
        (Around(None, None, {"SLURM_NTASKS": "6"}), {}, (0, 1)),
        (Around(None, None, {"RANK": "", "WORLD_SIZE": ""}), {}, (0, 1)),
        (Around(None, None, {"WORLD_SIZE": "1"}), {}, (0, 1)),
        (Around(), {}, (0, 1)),
    ],
    ids=[
        "arguments win",
        "arguments win when they say: alone",
        "then the process group",
        "also a group of one",
        "then Accelerate",
        "an empty Accelerate knows nothing",
        "a half-made Accelerate knows nothing",
        "nor does one that takes itself for alone",
        "which it may be",
        "then the launcher's variables",
        "half of the launcher's beside all of SLURM's",
        "then SLURM's",
        "an allocation without a task",
        "empty variables are none",
        "one of one",
        "alone",
    ],
)
def test_rank_comes_from_the_first_that_knows_it(
    around: Around, arguments: dict[str, Any], expected: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    around.put(monkeypatch)
    run = Run.here(environ=around.env, **arguments)
    assert (run.rank, run.world_size) == expected
    assert bool(run.launch) == (expected[1] > 1)


@pytest.mark.parametrize(
    ("env", "arguments", "words"),
    [
        ({}, {"rank": 0}, "rank=0, world_size=None: one means nothing without the other"),
        (TORCHRUN, {"world_size": 4}, "rank=None, world_size=4: one means nothing"),
        ({}, {"rank": 4, "world_size": 4}, "rank=4, world_size=4: ranks count from 0"),
        ({}, {"rank": -1, "world_size": 4}, "rank=-1, world_size=4: ranks count from 0"),
        ({}, {"rank": 0, "world_size": 0}, "rank=0, world_size=0: ranks count from 0"),
        ({}, {"rank": 0.0, "world_size": 2}, "rank=0.0, world_size=2: two whole numbers"),
        ({"RANK": "8", "WORLD_SIZE": "8"}, {}, "RANK='8', WORLD_SIZE='8': two whole numbers"),
        ({"RANK": "one", "WORLD_SIZE": "8"}, {}, "RANK='one', WORLD_SIZE='8': two whole numbers"),
        ({"SLURM_PROCID": "-1", "SLURM_NTASKS": "2"}, {}, "SLURM_PROCID='-1', SLURM_NTASKS='2': two whole"),
        ({"RANK": "0"}, {}, "RANK='0' is set and WORLD_SIZE is not"),
        ({"WORLD_SIZE": "8", "SLURM_NTASKS": "8"}, {}, "WORLD_SIZE='8' is set and RANK is not"),
    ],
)
def test_a_rank_that_cannot_be_is_refused(
    env: dict[str, str], arguments: dict[str, Any], words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Around().put(monkeypatch)
    with pytest.raises(SpecError) as caught:
        Run.here(environ=env, **arguments)
    assert words in str(caught.value)


def test_a_torch_without_distributed_is_no_group(monkeypatch: pytest.MonkeyPatch) -> None:
    Around().put(monkeypatch)
    monkeypatch.setitem(sys.modules, "torch.distributed", module("torch.distributed", is_available=lambda: False))
    assert Run.here(environ=SLURM).rank == 5


def test_looking_for_a_rank_imports_nothing() -> None:
    code = (
        "import sys; from headrace.run import Run; Run.here(); "
        "print(sorted({'torch', 'accelerate', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


GROUP = """
import os, sys
import torch.distributed as dist
from headrace.run import Run
before = Run.here()
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
during = Run.here()
dist.destroy_process_group()
after = Run.here()
print([(run.rank, run.world_size) for run in (before, during, after)])
"""


def test_a_real_process_group_is_seen_while_it_stands(tmp_path: Path) -> None:
    command = [sys.executable, "-c", GROUP, str(tmp_path / "meet")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env=TORCHRUN)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[(3, 8), (0, 1), (3, 8)]"

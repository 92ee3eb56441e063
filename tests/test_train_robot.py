"""The robot example: a run that a kill does not change by a bit, alone and on two ranks."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from robots import EPISODES, NUM_FRAMES, small_set
from torch.utils.data import default_collate

EXAMPLE = Path(__file__).parent.parent / "examples" / "scaling" / "train_streaming_multinode.py"
STEPS, EVERY, KILLED = 20, 5, 17
"""An epoch has 13 or 14 steps, and on two ranks 6 to 8: the kill is in a later one."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_set(tmp_path_factory.mktemp("robots") / "set")


def words_for(folder: Path, out: Path, *more: str) -> list[str]:
    sizes = ["--steps", str(STEPS), "--save-every", str(EVERY), "--batch-size", "4", "--width", "4", "--pool", "3"]
    # The order of frames depends on the name of the data set, and not on the folder that it lies in.
    return ["org/robot", "--root", str(folder), "--out", str(out), "--cache-dir", str(out / "cache"), *sizes, *more]


@pytest.fixture(scope="module")
def runs(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Uninterrupted runs, and runs of which one rank is killed and that go on; alone with workers, and on two ranks."""
    found = tmp_path_factory.mktemp("runs")
    plan: list[dict[str, Any]] = []
    for ranks, more in ((1, ("--workers", "2")), (2, ())):
        straight, run = found / f"straight-{ranks}", found / f"killed-{ranks}"
        words = words_for(folder, run, *more)
        plan.append({"ranks": ranks, "words": words, "killed": KILLED, "says": f"{run}.txt"})
        plan.append({"ranks": ranks, "words": [*words, "--resume"], "says": f"{found}/resumed-{ranks}.txt"})
        if ranks == 1:
            plan.append({"ranks": 1, "words": words_for(folder, straight, *more), "says": f"{straight}.txt"})
    (found / "plan.json").write_text(json.dumps(plan))
    ended([str(EXAMPLE.parents[2] / "tests" / "train_ranks.py"), str(found / "plan.json")], found / "said.txt")
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(EXAMPLE)]
    ended([*torchrun, *words_for(folder, found / "straight-2")], found / "said-2.txt")
    return found


def ended(command: list[str], said: Path) -> None:
    """With all that it has started."""
    with said.open("w") as file:  # a pipe would stay open as long as a worker of a killed run
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        run = subprocess.Popen([sys.executable, *command], stdout=file, stderr=file, env=env, start_new_session=True)
    try:
        assert run.wait(timeout=100) == 0, said.read_text()[-5000:]
    finally:
        with suppress(ProcessLookupError):
            os.killpg(run.pid, signal.SIGKILL)
        run.wait()


def log(out: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def losses(out: Path) -> dict[int, str]:
    """Each step as it was run last, to the last bit."""
    return {record["step"]: record["loss"] for record in log(out)}


def saved(out: Path) -> list[str]:
    return sorted(path.name for path in out.glob("step-*.pt"))


@pytest.mark.parametrize("ranks", [1, 2], ids=["alone, with workers", "two ranks"])
def test_a_killed_run_resumes_to_the_same_losses_to_the_last_bit(runs: Path, ranks: int) -> None:
    killed = json.loads((runs / f"killed-{ranks}.json").read_text())
    assert killed == [-signal.SIGKILL] if ranks == 1 else killed == [1, -signal.SIGKILL]
    resumed = runs / f"resumed-{ranks}.json"
    assert json.loads(resumed.read_text()) == [0] * ranks, resumed.with_suffix(".txt").read_text()
    straight, run = runs / f"straight-{ranks}", runs / f"killed-{ranks}"
    again = list(range(3 * EVERY + 1, STEPS + 1))
    assert [record["step"] for record in log(run)] == [*range(1, KILLED + 1), *again], "on from the third checkpoint"
    assert losses(run) == losses(straight)
    assert len(set(losses(run).values())) == STEPS, "it learns"


def test_two_ranks_train_together_and_save_one_file(runs: Path) -> None:
    records = log(runs / "straight-2")
    assert (records[-1]["ranks"], records[-1]["nodes"]) == (2, 1)
    assert records[-1]["samples_per_second"] == records[-1]["samples_per_second_per_node"] > 0
    state = torch.load(runs / "killed-2" / f"step-{STEPS:08d}.pt", weights_only=True)
    assert state["stream"] == {"batches_consumed": STEPS, "batch_size": 4}
    assert sum(record["samples"] for record in records) > NUM_FRAMES // 2 + max(EPISODES), "into its second epoch"


def test_without_a_data_set_one_is_made_and_a_dummy_run_says_how_fast_it_is(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = [sys.executable, str(EXAMPLE), "--out", str(out), "--dummy", "--steps", "12", "--log-every", "5"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    records = [json.loads(line) for line in (out / "dummy.jsonl").read_text().splitlines()]
    assert [record["step"] for record in records if "nodes" in record] == [5, 10, 12]
    last = records[-1]
    assert last["frames_per_second"] == 2 * last["samples_per_second"] > 0
    assert 0.5 < last["data_wait_share"] <= 1, "it does nothing else"
    assert "frames/s per node" in done.stdout
    assert (out / "demo" / "meta" / "info.json").exists()
    assert not saved(out)


# --- what a checkpoint is good for


@pytest.fixture(scope="module")
def example() -> Any:
    spec = importlib.util.spec_from_file_location("train_streaming_multinode", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look for it there
    spec.loader.exec_module(module)
    return module


def test_the_policy_learns_and_does_not_look_beyond_an_episode(example: Any, folder: Path, tmp_path: Path) -> None:
    torch.manual_seed(0)
    options = example.parse(["org/robot", "--root", str(folder), "--horizon", "3", "--cache-dir", str(tmp_path)])
    data = example.open_data(options, None)
    batch = default_collate(sorted(data, key=lambda item: int(item["index"]))[:9])
    policy = example.Policy(data, 8, 3)
    padded = {**batch, "action": torch.where(batch["action_is_pad"][..., None], 1e6, batch["action"])}
    assert batch["action_is_pad"].any()
    assert policy(padded) == policy(batch)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-2)
    errors = []
    for _ in range(60):
        optimizer.zero_grad()
        policy(batch).backward()
        optimizer.step()
        errors.append(policy(batch).item())
    assert errors[-1] < errors[0] / 2


SHAPE = {"ranks": 2, "workers": 3, "seed": 0}


@pytest.mark.parametrize(
    ("changed", "resume", "said"),
    [
        ({}, False, "holds a run already"),
        ({"ranks": 4}, True, "start it as it was"),
        ({"workers": 0}, True, "start it as it was"),
        ({"seed": 1}, True, "start it as it was"),
        ({"batch_size": 8}, True, "start it as it was"),
    ],
)
def test_a_run_of_another_shape_does_not_go_on(
    example: Any, tmp_path: Path, changed: dict[str, int], resume: bool, said: str
) -> None:
    stream = {"batches_consumed": 5, "batch_size": 4}
    example.save(tmp_path, 5, {"shape": SHAPE, "stream": stream})
    options = argparse.Namespace(out=tmp_path, resume=resume, batch_size=changed.pop("batch_size", 4))
    with pytest.raises(SystemExit, match=said):
        example.last_checkpoint(options, {**SHAPE, **changed})
    same = argparse.Namespace(out=tmp_path, resume=True, batch_size=4)
    assert example.last_checkpoint(same, SHAPE)["stream"] == stream


def test_half_a_checkpoint_is_never_seen(example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (5, 10, 15):
        example.save(tmp_path, step, {})
    assert saved(tmp_path) == ["step-00000010.pt", "step-00000015.pt"]

    def full(state: dict[str, Any], file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="disk full"):
        example.save(tmp_path, 20, {})
    assert saved(tmp_path) == ["step-00000010.pt", "step-00000015.pt"]


def test_a_rank_without_an_episode_ends_instead_of_waiting_for_ever(example: Any) -> None:
    with pytest.raises(SystemExit, match="has no episode"):
        next(example.endless([]))

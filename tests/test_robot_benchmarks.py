"""The robot benchmarks run, small, and say what they should; the scripts for clusters start what they should."""

from __future__ import annotations

import csv
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from robots import EPISODES, NUM_FRAMES, small_set

from headrace.testing import write_robot_dataset

pytestmark = pytest.mark.alone

ROOT = Path(__file__).parent.parent
STREAMING = ROOT / "benchmarks" / "streaming" / "benchmark_streaming.py"


def run(*command: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *command], capture_output=True, text=True, timeout=100, check=False, env=env)
    assert done.returncode == code, done.stderr[-5000:]
    return done


def test_robot_benchmark_reports_speed_workers_distance_memory_and_targets(tmp_path: Path) -> None:
    run(str(ROOT / "benchmarks" / "robot.py"), "--quick", "--out", str(tmp_path), "--data", str(tmp_path / "data"))
    found = json.loads((tmp_path / "robot.json").read_text())
    assert "| robot (quick) |" in (tmp_path / "README.md").read_text()
    assert [line["of_plain"] > 0 for line in found["speed"]] == [True, True]
    assert found["workers"]["two_of_one"] > 0
    remote = found["remote"]
    assert 0 < remote["first_batches"][0]["seconds"] < 60
    alone = remote["first_batch_without_prefetch"]
    size = sum(path.stat().st_size for path in (tmp_path / "data").rglob("*.mp4"))
    assert 0 < alone["direct_bytes"] < size, "byte ranges and not files"
    assert alone["video_bytes"] == pytest.approx(alone["direct_bytes"], rel=0.7)
    assert remote["steady"]["remote_per_second"] > 0
    assert found["memory"]["mb_pool_open"] > 0
    assert len(found["targets"]) == 5


# --- streaming


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_set(tmp_path_factory.mktemp("robots") / "set")


@pytest.fixture(scope="module")
def streaming() -> Any:
    spec = importlib.util.spec_from_file_location("benchmark_streaming", STREAMING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def words(folder: Path, out: Path, *more: str) -> list[str]:
    sizes = ["--batch-size", "4", "--num-batches", "30", "--warmup-batches", "2", "--episode-pool-size", "3"]
    places = ["--root", str(folder), "--out", str(out), "--cache-dir", str(out / "cache"), "--name", "found"]
    return ["org/robot", *places, *sizes, *more]


def read(out: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((out / "found.json").read_text())
    lines = list(csv.DictReader((out / "benchmark_streaming.csv").read_text().splitlines()))
    assert float(lines[-1]["frames_per_s_node"]) == found["frames_per_s_node"]
    assert float(lines[-1]["video_decoder_cache.hit_rate"]) == found["video_decoder_cache"]["hit_rate"]
    return found


def check(found: dict[str, Any], frames_per_sample: int) -> None:
    assert found["samples_measured"] > NUM_FRAMES, "into the next epoch"
    assert found["frames_measured"] == frames_per_sample * found["samples_measured"]
    assert found["frames_per_s_total"] == pytest.approx(frames_per_sample * found["samples_per_s_total"])
    assert 0 < found["p50_sample_latency_ms"] <= found["p95_sample_latency_ms"] <= found["p99_sample_latency_ms"]
    assert 0 < found["open_s"] < found["first_batch_latency_s"] < found["total_time_s"]
    assert 0 < found["decode_pct_worker_time"] <= 100
    assert 0 <= found["fetch_pct_worker_time"] <= 100
    assert 0 < found["data_wait_share"] <= 1
    assert 1 < found["episodes_per_batch_mean"] <= 3
    assert 0 <= found["index_position_corr"] < 0.9
    cache = found["video_decoder_cache"]
    assert cache["hits"] + cache["misses"] == found["samples_measured"], "one camera"
    assert cache["hit_rate"] > 0.5
    assert 0.05 < found["peak_rss_gb_node"] < 20


def test_a_local_folder_with_workers_on_two_ranks(folder: Path, tmp_path: Path) -> None:
    launch = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2")
    run(*launch, str(STREAMING), *words(folder, tmp_path, "--num-workers", "1"))
    found = read(tmp_path)
    check(found, 1)
    assert (found["source"], found["world_size"], found["nodes"]) == ("local", 2, 1)
    assert found["samples_per_s_node"] == found["samples_per_s_total"]
    assert found["fetched_mb"] == 0


def test_eight_steps_from_a_hub_that_is_far_away(streaming: Any, folder: Path, tmp_path: Path) -> None:
    before = dict(os.environ)
    far = ("--num-workers", "0", "--mode", "sarm", "--serve", "--latency-ms", "5")
    assert streaming.main(words(folder, tmp_path, *far)) == 0
    assert dict(os.environ) == before
    found = read(tmp_path)
    check(found, 8)
    assert (found["source"], found["latency_ms"]) == ("served", 5)
    assert found["first_batch_latency_s"] > 0.005
    assert found["repo_id"] == "bench/robots"


def test_a_data_set_without_a_camera_is_no_measurement(
    streaming: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    blind = write_robot_dataset(tmp_path / "set", episodes=EPISODES, cameras={})
    assert streaming.main(words(blind, tmp_path / "out", "--num-workers", "0")) == 1
    assert "not one camera frame came" in capsys.readouterr().err
    assert not (tmp_path / "out" / "found.json").exists()


def test_counts_are_added_up_by_worker_and_epoch(streaming: Any) -> None:
    import torch

    def batch(*rows: tuple[int, float, float, float]) -> dict[str, Any]:
        """Worker, seconds of the sample, seconds of videos and of waiting so far."""
        noted = [[worker, took, video, waited, 2 * video, 0, 0, 0, 0, 1.5] for worker, took, video, waited in rows]
        index = torch.arange(len(rows))
        pixels = torch.zeros(len(rows), 3, 2, 2)
        return {"noted": torch.tensor(noted, dtype=torch.float64), "index": index, "episode_index": index, "c": pixels}

    log = streaming.Log()
    log.base(batch((0, 1.0, 5.0, 1.0), (0, 1.0, 6.0, 2.0)))
    log.add(batch((0, 1.0, 7.0, 2.5), (0, 2.0, 9.0, 2.5)), ["c"])
    log.add(batch((1, 3.0, 2.0, 0.0), (1, 1.0, 3.0, 1.0)), ["c"])
    log.add(batch((0, 1.0, 10.0, 0.5)), ["c"])
    found = log.found(2.0, 2)
    assert found["samples_measured"] == found["frames_measured"] == 5
    assert found["samples_per_s"] == 2.5
    assert found["fetch_s_total"] == 0.5 + 1.0 + 0.5, "where it fell, a new epoch began"
    assert found["decode_s_total"] == 3.0 + 3.0 + 1.0 - 2.0
    assert found["decode_pct_worker_time"] == pytest.approx(100 * 5.0 / 8.0)
    assert found["p50_sample_latency_ms"] == 1000
    assert found["video_decoder_cache"]["hits"] == 14
    assert found["episodes_per_batch_mean"] == pytest.approx(5 / 3)
    assert found["peak_rss_gb"] > 3
    assert streaming.abs_corr(list(range(10))) == pytest.approx(1)
    assert streaming.abs_corr([3, 3]) == 1.0


# --- scripts for clusters


@pytest.mark.parametrize(
    ("script", "given", "words"),
    [
        (
            "train_streaming_robocasa.sh",
            {"DATASET": "me/robots", "OUT": "/a run", "CACHE": "/c", "WORKERS": "3"},
            "train_streaming_multinode.py|me/robots|--out|/a run|--cache-dir|/c|--workers|3|--resume|--steps|7",
        ),
        (
            "train_streaming_robocasa.sh",
            {"ROOT": "/my data", "OUT": "/o", "CACHE": "/c"},
            "train_streaming_multinode.py|--root|/my data|--out|/o|--cache-dir|/c|--workers|4|--resume|--steps|7",
        ),
        (
            "benchmark_streaming.sh",
            {"OUT": "/o", "CACHE": "/c"},
            "benchmark_streaming.py|--out|/o|--cache-dir|/c|--steps|7",
        ),
    ],
)
def test_a_script_starts_one_torchrun_on_each_node(
    tmp_path: Path, script: str, given: dict[str, str], words: str
) -> None:
    tools = {"scontrol": 'printf "node7\\nnode8\\n"', "srun": 'IFS="|"; echo "$*"'}
    for name, body in tools.items():
        (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / name).chmod(0o755)
    slurm = {"SLURM_JOB_NODELIST": "node[7-8]", "SLURM_NNODES": "2", "SLURM_JOB_ID": "45001", "SLURM_GPUS_ON_NODE": "4"}
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "USER": "me", "SLURM_SUBMIT_DIR": str(ROOT), **slurm, **given}
    command = ["bash", str(ROOT / "slurm" / script), "--steps", "7"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env=env)
    assert done.returncode == 0, done.stderr
    before, _, after = done.stdout.strip().partition(f"|{ROOT}/")
    assert "--nnodes=2|--nproc-per-node=4|--rdzv-backend=c10d|--rdzv-endpoint=node7:25001" in before
    assert after.endswith(words)
    assert (ROOT / after.split("|")[0]).is_file()


def test_a_script_without_a_data_set_says_so(tmp_path: Path) -> None:
    command = ["bash", str(ROOT / "slurm" / "train_streaming_robocasa.sh")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False, env={"USER": "me"})
    assert (done.returncode, done.stdout) == (2, "")
    assert "set DATASET" in done.stderr

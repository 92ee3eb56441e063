"""The benchmarks run: small, in a process of their own, with those peers that are installed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.alone

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def quick(name: str, out: Path, *more: str) -> dict[str, Any]:
    command = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--quick", "--out", str(out), *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads((out / f"{name}.json").read_text())
    assert f"| {name} (quick) |" in (out / "README.md").read_text()
    return found


def test_rows_benchmark_reports_speed_resume_memory_and_targets(tmp_path: Path) -> None:
    found = quick("rows", tmp_path)
    assert {"date", "quick", "machine", "rows", "speed", "resume", "state", "memory", "targets"} <= set(found)
    ours = [line for line in found["speed"] if line["name"].startswith("headrace")]
    assert len(ours) == 7
    assert all(line["rows_per_second"] > 0 and line["of_limit"] > 0 for line in ours)
    places = {"ms_at_10_percent", "ms_at_50_percent", "ms_at_99_percent"}
    assert all(places <= set(line) for line in found["resume"])
    assert {"median_ms", "max_ms", "max_cpu_ms"} <= set(found["state"][0])
    assert len(found["memory"]["mb_after_each_epoch"]) == 4
    assert len(found["targets"]) == 16


def test_shuffle_benchmark_reports_pairs_of_each_way_and_targets(tmp_path: Path) -> None:
    found = quick("shuffle", tmp_path, "--data", str(tmp_path / "data"))
    assert [variant["shards"] for variant in found["variants"]] == [4, 16]
    for variant in found["variants"]:
        perfect, buffer, mine, *_ = variant["ways"]
        assert perfect["same_class"] < buffer["same_class"]
        assert mine["name"].startswith("headrace")
        assert 0 < mine["same_shard"] <= 1
    assert len(found["targets"]) == 4


def test_tokens_benchmark_reports_speed_parts_and_targets_and_loses_no_token(tmp_path: Path) -> None:
    found = quick("tokens", tmp_path, "--no-peers")
    ran = [line for line in found["speed"] if line["tokens_per_second"] is not None]
    assert len(ran) == 9
    assert all(line["tokens_per_second"] > 0 and line["batch_seconds"] > 0 for line in ran)
    assert [line["name"] for line in found["speed"] if line not in ran] == ["datasets, map(tokenize), TRL packing"]
    assert [check["backend"] for check in found["passes"]] == ["reference", "fast", "ids"]
    assert all(check["documents_different"] == 0 and check["tokens_lost"] == 0 for check in found["passes"])
    assert all(check["tokens"] == found["tokens"] and check["fill"] > 0.9 for check in found["passes"])
    assert 0 < found["parts"]["receipt_seconds"] < found["parts"]["state_dict_seconds"]
    assert len(found["targets"]) == 8


def test_resume_benchmark_kills_runs_and_reports_how_they_go_on(tmp_path: Path) -> None:
    found = quick("resume", tmp_path, "--no-peers")
    assert [line["name"].split(",")[1] for line in found["resume"]] == [" rows", " packed tokens"]
    for line in found["resume"]:
        places = [line[f"at_{percent}_percent"] for percent in (1, 50, 99)]
        assert all(place["exact"] and 0 < place["seconds"] < place["whole"] for place in places)
    assert len(found["targets"]) == 2


def test_images_benchmark_judges_each_size_and_length_by_itself(tmp_path: Path) -> None:
    found = quick("images", tmp_path, "--no-peers")
    sizes = list(dict.fromkeys(line["of"] for line in found["images"]))
    assert sizes == ["images 500x375", "images 640x480", "images 1024x768", "images 1600x1200"]
    assert {line["of"] for line in found["sounds"]} == {"recordings 3 s", "recordings 8 s"}
    ran = [line for line in [*found["images"], *found["sounds"]] if not line["name"].startswith("datasets")]
    assert all(line["per_second"] > 0 and line["of_bare"] > 0 and line["of_bare_wall"] > 0 for line in ran)
    assert len(found["memory"]["mb"]) == 10
    assert len(found["targets"]) == 4 * 3 + 2 * 2 + 1


@pytest.mark.parametrize("name", ["rows", "shuffle", "tokens", "resume", "images"])
def test_benchmarks_explain_their_options(name: str) -> None:
    done = subprocess.run(
        [sys.executable, str(BENCHMARKS / f"{name}.py"), "--help"], capture_output=True, text=True, check=True
    )
    assert all(option in done.stdout for option in ("--quick", "--check", "--data", "--out", "--no-peers"))

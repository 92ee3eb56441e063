"""Every block of code on every page runs, in a folder of its own and with a Hub on this machine.

The blocks of a page are run in their order, those of a language in one process: a later one may use what an earlier
one has made. Blocks that are no code say so (```text).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pages import PAGES, ROOT, blocks, name

from headrace.testing import LocalHub, write_parquet, write_robot_dataset
from headrace.testing.tokenizers import write_tokenizer

CODE = {"python", "bash"}
NO_CODE = {"text", "yaml", "json"}
NOT_RUN = {
    "make demo": "trains for minutes; tests/test_demo.py runs the same demo, smaller",
    "make test": "it is what runs this",
    "--root hf://buckets/": "the Hub on this machine serves no buckets",
}
"""Beginnings or parts of commands, and why they are not run here."""
SHORTER = {
    "train_streaming_multinode.py": "--steps 6 --batch-size 4 --width 4 --pool 3 --workers 1",
    "train_streaming_robocasa.sh": "--steps 6 --batch-size 4 --width 4 --pool 3 --workers 1",
    "benchmark_streaming.py": "--num-batches 3 --warmup-batches 1 --batch-size 4 --num-workers 1",
    "benchmark_streaming.sh": "--num-batches 3 --warmup-batches 1 --batch-size 4 --num-workers 1",
}
"""What is put behind a command with this file, so that it is done in seconds."""
CLUSTER = {
    "sbatch": 'while [[ $1 == -* ]]; do shift; done; SLURM_JOB_NODELIST=here SLURM_JOB_ID=$$ exec bash "$@"',
    "scontrol": "echo 127.0.0.1",
    "srun": 'while [[ $1 == -* ]]; do shift; done; exec "$@"',
}
"""A cluster that is this machine."""


def is_left_out(line: str) -> bool:
    return any(line.startswith(part) or (part.startswith("--") and part in line) for part in NOT_RUN)


def shortened(line: str) -> str:
    more = next((more for file, more in SHORTER.items() if re.search(rf"/{file}\b", line)), "")
    command, comment = re.fullmatch(r"(.*?)(\s+#.*)?", line).groups()  # type: ignore[union-attr]
    return f"{command} {more}{comment or ''}" if more else line


def cases() -> list[tuple[str, str]]:
    found = {(name(page), language) for page in PAGES for language, _ in blocks(page)}
    return sorted((page, language) for page, language in found if language in CODE)


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHub]:
    """All data sets that a page names."""
    folder = tmp_path_factory.mktemp("data")
    card = b"---\nconfigs:\n- config_name: sample-10BT\n  data_files:\n  - {split: train, path: sample/10BT/*}\n---\n"
    text = {f"sample/10BT/{p.name}": p for p in write_parquet(folder / "text", [[40, 40], [40]])}
    robots = write_robot_dataset(folder / "robots", episodes=[20] * 10, fps=15)
    with LocalHub() as hub:
        hub.push("HuggingFaceFW/fineweb", {"README.md": card, **text})
        for repo in ("lerobot/droid", "org/name"):
            hub.push(repo, robots, branch="refs/tags/v3.0")
        yield hub


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder that looks like a checkout, in which nothing that is written harms the real one."""
    work = tmp_path / "work"
    work.mkdir()
    for folder in ("benchmarks", "examples", "headrace", "slurm"):
        (work / folder).symlink_to(ROOT / folder)
    write_tokenizer(work / "my-tokenizer")
    (tmp_path / "bin").mkdir()
    for tool, body in CLUSTER.items():
        (tmp_path / "bin" / tool).write_text(f"#!/bin/bash\n{body}\n")
        (tmp_path / "bin" / tool).chmod(0o755)
    return work


def ended(command: list[str], place: Path, hub: LocalHub) -> str:
    """What it printed, once it and all that it started have ended well."""
    path = f"{place.parent / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    env = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "HF_ENDPOINT": hub.endpoint, "OMP_NUM_THREADS": "1"}
    env |= {"CACHE": str(place.parent / "cache"), "WORKERS": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
    said = place.parent / "said.txt"
    with said.open("w") as file:
        run = subprocess.Popen(command, cwd=place, env=env, stdout=file, stderr=file, start_new_session=True)
    try:
        assert run.wait(timeout=500) == 0, said.read_text()[-5000:]
    finally:
        try:
            os.killpg(run.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all have ended
        run.wait()
    return said.read_text()


@pytest.mark.timeout(600)
@pytest.mark.parametrize(("page", "language"), cases())
def test_the_code_on_a_page_runs(page: str, language: str, place: Path, hub: LocalHub) -> None:
    parts = [body for kind, body in blocks(ROOT / page) if kind == language]
    if language == "python":
        (place / "page.py").write_text("\n".join(parts))
        assert ended([sys.executable, "page.py"], place, hub)
        return
    lines = [line for part in parts for line in part.splitlines() if not is_left_out(line)]
    ended(["bash", "-euxo", "pipefail", "-c", "\n".join(map(shortened, lines))], place, hub)


def test_every_block_says_what_it_is() -> None:
    kinds = {(name(page), kind) for page in PAGES for kind, _ in blocks(page)}
    assert {(page, kind) for page, kind in kinds if kind not in {*CODE, *NO_CODE}} == set()
    fences = {name(p): len(re.findall(r"^ *```", p.read_text(), re.MULTILINE)) for p in PAGES}
    assert fences == {name(page): 2 * len(blocks(page)) for page in PAGES}


def test_pages_are_found_wherever_they_lie() -> None:
    names = {name(page) for page in PAGES}
    assert {"README.md", "CONTRIBUTING.md", "SECURITY.md", "examples/README.md", "docs/walk.md"} <= names
    assert {"examples/scaling/README.md", "benchmarks/streaming/README.md"} <= {page for page, _ in cases()}


def test_commands_that_are_not_run_are_few_and_still_there() -> None:
    lines = [line for page in PAGES for kind, body in blocks(page) if kind == "bash" for line in body.splitlines()]
    left_out = [line for line in lines if is_left_out(line)]
    assert all(any(part in line for line in left_out) for part in NOT_RUN)
    assert len(left_out) == 3
    for verb in re.findall(r"^make (\S+)", "\n".join(left_out), re.MULTILINE):
        assert re.search(rf"^{verb}:", (ROOT / "Makefile").read_text(), re.MULTILINE)

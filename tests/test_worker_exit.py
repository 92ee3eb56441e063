"""A trainer with workers ends as it should, soon, in silence, and alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fetching import wait_until
from serving import on_this_machine, shared_memory, write_rows

pytestmark = pytest.mark.timed

ENDINGS = {
    "return": 0,
    "exit": 3,
    "error": 1,
    "os._exit": 5,
    "SIGINT": -signal.SIGINT,
    "SIGINT twice": -signal.SIGINT,
    "SIGTERM": -signal.SIGTERM,
    "SIGTERM handled": 7,
}

SCRIPT = """
import os, signal, sys, threading, time
sys.path.insert(0, {tests!r})
from serving import loader_of
from headrace.make.prepare import AsRows
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
ending, when = {ending!r}, {when!r}

def stuck(real):
    calls = []
    def prepare(*given):
        calls.append(1)
        if len(calls) > 5:
            time.sleep(60)
        return real(*given)
    return prepare

def main():
    if when == "waiting":
        AsRows.__call__ = stuck(AsRows.__call__)
    if ending == "SIGTERM handled":
        signal.signal(signal.SIGTERM, lambda *given: sys.exit(7))
    loader = loader_of(**{options!r})
    batches = iter(loader)
    next(batches)
    if when == "idle":
        del batches
    print(threading.active_count(), time.time(), flush=True)
    if ending.startswith("SIG"):
        for batch in batches if when != "idle" else iter(int, 1):
            time.sleep(0.01)
    if ending == "exit":
        sys.exit(3)
    if ending == "error":
        raise RuntimeError("planted")
    if ending == "os._exit":
        os._exit(5)
    return loader, locals()

if __name__ == "__main__":
    kept = main()
"""


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("corpus"))


def in_session(leader: int) -> list[int]:
    """Processes that a session has; its leader may be gone."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split() if folder.name.isdecimal() else []
        except OSError:
            continue
        if fields and int(fields[3]) == leader and fields[0] != "Z":
            found.append(int(folder.name))
    return found


def ends(tmp_path: Path, ending: str, when: str = "busy", **options: Any) -> tuple[int, float, str]:
    """Return code, seconds from the end's beginning to the process's end, and what it said."""
    script = tmp_path / "trainer.py"
    script.write_text(SCRIPT.format(tests=str(Path(__file__).parent), ending=ending, when=when, options=options))
    temporary, shared = tmp_path / "temporary", shared_memory()
    temporary.mkdir()
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(temporary)},
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise AssertionError(process.communicate(timeout=30)[1])
    began = float(line.split()[1])
    if ending.startswith("SIG"):
        time.sleep(0.3)
        began = time.time()
        if ending.startswith("SIGINT"):
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        else:
            process.terminate()
        if ending == "SIGINT twice":
            time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate(timeout=30)
    seconds = time.time() - began
    wait_until(lambda: in_session(process.pid) == [], 3)
    assert list(temporary.rglob("*")) == []
    wait_until(lambda: shared_memory() <= shared, 3)
    return process.returncode, seconds, said


def check(ending: str, outcome: tuple[int, float, str]) -> None:
    code, seconds, said = outcome
    assert code == ENDINGS[ending], said
    assert seconds < on_this_machine(2), said
    if ending == "SIGINT twice":  # the second one may come while Python goes through what is to do at exit, and says so
        said = said.replace("Exception ignored in atexit callback", "")
    for noise in ("Fatal Python error", "Exception ignored", "Process headrace", "Warning", "leaked"):
        assert noise not in said
    assert said.count("Traceback") <= (2 if ending == "SIGINT twice" else 1)
    if ending in ("return", "exit", "os._exit", "SIGTERM", "SIGTERM handled"):
        assert said == ""
    if ending == "error":
        assert said.splitlines()[-1] == "RuntimeError: planted"


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("ending", list(ENDINGS))
def test_a_trainer_in_its_loop_ends(pattern: str, tmp_path: Path, ending: str, num_workers: int) -> None:
    options: dict[str, Any] = {"kind": "rows", "pattern": pattern, "steps_per_epoch": 100_000}
    check(ending, ends(tmp_path, ending, num_workers=num_workers, **options))


@pytest.mark.parametrize("ending", ["return", "error", "SIGINT"])
def test_a_trainer_on_tensors_ends(pattern: str, tmp_path: Path, ending: str) -> None:
    options: dict[str, Any] = {"kind": "endless", "pattern": pattern, "steps_per_epoch": 100_000}
    check(ending, ends(tmp_path, ending, num_workers=2, **options))


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_a_trainer_with_idle_workers_ends(pattern: str, tmp_path: Path, ending: str) -> None:
    options: dict[str, Any] = {"kind": "rows", "pattern": pattern, "num_workers": 2, "persistent_workers": True}
    check(ending, ends(tmp_path, ending, "idle", **options))


@pytest.mark.parametrize("ending", ["SIGINT", "SIGINT twice", "SIGTERM", "SIGTERM handled"])
def test_a_trainer_that_waits_for_a_stuck_worker_ends(pattern: str, tmp_path: Path, ending: str) -> None:
    check(ending, ends(tmp_path, ending, "waiting", kind="rows", pattern=pattern, num_workers=2))


@pytest.mark.parametrize("ending", ["return", "error", "SIGINT"])
def test_a_trainer_with_spawned_workers_ends(pattern: str, tmp_path: Path, ending: str) -> None:
    options: dict[str, Any] = {"kind": "rows", "pattern": pattern, "num_workers": 2, "start_method": "spawn"}
    check(ending, ends(tmp_path, ending, "idle" if ending == "SIGINT" else "busy", **options))

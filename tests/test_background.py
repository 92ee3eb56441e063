"""A trainer under nohup or in the background, where SIGHUP and SIGINT are ignored and its workers inherit that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving import is_alive, kill_all, loader_of, on_this_machine, seen, workers, write_rows

TRAINER = """
import multiprocessing, os, sys, time
sys.path.insert(0, {tests!r})
from serving import loader_of

def workers():
    return sorted(process.pid for process in multiprocessing.active_children())  # a server of forks may be their parent

if __name__ == "__main__":
    with loader_of("rows", {pattern!r}, num_workers=2, start_method={method!r}) as loader:
        batches = iter(loader)
        next(batches)
        print(*workers(), flush=True)
        sys.stdin.readline()
        print(1 + sum(1 for _ in batches), flush=True)
    print(*workers(), flush=True)
"""


class Background:
    """A trainer that ignores both signals, in a process group of its own."""

    def __init__(self, folder: Path, method: str) -> None:
        script = folder / "trainer.py"
        pattern = write_rows(folder)
        script.write_text(TRAINER.format(tests=str(Path(__file__).parent), pattern=pattern, method=method))
        shell = f"trap '' HUP INT; exec {sys.executable} {script}"
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", shell], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
        assert self.process.stdout is not None
        self.workers = [int(pid) for pid in self.process.stdout.readline().split()]
        assert len(self.workers) == 2

    def end(self) -> None:
        self.process.kill()
        self.process.communicate()
        kill_all(self.workers)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_signals_that_are_ignored_disturb_neither_trainer_nor_workers(tmp_path: Path, method: str) -> None:
    trainer = Background(tmp_path, method)
    try:
        for number in (signal.SIGHUP, signal.SIGINT):  # as when the terminal goes, or someone presses Ctrl-C
            os.killpg(trainer.process.pid, number)
        said, _ = trainer.process.communicate("go on\n", timeout=on_this_machine(60))
        assert trainer.process.returncode == 0
        count, left = said.split("\n")[:2]
        with loader_of("rows", f"{tmp_path}/in/*.parquet") as loader:
            assert int(count) == len([*loader])
        assert left == ""
        assert not any(map(is_alive, trainer.workers))
    finally:
        trainer.end()


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_a_trainer_that_is_killed(tmp_path: Path, method: str, how: signal.Signals) -> None:
    trainer = Background(tmp_path, method)
    try:
        trainer.process.send_signal(how)
        assert trainer.process.wait(timeout=on_this_machine(20)) == -how
        deadline = time.monotonic() + on_this_machine(10)
        while any(map(is_alive, trainer.workers)) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not any(map(is_alive, trainer.workers))
    finally:
        trainer.end()


def test_a_hangup_that_the_trainer_handles_is_not_handled_in_a_worker(tmp_path: Path) -> None:
    pattern, handled = write_rows(tmp_path), tmp_path / "handled"
    handled.mkdir()
    before = signal.signal(signal.SIGHUP, lambda number, frame: (handled / str(os.getpid())).touch())
    try:
        with loader_of("rows", pattern, num_workers=2, start_method="fork") as loader:
            batches = iter(loader)
            found = [seen(next(batches))]
            for pid in workers():
                os.kill(pid, signal.SIGHUP)
            found += [seen(batch) for batch in batches]
        with loader_of("rows", pattern) as loader:
            assert found == [seen(batch) for batch in loader]
    finally:
        signal.signal(signal.SIGHUP, before)
    assert list(handled.iterdir()) == []

"""A process is forked while a thread opens a source: the child opens its own, and does not wait for that thread."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from headrace.lazy import cached_property
from headrace.testing import LocalHub, write_parquet
from headrace.testing.hub.faults import Exchange, StallAfter

FORKED = """
import os, sys, threading, time
import headrace

folder, cache, log = sys.argv[1:]

def open_slowly():
    next(iter(headrace.load("hf:me/rows", batch_size=2, cache_dir=cache)))

threading.Thread(target=open_slowly, daemon=True).start()
while not os.path.exists(log):
    time.sleep(0.01)
child = os.fork()
if child == 0:
    with headrace.load(f"parquet:{folder}/*.parquet", batch_size=2, cache_dir=cache) as loader:
        rows = sum(len(batch["text"]) for batch in loader)
    os._exit(rows)
code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
print(code, flush=True)
os._exit(0)
"""


def test_a_child_that_is_forked_while_a_thread_opens_a_source_opens_its_own(hub: LocalHub, tmp_path: Path) -> None:
    write_parquet(tmp_path / "repo", [[6], [4]])
    hub.push("me/rows", tmp_path / "repo")
    asked = tmp_path / "asked"

    class Stuck:
        """The answer does not come while the test runs; the file says that it was asked for."""

        def acts_on(self, exchange: Exchange) -> bool:
            return True

        def act(self, exchange: Exchange) -> None:
            StallAfter(None).act(exchange)
            asked.touch()

    hub.fault("*", Stuck())
    env = {**os.environ, **hub.env()}
    command = [sys.executable, "-c", FORKED, tmp_path / "repo", tmp_path / "cache", asked]
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False, timeout=100, env=env)
    assert (done.stdout.split(), done.returncode) == (["10"], 0), done.stderr


def test_threads_that_compute_a_property_at_once_get_the_same_value() -> None:
    class Holder:
        computed = 0

        @cached_property
        def value(self) -> list[int]:
            """What it is."""
            self.computed += 1
            return [] if self.computed > 1 else self.value  # a second computation inside of the first

    holder = Holder()
    assert holder.value is holder.value
    assert (holder.computed, Holder.value.__doc__) == (2, "What it is.")


def test_no_module_takes_the_property_with_a_lock() -> None:
    import headrace

    package = Path(headrace.__file__).parent
    with_lock = "from functools import cached" + "_property"
    assert [path for path in package.rglob("*.py") if with_lock in path.read_text()] == []

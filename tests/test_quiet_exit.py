"""Objects that outlive the modules they come from say nothing when the interpreter ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MAKE = {
    "turnstile": "from headrace.serve import turnstile; made = turnstile.Turnstile()",
    "plain file": "from headrace.catalog import plain; made = plain.PlainFile(__file__)",
    "compressed text": (
        "import gzip; from pathlib import Path; from headrace.fetch.text import open_text\n"
        "from headrace.fetch.cache import ShardCache\n"
        "path = __file__ + '.gz'; gzip.open(path, 'w').write(b'a row\\n')\n"
        "made = open_text(path, ShardCache(Path(__file__ + '.data')))"
    ),
    "sound": "from headrace.fetch.media import readable; made = readable._File()",
    "memory of a chunk": "from headrace.fetch import memory; made = memory.MemoryUse(1)",
    "wire": "from headrace.serve.wire import Wire; made = Wire.pair()",
    "rows": ("import headrace; made = headrace.rows(f'txt:{__file__}', cache_dir=__file__ + '.data'); next(made)"),
    "loader": (
        "import headrace; loader = headrace.load(f'txt:{__file__}', cache_dir=__file__ + '.data', batch_size=1)\n"
        "made = [loader, iter(loader)]; next(made[1])"
    ),
}


@pytest.mark.parametrize("kind", MAKE)
def test_what_is_left_at_the_end_of_the_process_is_let_go_in_silence(kind: str, tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    # Modules are taken apart in the reverse order of their import: torch, which came first, outlives ours.
    script.write_text(f"import torch\n{MAKE[kind]}\ntorch.kept = made\n")
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


LATE = """
import io, os, signal, sys, threading, time, weakref
import pyarrow as pa, pyarrow.parquet as pq
from headrace.catalog import soundness
from headrace.lerobot import projection

files, looked = [], 0

def late(kind):  # the threads of pyarrow that ask for bytes get the processor only when nobody else wants it
    was_made, was_read = kind.__init__, kind.read

    def made(self, *arguments):
        was_made(self, *arguments)
        files.append(weakref.ref(self))

    def read(self, size=-1):
        if threading.current_thread() is not threading.main_thread():
            os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
        return was_read(self, size)

    kind.__init__, kind.read = made, read

late(soundness._Blank)
late(projection._Spans)
body = io.BytesIO()
pq.write_table(pa.table({"a": list(range(1000))}), body)
meta = pq.read_metadata(io.BytesIO(body.getvalue()))
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if (busy := os.fork()) == 0:
    signal.alarm(60)
    while True:
        pass
held, until = 0, time.monotonic() + 20
try:
    while not held and time.monotonic() < until:
        assert soundness._begin(meta, None) is None
        held += files.pop()() is not None
        table = projection._parse(meta, [0], [(0, body.getvalue())], ["a"], [])
        assert table.num_rows == 1000
        held += files.pop()() is not None
        looked += 1
        if looked == 20:
            break
finally:
    os.kill(busy, 9)
print(held, looked > 0)
"""


@pytest.mark.alone
def test_no_thread_of_pyarrow_has_a_file_of_ours_when_it_was_looked_at() -> None:
    """One that still has it when the interpreter ends ends the process by SIGABRT."""
    done = subprocess.run([sys.executable, "-c", LATE], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout, done.returncode) == ("0 True\n", 0), (done.stdout, done.stderr[-2000:])

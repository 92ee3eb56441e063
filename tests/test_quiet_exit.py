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

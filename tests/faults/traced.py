"""A program under strace, whose calls on some folder are counted, and one of which fails or kills."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path

from fetching import environment, python

STRACE = shutil.which("strace")


def may_trace() -> bool:
    if not STRACE:
        return False
    return not subprocess.run([STRACE, "-o", os.devnull, "true"], capture_output=True, check=False).returncode


def run(code: str, calls: str, *options: str, argument: str) -> subprocess.CompletedProcess[str]:
    """A piece of Python with `argument` as its own, behind `strace` with these options."""
    env = environment()
    env["PYTHONPATH"] += os.pathsep + str(Path(__file__).parents[1])
    command = [str(STRACE), "-f", "-qq", "-y", "-e", f"trace={calls}", *options, *python(), "-c", code, argument]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)


def points(code: str, calls: str, folder: Path, trace: Path) -> list[tuple[str, int]]:
    """Every call that touches the folder: its name, and its number among the calls of that name."""
    done = run(code, calls, "-o", str(trace), argument=str(folder))
    assert done.returncode == 0, done.stderr
    found, counts = [], Counter[str]()
    for line in trace.read_text(errors="replace").splitlines():
        match = re.match(r"\d+\s+(\w+)\(", line)
        if match:
            counts[match[1]] += 1
            if f"{folder}/" in line or f"{folder}>" in line or f'{folder}"' in line:
                found.append((match[1], counts[match[1]]))
    return found

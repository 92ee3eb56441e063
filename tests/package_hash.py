"""Names the code that a report is about."""

from __future__ import annotations

import subprocess
from pathlib import Path


def package_hash() -> str:
    """The hash of the package, as `git rev-parse HEAD:headrace` gives it: the same after a rebase. It says whether the
    package was changed since."""

    def git(*command: str) -> str:
        root = Path(__file__).parents[1]
        return subprocess.run(["git", "-C", root, *command], capture_output=True, text=True, check=False).stdout.strip()

    changed = "-changed" if git("status", "--porcelain", "headrace") else ""
    return f"{git('rev-parse', '--short=12', 'HEAD:headrace') or 'unknown'}{changed}"

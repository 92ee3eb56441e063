"""The pages of this repository, found wherever they lie, and the blocks of code on them."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
_BLOCK = re.compile(r"^ *```(.*?)\n(.*?)^ *```$", re.DOTALL | re.MULTILINE)


def _is_ours(path: Path) -> bool:
    """Not of an environment, a build or a run."""
    return not any(part.startswith(".") or part in ("build", "data", "dist") for part in path.relative_to(ROOT).parts)


PAGES = sorted(path for path in ROOT.rglob("*.md") if _is_ours(path))


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[tuple[str, str]]:
    """Language and text of each."""
    return [(language.strip(), body) for language, body in _BLOCK.findall(page.read_text())]

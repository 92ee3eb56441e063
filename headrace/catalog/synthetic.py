"""Sets of `headrace synth` as sources: written into the cache when they are first opened."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from headrace import synth
from headrace.catalog.listing import Listing, signature
from headrace.catalog.local import list_local
from headrace.catalog.source import SYNTH, Source
from headrace.locks import locked
from headrace.run import Run


def list_synth(source: Source, run: Run) -> Listing:
    """The file of a set, by its kind. Its revision tells of its rows alone, wherever the cache lies."""
    kind = source.path.removeprefix(SYNTH)
    path = synth_path(kind, run.cache_dir)
    if not path.is_file():
        with locked(path.with_name(f".{path.name}.lock")):
            if not path.is_file():
                synth.write(kind, path.parent)
    found = list_local(replace(source, path=str(path)))
    files = [(source.path, size, date) for _, size, date in found.files()]
    return replace(found, source=source, revision=signature(files))


def synth_path(kind: str, cache_dir: Path) -> Path:
    """Where the rows of a kind are kept."""
    return synth.path_of(kind, cache_dir / "synth")

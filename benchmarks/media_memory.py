"""Resident memory while many images go by, in a process of its own: run as a script it prints MB as JSON."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
from pathlib import Path

from memory import resident_megabytes

PARTS = 10


def over_rows(path: Path, tokenizer: Path, cache: Path, rows: int) -> list[float]:
    """MB after each tenth of so many images."""
    command = [sys.executable, __file__, str(path), str(tokenizer), str(cache), str(rows)]
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
    return [float(x) for x in json.loads(done.stdout)]


def _main(path: str, tokenizer: str, cache: str, rows: int) -> None:
    import headrace
    from headrace.make.tokens import TOKENS

    configs = {"vision": [{"name": "icons", "path": path}]}
    limits = {"max_per_epoch": rows, "max_per_dataset": rows, "sample_repeat": 1, "max_length": 64, "image_size": 32}
    functions = {"vision": headrace.format_vision}
    dataset = headrace.TrueStreamingDataset(configs, functions, tokenizer, dict(TOKENS), None, **limits)  # type: ignore[arg-type]
    found = []
    for number, _ in enumerate(dataset.configure(cache_dir=cache), 1):
        if not number % (rows // PARTS):
            gc.collect()
            found.append(resident_megabytes())
    print(json.dumps(found))


if __name__ == "__main__":
    _main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))

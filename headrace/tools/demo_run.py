"""The process that the demo kills: reads rows, writes each into a ledger, saves its state now and then.

A training run in small: a step takes a batch, and every so many steps the state of the stream is saved. Started by the
demo as `python -m headrace.tools.demo_run SPEC FOLDER`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from itertools import islice
from pathlib import Path

from headrace.fetch.doors import rows
from headrace.files import publish_json

BATCH = 64
SAVE_EVERY = 10
STEP_SECONDS = 0.002


def main(spec: str, folder: Path) -> None:
    start = time.perf_counter()
    done = 0
    stage = rows(spec, shuffle=True, cache_dir=folder / "data")
    saved = folder / "state.json"
    if saved.exists():
        checkpoint = json.loads(saved.read_bytes())
        stage.load_state_dict(checkpoint["state"])
        done = checkpoint["rows"]
    ledger = os.open(folder / "ledger.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for step in range(1, 1 << 60):
        batch = list(islice(stage, BATCH))
        if step == 1:
            publish_json(folder / "first.json", {"seconds": time.perf_counter() - start, "at": time.time()})
        if not batch:
            break
        os.write(ledger, "".join(f"{done + i} {row.data['uid']}\n" for i, row in enumerate(batch)).encode())
        done += len(batch)
        time.sleep(STEP_SECONDS)
        if step % SAVE_EVERY == 0:
            publish_json(saved, {"rows": done, "state": stage.state_dict()})
    stage.close()
    publish_json(folder / "end.json", {"rows": done})


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

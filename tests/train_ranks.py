"""Runs the robot example several times, each run on ranks of its own, as a launcher would start them.

    python train_ranks.py runs.json

Each run has `words` for the example, a number of `ranks`, a file for what it `says`, and may have a step at which its
last rank is `killed`. What each rank ended with is written beside it. Ranks are forked: torch is imported only once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "examples" / "scaling"))


def launched(example: Any, run: dict[str, Any]) -> list[int]:
    """How each rank ended: 0, a code, or less than 0 for a signal."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    pids = []
    for rank in range(run["ranks"]):
        pid = os.fork()
        if not pid:
            facts = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": run["ranks"], "LOCAL_WORLD_SIZE": run["ranks"]}
            facts |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
            os.environ.update({name: str(fact) for name, fact in facts.items()} if run["ranks"] > 1 else {})
            os._exit(as_rank(example, run, rank))
        pids.append(pid)
    return [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]


def as_rank(example: Any, run: dict[str, Any], rank: int) -> int:
    said = os.open(run["says"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(said, 1)
    os.dup2(said, 2)
    if run.get("killed") and rank == run["ranks"] - 1:
        example.run = killed_in(example.run, run["killed"])
    try:
        example.train(example.parse(run["words"]))
    except BaseException:
        traceback.print_exc()
        return 1
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    return 0


def killed_in(steps: Any, step: int) -> Any:
    def killed(*words: Any) -> Iterator[dict[str, Any]]:
        for record in steps(*words):
            yield record
            if record["step"] == step:
                os.kill(os.getpid(), signal.SIGKILL)

    return killed


def main() -> None:
    import train_streaming_multinode as example

    path = Path(sys.argv[1])
    for run in json.loads(path.read_text()):
        Path(run["says"]).with_suffix(".json").write_text(json.dumps(launched(example, run)))


if __name__ == "__main__":
    main()

"""A Hub in a process of its own, at some distance: its work is not that of who reads from it."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPO = "bench/robots"


class Far:
    """What the benchmarks know of it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.env: dict[str, str] = json.loads(self._line())

    def sent(self) -> dict[str, int]:
        """Requests and bytes since it was asked last: all, and those of videos."""
        assert self._process.stdin is not None
        self._process.stdin.write("sent\n")
        self._process.stdin.flush()
        found: dict[str, int] = json.loads(self._line())
        return found

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@contextmanager
def far_hub(folder: Path, latency_s: float, bytes_per_second: float) -> Iterator[Far]:
    """`folder` as the data set `REPO`."""
    command = [sys.executable, __file__, str(folder), str(latency_s), str(bytes_per_second)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield Far(process)
        finally:
            process.terminate()


def main() -> None:
    from headrace.testing import LocalHub
    from headrace.testing.hub import Link

    parser = argparse.ArgumentParser(description="Serve a data set until stdin ends.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("latency_s", type=float)
    parser.add_argument("bytes_per_second", type=float)
    args = parser.parse_args()
    with LocalHub() as hub:
        hub.push(REPO, args.folder, branch="refs/tags/v3.0")
        hub.fault("*", Link(args.latency_s, args.bytes_per_second))
        print(json.dumps(hub.env()), flush=True)
        for _ in sys.stdin:
            requests = hub.requests
            hub.clear_log()
            videos = [one for one in requests if one.path.endswith(".mp4")]
            found = {"requests": len(requests), "bytes": sum(one.bytes_sent for one in requests)}
            found |= {"video_requests": len(videos), "video_bytes": sum(one.bytes_sent for one in videos)}
            print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()

"""A local Hub in a process of its own, which is told by lines of JSON what to serve and what to spoil."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from headrace.testing import hub as actions
from headrace.testing.hub import Exchange, Flip, LocalHub

FAULTS = (
    ("Status", 500),
    ("Status", 503),
    ("RateLimit", 1.0),
    ("ResetAfter", 1000),
    ("CloseAfter", 30_000),
    ("CloseAfter", None),
    ("StallAfter", 5000, 4.0),
    ("Drip", 400_000.0),
    ("Delay", 0.7),
    ("IgnoreRange",),
    ("WrongRange",),
    ("WrongLength", -7),
    ("ChunkedCut", 20_000),
    ("NoLength",),
    ("FlipWhole", 4),
    ("FlipWhole", 31_000),
)
"""What a server does wrong: the name of an action, and its arguments."""


@dataclass(frozen=True)
class FlipWhole:
    """One byte is turned over in a file that is fetched whole, or to its end: there is a hash that finds it.

    A part of a file that is asked for by itself has none; what protects it on its way is TLS.
    """

    index: int

    def acts_on(self, exchange: Exchange) -> bool:
        asked = exchange.headers.get("range", "bytes=0-")
        return asked.endswith("-") and Flip(self.index).acts_on(exchange)

    def act(self, exchange: Exchange) -> None:
        Flip(self.index).act(exchange)


class HubProcess:
    """The driver's end."""

    def __init__(self, env: Mapping[str, str], said: Path) -> None:
        self._said = said.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, __file__],
            env=dict(env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            text=True,
        )
        self.pid = self._process.pid
        self.endpoint = str(self._answer()["endpoint"])

    def push(self, repo: str, folder: Path, branch: str) -> None:
        self._ask({"do": "push", "repo": repo, "folder": str(folder), "branch": branch})

    def fault(self, match: str, action: tuple[Any, ...], times: int) -> None:
        self._ask({"do": "fault", "match": match, "action": list(action), "times": times})

    def clear(self) -> None:
        self._ask({"do": "clear"})

    def count(self) -> dict[str, int]:
        """Requests and bytes since the last time this was asked."""
        return {name: int(value) for name, value in self._ask({"do": "count"}).items()}

    def _ask(self, what: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the Hub has ended; see {self._said.name}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()
        self._said.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()


def serve() -> None:
    with LocalHub() as hub:
        print(json.dumps({"endpoint": hub.endpoint}), flush=True)
        for line in sys.stdin:
            told = json.loads(line)
            answer: dict[str, Any] = {}
            if told["do"] == "push":
                hub.push(told["repo"], Path(told["folder"]), branch=told["branch"])
            elif told["do"] == "fault":
                name, *arguments = told["action"]
                action = FlipWhole(*arguments) if name == "FlipWhole" else getattr(actions, name)(*arguments)
                hub.fault(told["match"], action, times=told["times"])
            elif told["do"] == "clear":
                hub.clear_faults()
            elif told["do"] == "count":
                requests = hub.requests
                hub.clear_log()
                answer = {"requests": len(requests), "bytes": sum(request.bytes_sent for request in requests)}
            print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    serve()

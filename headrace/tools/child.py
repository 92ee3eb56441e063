"""A process of ours that is watched by the file it writes, and killed at a moment of our choice."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.errors import HeadraceError

DEADLINE_SECONDS = 240.0


class Child:
    """Runs a command; leaving the `with` block ends it. What it says goes to a file, so that no pipe can fill."""

    def __init__(self, command: Sequence[str], env: Mapping[str, str], said: Path) -> None:
        self._said = said
        with said.open("wb") as file:
            self._process = subprocess.Popen(command, env=dict(env), stdout=file, stderr=file)
        self._deadline = time.monotonic() + DEADLINE_SECONDS

    @property
    def runs(self) -> bool:
        if time.monotonic() > self._deadline:
            raise HeadraceError(f"a process of the demo did not end in {DEADLINE_SECONDS:.0f} s; {self._words()}")
        return self._process.poll() is None

    def follow(self, look: Callable[[], int], goal: int | None = None) -> bool:
        """To its end; or until `look()` says that it has come to `goal`: then it is killed. True: it was killed."""
        while self.runs:
            reached = look()
            if goal is not None and reached >= goal:
                self._process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.01)
        status = self._process.wait()
        if status not in (0, -signal.SIGKILL):
            raise HeadraceError(f"a process of the demo ended with {status}; {self._words()}")
        return status != 0

    def _words(self) -> str:
        return "its last words: " + self._said.read_text(errors="replace")[-2000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()


class Tail:
    """The whole lines of a growing file, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def __iter__(self) -> Iterator[bytes]:
        """What is new."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._at)
            for line in file:
                if line.endswith(b"\n"):
                    self._at += len(line)
                    yield line

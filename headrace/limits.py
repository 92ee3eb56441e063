"""How many processes, threads and open files there may be, and what is said where there can be no more."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from headrace.errors import FetchError, HeadraceError, WorkerError, shown

_WORDS = ("can't start new thread", "Failed to launch worker thread")
"""Python's, and pyarrow's."""


@contextmanager
def starting(what: str) -> Iterator[None]:
    """Threads or processes are started in here; one that cannot be is a `WorkerError` that names the limit."""
    try:
        yield
    except Exception as error:
        if isinstance(error, HeadraceError) or not is_task_limit(error):
            raise
        raise too_many_tasks(what, error) from error


def is_task_limit(error: BaseException) -> bool:
    """Whether an error means that there may be no more processes or threads."""
    if isinstance(error, OSError) and error.errno == errno.EAGAIN:
        return True
    return any(words in str(error) for words in _WORDS)


def too_many_tasks(what: str, error: BaseException) -> WorkerError:
    return WorkerError(
        f"{what} could not be started ({shown(error)}): there may be no more processes and threads here. {_limits()}. "
        f"End other programs of this user, use fewer workers and ranks on this machine, or raise the limit"
    )


def is_file_limit(error: BaseException) -> bool:
    """Whether an error means that there may be no more open files."""
    if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE):
        return True
    return isinstance(error, OSError) and os.strerror(errno.EMFILE) in str(error)


def too_many_files(what: str, error: BaseException) -> FetchError:
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return FetchError(
        errno.EMFILE,
        f"{what} cannot be opened: {os.strerror(errno.EMFILE)}. This process may have {most} open files (ulimit -n, "
        f"RLIMIT_NOFILE). Raise the limit, for example with ulimit -n {max(65536, 4 * most)}, or use fewer sources, "
        f"lanes or workers",
    )


def _limits() -> str:
    most = resource.getrlimit(resource.RLIMIT_NPROC)[0]
    found = [f"This user may have {'any number' if most == resource.RLIM_INFINITY else most} (ulimit -u, RLIMIT_NPROC)"]
    for folder in _groups():
        try:
            found.append(
                f"the control group may have {(folder / 'pids.max').read_text().strip()} and has "
                f"{(folder / 'pids.current').read_text().strip()} (pids.max, a container's limit)"
            )
            break
        except OSError:
            continue
    return ", ".join(found)


def _groups() -> list[Path]:
    """The folders that may tell about our control group."""
    top = Path("/sys/fs/cgroup")
    try:
        own = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        own = []
    return [*(top / line[3:].lstrip("/") for line in own if line.startswith("0::")), top, top / "pids"]

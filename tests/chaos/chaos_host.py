"""What the machine says: processes of ours, what they have open, what lies in the cache; and how all of it is ended."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

MARK = "CHAOS_ID"
"""An environment variable that every process of a run has."""
INSIDE = "CHAOS_INSIDE"


def processes(mark: str) -> dict[int, str]:
    """All that live and carry the mark, with what they were started as; but not this one."""
    wanted, found = f"{MARK}={mark}".encode(), {}
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            if wanted in (folder / "environ").read_bytes().split(b"\0") and state_of(int(folder.name)) not in "ZX":
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
    return found


def state_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


def workers_of(pid: int) -> list[int]:
    """Processes that a rank started and that make batches."""
    try:
        listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        helpers = ("resource_tracker import main", "forkserver import main")
        commands = {int(one): Path(f"/proc/{one}/cmdline").read_bytes().decode() for one in listed}
    except OSError:
        return []
    return [one for one, command in commands.items() if not any(helper in command for helper in helpers)]


def send(pids: Iterable[int], number: signal.Signals) -> int:
    """How many it reached."""
    reached = 0
    for pid in pids:
        try:
            os.kill(pid, number)
            reached += 1
        except OSError:
            continue  # it is gone
    return reached


def dump_stacks(pids: Iterable[int]) -> None:
    """Have each say where all its threads are, and end it: faulthandler answers SIGABRT."""
    alive = list(pids)
    send(alive, signal.SIGCONT)
    send(alive, signal.SIGABRT)
    time.sleep(1.0)
    send(alive, signal.SIGKILL)


def on_this_machine(seconds: float) -> float:
    """So long where processors are free; where more wants to run than there are, as much longer."""
    return seconds * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


# --- the cache


def cached_files(cache: Path) -> list[Path]:
    """Shards, sidecars and partial files, as they are now."""
    top = cache / "hf_shards"
    return sorted(path for path in top.rglob("*") if path.parent.name != ".leases" and path.is_file())


def cache_bytes(cache: Path) -> tuple[int, int]:
    """Of all whole shards, and of those that somebody reads from or fetches."""
    total = held = 0
    try:
        names = [path.name for path in (cache / "hf_shards" / ".leases").iterdir()]
        leased = {name.partition(".")[0] for name in names if not name.endswith((".ahead", ".kept"))}
    except OSError:
        leased = set()
    for path in cached_files(cache):
        if not path.name.startswith("."):
            try:
                size = path.stat().st_size
            except OSError:
                continue
            total += size
            held += size if key_of(cache, path) in leased else 0
    return total, held


def key_of(cache: Path, path: Path) -> str:
    return hashlib.blake2b(str(path.relative_to(cache / "hf_shards")).encode(), digest_size=12).hexdigest()


def unfinished(cache: Path) -> list[str]:
    """What only unfinished or dead work leaves."""
    return sorted(
        str(path.relative_to(cache))
        for path in cache.rglob("*")
        if path.name.endswith(".part") or (path.parent.name == ".leases" and path.is_file())
    )


# --- a small disk


def has_namespaces() -> bool:
    try:
        return not subprocess.run(["unshare", "-Urm", "true"], capture_output=True, check=False).returncode
    except FileNotFoundError:
        return False


def go_inside(folder: Path, disk_bytes: int) -> None:
    """Start this program again where `folder` is a small disk of its own and /dev/shm is empty. Does not return."""
    folder.mkdir(parents=True, exist_ok=True)
    script = (
        f'mount -t tmpfs -o size={disk_bytes},mode=0700 chaos "$1" && mount -t tmpfs shm /dev/shm && shift && exec "$@"'
    )
    os.environ[INSIDE] = str(folder)
    os.execvp("unshare", ["unshare", "-Urm", "sh", "-c", script, "sh", str(folder), sys.executable, *sys.argv])  # noqa: S606


def fill(folder: Path) -> Path:
    """A file that takes all that is left of a disk."""
    ballast = folder / ".ballast"
    block = bytes(1 << 16)
    with ballast.open("wb", buffering=0) as file:
        try:
            while file.write(block):
                pass
        except OSError:
            pass
    return ballast

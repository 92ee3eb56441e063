"""T25: few open files, few processes and threads. It works, or an error says so; nobody waits for ever."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.testing import LocalHub, write_parquet

pytestmark = pytest.mark.alone

READER = """
import resource, sys
what, many, workers = sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
import headrace, pyarrow.parquet, fsspec
from headrace.errors import HeadraceError
from headrace.serve import loader, worker
resource.setrlimit(getattr(resource, what), (many, many))
try:
    with headrace.load("hf:me/rows", cache_dir=sys.argv[1], batch_size=5, lanes=4, num_workers=workers) as loader:
        uids = [uid for batch in loader for uid in batch["uid"]]
    print("all" if len(set(uids)) == len(uids) == 240 else f"{len(uids)} rows")
except (HeadraceError, OSError, RuntimeError) as error:
    print(f"{type(error).__name__}: {error}")
"""


def read_with(hub: LocalHub, folder: Path, what: str, many: int, workers: int, *before: str) -> str:
    command = [*before, sys.executable, "-c", READER, str(folder / "data"), what, str(many), str(workers)]
    env = {**os.environ, **hub.env(), "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "HOME": str(folder)}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


@pytest.fixture
def repo(hub: LocalHub, tmp_path: Path) -> LocalHub:
    write_parquet(tmp_path / "repo", [[20, 10]] * 8)
    hub.push("me/rows", tmp_path / "repo")
    return hub


@pytest.mark.parametrize("workers", [0, 2])
def test_sixty_four_open_files_are_enough(repo: LocalHub, tmp_path: Path, workers: int) -> None:
    assert read_with(repo, tmp_path, "RLIMIT_NOFILE", 64, workers) == "all"


@pytest.mark.parametrize("many", range(6, 40, 4))
def test_too_few_open_files_are_an_error_that_says_so(repo: LocalHub, tmp_path: Path, many: int) -> None:
    said = read_with(repo, tmp_path, "RLIMIT_NOFILE", many, 0)
    assert said == "all" or "open files" in said


@pytest.fixture
def open_folder(repo: LocalHub) -> Iterator[Path]:
    """A folder that another user can come to."""
    with tempfile.TemporaryDirectory(prefix="headrace-few-") as name:
        Path(name).chmod(0o755)
        yield Path(name)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("more", [0, 1, 3, 40])
def test_too_few_processes_and_threads_are_an_error_or_do_without(
    repo: LocalHub, open_folder: Path, workers: int, more: int
) -> None:
    """For the superuser there is no such limit, so another user has to do."""
    before: list[str] = []
    if os.geteuid() == 0:
        if not shutil.which("setpriv"):
            pytest.skip("setpriv is missing, and the superuser knows no limit")
        user = pwd.getpwnam("nobody").pw_uid
        before = ["setpriv", f"--reuid={user}", "--clear-groups"]
        os.chown(open_folder, user, -1)
    said = read_with(repo, open_folder, "RLIMIT_NPROC", 1 + more, workers, *before)
    assert said == "all" or (said.startswith("WorkerError: ") and f"may have {1 + more} (ulimit -u" in said), said
    assert said == "all" or more < 40

"""T27: a kill or an error at any system call of a save; the state before it, or the new one, still loads."""

from __future__ import annotations

import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import traced

CALLS = "openat,write,fsync,close,rename,unlink,mkdir"
SAVE = """
import sys
from pathlib import Path
from headrace.errors import HeadraceError
from headrace.files import publish_json
try:
    publish_json(Path(sys.argv[1]) / "state.json", {"saved": "new", "lanes": list(range(500))})
except HeadraceError as error:
    print("family:", error)
    sys.exit(3)
except OSError as error:
    print("plain:", error)
    sys.exit(4)
"""
OLD = json.dumps({"saved": "old"})

pytestmark = pytest.mark.skipif(not traced.may_trace(), reason="strace is missing, or may not trace here")


def prepared(folder: Path) -> Path:
    folder.mkdir()
    (folder / "state.json").write_text(OLD)
    return folder


def saved_in(folder: Path) -> str:
    return str(json.loads((folder / "state.json").read_text())["saved"])


def test_a_kill_at_any_call_of_a_save_leaves_the_old_state_or_the_new_one(tmp_path: Path) -> None:
    found = traced.points(SAVE, CALLS, prepared(tmp_path / "reference"), tmp_path / "trace")
    assert {name for name, _ in found} >= {"openat", "write", "fsync", "rename"}

    def attempt(point: tuple[str, int]) -> str:
        folder = prepared(tmp_path / f"{point[0]}-{point[1]}")
        inject = f"inject={point[0]}:signal=KILL:when={point[1]}"
        done = traced.run(SAVE, CALLS, "-o", os.devnull, "-e", inject, argument=str(folder))
        assert done.returncode in (-9, 137), done
        state = saved_in(folder)
        left = [path.name for path in folder.iterdir() if path.name != "state.json"]
        assert len(left) <= 1
        again = traced.run(SAVE, CALLS, "-o", os.devnull, argument=str(folder))
        assert again.returncode == 0, again
        assert saved_in(folder) == "new"
        return state

    with ThreadPoolExecutor(3) as pool:
        states = list(pool.map(attempt, found))
    assert set(states) == {"old", "new"}
    assert states == sorted(states, reverse=True), "once the new one is there, it stays"


@pytest.mark.parametrize("code", ["ENOSPC", "EDQUOT", "EIO"])
def test_a_disk_that_fails_at_any_call_of_a_save_leaves_a_state_that_loads(tmp_path: Path, code: str) -> None:
    found = traced.points(SAVE, CALLS, prepared(tmp_path / "reference"), tmp_path / "trace")
    tried = [point for point in found if point[0] in ("openat", "write", "fsync", "rename")]

    def attempt(point: tuple[str, int]) -> tuple[str, str]:
        folder = prepared(tmp_path / f"{point[0]}-{point[1]}")
        inject = f"inject={point[0]}:error={code}:when={point[1]}"
        done = traced.run(SAVE, CALLS, "-o", os.devnull, "-e", inject, argument=str(folder))
        assert done.returncode in (3, 4), done
        assert [path.name for path in folder.iterdir()] == ["state.json"], "nothing half written is left"
        return saved_in(folder), done.stdout

    with ThreadPoolExecutor(3) as pool:
        for state, said in pool.map(attempt, tried):
            assert state in ("old", "new")
            if code != "EIO":
                assert said.startswith("family: ")
                assert "no room to write" in said
            assert os.strerror(getattr(errno, code)) in said

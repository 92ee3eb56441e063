"""Ranks of a process group that write the path of the same files in different ways share their rows."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headrace.testing import write_robot_dataset

ROWS = 96


def write_rows(path: Path, first: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{n:05}\n" for n in range(first, first + ROWS)))
    return path


def ran(folder: Path, name: str, specs: list[Any], **given: Any) -> list[dict[str, Any]]:
    """What each rank saw."""
    told = {"name": name, "specs": specs, "steps": 5, "cwd": ["."] * len(specs), **given}
    here = Path(__file__).parent
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={len(specs)}"]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*launch, str(here / "spelled_ranks.py"), str(folder), json.dumps(told)],
        env=env,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads((folder / f"{name}-{rank}.json").read_text()) for rank in range(len(specs))]


def rows(found: list[dict[str, Any]], *when: str) -> list[int]:
    return sorted(int(text) for one in found for name in when for batch in one[name] for text in batch)


@pytest.mark.parametrize("late", [False, True], ids=["group first", "loader first"])
def test_ranks_take_the_names_of_the_first(tmp_path: Path, late: bool) -> None:
    write_rows(tmp_path / "in" / "x.txt")
    specs = ["txt:in/x.txt", f"txt:{tmp_path}//in/./x.txt"]
    found = ran(tmp_path, "spelled", specs, late=late, peek=None if late else 1)
    assert "error" not in found[0]
    assert rows(found, "before", "after") == list(range(ROWS))
    assert found[0]["state"] == found[1]["state"]
    assert json.loads(found[0]["state"]["sources"])[0]["name"] == "txt:in/x.txt:text"
    if late:
        return
    (tmp_path / "state.json").write_text(json.dumps(found[0]["state"]))
    (tmp_path / "in").rename(tmp_path / "moved")
    again = ran(
        tmp_path,
        "again",
        ["txt:../moved/x.txt", f"txt:{tmp_path}/moved/x.txt"],
        state="state.json",
        steps=2,
        cwd=["data", "."],
    )
    assert sorted(rows(found, "before") + rows(again, "before", "after")) == list(range(ROWS))
    assert again[0]["before"] + again[0]["after"] == found[0]["after"]
    assert again[0]["state"] == again[1]["state"]


def test_ranks_with_a_copy_each_share_it_and_other_files_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_rows(tmp_path / name / "in" / "x.txt")
    write_rows(tmp_path / "three" / "in" / "x.txt", 7)
    found = ran(tmp_path, "copies", ["txt:in/x.txt"] * 2, cwd=["one", "two"])
    assert rows(found, "before", "after") == list(range(ROWS))
    assert found[0]["state"] == found[1]["state"]
    odd = ran(tmp_path, "odd", ["txt:in/x.txt"] * 2, cwd=["one", "three"], steps=0)
    assert "Changed: txt:in/x.txt:text: rank 1 reads other files than rank 0" in odd[1]["error"]


@pytest.mark.parametrize("way", ["load", "loader", "items"])
def test_ranks_share_the_frames_of_a_robot_whose_folder_has_another_name_for_each(tmp_path: Path, way: str) -> None:
    one = write_robot_dataset(tmp_path / "robot", episodes=[9] * 7, cameras={})
    shutil.copytree(one, tmp_path / "copy" / "other")
    found = ran(tmp_path, way, [str(one), "copy/other"], robot=way)
    assert sorted(frame for rank in found for frame in rank["frames"]) == list(range(63))
    assert found[0].get("state") == found[1].get("state")

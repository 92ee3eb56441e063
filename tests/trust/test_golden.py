"""Orders and states are what they were. Whoever changes them on purpose says so in the changelog: see `golden.py`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import pytest
from golden import FOLDER, SCENES, state_file
from near import through_json

import headrace

CHANGED = (
    "a run that is resumed, or compared with an older one, would now see other rows. If that is meant, put a line "
    "'Break: ...' into CHANGELOG.md and write the golden files anew with it: python tests/trust/golden.py 'Break: ...'"
)
VERSIONS = sorted(path.name.removeprefix("states-") for path in FOLDER.glob("states-*"))
KEPT = [(version, path) for version in VERSIONS for path in sorted((FOLDER / f"states-{version}").glob("*.json"))]
BY_FILE = {state_file(name).name: scene for name, scene in SCENES.items()}


@pytest.fixture(autouse=True)
def _near() -> Iterator[None]:
    with golden.near_workers():
        yield


def kept(path: Path) -> Any:
    return json.loads(path.read_text())


def test_the_first_thousand_rows_come_in_the_order_of_the_first_release() -> None:
    wanted = kept(golden.ORDERS)
    found = golden.orders()
    assert list(found) == sorted(wanted, key=list(found).index)
    assert len(found) == len(golden.SEEDS) * len(golden.TOPOLOGIES) == 15
    for name, order in found.items():
        assert len(set(order)) == golden.FIRST
        before = golden.unsqueezed(wanted[name]["all"])
        at = next((i for i, pair in enumerate(zip(order, before, strict=True)) if pair[0] != pair[1]), None)
        assert at is None, f"{name}: row {at} is {order[at or 0]}, it was {before[at or 0]}: {CHANGED}"
        assert wanted[name]["begins"] == " ".join(order[:8])


@pytest.mark.parametrize(("version", "path"), KEPT, ids=lambda value: value if isinstance(value, str) else value.stem)
def test_a_state_of_any_version_goes_on_as_it_did(version: str, path: Path, tmp_path: Path) -> None:
    wanted = kept(path)
    if path.name == state_file(golden.FILES).name:
        golden.rows_state(tmp_path)
        assert golden.resumed_rows(tmp_path, wanted["state"]) == wanted["next"], CHANGED
        return
    scene = BY_FILE[path.name]
    assert through_json({"next": golden.continued(scene.resumed(wanted["state"]))})["next"] == wanted["next"], CHANGED


@pytest.mark.parametrize("name", [*SCENES, golden.FILES])
def test_this_version_writes_the_states_that_it_wrote(name: str, tmp_path: Path) -> None:
    path = state_file(name)
    assert path.exists(), f"version {headrace.__version__} is new: python tests/trust/golden.py keeps its states"
    found = golden.rows_state(tmp_path) if name == golden.FILES else golden.kept_state(SCENES[name])
    assert through_json(found)["state"] == kept(path)["state"], f"the state has changed: {CHANGED}"


def test_every_break_is_named_in_the_changelog() -> None:
    changelog = golden.CHANGELOG.read_text()
    assert [line for line in kept(golden.BREAKS) if line not in changelog] == []


def test_golden_files_are_not_written_anew_without_a_name_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in FOLDER.rglob("*.json")}
    for words in (["Break: nobody wrote this line"], ["because"], ["Break: a", "b"]):
        assert golden.main(words) == 2
        assert "CHANGELOG.md" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in FOLDER.rglob("*.json")} == before


SURROUNDINGS = [
    {"PYTHONHASHSEED": "1", "LC_ALL": "C", "TZ": "Asia/Kathmandu", "OMP_NUM_THREADS": "1"},
    {"PYTHONHASHSEED": "424242", "LC_ALL": "C.UTF-8", "TZ": "UTC+12", "OMP_NUM_THREADS": "3", "PYTHONOPTIMIZE": "1"},
]


@pytest.mark.parametrize("env", SURROUNDINGS, ids=["one", "other"])
def test_the_order_hangs_on_no_hash_seed_locale_time_zone_or_threads(env: dict[str, str]) -> None:
    command = [sys.executable, golden.__file__, "--digest"]
    done = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    orders = {name: golden.unsqueezed(one["all"]) for name, one in kept(golden.ORDERS).items()}
    assert done.stdout == golden.digest(orders)

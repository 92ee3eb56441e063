"""T10: a branch that moves, content that is swapped, a repo that is renamed: rows of one commit, or an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import rows
from headrace.errors import Changed, HeadraceError, Integrity
from headrace.testing import LocalHub, ledger_row, write_parquet
from headrace.testing.hub import Swap

GROUPS = [[30, 20], [40], [25, 25]]
NUM_ROWS = 140


def old(shard: str, row: int) -> dict[str, Any]:
    return {**ledger_row(shard, row), "of": "old"}


def new(shard: str, row: int) -> dict[str, Any]:
    return {**ledger_row(shard, row), "of": "new"}


@pytest.fixture
def spec(hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None) -> str:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    write_parquet(tmp_path / "old", GROUPS, row=old)
    write_parquet(tmp_path / "new", GROUPS, row=new)
    hub.push("me/rows", tmp_path / "old")
    return "hf:me/rows"


def force_push(hub: LocalHub, tmp_path: Path) -> None:
    hub.push("me/rows", tmp_path / "new")


def test_a_push_at_any_point_of_a_run_changes_no_row_of_it(hub: LocalHub, spec: str, tmp_path: Path) -> None:
    for at in (0, 1, 30, 60, 139):
        hub.push("me/rows", tmp_path / "old")
        with rows(spec, cache_dir=tmp_path / f"data-{at}", shuffle=True) as stage:
            given = [next(stage) for _ in range(at)]
            force_push(hub, tmp_path)
            given += list(stage)
        assert {row.data["of"] for row in given} == {"old"}, at
        assert len({row.data["uid"] for row in given}) == NUM_ROWS


def test_a_push_between_epochs_is_seen_by_the_next_run_and_not_by_this_one(
    hub: LocalHub, spec: str, tmp_path: Path
) -> None:
    with headrace.load(spec, batch_size=10, cache_dir=tmp_path / "data") as loader:
        first = [of for batch in loader for of in batch["of"]]
        force_push(hub, tmp_path)
        second = [of for batch in loader for of in batch["of"]]
        state = loader.state_dict()
    assert first == second == ["old"] * NUM_ROWS
    with headrace.load(spec, batch_size=10, cache_dir=tmp_path / "data") as loader:
        loader.load_state_dict(state)
        assert {of for batch in loader for of in batch["of"]} == {"old"}
    with headrace.load(spec, batch_size=10, cache_dir=tmp_path / "data") as loader:
        assert {of for batch in loader for of in batch["of"]} == {"new"}


@pytest.mark.parametrize("swapped", range(3))
def test_content_that_is_swapped_under_a_commit_is_an_error_and_no_row(
    hub: LocalHub, spec: str, tmp_path: Path, swapped: int
) -> None:
    """After the listing: the server gives other bytes under the same name and the same headers."""
    name = f"train-{swapped:05d}-of-00003.parquet"
    hub.fault(f"*{name}", Swap((tmp_path / "new" / name).read_bytes()))
    given = []
    with pytest.raises(HeadraceError) as caught, rows(spec, cache_dir=tmp_path / "data") as stage:
        given += [row.data["of"] for row in stage]
    assert isinstance(caught.value, Integrity | Changed)
    assert name in str(caught.value)
    assert set(given) <= {"old"}


def test_a_repo_that_is_renamed_during_a_run_goes_on(hub: LocalHub, spec: str, tmp_path: Path) -> None:
    with rows(spec, cache_dir=tmp_path / "data") as stage:
        given = [next(stage)]
        hub.rename("me/rows", "me/moved")
        given += list(stage)
    assert len({row.data["uid"] for row in given}) == NUM_ROWS

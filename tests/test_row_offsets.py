"""`resume_state` alone: its numbers agree with each other, and a run in file order resumes from them exactly."""

from __future__ import annotations

import json
import logging
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from near import Data, Ledger, Ranks, loader_of, near, packed, recipe_of, several, through_json
from states import restamped

import headrace
from headrace.errors import Changed, StateError
from headrace.fetch.plan import Coordinate
from headrace.recipe import Mix, Recipe
from headrace.stage import State
from headrace.testing import LocalHub, write_parquet

__all__ = ["near"]
pytestmark = pytest.mark.usefixtures("near")

SHAPES = [[[9, 4], [8], [0], [12, 3]], [[5], [7, 6]]]
LENGTHS = ((3, 9, 1, 30, 4), (12, 2))


def made(sources: int = 1, coordinate: Coordinate = "rows", **fields: Any) -> tuple[Recipe, list[Data]]:
    data = several(SHAPES[:sources], LENGTHS, coordinate)
    return recipe_of(data, shuffle=False, **{"batch_size": 2, **fields}), data


def offsets_of(run: Ranks) -> State:
    """What another program keeps of a state."""
    return {"resume_state": json.loads(json.dumps(run.state()["resume_state"]))}


PACKED = {
    "best_fit": {"pack": packed(16, slack=1), "epochs": 1},
    "concat": {"pack": packed(16, method="concat"), "epochs": 1},
    "long documents": {"pack": packed(8, slack=2), "epochs": 1, "batch_size": 1},
    "two passes": {"pack": packed(16, slack=2), "epochs": 2},
}


@pytest.mark.parametrize("coordinate", ["rows", "windows"])
@pytest.mark.parametrize("sources", [1, 2])
@pytest.mark.parametrize("topology", [(1, 0), (1, 3)])
@pytest.mark.parametrize("case", PACKED)
def test_a_packed_run_resumes_from_its_row_offsets_exactly(
    case: str, topology: tuple[int, int], sources: int, coordinate: Coordinate
) -> None:
    """To the token, at every step, also where pieces of an earlier pass wait."""
    recipe, data = made(sources, coordinate, **PACKED[case])
    whole = Ranks(recipe, data, topology).steps()
    for steps in range(len(whole) + 1):
        run = Ranks(recipe, data, topology)
        ledger = Ledger(data, packed=True).add(run.steps(steps))
        ledger.add(Ranks(recipe, data, topology, offsets_of(run)).steps())
        ledger.assert_only(*range(recipe.epochs or 1))


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("pack", [None, packed(16, slack=1)])
def test_row_offsets_of_one_lane_resume_on_several_ranks(ranks: int, pack: Any) -> None:
    recipe, data = made(2, pack=pack, epochs=1)
    for steps in (0, 1, 3):
        run = Ranks(recipe, data, (1, 0))
        ledger = Ledger(data, packed=pack is not None).add(run.steps(steps))
        ledger.add(Ranks(recipe, data, (ranks, 1), offsets_of(run)).steps()).assert_only(0)


@pytest.mark.parametrize("sources", [1, 2])
@pytest.mark.parametrize("topology", [(1, 0), (1, 3)])
@pytest.mark.parametrize("fields", [{}, {"pack": packed(16, slack=2)}, {"mix": Mix(stop="loop")}], ids=str)
def test_shard_offset_and_row_offset_of_an_entry_are_of_one_row(
    fields: dict[str, Any], topology: tuple[int, int], sources: int
) -> None:
    recipe, data = made(sources, **fields)
    run = Ranks(recipe, data, topology)
    for _ in range(9):
        for entry, source in zip(run.state()["resume_state"]["datasets"], data, strict=True):
            starts = source.row_starts[:-1]
            lanes = entry.get("per_lane", [entry])
            shares = [number * source.num_rows // len(lanes) for number in range(len(lanes))]
            assert (entry["shard"] == "") == (len(lanes) > 1), "several lanes have no one row that is next"
            for one, first in zip(lanes, shares, strict=True):
                row = first + one["row_offset"]
                shard = int(one["shard"].removeprefix("shard-"))
                assert starts[shard] + one["offset"] == row
                assert row == source.num_rows or one["offset"] < sum(source.groups[shard])
        if not run.step():
            break


def test_an_entry_of_another_program_starts_after_its_row_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    recipe, data = made(pack=packed(16, slack=1), epochs=1)
    entry = {"spec": data[0].spec, "shard": "shard-1", "row_offset": 15}
    run = Ranks(recipe, data, (1, 0), {"resume_state": {"datasets": [entry]}})
    found = Ledger(data, packed=True).add(run.steps()).numbers(data[0].spec, 0)
    assert found.tolist() == list(range(data[0].starts[15], data[0].ends[-1]))
    assert "has no 'pending'" in caplog.text


def test_a_shard_that_the_row_does_not_lie_in_is_refused() -> None:
    recipe, data = made()
    loader = loader_of(recipe, data)
    for shard, offset in (("shard-0", 2), ("shard-1", 3)):
        entry = {"spec": data[0].spec, "shard": shard, "offset": offset, "row_offset": 15}
        with pytest.raises(Changed, match=r"row 15 lies in shard-1:2, the checkpoint says shard"):
            loader.load_state_dict({"resume_state": {"datasets": [entry]}})


def _pushed(hub: LocalHub, folder: Path, names: str) -> None:
    files = {}
    for name in names:
        path = write_parquet(folder / name, [[10]], name=f"{name}.parquet")[0]
        files[f"data/{name}-train.parquet"] = path
    hub.push("org/growing", files)


@pytest.mark.parametrize("then", ["abc", "cb"], ids=["a shard in front", "a renamed file"])
@pytest.mark.parametrize("whole", [True, False])
def test_offsets_count_the_rows_of_the_revision_that_they_were_made_on(
    then: str, whole: bool, hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch that gained a shard in front, or a renamed one, since then."""
    for name, value in hub.env().items():
        monkeypatch.setenv(name, value)
    _pushed(hub, tmp_path / "one", "bd")
    options: dict[str, Any] = {"batch_size": 5, "shuffle": False, "cache_dir": tmp_path / "data"}
    with headrace.load("hf:org/growing", **options) as loader:
        batches = iter(loader)
        first = [next(batches) for _ in range(3)]
        state = through_json(loader.state_dict())
    _pushed(hub, tmp_path / "two", then)
    with headrace.load("hf:org/growing", **options) as loader:
        loader.load_state_dict(state if whole else {"resume_state": state["resume_state"]})
        rest = list(loader)
    rows = [(a.shard, a.row) for batch in [*first, *rest] for a in batch.addresses]
    assert rows == [(f"{name}-train.parquet", n) for name in "bd" for n in range(10)]
    with headrace.rows("hf:org/growing", cache_dir=tmp_path / "data") as stage:
        stage.load_state_dict({"resume_state": state["resume_state"]})
        assert [(row.address.shard, row.address.row) for row in stage] == rows[15:]


def test_rows_take_the_entry_of_a_packed_run_and_say_what_they_leave(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    files = tmp_path / "a.jsonl"
    files.write_text("".join(json.dumps({"text": list(range(1 + n % 7))}) + "\n" for n in range(90)))
    spec = f"jsonl:{files}"
    with headrace.load(spec, seq_len=32, batch_size=1, shuffle=False, cache_dir=tmp_path / "d") as loader:
        for _, _ in zip(range(3), loader, strict=False):
            pass
        entry = through_json(loader.state_dict())["resume_state"]["datasets"][0]
    assert entry["pending"]
    with headrace.rows(spec, cache_dir=tmp_path / "d") as stage:
        stage.load_state_dict({"resume_state": {"datasets": [entry]}})
        assert [row.address.row for row in stage] == list(range(entry["row_offset"], 90))
    assert f"{len({piece[0] for piece in entry['pending']})} rows before it were not delivered whole" in caplog.text


def test_log_lines_speak_of_the_row_that_the_entry_speaks_of(caplog: pytest.LogCaptureFixture) -> None:
    recipe, data = made(pack=packed(16, slack=1), epochs=1)
    run = Ranks(recipe, data, (1, 0))
    run.steps(3)
    state = run.state()
    entry = state["resume_state"]["datasets"][0]
    with caplog.at_level(logging.INFO, logger="headrace"):
        loader_of(recipe, data).load_state_dict(state)
    said = f"sample_row={entry['row_offset']} shard={entry['shard']} offset={entry['offset']}"
    assert f"resume: spec={data[0].spec} {said}" in caplog.text


# --- counts


@pytest.mark.parametrize("as_number", [np.int64, np.int32, "torch"])
def test_counts_may_be_integers_of_numpy_and_torch(as_number: Any) -> None:
    if as_number == "torch":
        as_number = pytest.importorskip("torch").tensor
    recipe, data = made()
    wanted = [batch["uid"] for batch in Ranks(recipe, data).steps()]
    for state in ({"batches_consumed": as_number(3), "batch_size": as_number(2)}, {"sample_index": as_number(6)}):
        assert [batch["uid"] for batch in Ranks(recipe, data, state=state).steps()] == wanted[3:]


def test_a_resume_state_of_null_falls_back_to_the_counts_beside_it() -> None:
    recipe, data = made()
    state = {"model": {"w": 1}, "resume_state": None, "sample_index": 6}
    assert Ranks(recipe, data, state=state).steps()[0]["uid"] == [7, 8]


def test_a_sample_index_inside_a_step_repeats_nothing_and_says_what_it_passes_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe, data = made()
    assert Ranks(recipe, data, state={"sample_index": 5}).steps()[0]["uid"] == [7, 8]
    assert "sample_index=5 lies inside a step of 2 samples" in caplog.text
    assert "the last 1 of them are passed over" in caplog.text


@pytest.mark.parametrize("fields", [{}, {"mix": Mix(stop="loop")}, {"pack": packed(16, slack=1)}], ids=str)
def test_a_sample_index_counts_from_the_start_of_its_epoch(fields: dict[str, Any]) -> None:
    recipe, data = made(**fields)
    run = Ranks(recipe, data, state={"sample_index": 4, "epoch": 2})
    first = run.step()[0]
    epochs = {a.epoch for a in (first.addresses[0] if first.packed else first.addresses)}
    assert epochs == {2}
    assert run.state()["epoch"] == 2


# --- a checksum


def test_any_change_of_a_state_is_refused_unless_it_is_forced() -> None:
    recipe, data = made(2, pack=packed(16, slack=1))
    run = Ranks(recipe, data, (1, 2))
    run.steps(5)
    state = through_json(run.state())
    loader = loader_of(recipe, data)
    loader.load_state_dict(state)
    text, tried = json.dumps(state), 0
    for at, letter in enumerate(text):
        if not letter.isdigit():
            continue
        broken = text[:at] + str((int(letter) + 1) % 10) + text[at + 1 :]
        with pytest.raises((StateError, ValueError)):
            loader.load_state_dict(json.loads(broken))
        tried += 1
    assert tried > 300
    edited = deepcopy(state)
    edited["m"] += 2
    with pytest.raises(StateError, match="force=True"):
        loader.load_state_dict(edited)
    edited = {**deepcopy(state), "resume_state": {"datasets": []}}
    loader.load_state_dict(edited, force=True)
    loader.load_state_dict(restamped(edited))


def test_a_state_inside_a_checkpoint_and_a_null_are_told_by_name(tmp_path: Path) -> None:
    recipe, data = made()
    loader = loader_of(recipe, data)
    with pytest.raises(StateError, match="lies in this checkpoint under 'loader'"):
        loader.load_state_dict({"model": {}, "loader": loader.state_dict()})
    (tmp_path / "a.txt").write_text("a\n")
    with (
        headrace.rows(f"txt:{tmp_path}/a.txt", cache_dir=tmp_path / "d") as stage,
        pytest.raises(StateError, match="has sample_index: null, so it does not say"),
    ):
        stage.load_state_dict({"sample_index": None})


def test_a_count_of_batches_with_an_epoch_beside_it_says_that_it_counts_the_run(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recipe, data = made()
    run = Ranks(recipe, data, state={"epoch": 1, "batches_consumed": 2, "batch_size": 2})
    assert run.step()[0]["uid"] == [5, 6]
    assert "batches_consumed=2 counts from the start of the run; epoch=1" in caplog.text

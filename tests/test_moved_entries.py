"""A checkpoint that has only `resume_state`, and files that lie elsewhere now."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import Changed, StateError
from headrace.stage import State


def write(folder: Path, first: int = 0, files: int = 3) -> str:
    folder.mkdir(parents=True)
    for n in range(files):
        ids = [[first + 100 * n + 10 * row + token for token in range(1 + row % 7)] for row in range(10)]
        (folder / f"s{n}.jsonl").write_text("".join(json.dumps({"ids": row}) + "\n" for row in ids))
    return spec_of(folder)


def spec_of(folder: Path) -> str:
    return f"jsonl:{folder}/*.jsonl:ids"


def tokens_in(folders: list[Path]) -> Counter[int]:
    files = [path for folder in folders for path in folder.glob("*.jsonl")]
    return Counter(
        token for path in files for line in path.read_text().splitlines() for token in json.loads(line)["ids"]
    )


def tokens(batch: Any) -> list[int]:
    found: list[int] = batch["input_ids"][batch.document_ids > 0].tolist()
    return found


def load(specs: list[str], data: Path, **options: Any) -> Any:
    fields = {"seq_len": 16, "batch_size": 1, "shuffle": False, "epochs": 1, "cache_dir": data, **options}
    return headrace.load(specs if len(specs) > 1 else specs[0], **fields)


def begun(specs: list[str], data: Path, steps: int = 4, **options: Any) -> tuple[State, Counter[int]]:
    """What `resume_state` says after some steps, alone, and the tokens given before."""
    with load(specs, data, **options) as loader:
        it = iter(loader)
        given = Counter(token for _ in range(steps) for token in tokens(next(it)))
        return {"resume_state": json.loads(json.dumps(loader.state_dict()["resume_state"]))}, given


def finished(specs: list[str], state: State, data: Path, given: Counter[int], **trust: Any) -> Counter[int]:
    with load(specs, data) as loader:
        loader.load_state_dict(state, **trust)
        return given + Counter(token for batch in loader if not batch.pad for token in tokens(batch))


def refused(specs: list[str], state: State, data: Path, said: str, **trust: Any) -> None:
    with load(specs, data) as loader, pytest.raises((StateError, Changed), match=said):
        loader.load_state_dict(state, **trust)


@pytest.mark.parametrize("cache", ["same", "fresh"])
@pytest.mark.parametrize("lanes", [1, 2])
def test_a_moved_folder_is_recognised_by_names_sizes_and_times(tmp_path: Path, cache: str, lanes: int) -> None:
    specs = [write(tmp_path / "in"), write(tmp_path / "other", 1000)]
    state, given = begun(specs, tmp_path / "data", lanes=lanes)
    (tmp_path / "new").mkdir()
    for name in ("in", "other"):
        (tmp_path / name).rename(tmp_path / "new" / name)
    folders = [tmp_path / "new" / "in", tmp_path / "new" / "other"]
    data = tmp_path / ("data" if cache == "same" else "fresh")
    assert finished([spec_of(folder) for folder in folders], state, data, given) == tokens_in(folders)


def test_a_moved_file_that_is_named_by_itself_is_recognised(tmp_path: Path) -> None:
    write(tmp_path / "in", files=1)
    state, given = begun([f"jsonl:{tmp_path}/in/s0.jsonl:ids"], tmp_path / "data", steps=1)
    (tmp_path / "in" / "s0.jsonl").rename(tmp_path / "in" / "t.jsonl")
    spec = f"jsonl:{tmp_path}/in/t.jsonl:ids"
    assert finished([spec], state, tmp_path / "data", given) == tokens_in([tmp_path / "in"])


@pytest.mark.parametrize("change", ["copied", "touched", "a file more"])
def test_what_cannot_be_told_is_refused_and_may_be_trusted(
    tmp_path: Path, change: str, caplog: pytest.LogCaptureFixture
) -> None:
    spec = write(tmp_path / "in")
    state, given = begun([spec], tmp_path / "data")
    new = tmp_path / "new"
    if change == "copied":
        shutil.copytree(tmp_path / "in", new, copy_function=shutil.copyfile)
    else:
        (tmp_path / "in").rename(new)
    if change == "touched":
        os.utime(new / "s2.jsonl")
    elif change == "a file more":
        (new / "s3.jsonl").write_text('{"ids": [900]}\n')
    said = r"resume_state.datasets has no entry for jsonl:.*/new/.*; it has jsonl:.*/in/.*: .*trust_moved=True"
    refused([spec_of(new)], state, tmp_path / "data", said)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "headrace"):
        assert finished([spec_of(new)], state, tmp_path / "data", given, trust_moved=True) == tokens_in([new])
    assert f"{spec_of(new)} is taken for {spec} of the checkpoint: trust_moved" in caplog.text


def test_two_sources_that_cannot_be_told_apart_are_not_guessed(tmp_path: Path) -> None:
    specs = [write(tmp_path / name, first) for name, first in (("a", 0), ("b", 1000))]
    state, given = begun(specs, tmp_path / "data")
    for name in "ab":
        shutil.copytree(tmp_path / name, tmp_path / f"{name}2", copy_function=shutil.copyfile)
    folders = [tmp_path / "a2", tmp_path / "b2"]
    new = [spec_of(folder) for folder in folders]
    said = r"2 sources and 2 entries are left over, so .*: write into `spec` of each entry"
    refused(new, state, tmp_path / "data", said, trust_moved=True)
    half = [specs[0], new[1]]  # one is where it was: of the other nothing is left to guess
    assert finished(half, state, tmp_path / "data", given, trust_moved=True) == tokens_in(folders)
    for entry, spec in zip(state["resume_state"]["datasets"], new, strict=True):
        entry["spec"] = spec  # what the sentence says to do
    assert finished(new, state, tmp_path / "data", given, trust_moved=True) == tokens_in(folders)


def test_another_kind_of_source_is_not_taken_for_a_moved_one(tmp_path: Path) -> None:
    state, _ = begun([write(tmp_path / "in")], tmp_path / "data")
    pq.write_table(pa.table({"ids": [[1, 2]] * 30}), tmp_path / "a.parquet")
    said = "has no entry for parquet:.*: add one, or start without a state"
    refused([f"parquet:{tmp_path}/a.parquet:ids"], state, tmp_path / "data", said, trust_moved=True)


def test_rows_recognise_a_moved_folder_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    spec = write(tmp_path / "in")
    with headrace.rows(spec, cache_dir=tmp_path / "data") as stage:
        given = [next(stage).data["ids"] for _ in range(13)]
        state = {"resume_state": json.loads(json.dumps(stage.state_dict()["resume_state"]))}
        rest = [row.data["ids"] for row in stage]
    assert (len(given), len(rest)) == (13, 17)
    (tmp_path / "in").rename(tmp_path / "new")
    new = spec_of(tmp_path / "new")
    with headrace.rows(new, cache_dir=tmp_path / "data") as stage:
        stage.load_state_dict(state)
        assert [row.data["ids"] for row in stage] == rest
    os.utime(tmp_path / "new" / "s1.jsonl")
    two = {"datasets": [*state["resume_state"]["datasets"], {"spec": "jsonl:/x.jsonl:ids", "row_offset": 0}]}
    with headrace.rows(new, cache_dir=tmp_path / "data") as stage:
        with pytest.raises(StateError, match=r"has no entry for jsonl:.*trust_moved=True"):
            stage.load_state_dict(state)
        with pytest.raises(StateError, match="1 source and 2 entries are left over"):
            stage.load_state_dict({"resume_state": two}, trust_moved=True)
        with caplog.at_level(logging.WARNING, "headrace"):
            stage.load_state_dict(state, trust_moved=True)
        assert f"{new} is taken for {spec} of the checkpoint: trust_moved" in caplog.text
        assert [row.data["ids"] for row in stage] == rest


# --- which entry is of which source


def parts_of(path: Path, *names: str) -> list[headrace.Part]:
    return [headrace.Part(source=f"jsonl:{path}", name=name, weight=1 + 2 * i) for i, name in enumerate(names)]


def addresses(parts: list[headrace.Part], data: Path, state: State | None = None, steps: int = 1000) -> tuple[Any, Any]:
    with headrace.load(parts, batch_size=1, shuffle=False, epochs=1, cache_dir=data) as loader:
        if state is not None:
            loader.load_state_dict(state)
        found = [str(batch.addresses[0]) for _, batch in zip(range(steps), loader, strict=False)]
        return found, {"resume_state": loader.state_dict()["resume_state"]}


@pytest.mark.parametrize("names", [("x", "y"), ("y", "x", "z")])
def test_parts_over_the_same_files_have_an_entry_each(tmp_path: Path, names: tuple[str, ...]) -> None:
    path, data = tmp_path / "s.jsonl", tmp_path / "data"
    path.write_text("".join(json.dumps({"text": f"{i}"}) + "\n" for i in range(12)))
    whole, _ = addresses(parts_of(path, *names), data)
    given, state = addresses(parts_of(path, *names), data, steps=8)
    assert len({entry["row_offset"] for entry in state["resume_state"]["datasets"]}) > 1
    rest, _ = addresses(parts_of(path, *names), data, state)
    assert sorted(given + rest) == sorted(whole)


def test_more_or_fewer_parts_over_the_same_files_than_entries_are_refused(tmp_path: Path) -> None:
    path, data = tmp_path / "s.jsonl", tmp_path / "data"
    path.write_text("".join(json.dumps({"text": f"{i}"}) + "\n" for i in range(12)))
    _, state = addresses(parts_of(path, "x", "y"), data, steps=5)
    with pytest.raises(StateError, match="read by 3 parts and has 2 entries.*in the order of the parts"):
        addresses(parts_of(path, "x", "y", "z"), data, state)
    with headrace.rows(f"jsonl:{path}", cache_dir=data) as rows, pytest.raises(StateError, match="1 part and has 2"):
        rows.load_state_dict(state)


def rows_at(path: Path, data: Path, count: int) -> State:
    with headrace.rows(f"jsonl:{path}", cache_dir=data) as rows:
        for _ in range(count):
            next(rows)
        entry: State = rows.state_dict()["resume_state"]["datasets"][0]
        return entry


def test_moved_files_of_one_size_and_time_are_told_apart_by_their_names_or_not_at_all(tmp_path: Path) -> None:
    old, new, data = tmp_path / "old", tmp_path / "new", tmp_path / "data"
    old.mkdir()
    for name in "abc":
        (old / f"{name}.jsonl").write_text("".join(json.dumps({"text": f"{name}{i}"}) + "\n" for i in range(9)))
        os.utime(old / f"{name}.jsonl", (1e9, 1e9))
    entries = [rows_at(old / "a.jsonl", data, 2), rows_at(old / "b.jsonl", data, 5)]
    state = {"resume_state": {"datasets": entries}}
    old.rename(new)
    with headrace.rows(f"jsonl:{new}/b.jsonl", cache_dir=data) as rows:
        rows.load_state_dict(state)
        assert next(rows).data["text"] == "b5"
    (new / "b.jsonl").rename(new / "x.jsonl")  # which could be either now
    with headrace.rows(f"jsonl:{new}/x.jsonl", cache_dir=data) as rows, pytest.raises(StateError, match="has no entry"):
        rows.load_state_dict(state)

"""Local files that change between the listing and the last row: their own rows to the end, or an error that says so."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refused import check_refused

from headrace import rows
from headrace.errors import Changed, DataError, HeadraceError, NotFound
from headrace.fetch.parquet import ParquetReader
from headrace.testing import LocalHub, write_parquet

pytestmark = pytest.mark.timeout(20)

KINDS = ("parquet", "jsonl", "txt")


def write_rows(path: Path, kind: str, mark: str) -> list[dict[str, Any]]:
    """4,000 rows of a few kilobytes in several chunks; `mark` sets them apart and is of the same size everywhere."""
    found = [{"text": f"{mark} {i:05d}"} for i in range(4000)]
    if kind == "parquet":
        pq.write_table(pa.Table.from_pylist(found), path, row_group_size=500, use_dictionary=False, compression="none")
    else:
        text = "\n".join(row["text"] if kind == "txt" else json.dumps(row) for row in found)
        path.write_text(text + "\n")
    return found


def replace_with(path: Path, make: Callable[[Path], object]) -> None:
    other = path.with_name("other")
    make(other)
    other.replace(path)


def become_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def grow_with_its_time(path: Path) -> None:
    found = path.stat()
    os.truncate(path, 300_000)
    os.utime(path, ns=(found.st_atime_ns, found.st_mtime_ns))


CHANGES: dict[str, tuple[Callable[[Path, str], object], type[HeadraceError], str]] = {
    "is replaced": (lambda p, kind: replace_with(p, lambda q: write_rows(q, kind, "new")), Changed, "start anew"),
    "is rewritten": (lambda p, kind: write_rows(p, kind, "new"), Changed, "start anew"),
    "is cut": (lambda p, kind: os.truncate(p, 3000), Changed, "start anew"),
    "grows": (lambda p, kind: os.truncate(p, 300_000), Changed, "start anew"),
    "grows with its old time": (lambda p, kind: grow_with_its_time(p), Changed, "start anew"),
    "is removed": (lambda p, kind: p.unlink(), NotFound, "no such file"),
    "becomes a fifo": (lambda p, kind: replace_with(p, os.mkfifo), DataError, "is a fifo"),
    "becomes a folder": (lambda p, kind: become_folder(p), DataError, "is a folder"),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CHANGES)
def test_a_file_that_changes_before_it_is_read_is_named(tmp_path: Path, kind: str, case: str) -> None:
    change, error, said = CHANGES[case]
    path = tmp_path / f"a.{kind}"
    write_rows(path, kind, "old")
    os.utime(path, ns=(1, 1))
    with rows(f"{kind}:{path}", cache_dir=tmp_path / "data") as stage:
        change(path, kind)
        with pytest.raises(HeadraceError) as caught:
            next(stage)
    check_refused(caught.value, error, rf"a\.{kind}:? .*{said}")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("case", CHANGES)
def test_a_file_that_changes_while_it_is_read_gives_its_own_rows_or_is_named(
    tmp_path: Path, kind: str, case: str
) -> None:
    change = CHANGES[case][0]
    path, found = tmp_path / f"a.{kind}", []
    want = write_rows(path, kind, "old")
    os.utime(path, ns=(1, 1))
    with rows(f"{kind}:{path}", cache_dir=tmp_path / "data") as stage:
        found += [next(stage).data for _ in range(600)]
        change(path, kind)
        if case in ("is rewritten", "is cut", "grows", "grows with its old time"):
            with pytest.raises(Changed, match=rf"a\.{kind} changed while reading: .*; let its writer finish"):
                found.extend(row.data for row in stage)  # unlike +=, with those before the error
        else:  # what was opened is still there
            found += [row.data for row in stage]
            assert len(found) == 4000
    assert found == want[: len(found)]


def test_a_file_that_is_rewritten_while_one_chunk_of_it_is_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of parquet: what is looked at before each chunk was still there, and then pyarrow reads."""
    path, read = tmp_path / "a.parquet", ParquetReader._batch
    want = write_rows(path, "parquet", "old")

    def rewritten(self: ParquetReader, chunk: Any) -> Any:
        if chunk.group == 3:
            write_rows(path, "parquet", "new")
        return read(self, chunk)

    monkeypatch.setattr(ParquetReader, "_batch", rewritten)
    found: list[dict[str, Any]] = []
    said = r"a\.parquet changed while reading: .*; let its writer finish"
    with rows(f"parquet:{path}", cache_dir=tmp_path / "data") as stage, pytest.raises(Changed, match=said):
        found.extend(row.data for row in stage)  # unlike +=, with those before the error
    assert found == want[: len(found)]


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_replaced_between_epochs_is_counted_anew_and_fits_no_state(tmp_path: Path, kind: str) -> None:
    path, spec = tmp_path / f"a.{kind}", f"{kind}:{tmp_path}/a.{kind}"
    write_rows(path, kind, "old")
    with rows(spec, cache_dir=tmp_path / "data", shuffle=True) as stage:
        next(stage)
        state = stage.state_dict()
        list(stage)
    os.utime(path, ns=(1, 1))
    want = write_rows(path.with_name("b"), kind, "new!")
    path.with_name("b").replace(path)
    with rows(spec, cache_dir=tmp_path / "data", shuffle=True, epoch=1) as stage:
        assert sorted(row.data["text"] for row in stage) == [row["text"] for row in want]
    said = rf"a\.{kind} is not the file that the state was made on: it has as many rows, with other contents"
    with rows(spec, cache_dir=tmp_path / "data", shuffle=True) as stage, pytest.raises(Changed, match=said):
        stage.load_state_dict(state)


def test_a_file_with_other_row_groups_behind_the_same_size_and_time_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    options: dict[str, Any] = {"use_dictionary": False, "compression": "none", "write_statistics": False}
    pq.write_table(pa.table({"n": list(range(8))}), path, row_group_size=4, **options)
    os.utime(path, ns=(1, 1))
    spec, size = f"parquet:{path}", path.stat().st_size
    with rows(spec, cache_dir=tmp_path / "data") as stage:
        assert len(list(stage)) == 8
    pq.write_table(pa.table({"n": list(range(10))}), path, row_group_size=5, **options)
    data = path.read_bytes()
    path.write_bytes(
        data[:4] + b"\0" * (size - len(data)) + data[4:] if len(data) <= size else data[: size - 4] + b"PAR1"
    )
    os.utime(path, ns=(1, 1))
    with rows(spec, cache_dir=tmp_path / "data") as stage, pytest.raises(HeadraceError, match=r"a\.parquet"):
        list(stage)


DAMAGE: dict[str, Callable[[dict[str, Any]], Any]] = {
    "nothing in it": lambda index: None,
    "a list": lambda index: [],
    "no files": lambda index: index | {"files": []},
    "files that are none": lambda index: index | {"files": [1]},
    "files of numbers": lambda index: index | {"files": [[1, 2, 3]]},
    "a size too large": lambda index: index | {"files": [["a", 2**70, ""]]},
    "no shards": lambda index: index | {"shards": []},
    "rows too many": lambda index: with_shard(index, rows=[[2**70, 1]]),
    "groups too many": lambda index: with_shard(index, rows=[[1, 10**10]]),
    "groups of groups": lambda index: with_shard(index, kib=[[1]]),
    "kilobytes too many": lambda index: with_shard(index, kib=[2**70]),
}


def with_shard(index: dict[str, Any], **changes: Any) -> dict[str, Any]:
    return index | {"shards": [index["shards"][0] | changes, *index["shards"][1:]]}


@pytest.mark.parametrize("case", DAMAGE)
def test_an_index_that_cannot_be_used_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    write_parquet(tmp_path / "in" / "data", [[3], [4]])
    with LocalHub() as hub:
        hub.push("org/a", tmp_path / "in")
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        for spec in ("hf:org/a", f"parquet:{tmp_path}/in/data/*.parquet"):
            folder = tmp_path / spec.partition(":")[0]
            with rows(spec, cache_dir=folder) as stage:
                assert len(list(stage)) == 7
            (path,) = [p for p in folder.glob("*_index/**/*.json") if not p.name.startswith("pin-")]
            path.write_text(json.dumps(DAMAGE[case](json.loads(path.read_bytes()))))
            with rows(spec, cache_dir=folder) as stage:
                assert len(list(stage)) == 7


@pytest.mark.parametrize("rows_in_index", [[[2, 1]], [[4, 1]], [[3, 2]]])
def test_an_index_that_says_other_rows_than_the_file_has_is_noticed(tmp_path: Path, rows_in_index: Any) -> None:
    (file,) = write_parquet(tmp_path / "in", [[3]])
    with rows(f"parquet:{file}", cache_dir=tmp_path / "data") as stage:
        assert len(list(stage)) == 3
    (path,) = (tmp_path / "data" / "file_index").glob("*.json")
    kib = [1] * rows_in_index[0][1]
    path.write_text(json.dumps(with_shard(json.loads(path.read_bytes()), rows=rows_in_index, kib=kib)))
    with rows(f"parquet:{file}", cache_dir=tmp_path / "data") as stage, pytest.raises(Changed) as caught:
        list(stage)
    check_refused(caught.value, Changed, r"train-0\S+ has row groups of other lengths .*; if it .*, remove .*\.json")

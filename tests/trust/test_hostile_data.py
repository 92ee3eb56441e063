"""Names and files that a data set brings along: they are data, whatever they look like."""

from __future__ import annotations

import io
import json
import pickle
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import headrace
from headrace.catalog import footer
from headrace.errors import DataError, HeadraceError
from headrace.testing import LocalHub
from headrace.tools.main import app

NAMES = [
    "\x1b[2J\x1b[31mred",
    "\x1b]0;title\x07",
    "a\nb\r\x00c",
    "\u202egnp.exe",
    "\u2028\u2029\x85",
    "__class__",
    "{0.__class__}%s%n",
    "../../etc/passwd",
    "hf_TOKEN:column",
    "x" * 20_000,
    "",
    " ",
    "größe ✓",
]


def fit_to_show(text: str, most: int = 1500) -> None:
    """On a terminal it moves no cursor, rings no bell, and turns nothing around."""
    assert all(c.isprintable() or c == "\n" for c in text), repr(text)
    assert len(text) < most


@pytest.mark.parametrize("name", NAMES, ids=lambda name: ascii(name)[:30])
def test_a_column_may_have_any_name_and_is_shown_escaped(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({name: ["v0", "v1"], "n": [0, 1]}), path)
    spec = f"parquet:{path}"
    options: dict[str, Any] = {"cache_dir": tmp_path / "data"}
    caplog.set_level("DEBUG")
    assert [row.data for row in headrace.rows(spec, **options)] == [{name: "v0", "n": 0}, {name: "v1", "n": 1}]
    (batch,) = headrace.load(spec, batch_size=2, shuffle=False, **options)
    assert batch[name] == ["v0", "v1"]
    wrong: list[Callable[[], object]] = [
        lambda: list(headrace.rows(spec, columns=[f"{name}!"], **options)),
        lambda: list(headrace.load(f"{spec}:n", seq_len=8, batch_size=2, tokenizer=None, **options)),
        lambda: list(headrace.load(headrace.Source(kind="parquet", path=str(path), column=name), seq_len=8, **options)),
    ]
    for attempt in wrong:
        with pytest.raises(HeadraceError) as caught:
            attempt()
        fit_to_show(str(caught.value))
        for note in getattr(caught.value, "__notes__", []):
            fit_to_show(note)
    for record in caplog.records:
        fit_to_show(record.getMessage())
    said = CliRunner().invoke(app, ["rows", spec, "--cache-dir", str(tmp_path / "data")])
    assert said.exit_code == 0
    fit_to_show(said.output, 100_000)
    assert [json.loads(line)["data"]["n"] for line in said.output.splitlines()] == [0, 1]


def test_columns_named_like_our_own_attributes_are_columns(tmp_path: Path) -> None:
    names = ["m", "pad", "receipt", "addresses", "spans", "items", "keys", "__init__", "input_ids", "self"]
    pq.write_table(pa.table({name: [name] * 3 for name in names}), tmp_path / "a.parquet")
    for workers in (0, 1):
        with headrace.load(
            f"parquet:{tmp_path}/a.parquet", batch_size=3, num_workers=workers, cache_dir=tmp_path / "data"
        ) as loader:
            (batch,) = loader
            assert dict(batch) == {name: [name] * 3 for name in names}
            assert (batch.m, batch.pad, len(batch.addresses)) == (0, False, 3)


class Runs:
    """What writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return Path.write_text, (self._path, "it ran")


@pytest.mark.filterwarnings("ignore:pickle-based deserialization:RuntimeWarning")  # pyarrow before 21: it is off
@pytest.mark.filterwarnings("ignore:pyarrow.PyExtensionType is deprecated:FutureWarning")  # in pyarrow 18
def test_an_extension_type_that_is_a_pickle_is_not_run(tmp_path: Path) -> None:
    meta = {
        b"ARROW:extension:name": b"arrow.py_extension_type",
        b"ARROW:extension:metadata": pickle.dumps(Runs(tmp_path / "ran")),
    }
    schema = pa.schema([pa.field("n", pa.int64(), metadata=meta)])
    pq.write_table(pa.table({"n": [1, 2]}, schema=schema), tmp_path / "a.parquet", store_schema=True)
    for shuffle in (False, True):
        found = headrace.rows(f"parquet:{tmp_path}/a.parquet", shuffle=shuffle, cache_dir=tmp_path / "data")
        assert sorted(row.data["n"] for row in found) == [1, 2]
    assert not (tmp_path / "ran").exists()


def containers(ran: Path) -> dict[str, bytes]:
    """Files that run or unpack something where they are opened by what they are named after."""
    evil = pickle.dumps(Runs(ran))
    npy, tar, packed, arrow = io.BytesIO(), io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, np.array([Runs(ran)], dtype=object), allow_pickle=True)
    with tarfile.open(fileobj=tar, mode="w") as archive:
        for name in ("../../ran", "/ran", "a/data.pkl"):
            info = tarfile.TarInfo(name)
            info.size = len(evil)
            archive.addfile(info, io.BytesIO(evil))
    with zipfile.ZipFile(packed, "w") as zipped:
        zipped.writestr("archive/data.pkl", evil)
    with pa.ipc.new_stream(arrow, pa.schema([("n", pa.int64())])) as stream:
        stream.write_table(pa.table({"n": [1]}))
    return {
        "pickle": evil,
        "npy": npy.getvalue(),
        "tar": tar.getvalue(),
        "pt": packed.getvalue(),
        "arrow": arrow.getvalue(),
        "script": f"import pathlib; pathlib.Path({str(ran)!r}).touch()\n".encode(),
    }


@pytest.mark.parametrize("kind", ["parquet", "jsonl", "txt"])
@pytest.mark.parametrize("what", ["pickle", "npy", "tar", "pt", "arrow", "script"])
def test_files_that_run_something_elsewhere_are_rows_or_an_error_here(tmp_path: Path, kind: str, what: str) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    path = folder / f"data.{kind}"
    path.write_bytes(containers(tmp_path / "ran")[what])
    try:
        found = [row.data for row in headrace.rows(f"{kind}:{path}", cache_dir=tmp_path / "data")]
        assert kind == "txt"
        assert all(isinstance(row["text"], str) for row in found)
    except DataError as error:
        fit_to_show(str(error))
    assert sorted(p.name for p in tmp_path.iterdir() if p.name != "data") == ["in"]


def test_more_columns_or_row_groups_than_anybody_has_are_refused_by_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(footer, "MOST_GROUPS", 50)
    monkeypatch.setattr(footer, "MOST_COLUMNS", 60)
    many = {"columns": pa.table({f"c{i}": [0] for i in range(61)}), "groups": pa.table({"n": list(range(51))})}
    for name, table in many.items():
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=1)
        with pytest.raises(DataError, match=rf"{name}\.parquet.*(51 row groups|61 columns)"):
            list(headrace.rows(f"parquet:{tmp_path}/{name}.parquet", cache_dir=tmp_path / "data"))


def as_parquet(n: int) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"n": [n]}), sink)
    return sink.getvalue()


BAD_NAMES = ["../train-x.parquet", "data/../../train-x.parquet", "/train-x.parquet", "data\\..\\train-x.parquet"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_file_of_a_repo_that_is_named_to_climb_out_is_refused(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    readme = b"---\nconfigs:\n- config_name: default\n  data_files: '**'\n---\n"
    hub.push("org/climbs", {"README.md": readme, name: as_parquet(1), "data/train-0.parquet": as_parquet(2)})
    try:
        found = [row.data["n"] for row in headrace.rows("hf:org/climbs", cache_dir=tmp_path / "a/b/c/data")]
        assert found == [2]
    except HeadraceError as error:
        fit_to_show(str(error))
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert [path.name for path in (tmp_path / "a/b/c").iterdir()] == ["data"]
    assert not any(path.is_symlink() for path in tmp_path.rglob("*"))


def test_names_that_differ_in_case_or_look_alike_are_two_files(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    names = ["data/train-A.parquet", "data/train-a.parquet", "data/train-\u0430.parquet", "data/train-CON.parquet"]
    names += ["data/train-e\u0301.parquet", "data/train-\u00e9.parquet", "data/train- .parquet"]
    hub.push("org/alike", {name: as_parquet(i) for i, name in enumerate(names)})
    found = sorted(row.data["n"] for row in headrace.rows("hf:org/alike", cache_dir=tmp_path / "data"))
    assert found == list(range(len(names)))

"""A loader over more parquet files than are counted before the first row: moved, and compared as they are opened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace.errors import Changed
from headrace.stage import State


def write_shards(folder: Path, count: int = 40) -> str:
    folder.mkdir()
    for n in range(count):
        write_shard(folder / f"s{n:02}.parquet", n * 100)
    return f"parquet:{folder}/*.parquet"


def write_shard(path: Path, first: int) -> None:
    table = pa.table({"text": [f"{first + n:05}" for n in range(30)]})
    pq.write_table(table, path, row_group_size=8, compression="none")


@pytest.fixture(autouse=True)
def _large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.fetch.plan.LARGE", 8)


def begun(spec: str, data: Path, **options: Any) -> tuple[State, list[int]]:
    loader = headrace.load(spec, batch_size=5, cache_dir=data, lanes=2, **options)
    batches = iter(loader)
    given = [int(text) for _ in range(30) for text in next(batches)["text"]]
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    return state, given


@pytest.mark.parametrize("workers", [0, 1])
def test_a_moved_folder_goes_on_and_another_file_in_it_is_named(tmp_path: Path, workers: int) -> None:
    state, given = begun(write_shards(tmp_path / "in"), tmp_path / "data", num_workers=workers)
    (fact,) = json.loads(state["sources"])
    assert fact["coordinate"] == "windows"
    assert "marks" not in fact["identity"]
    opened = sorted(map(int, fact["identity"]["opened"]))
    assert 0 < len(opened) < 20
    (tmp_path / "in").rename(tmp_path / "moved")
    spec = f"parquet:{tmp_path}/moved/*.parquet"
    loader = headrace.load(spec, batch_size=5, cache_dir=tmp_path / "other", num_workers=workers)
    loader.load_state_dict(state)
    rest = [int(text) for batch in loader if not batch.pad for text in batch["text"]]
    loader.close()
    assert sorted(given + rest) == [100 * n + i for n in range(40) for i in range(30)]
    path = tmp_path / "moved" / f"s{opened[0]:02}.parquet"
    size = path.stat().st_size
    write_shard(path, 70_000)
    assert path.stat().st_size == size
    loader = headrace.load(spec, batch_size=5, cache_dir=tmp_path / "third", num_workers=workers)
    with pytest.raises(Changed, match=rf"{path.name} is not the file that the state was made on"):  # noqa: PT012
        loader.load_state_dict(state)
        for _ in loader:
            pass
    loader.close()
    loader = headrace.load(spec, batch_size=5, cache_dir=tmp_path / "fourth", num_workers=workers)
    loader.load_state_dict(state, trust_changed=[path.name])
    assert len([text for batch in loader if not batch.pad for text in batch["text"]]) == len(rest)
    loader.close()

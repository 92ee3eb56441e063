"""Many sources and lanes do with few open files; where there are too few for anything, the limit is named."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from headrace import rows
from headrace.catalog.local import list_local
from headrace.catalog.source import Source
from headrace.errors import Changed, DataError, FetchError
from headrace.fetch import few_files
from headrace.fetch.memory import MemoryBudget
from headrace.fetch.parquet import ParquetReader
from headrace.testing import write_jsonl, write_parquet

READER = """
import resource, sys
import headrace, pyarrow.parquet, torch
from headrace.serve import loader, worker
kind, folder, most, sources = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
ending = "parquet" if kind == "parquet" else "jsonl"
specs = [f"{kind}:{folder}/{i}/*.{ending}" for i in range(sources)]
with headrace.load(specs, batch_size=sources, lanes=4, cache_dir=f"{folder}/data") as loader:
    uids = [uid for batch in loader for uid in batch["uid"]]
print(len(uids), len(set(uids)))
"""


def read(kind: str, folder: Path, most: int, sources: int) -> str:
    command = [sys.executable, "-c", READER, kind, str(folder), str(most), str(sources)]
    env = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120, check=False)
    return done.stdout.strip() or done.stderr.strip().splitlines()[-1]


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_many_sources_and_lanes_do_with_few_open_files(tmp_path: Path, kind: str) -> None:
    """As 200 sources on 4 lanes with 1,024, which is what most machines allow."""
    for i in range(40):
        if kind == "parquet":
            name = f"s{i}-{{:05d}}-of-{{:05d}}.parquet"
            write_parquet(tmp_path / str(i), [[4, 4], [4, 4]], name=name)
        else:
            write_jsonl(tmp_path / str(i), [8, 8], name=f"s{i}-{{:03d}}.jsonl")
    assert read(kind, tmp_path, 200, 40) == "640 640"


@pytest.mark.parametrize("left", [0, 1])
def test_too_few_open_files_name_the_limit_and_blame_no_data(tmp_path: Path, left: int) -> None:
    """Whether the file itself cannot be opened, or pyarrow cannot open it."""
    paths = write_parquet(tmp_path, [[4, 4]])
    shard = list_local(Source(kind="parquet", path=str(paths[0]))).shard(0)
    ParquetReader(shard, paths[0], None, budget=MemoryBudget(1 << 30)).close()  # with all that is imported for it
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    free = os.dup(0)
    os.close(free)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + left, before[1]))
    try:
        with pytest.raises(FetchError) as caught:
            ParquetReader(shard, paths[0], None, budget=MemoryBudget(1 << 30))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert f"This process may have {free + left} open files (ulimit -n, RLIMIT_NOFILE)" in str(caught.value)
    assert "damaged" not in str(caught.value)
    ParquetReader(shard, paths[0], None, budget=MemoryBudget(1 << 30)).close()


@pytest.fixture
def two_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """So few files that every read makes another reader rest."""
    monkeypatch.setattr(few_files, "LEAST", 2)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))


@pytest.mark.usefixtures("two_files")
@pytest.mark.parametrize("groups", [[[7, 8], [9], [10, 3]], [[2500, 10], [1200], [1800]]])
def test_rows_are_the_same_when_readers_rest_in_between(tmp_path: Path, groups: list[list[int]]) -> None:
    """Also those of large row groups, which are read slice by slice."""
    write_parquet(tmp_path / "in", groups)
    spec = f"parquet:{tmp_path}/in/*.parquet"
    for shuffle in (False, True):
        with (
            rows(spec, shuffle=shuffle, cache_dir=tmp_path / "data", pool_size=4) as one,
            rows(spec, shuffle=shuffle, cache_dir=tmp_path / "data", pool_size=4) as other,
        ):
            both = [(a.data["uid"], b.data["uid"]) for a, b in zip(one, other, strict=True)]
        assert all(a == b for a, b in both)
        assert len({a for a, _ in both}) == sum(map(sum, groups))


@pytest.mark.usefixtures("two_files")
def test_a_file_that_was_replaced_while_its_reader_rested_is_noticed(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[5, 5]])
    write_parquet(tmp_path / "other", [[5]])
    with (
        rows(f"parquet:{tmp_path}/in/*.parquet", cache_dir=tmp_path / "data") as one,
        rows(f"parquet:{tmp_path}/other/*.parquet", cache_dir=tmp_path / "data") as other,
    ):
        next(one)
        next(other)
        path = next((tmp_path / "in").iterdir())
        path.rename(path.with_suffix(".old"))
        path.write_bytes(path.with_suffix(".old").read_bytes())
        with pytest.raises((Changed, DataError), match="changed"):
            list(one)


def test_a_reader_in_use_is_not_put_to_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(few_files, "LEAST", 2)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4, 4))

    class One:
        num_files, rested = 2, 0

        def rest(self) -> None:
            self.rested += 1

        def wake(self) -> None:
            pass

    one, other = One(), One()
    inside, done = threading.Event(), threading.Event()

    def use() -> None:
        with few_files.in_use(one):
            inside.set()
            done.wait(10)

    thread = threading.Thread(target=use)
    thread.start()
    inside.wait(10)
    with few_files.in_use(other):
        assert one.rested == 0
    done.set()
    thread.join()
    with few_files.in_use(other):
        assert one.rested == 1
    for reader in (one, other):
        few_files.forget(reader)

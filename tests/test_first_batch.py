"""What makes the first batch after a start quick changes nothing about what comes."""

from __future__ import annotations

import datetime as dt
import fnmatch
import gc
import json
import os
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import headrace
from headrace import rng
from headrace.catalog import footer, soundness
from headrace.catalog.footer import GroupRows
from headrace.catalog.globs import find_paths
from headrace.fetch import beside, open_chunks, rows
from headrace.fetch.chunk import FEW, OpenChunk
from headrace.fetch.open_chunks import OpenChunks
from headrace.fetch.plan import Chunk
from headrace.make import feed
from headrace.make.feed import Feed
from headrace.make.prepare import Ready
from headrace.testing import write_parquet

SHAPE = [[20] * 6, [20] * 6, [20] * 6]


def spec_of(folder: Path) -> str:
    write_parquet(folder / "in", SHAPE)
    return f"parquet:{folder}/in/*.parquet"


def uids(spec: str, folder: Path, **options: Any) -> list[str]:
    loader = headrace.load(spec, batch_size=32, cache_dir=folder / "data", **options)
    return [uid for batch in loader for uid in batch["uid"]]


# --- the first rows


@pytest.mark.parametrize(("options", "first"), [({}, 32), ({"batch_size": 5}, 5)])
def test_the_first_block_is_the_first_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], first: int
) -> None:
    blocks: list[int] = []
    real = Feed._make

    def make(self: Feed, done: Any) -> list[Ready]:
        blocks.append(done.count)
        return real(self, done)

    monkeypatch.setattr(Feed, "_make", make)
    spec = spec_of(tmp_path)
    next(iter(headrace.load(spec, cache_dir=tmp_path / "data", **{"batch_size": 32, **options})))
    assert blocks == [first]


@pytest.mark.parametrize("how", ["load", "next_block"])
def test_a_first_block_that_is_too_large_reads_no_chunk_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Fewer rows are taken of the chunks that are open."""
    pq.write_table(pa.table({"t": [f"{i:04}" * 5000 for i in range(64)]}), tmp_path / "a.parquet", row_group_size=8)
    read: list[int] = []
    real = OpenChunks.read

    def counted(self: OpenChunks, chunk: Chunk, order: Any) -> OpenChunk:
        read.append(chunk.start)
        return real(self, chunk, order)

    monkeypatch.setattr(OpenChunks, "read", counted)
    monkeypatch.setattr(feed, "PYTHON_BYTES", 100_000)
    monkeypatch.setattr(rows, "BLOCK_SHARE", 500)
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", "50000000")
    spec, cache = f"parquet:{tmp_path}/a.parquet", tmp_path / "c"
    if how == "load":
        with headrace.load(spec, batch_size=32, cache_dir=cache) as loader:
            given = [text[:4] for batch in loader for text in batch["t"]]
    else:
        with headrace.rows(spec, shuffle=True, cache_dir=cache) as stage:
            blocks = list(iter(lambda: stage.next_block(32), None))
        assert max(map(len, blocks)) < 8
        given = [text[:4] for block in blocks for text in block.columns["t"]]
    assert sorted(given) == [f"{i:04}" for i in range(64)]
    assert sorted(read) == [8 * i for i in range(8)]


def test_a_few_rows_of_a_chunk_are_those_that_come_when_many_are_asked_for() -> None:
    table = {
        "n": pa.array([1, None, 3, 4, 5, 6, 7, 8]),
        "text": pa.array(list("abcdefgh")),
        "kind": pa.array(list("xyxyxyxy")).dictionary_encode(),
        "when": pa.array([dt.datetime(2026, 1, 1 + i) for i in range(8)], pa.timestamp("ms")),
        "deep": pa.array([{"a": [i], "b": None} for i in range(8)]),
        "map": pa.array([[("k", i)] for i in range(8)], pa.map_(pa.string(), pa.int64())),
    }
    order = rng.permutation(7, 8)
    chunk = Chunk(0, 8, 0, 0, 0, 0, 100)

    def opened() -> OpenChunk:
        return OpenChunk(chunk, pa.record_batch(table), order, ("s", 0, "shard"))

    whole: Any = opened().part(0, 8)
    assert whole["n"] == [table["n"][int(i)].as_py() for i in order]
    for first in range(8):
        part = opened()
        for count in range(1, min(FEW, 8 - first) + 1):
            few: Any = part.part(first, count)
            assert few == {name: values[first : first + count] for name, values in whole.items()}
    part = opened()
    for _ in range(2):
        for turns in ([6, 1, 1], [0], range(8)):
            single: Any = part.picked(turns)
            assert single == {name: [values[turn] for turn in turns] for name, values in whole.items()}
        part.part(0, 8)  # which puts all of it into order


def test_any_sort_gives_a_permutation_because_no_words_are_equal() -> None:
    for stream in range(50):
        words = rng.mix64_block(rng.mix64(stream, 1), 0, 3000)
        assert len(np.unique(words)) == 3000
        assert (rng.permutation(rng.mix64(stream, 1), 3000) == np.argsort(words, kind="stable")).all()


# --- footers


def index_file(folder: Path) -> Path:
    (path,) = (folder / "data" / "file_index").glob("*.json")
    return path


def test_a_footer_that_was_found_sound_is_not_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = spec_of(tmp_path)
    whole = uids(spec, tmp_path)
    looked: list[object] = []
    monkeypatch.setattr(footer, "require_sound", lambda shard, meta: looked.append(shard))
    assert uids(spec, tmp_path) == whole
    assert not looked


def test_an_index_of_before_has_no_digests_and_footers_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path)
    whole = uids(spec, tmp_path)
    index = json.loads(index_file(tmp_path).read_text())
    for shard in index["shards"]:
        assert len(shard.pop("digest")) == 32
    index_file(tmp_path).write_text(json.dumps(index))
    gc.collect()  # a footer that is still held counts as looked at
    looked: list[object] = []
    monkeypatch.setattr(footer, "require_sound", lambda shard, meta: looked.append(shard))
    assert uids(spec, tmp_path) == whole
    assert looked


def test_a_file_with_another_footer_of_the_same_size_and_time_is_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(tmp_path)
    uids(spec, tmp_path)
    path = sorted((tmp_path / "in").iterdir())[0]
    before, data = path.stat(), bytearray(path.read_bytes())
    at = data.rindex(b"uid")
    data[at : at + 3] = b"uix"
    path.write_bytes(data)

    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    looked: list[str] = []
    real = soundness.require_sound

    def require(shard: Any, meta: Any) -> None:
        looked.append(shard.path)
        real(shard, meta)

    monkeypatch.setattr(footer, "require_sound", require)
    uids(spec, tmp_path)
    assert looked == [str(path)]


def test_the_digest_of_a_footer_goes_through_json(tmp_path: Path) -> None:
    found = GroupRows(np.array([3]), np.array([1]), {"a": 1}, (("a", "int64"),), "d" * 32)
    assert GroupRows.from_json(found.to_json()).digest == "d" * 32
    old = {key: value for key, value in found.to_json().items() if key != "digest"}
    assert GroupRows.from_json(old).digest == ""


# --- patterns


@pytest.mark.parametrize("pattern", ["*", "a*", "*.x", "a*.x", "a*a", "*aa*", "a?.x", "[ab]*", "a.x"])
def test_patterns_with_one_star_match_as_all_patterns_do(tmp_path: Path, pattern: str) -> None:
    names = ["a", "aa", "aaa", "a.x", "aa.x", "b.x", "x", "a\n.x", "[ab]c", ".ax"]
    for name in names:
        (tmp_path / name).write_text("")
    wanted = sorted(f"{tmp_path}/{n}" for n in names if fnmatch.fnmatchcase(n, pattern) and not n.startswith("."))
    assert find_paths(f"{tmp_path}/{pattern}")[0] == wanted


def test_an_error_while_a_chunk_is_put_into_order_says_where(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*given: Any) -> Any:
        raise ValueError("no such kernel")

    monkeypatch.setattr("headrace.fetch.chunk.taken", fails)
    with pytest.raises(ValueError, match="no such kernel") as caught:
        uids(spec_of(tmp_path), tmp_path, shuffle=True)
    assert any("while reading rows" in note for note in caught.value.__notes__)


def test_strings_that_are_views_are_read_like_others(tmp_path: Path) -> None:
    texts = [f"row {i}, long enough to lie in a buffer of its own" if i % 7 else None for i in range(100)]
    table = pa.table({"text": pa.array(texts, pa.string_view()), "raw": pa.array([b"x"] * 100, pa.binary_view())})
    try:
        pq.write_table(table, tmp_path / "views.parquet", row_group_size=50)
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"pyarrow {pa.__version__} writes no views: {error}")
    spec = f"parquet:{tmp_path}/views.parquet"
    for shuffle in (False, True):
        with headrace.rows(spec, shuffle=shuffle, cache_dir=tmp_path / "data") as rows:
            assert sorted(str(row.data["text"]) for row in rows) == sorted(map(str, texts))
        loader = headrace.load(spec, batch_size=4, shuffle=shuffle, epochs=1, cache_dir=tmp_path / "data")
        assert sorted(str(text) for batch in loader for text in batch["text"]) == sorted(map(str, texts))


# --- chunks side by side


@pytest.mark.parametrize("trouble", [None, "no thread", "one file fails at first"])
def test_chunks_read_side_by_side_are_those_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trouble: str | None
) -> None:
    spec = spec_of(tmp_path)
    monkeypatch.setattr(open_chunks, "pays", lambda slots: False)
    wanted = uids(spec, tmp_path, epochs=1)
    readers: list[str] = []
    real = OpenChunks.read

    def read(self: OpenChunks, chunk: Chunk, order: Any) -> OpenChunk:
        readers.append(threading.current_thread().name)
        if trouble == "one file fails at first" and len(readers) < 3:
            raise OSError("too many open files")
        return real(self, chunk, order)

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(open_chunks, "pays", beside.pays)
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1})
    monkeypatch.setattr(OpenChunks, "read", read)
    if trouble == "no thread":
        monkeypatch.setattr(threading.Thread, "start", no_thread)
    assert uids(spec, tmp_path, epochs=1) == wanted
    assert ("headrace-read" in readers) == (trouble != "no thread")
    assert not [thread for thread in threading.enumerate() if thread.name == "headrace-read"]

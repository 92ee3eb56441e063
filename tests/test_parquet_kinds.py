"""All kinds of columns, encodings and codecs come as pyarrow reads them, also where there is little memory."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from streaming import World

from headrace import rows
from headrace.catalog.local import LocalOrigin
from headrace.catalog.shard import Shard
from headrace.fetch.memory import MemoryBudget
from headrace.fetch.parquet import ParquetReader
from headrace.fetch.plan import Chunk
from headrace.lerobot.episode_rows import EpisodeRows
from headrace.serve.loader import Loader

COUNT = 2500
"""More than a chunk has, so that slices are read too."""
DAY = dt.datetime(2024, 5, 1, tzinfo=dt.UTC)


def column(values: list[Any], kind: Any = None) -> Any:
    """The values over and over, and some nulls."""
    return pa.array([None if i % 97 == 0 else values[i % len(values)] for i in range(COUNT)], kind)


TEXTS = ["a", "ab" * 40, "", "wörter 🙂"]
KINDS: dict[str, Any] = {
    "texts": column(TEXTS),
    "large texts": column(TEXTS, pa.large_string()),
    "bytes": column([b"\x00", b"ab" * 9]),
    "one byte": column([b"a", b"b"], pa.binary(1)),
    "three bytes": column([b"abc", b"xyz"], pa.binary(3)),
    "numbers": column([1, 2**40, -5]),
    "small numbers": column([1, 2, 3], pa.int8()),
    "halves": column([np.float16(0.5), np.float16(1.5)], pa.float16()),
    "truth": column([True, False]),
    "decimals": column([Decimal("1.5"), Decimal("-2.5")], pa.decimal128(5, 1)),
    "long decimals": column([Decimal("1.5")], pa.decimal256(60, 1)),
    "times": column([DAY, DAY + dt.timedelta(days=1)], pa.timestamp("us", "UTC")),
    "days": column([DAY.date()], pa.date32()),
    "nulls": pa.nulls(COUNT, pa.string()),
    "lists": column([["a", None], [], ["b"] * 5]),
    "lists of lists": column([[[1], None, []], [[2, 3]]]),
    "structures": column([{"a": "x", "b": 1}, {"a": None, "b": 2}]),
    "chats": column([[{"role": "user", "content": "hi " * 20}, {"role": "assistant", "content": None}]]),
    "maps": column([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
    "lists of fixed length": pa.array([[1.5, None, 2.5]] * COUNT, pa.list_(pa.float32(), 3)),
    "dictionaries": column(TEXTS).dictionary_encode(),
}
VIEWS: dict[str, Any] = {
    "views": column(TEXTS, pa.string_view()),
    "views in lists": column([["a", None], [], TEXTS], pa.list_(pa.string_view())),
    "views in structures": column(
        [{"a": TEXTS[1], "b": "x" * 20}], pa.struct({"a": pa.string_view(), "b": pa.string_view()})
    ),
    "views in maps": column([[("k", "v" * 20)], []], pa.map_(pa.string_view(), pa.string_view())),
    "views in lists that are views": column([["a"], TEXTS], pa.list_view(pa.string_view())),
}
"""Not every pyarrow writes these."""
DELTA = {"use_dictionary": False, "column_encoding": "DELTA_BYTE_ARRAY"}
WRITTEN: dict[str, dict[str, Any]] = {
    "as pyarrow does": {},
    "zstd, format 2": {"compression": "zstd", "data_page_version": "2.0"},
    "lz4, small pages": {"compression": "lz4", "data_page_size": 200, "write_batch_size": 50},
    "brotli, decimals as numbers": {"compression": "brotli", "store_decimal_as_integer": True},
    "gzip, dictionaries given up": {"compression": "gzip", "dictionary_pagesize_limit": 60},
    "plain, with checksums": {"compression": "none", "use_dictionary": False, "write_page_checksum": True},
}


@pytest.mark.parametrize("written", WRITTEN)
@pytest.mark.parametrize("shuffle", [False, True])
def test_values_are_those_that_pyarrow_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, shuffle: bool
) -> None:
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", "16MB")
    for name, values in KINDS.items():
        path = tmp_path / f"{name}.parquet".replace(" ", "_")
        pq.write_table(pa.table({"x": values, "row": range(COUNT)}), path, **WRITTEN[written])
        with rows(f"parquet:{path}", shuffle=shuffle, cache_dir=tmp_path / "data") as stage:
            found = sorted(((row.data["row"], row.data["x"]) for row in stage), key=lambda one: one[0])
        assert repr([value for _, value in found]) == repr(pq.read_table(path).column("x").to_pylist()), name


@pytest.mark.parametrize("name", VIEWS)
@pytest.mark.parametrize("shuffle", [False, True])
def test_texts_that_are_views_are_read_and_resumed(tmp_path: Path, name: str, shuffle: bool) -> None:
    """Also inside of other columns, and where a resume reads single rows: those that wait to be given again."""
    path = write_views(tmp_path / "a.parquet", name)
    world = World(tmp_path)
    options = {"shuffle": shuffle, "sample_repeat": 3, "max_per_epoch": None, "max_per_dataset": None}
    functions = {"code": lambda row, tokens: {"text": f"[code {row['row']}] {row['x']}"}}

    def made() -> Loader:
        dataset = world.make({"code": [{"name": "a", "path": str(path)}]}, functions=functions, **options)
        return dataset.loader(batch_size=2, num_workers=0, lanes=1)

    straight, again = made(), made()
    steps = iter(straight)
    for _ in range(5):
        next(steps)
    again.load_state_dict(straight.state_dict())
    found = [batch["input_ids"].tolist() for batch in again]
    assert len(found) > 100
    assert found == [batch["input_ids"].tolist() for batch in steps]
    with rows(f"parquet:{path}", shuffle=shuffle, cache_dir=tmp_path / "data") as stage:
        read = {row.data["row"]: row.data["x"] for row in stage}
    assert repr([read[i] for i in range(100)]) == repr(VIEWS[name][:100].to_pylist())


def write_views(path: Path, name: str) -> Path:
    try:
        found = pa.array(VIEWS[name].to_pylist()[:100], VIEWS[name].type)
        pq.write_table(pa.table({"x": found, "row": range(100)}), path, row_group_size=100)
    except pa.ArrowNotImplementedError as error:
        pytest.skip(f"pyarrow {pa.__version__} writes no such views: {error}")
    return path


@pytest.mark.parametrize("codec", ["none", "snappy", "gzip", "brotli", "zstd", "lz4"])
@pytest.mark.parametrize("version", ["1.0", "2.0"])
def test_texts_that_share_their_beginnings_are_read_where_they_fit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, codec: str, version: str
) -> None:
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", "8MB")
    words = [f"https://example.org/{i:06}" for i in range(20_000)]
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"t": words}), path, compression=codec, data_page_version=version, **DELTA)
    with rows(f"parquet:{path}", cache_dir=tmp_path / "data") as stage:
        assert [row.data["t"] for row in stage] == words


@pytest.mark.parametrize("budget", ["100MB", "4GB"])
def test_lists_of_fixed_length_with_null_elements_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: str
) -> None:
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", budget)
    flat = pa.array(np.arange(1000 * 1536, dtype=np.float32), mask=np.arange(1000 * 1536) % 10 == 0)
    notes = pa.array([f"{i}" if i % 50 == 0 else None for i in range(1000)])
    vectors = pa.FixedSizeListArray.from_arrays(flat, 1536)
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"s": pa.StructArray.from_arrays([vectors, notes], ["e", "note"])}), path)
    with rows(f"parquet:{path}", cache_dir=tmp_path / "data") as stage:
        found = [row.data["s"] for row in stage]
    assert found == pq.read_table(path).column("s").to_pylist()


def test_lists_of_texts_over_many_row_groups_of_episodes_are_read(tmp_path: Path) -> None:
    count = 200
    tasks = [[f"task {i % 3}", "and more"] for i in range(count)]
    path = tmp_path / "file-000.parquet"
    table = pa.table({"episode_index": range(count), "tasks": tasks, "note": ["a"] * count})
    for options in ({}, {"use_dictionary": False, "column_encoding": {"tasks.list.element": "DELTA_BYTE_ARRAY"}}):
        pq.write_table(table, path, row_group_size=7, **options)
        stat = path.stat()
        episodes = EpisodeRows([Shard(str(path), stat.st_size, str(stat.st_mtime_ns), LocalOrigin())], 1 << 30)
        assert episodes.columns(["tasks"], np.arange(count)) == {"tasks": tasks}
        assert episodes.row(9) == {"episode_index": 9, "tasks": tasks[9], "note": "a"}


@dataclass(frozen=True)
class Counted(LocalOrigin):
    """A file that is read by range, and how often it was."""

    reads: list[tuple[int, int]] = field(default_factory=list)

    def read(self, shard: Shard, start: int, stop: int) -> bytes:
        self.reads.append((start, stop))
        return super().read(shard, start, stop)


def test_a_row_group_that_is_read_by_range_takes_one_request(tmp_path: Path) -> None:
    path, origin = tmp_path / "a.parquet", Counted()
    pq.write_table(pa.table({"t": [f"{i}" * 20 for i in range(6000)], "n": range(6000)}), path, row_group_size=1000)
    shard = Shard(str(path), path.stat().st_size, str(path.stat().st_mtime_ns), origin)
    reader = ParquetReader(shard, None, None, budget=MemoryBudget(1 << 30))
    origin.reads.clear()  # of the footer
    for group in range(6):
        assert reader.read(Chunk(0, 1000, 0, group, 0, 0, 0)).num_rows == 1000
    reader.close()
    assert len(origin.reads) == 6

"""What Arrow rows take as Python values is known before any is made: never too little, and not much too much."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import Faults, Order, Part, Recipe, load, rows
from headrace.errors import DataError
from headrace.fetch.block import block_bytes, gather
from headrace.fetch.memory import MemoryBudget
from headrace.fetch.parquet import ParquetReader
from headrace.fetch.python_size import PythonSize, RowSizes, python_size, row_bytes, total
from headrace.fetch.values import to_python
from headrace.make import feed

LUCK = random.Random(7)
HEADER = 16
"""Bytes that the garbage collector puts before a list or a dict."""


def texts(word: str, most: int = 2000) -> list[str]:
    return [word * LUCK.randrange(most) for _ in range(300)]


def lists(value: Any, most: int = 30) -> list[list[Any]]:
    return [[value] * LUCK.randrange(most) for _ in range(300)]


def pairs(array: Any) -> Any:
    return pa.FixedSizeListArray.from_arrays(array, 2)


def words(numbers: Any, count: int) -> Any:
    """Three of them, again and again."""
    texts = [f"{i}" * 100_000 for i in range(count)]
    return pa.DictionaryArray.from_arrays(pa.array([3, None, 17, 9] * 60, numbers), texts)


CASES: dict[str, Callable[[], Any]] = {
    "text": lambda: pa.array(texts("x")),
    "text of two bytes": lambda: pa.array(texts("aā漢")),
    "text of four bytes": lambda: pa.array([*texts("abc"), *(text + "😀" for text in texts("abc"))]),
    "a slice of texts": lambda: pa.array([*texts("abc"), "😀" * 10, *texts("x")]).slice(200, 200),
    "texts and nulls": lambda: pa.array(["", None, "ā", "", None]),
    "large texts": lambda: pa.array(texts("x"), pa.large_string()),
    "bytes": lambda: pa.array([text.encode() for text in texts("x")]),
    "numbers": lambda: pa.array(range(100_000, 101_000)),
    "booleans": lambda: pa.array([True, None, False] * 50),
    "times": lambda: pa.array([datetime(2020, 1, 1)] * 50),
    "decimals": lambda: pa.array([Decimal("1.5")] * 50),
    "structs": lambda: pa.array([{"a": 1000, "b": "text"}] * 50),
    "structs of six": lambda: pa.array([{f"k{i}": 1000 + i for i in range(6)}] * 50),
    "structs of 22": lambda: pa.array([{f"k{i}": 1000 + i for i in range(22)}] * 50),
    "structs in each other": lambda: pa.array([{"a": {"b": {"c": {"d": True}}}}] * 50),
    "lists of structs": lambda: pa.array(lists({"a": True})),
    "lists of texts": lambda: pa.array(lists("some text")),
    "lists of lists": lambda: pa.array([lists(1000, 5)[:8]] * 40),
    "a slice of lists": lambda: pa.array(lists("some text")).slice(100, 50),
    "large lists": lambda: pa.array(lists(70_000), pa.large_list(pa.int64())),
    "lists of one length": lambda: pa.array([["a", "bb", "ccc"]] * 99, pa.list_(pa.string(), 3)).slice(7, 50),
    "messages": lambda: pa.array([[{"role": "user", "content": text}] * 3 for text in texts("hello ", 200)]),
    "some of few large words": lambda: words(pa.int8(), 20),
    "some of many large words": lambda: words(pa.uint16(), 1000),
    "pairs of words": lambda: pairs(words(pa.int32(), 20)),
    "pairs of words in structs": lambda: pairs(pa.StructArray.from_arrays([words(pa.int32(), 20)], ["a"])),
    "lists of pairs of words": lambda: pa.ListArray.from_arrays([0, 0, 50, 120], pairs(words(pa.int32(), 20))),
    "maps": lambda: pa.array([[(f"k{i}", i + 1000) for i in range(9)]] * 50, pa.map_(pa.string(), pa.int64())),
}


def true_size(values: list[Any]) -> int:
    """Without what is there once and for all."""
    seen: set[int] = set()

    def of(value: Any) -> int:
        if value is None or isinstance(value, bool) or (id(value) in seen and not isinstance(value, int)):
            return 0
        seen.add(id(value))
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
        return sys.getsizeof(value) + (HEADER if isinstance(value, dict | list | tuple) else 0) + sum(map(of, inside))

    return sum(map(of, values)) + 8 * len(values)


@pytest.mark.parametrize("case", CASES)
def test_the_estimate_is_between_what_it_is_and_three_times_that(case: str) -> None:
    array = CASES[case]()
    size = python_size(pa.record_batch([array], ["c"]))
    estimate, true = total(size.each, len(array)) + size.shared, true_size(to_python(array))
    assert true <= estimate * 1.05 < 3 * true


def test_columns_and_fields_count_together() -> None:
    one, other = pa.array(["ab", "c"]), pa.array([[1], [1, 2, 3]])
    size = python_size(pa.record_batch([one, other], ["a", "b"]))
    alone = [python_size(pa.record_batch([array], ["c"])).each for array in (one, other)]
    assert size.each.tolist() == (alone[0] + alone[1]).tolist()  # type: ignore[union-attr]
    left = python_size(pa.record_batch([one, other], ["a", "b"]), arrays="b")
    assert left.each.tolist() == alone[0].tolist()  # type: ignore[union-attr]


def test_lists_that_are_no_whole_numbers_do_not_stay_out_of_python() -> None:
    whole, holes, empty = (
        pa.array([[1], [2, 3]]),
        pa.array([[1], [None, 3]]),
        pa.array([[], []], pa.list_(pa.string(), 0)),
    )
    sizes = [python_size(pa.record_batch([array], ["c"]), arrays="c") for array in (whole, holes, empty)]
    assert total(sizes[0].each, 2) == 0
    assert total(sizes[1].each, 2) > 100
    assert total(sizes[2].each, 2) > 100


EMPTY = {
    "pairs of texts": pa.list_(pa.string(), 2),
    "pairs of lists": pa.list_(pa.list_(pa.int64()), 2),
    "structs of pairs": pa.struct([("a", pa.list_(pa.string(), 2))]),
    "lists of nothing": pa.list_(pa.string(), 0),
    "lists of texts": pa.list_(pa.string()),
    "maps": pa.map_(pa.string(), pa.string()),
}


@pytest.mark.parametrize("values", [[[], []], [None, None], [None, []]], ids=str)
@pytest.mark.parametrize("kind", EMPTY)
def test_columns_whose_lists_are_all_empty_are_read(tmp_path: Path, kind: str, values: list[Any]) -> None:
    column = pa.array(values, pa.list_(EMPTY[kind]))
    pq.write_table(pa.table({"text": ["a", "b"], "lists": column}), tmp_path / "a.parquet")
    spec, cache = f"parquet:{tmp_path}/a.parquet", tmp_path / "c"
    with rows(spec, shuffle=False, cache_dir=cache) as stage:
        assert [row.data["lists"] for row in stage] == values
    with load(spec, shuffle=False, batch_size=2, cache_dir=cache) as loader:
        assert [batch["lists"] for batch in loader] == [values]


def test_sizes_of_more_than_four_gigabytes_are_no_small_numbers() -> None:
    """Arrow's numbers have 32 bits."""
    array = pa.ListArray.from_arrays(
        pa.array([0, 1 << 24], pa.int32()), pa.nulls(1 << 24, pa.struct([("a", pa.null())]))
    )
    assert total(python_size(pa.record_batch([array], ["c"])).each, 1) > 3 << 30


class TestRows:
    ORDER = np.array([2, 0, 1], np.int64)

    def test_rows_count_in_the_order_in_which_they_are_given(self) -> None:
        sizes = RowSizes(PythonSize(np.array([10, 200, 3000], np.int64)), self.ORDER)
        assert [sizes.bytes_of(turn, 1) for turn in range(3)] == [3000, 10, 200]
        assert sizes.bytes_of(0, 2) == 3010
        assert [sizes.fitting(turn, 210) for turn in range(3)] == [1, 2, 1]
        assert sizes.over(150) == {1: 200, 2: 3000}

    def test_all_rows_may_take_the_same(self) -> None:
        sizes = RowSizes(PythonSize(100), self.ORDER)
        assert sizes.bytes_of(1, 2) == 200
        assert [sizes.fitting(0, most) for most in (99, 250, 1000)] == [1, 2, 3]
        assert sizes.over(99) == {0: 100, 1: 100, 2: 100}
        assert sizes.over(100) == {}

    def test_what_rows_share_counts_once(self) -> None:
        sizes = RowSizes(PythonSize(10, shared=1000, word=500), self.ORDER)
        assert sizes.bytes_of(0, 3) == 1030
        assert sizes.over(509) == {0: 510, 1: 510, 2: 510}
        assert sizes.fitting(0, 4000) == 3
        assert sizes.fitting(0, 100) == 1


# --- what comes of it


HEAVY, EACH = 700, 150_000
"""The row that is a bomb, and the structs that it has: 36 MB in Python, and 1 MB in Arrow."""


@pytest.fixture
def one_heavy_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", "40000000")
    edges = [0] * (HEAVY + 1) + [EACH] * (1000 - HEAVY)
    structs = pa.StructArray.from_arrays([pa.array(np.zeros(EACH, bool))], ["a"])
    data = {"n": list(range(1000)), "l": pa.ListArray.from_arrays(pa.array(edges, pa.int32()), structs)}
    pq.write_table(pa.table(data), tmp_path / "a.parquet")
    return f"parquet:{tmp_path}/a.parquet"


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_row_that_is_too_large_is_a_bad_row_of_its_own(one_heavy_row: str, tmp_path: Path, shuffle: bool) -> None:
    told = rf"parquet:{HEAVY}: this row takes about [\d,]{{10}} bytes as Python values, and it may take 20,000,000"
    with (
        rows(one_heavy_row, shuffle=shuffle, cache_dir=tmp_path / "c") as stage,
        pytest.raises(DataError, match=told),
    ):
        for _ in stage:
            pass
    faults = Faults(policy="skip", budget=1)
    with load(one_heavy_row, shuffle=shuffle, batch_size=9, faults=faults, cache_dir=tmp_path / "c") as loader:
        given = [number for batch in loader for number in batch["n"]]
    assert sorted(given) == [number for number in range(1000) if number != HEAVY]


def test_a_block_has_fewer_rows_where_they_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pq.write_table(pa.table({"t": [f"{i:04}" * 25_000 for i in range(64)]}), tmp_path / "a.parquet", row_group_size=8)
    spec, cache = f"parquet:{tmp_path}/a.parquet", tmp_path / "c"
    found = []
    for budget in ("1000000000", "8000000"):
        monkeypatch.setenv("HEADRACE_MEMORY_BYTES", budget)
        with rows(spec, shuffle=True, cache_dir=cache) as stage:
            blocks = list(iter(lambda: stage.next_block(32), None))
        found.append([text for block in blocks for text in block.columns["t"]])
        most = max(map(len, blocks))
    assert found[0] == found[1]
    assert len(found[0]) == 64
    assert most <= 20  # of 100 kB each, in a quarter of 8 MB


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_chunk_that_is_used_up_is_let_go_before_the_next_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shuffle: bool
) -> None:
    """Each may take half of the memory budget."""
    pq.write_table(pa.table({"t": [f"{i:04}" * 2500 for i in range(64)]}), tmp_path / "a.parquet", row_group_size=8)
    held = []
    was_read = ParquetReader.read

    def read(self: ParquetReader, *args: Any) -> Any:
        held.append(MemoryBudget(1 << 30).in_use())
        return was_read(self, *args)

    monkeypatch.setattr("headrace.fetch.memory._USES", {})
    monkeypatch.setattr(ParquetReader, "read", read)
    with rows(f"parquet:{tmp_path}/a.parquet", shuffle=shuffle, pool_size=1, cache_dir=tmp_path / "c") as stage:
        assert [len(block) for block in iter(lambda: stage.next_block(8), None)] == [8] * 8
    assert held == [0] * 8


def test_rows_are_made_ready_in_blocks_that_are_small_as_python_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(
        pa.table({"t": [f"{i:04}" * (5000 if 300 < i < 330 else 5) for i in range(500)]}), tmp_path / "a.parquet"
    )
    blocks = []

    def gathered(opened: Any, done: Any, *others: Any) -> Any:
        blocks.append((block_bytes(opened, done), done.count))
        return gather(opened, done, *others)

    monkeypatch.setattr(feed, "gather", gathered)
    monkeypatch.setattr(feed, "PYTHON_BYTES", 100_000)
    with load(f"parquet:{tmp_path}/a.parquet", shuffle=False, batch_size=10, cache_dir=tmp_path / "c") as loader:
        given = [text[:4] for batch in loader for text in batch["t"]]
    assert given == [f"{i:04}" for i in range(500)]
    assert all(nbytes < 100_000 or count == 1 for nbytes, count in blocks)
    assert max(count for _, count in blocks) > 50
    assert len(blocks) < 60


def test_rows_of_many_columns_are_made_ready_in_large_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each block a few rows come from each of many chunks, so small blocks are slow."""
    pq.write_table(pa.table({f"n{i}": range(2000) for i in range(300)}), tmp_path / "a.parquet", row_group_size=100)
    blocks = []

    def gathered(opened: Any, done: Any, *others: Any) -> Any:
        blocks.append(done.count)
        return gather(opened, done, *others)

    monkeypatch.setattr(feed, "gather", gathered)
    with load(f"parquet:{tmp_path}/a.parquet", batch_size=32, cache_dir=tmp_path / "c") as loader:
        given = [number for batch in loader for number in batch["n0"]]
    assert sorted(given) == list(range(2000))
    assert max(blocks) == feed.MOST_ROWS


# --- rows that use little of what is shared


ROWS, EACH_ROW = 2000, 120
LITTLE_MEMORY = 32 << 20
WIDE = 45
"""Texts of 0.2 MB in Arrow, which are 36 MB together in Python: they have a character of four bytes."""


def wide_words() -> Any:
    return pa.array([f"{i:02}" * 100_000 + "😀" for i in range(WIDE)])


def own_words(rows: int = ROWS) -> Any:
    """Each row has short words that no other has; together they take 19 MB."""
    words = pa.array([f"w{i:07}" for i in range(rows * EACH_ROW)])
    coded = pa.DictionaryArray.from_arrays(pa.array(range(len(words)), pa.int32()), words)
    return pa.ListArray.from_arrays(pa.array(range(0, len(words) + 1, EACH_ROW), pa.int32()), coded)


def one_of_few_large(rows: int = ROWS) -> Any:
    """Each row has one and the same of them in all of its places."""
    numbers = np.repeat(np.arange(rows, dtype=np.int32) % WIDE, EACH_ROW)
    coded = pa.DictionaryArray.from_arrays(pa.array(numbers), wide_words())
    return pa.ListArray.from_arrays(pa.array(range(0, len(numbers) + 1, EACH_ROW), pa.int32()), coded)


@pytest.mark.parametrize("make", [own_words, one_of_few_large])
@pytest.mark.parametrize("shuffle", [True, False])
def test_rows_that_use_little_of_a_large_dictionary_are_no_bad_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[int], Any], shuffle: bool
) -> None:
    """Each counted as if it had all that is in the dictionary, and a run with `skip` left out the whole file."""
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(LITTLE_MEMORY if make is own_words else 2 * LITTLE_MEMORY))
    count = ROWS if make is own_words else 400
    pq.write_table(pa.table({"n": range(count), "l": make(count)}), tmp_path / "a.parquet")
    spec, cache = f"parquet:{tmp_path}/a.parquet", tmp_path / "c"
    with rows(spec, shuffle=shuffle, pool_size=2, cache_dir=cache) as stage:
        assert sorted(row.data["n"] for row in stage) == list(range(count))
    with rows(spec, shuffle=shuffle, pool_size=2, cache_dir=cache) as stage:
        blocks = list(iter(lambda: stage.next_block(8), None))
        assert sorted(number for block in blocks for number in block.columns["n"]) == list(range(count))
    recipe = Recipe(parts=(Part(source=spec),), order=Order(shuffle=shuffle, seed=1, pool_chunks=2))
    with load(recipe, batch_size=8, epochs=1, faults=Faults(policy="skip", budget=count), cache_dir=cache) as loader:
        assert sorted(number for batch in loader for number in batch["n"]) == list(range(count))


def test_a_row_that_uses_all_of_a_large_dictionary_is_a_bad_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(2 * LITTLE_MEMORY))
    numbers = [0] * 10 + list(range(WIDE)) + [1] * 10
    coded = pa.DictionaryArray.from_arrays(pa.array(numbers, pa.int32()), wide_words())
    lists = pa.ListArray.from_arrays(pa.array([*range(11), *range(10 + WIDE, 21 + WIDE)], pa.int32()), coded)
    pq.write_table(pa.table({"n": range(21), "l": lists}), tmp_path / "a.parquet")
    spec, cache = f"parquet:{tmp_path}/a.parquet", tmp_path / "c"
    faults = Faults(policy="skip", budget=1)
    with load(spec, shuffle=False, batch_size=1, faults=faults, cache_dir=cache) as loader:
        assert [number for batch in loader for number in batch["n"]] == [n for n in range(21) if n != 10]


@pytest.mark.parametrize("make", [own_words, one_of_few_large])
def test_what_a_few_rows_take_of_a_dictionary_in_lists_is_known(make: Callable[[int], Any]) -> None:
    """Never too little, and nothing of what only other rows have."""
    array = make(100)
    batch = pa.record_batch([array], ["l"])
    sizes = RowSizes(python_size(batch), np.arange(100, dtype=np.int64))
    for first, count in ((0, 1), (5, 3), (90, 10)):
        true = true_size(to_python(array.slice(first, count)))
        assert true <= sizes.bytes_of(first, count) * 1.05
        assert row_bytes(batch, first) < 3 * true_size(to_python(array.slice(first, 1)))


PAIRS = ("pairs of words", "pairs of words in structs", "lists of pairs of words")


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("case", PAIRS)
def test_words_in_lists_of_one_length_are_read(tmp_path: Path, case: str, shuffle: bool) -> None:
    array = CASES[case]()
    pq.write_table(pa.table({"n": range(len(array)), "l": array}), tmp_path / "a.parquet")
    with rows(f"parquet:{tmp_path}/a.parquet", shuffle=shuffle, cache_dir=tmp_path / "c") as stage:
        given = sorted((row.data["n"], row.data["l"]) for row in stage)
    assert given == list(enumerate(array.to_pylist()))

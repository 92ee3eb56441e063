"""Small parquet files whose rows are large in memory: they are read within the budget, or refused before."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from decimal import Decimal
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import read_limited
from read_limited import BUDGET, MB, cost

from headrace import rows
from headrace.catalog.footer import Leaf
from headrace.errors import DataError
from headrace.fetch import memory
from headrace.fetch.block import pick
from headrace.fetch.chunk import OpenChunk
from headrace.fetch.memory import MemoryBudget, MemoryUse
from headrace.fetch.plan import Chunk
from headrace.fetch.values import to_python
from headrace.fetch.weight import Form
from headrace.testing import LocalHub, write_robot_dataset

pytestmark = pytest.mark.timeout(100)

LARGE = "x" * MB
MANY = 20 * MB
"""Numbers in a list: 80 MB in Arrow, several times that as Python's."""
OTHER_WAYS = ["in order", "loader"]
TENSOR = pa.fixed_shape_tensor(pa.int64(), [100_000])
ZEROS = pa.array(np.zeros(2 * MB, bool))
NO_ENDS = pa.array(np.zeros(MB + 1, np.int32))
NUMBERS = pa.array(np.zeros(MB, np.int64))
ONE_PAGE = {"use_dictionary": False, "data_page_size": 64 * MB, "row_group_size": MB, "write_batch_size": MB}
if "max_rows_per_page" in inspect.signature(pq.ParquetWriter.__init__).parameters:  # others have no such limit
    ONE_PAGE["max_rows_per_page"] = MB


def again(count: int, *others: str) -> Any:
    """One large value in each of so many rows, and others: a file has it once, and so do we."""
    indices = [0] * count + list(range(1, len(others) + 1))
    return pa.DictionaryArray.from_arrays(pa.array(indices, pa.int32()), pa.array([LARGE, *others]))


def repeated(kind: Any) -> Any:
    """The same without a dictionary, in a hundred rows."""
    return pa.array([LARGE], kind).take(pa.array([0] * 100))


def not_utf8(references: list[int]) -> Any:
    """Of two texts, the large one and one that cannot be read."""
    ends = pa.py_buffer(np.array([0, MB, MB + 1], np.int32))
    words = pa.Array.from_buffers(pa.string(), 2, [None, ends, pa.py_buffer(LARGE.encode() + b"\xff")])
    return pa.DictionaryArray.from_arrays(pa.array(references, pa.int32()), words)


def stored_as(kind: Any, values: Any) -> Any:
    return pa.ExtensionArray.from_storage(kind, values)


def lists(values: Any, each: int = 1) -> Any:
    return pa.ListArray.from_arrays(pa.array(range(0, len(values) + 1, each), pa.int32()), values)


def write(path: Path, columns: dict[str, Any], **options: Any) -> None:
    # Without the schema of Arrow, which would have them read as the dictionaries that they are here.
    pq.write_table(pa.table(columns), path, **{"compression": "zstd", "store_schema": False, **options})
    assert path.stat().st_size < MB


def in_delta(name: str) -> dict[str, Any]:
    return {"use_dictionary": False, "column_encoding": {name: "DELTA_BYTE_ARRAY"}}


def group_by_group(path: Path) -> None:
    """Only the last row group is large."""
    few = pa.array(["a"] * 500).dictionary_encode()
    sound, bad = pa.table({"n": [1] * 500, "t": few}), pa.table({"n": [1] * 500, "t": again(500)})
    with pq.ParquetWriter(path, sound.schema, compression="zstd", store_schema=False) as writer:
        for part in (sound, sound, bad):
            writer.write_table(part)


def a_false_footer(path: Path) -> None:
    """A page of 200 MB, and a footer that says it has none of them."""
    data = pa.table({"t": [b"\0" * (200 * MB)]})
    sink = pa.BufferOutputStream()
    pq.write_table(data, sink, compression="zstd", use_dictionary=False, write_statistics=False, store_schema=False)
    whole = sink.getvalue().to_pybytes()
    size = pq.read_metadata(pa.BufferReader(whole)).row_group(0).column(0).total_uncompressed_size
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    footer = whole[start:-8]
    assert footer.count(zigzag(size)) >= 1
    path.write_bytes(whole[:start] + footer.replace(zigzag(size), zigzag(2**27)) + whole[-8:])
    assert pq.read_metadata(path).row_group(0).column(0).total_uncompressed_size == 2**27


def zigzag(number: int) -> bytes:
    number, out = number << 1, b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


READ: dict[str, tuple[Callable[[Path], None], int]] = {
    "a dictionary": (lambda path: write(path, {"t": again(900), "n": list(range(900))}), 900),
    "a dictionary in the first column": (lambda path: write(path, {"t": again(400), "n": ["a"] * 400}), 400),
    "a dictionary in slices": (lambda path: write(path, {"n": list(range(3000)), "t": again(3000)}), 3000),
    "a dictionary in the last row group": (group_by_group, 1500),
    "many row groups": (lambda path: write(path, {"t": again(1600)}, row_group_size=200), 1600),
    "two columns": (lambda path: write(path, {"a": again(300), "b": again(300)}), 300),
    "in a list": (lambda path: write(path, {"l": lists(again(900))}), 900),
    "many in one list": (lambda path: write(path, {"l": lists(again(900), 900)}), 1),
    "in a struct": (lambda path: write(path, {"s": pa.StructArray.from_arrays([again(400)], ["t"])}), 400),
    "pages of format 2": (lambda path: write(path, {"l": lists(again(400))}, data_page_version="2.0"), 400),
    "a dictionary that was given up": (
        lambda path: write(
            path,
            {"t": again(400, *(f"{i}" * 500 for i in range(600)))},
            dictionary_pagesize_limit=MB + 1000,
        ),
        1000,
    ),
}
REFUSED: dict[str, tuple[Callable[[Path], None], str]] = {
    "beginnings that are shared": (lambda path: write(path, {"t": repeated(pa.string())}, **in_delta("t")), "t"),
    "beginnings that are shared, in a list": (
        lambda path: write(path, {"l": lists(repeated(pa.string()))}, **in_delta("l.list.element")),
        r"l\.list\.element",
    ),
    "values of fixed length": (lambda path: write(path, {"f": repeated(pa.binary(len(LARGE)))}), "f"),
    "one list of many": (
        lambda path: write(path, {"l": lists(pa.array(np.full(MANY, 70_000, np.int32)), MANY)}),
        r"l\.list\.element",
    ),
    "nulls of fixed length": (
        lambda path: write(path, {"l": pa.nulls(400, pa.list_(pa.int64(), 100_000))}, store_schema=True),
        r"l\.list\.element",
    ),
    "tensors that are null": (
        lambda path: write(
            path, {"x": pa.ExtensionArray.from_storage(TENSOR, pa.nulls(400, TENSOR.storage_type))}, store_schema=True
        ),
        r"x\.list\.element",
    ),
    "structures in one row": (
        lambda path: write(path, {"l": lists(pa.StructArray.from_arrays([ZEROS], ["a"]), len(ZEROS))}),
        r"l\.list\.element\.a",
    ),
    "empty lists in one row": (
        lambda path: write(path, {"l": lists(pa.ListArray.from_arrays(NO_ENDS, pa.array([], pa.int8())), MB)}),
        r"l\.list\.element\.list\.element",
    ),
    "a page of each of many columns": (
        lambda path: write(path, dict.fromkeys((f"c{i}" for i in range(40)), NUMBERS), **ONE_PAGE),
        "c0",
    ),
    "one large value": (lambda path: write(path, {"t": [b"\0" * (200 * MB)]}, use_dictionary=False), "t"),
    "a footer that is false": (a_false_footer, "t"),
}
if hasattr(pa, "json_"):  # from pyarrow 19 on
    REFUSED["JSON in a dictionary"] = (
        lambda path: write(
            path, {"j": pa.ExtensionArray.from_storage(pa.json_(), repeated(pa.string()))}, store_schema=True
        ),
        "j",
    )


def structs(count: int) -> Any:
    """A bit each in Arrow, and a dict in Python."""
    return pa.StructArray.from_arrays([pa.array(np.zeros(count, bool))], ["a"])


def a_few_large() -> Any:
    """A thousand lists: thirteen of them, one after another, take 6 MB each, and the others are empty."""
    edges = [0] * 500 + list(range(0, 13 * 26_000 + 1, 26_000)) + [13 * 26_000] * 487
    return pa.ListArray.from_arrays(pa.array(edges, pa.int32()), structs(13 * 26_000))


def deep(levels: int) -> Any:
    """Structs inside each other, in a thousand rows."""
    values = pa.array(np.zeros(1000, bool))
    for _ in range(levels):
        values = pa.StructArray.from_arrays([values], ["a"])
    return values


def a_word_for_each_group(path: Path) -> None:
    """One text of 2 MB, which four bytes for each character make 8 MB."""
    coded = pa.dictionary(pa.int32(), pa.string())
    settings = {"compression": "zstd", "store_schema": False, "dictionary_pagesize_limit": 10 * MB}
    with pq.ParquetWriter(path, pa.schema([("t", coded)]), **settings) as writer:
        for i in range(24):
            word = pa.array(["x" * 2 * MB + f"{chr(0x1F600)}{i}"])
            writer.write_table(pa.table({"t": pa.DictionaryArray.from_arrays(pa.array([0] * 1000, pa.int32()), word)}))


IN_PYTHON: dict[str, tuple[Callable[[Path], None], int]] = {
    "structures in many rows": (lambda path: write(path, {"l": lists(structs(2 * MB), 2000)}), 1000),
    "structures in many row groups": (
        lambda path: write(path, {"l": lists(structs(8 * MB), 2000)}, row_group_size=1000),
        4000,
    ),
    "structures in a few of many rows": (lambda path: write(path, {"l": a_few_large()}), 1000),
    "structures inside each other": (lambda path: write(path, {f"c{i}": deep(60) for i in range(16)}), 1000),
}


@pytest.mark.parametrize(("case", "way"), [*product(IN_PYTHON, ["shuffled", "loader in order", *OTHER_WAYS])])
def test_rows_that_are_small_until_they_are_python_values_are_read_within_the_budget(
    tmp_path: Path, case: str, way: str
) -> None:
    make, count = IN_PYTHON[case]
    make(tmp_path / "a.parquet")
    found = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, way)
    assert not found["error"]
    assert found["rows"] == (count if not way.startswith("loader") else -(-count // read_limited.BATCH))
    assert found["bytes"] < 2 * BUDGET, found


def test_the_words_of_a_dictionary_count_with_four_bytes_for_a_character(tmp_path: Path) -> None:
    a_word_for_each_group(tmp_path / "a.parquet")
    found = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, "shuffled")
    assert re.match(r"DataError: .* chunks hold [1-9][\d,]+ and the budget is", found["error"].replace("other ", ""))
    assert found["bytes"] < 2 * BUDGET, found
    in_order = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, "in order")
    assert (in_order["error"], in_order["rows"]) == ("", 24_000)
    assert in_order["bytes"] < 2 * BUDGET, in_order


@pytest.mark.parametrize(
    ("case", "way"),
    [*((case, "shuffled") for case in READ), *product(["a dictionary in slices", "in a list"], OTHER_WAYS)],
)
def test_values_that_come_again_in_many_rows_are_read_within_the_budget(tmp_path: Path, case: str, way: str) -> None:
    make, count = READ[case]
    make(tmp_path / "a.parquet")
    found = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, way)
    assert not found["error"]
    assert found["rows"] == (count if way != "loader" else -(-count // read_limited.BATCH))
    assert found["bytes"] < 2 * BUDGET, found


@pytest.mark.parametrize(
    ("case", "way"), [*((case, "shuffled") for case in REFUSED), *product(["one list of many"], OTHER_WAYS)]
)
def test_rows_that_do_not_fit_are_refused_before_they_are_decoded(tmp_path: Path, case: str, way: str) -> None:
    make, column = REFUSED[case]
    make(tmp_path / "a.parquet")
    found = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, way)
    assert re.match(
        rf"DataError: {tmp_path}/a\.parquet, row group 0, column '{column}': [\d,]+ rows take up to [\d,]+ bytes in "
        rf"memory, [\d,]+ of them this column, and they may take [\d,]+: .*the budget is {BUDGET:,} "
        r"\(HEADRACE_MEMORY_BYTES\)\. Raise it, .*leave the column out",
        found["error"],
    ), found
    assert found["bytes"] < BUDGET // 4, found


def named(name: str, values: Any) -> Any:
    return pa.StructArray.from_arrays([values], [name])


def beside_a_time(count: int) -> Any:
    """A text that comes again, and times of which the last hundred are in no year."""
    times = pa.array([0] * (count - 100) + [2**62] * 100, pa.int64()).cast(pa.timestamp("us"))
    return pa.StructArray.from_arrays([again(count), times], ["t", "n"])


FEW: dict[str, tuple[Callable[[Path], None], int]] = {
    "lists": (lambda path: write(path, {"l": lists(again(5400), 900)}), 6),
    "lists of structs": (lambda path: write(path, {"l": lists(named("t", again(5400)), 900)}), 6),
    "structs of lists": (lambda path: write(path, {"s": named("l", lists(again(5400), 900))}), 6),
    "maps": (
        lambda path: write(path, {"m": pa.MapArray.from_arrays(list(range(0, 5401, 900)), ["k"] * 5400, again(5400))}),
        6,
    ),
}
SPOILED: dict[str, tuple[Callable[[Path], None], int, str]] = {
    "flat": (lambda path: write(path, {"v": not_utf8([0] * 1500 + [1])}), 1500, "can't decode"),
    "lists": (
        lambda path: write(path, {"v": lists(not_utf8([0] * 150_000 + [1] * 100), 100)}),
        1500,
        "can't decode",
    ),
    "a time beside it": (lambda path: write(path, {"v": lists(beside_a_time(30_000), 100)}), 299, "out of range"),
}
SECONDS = 30
"""For the work of a second."""


@pytest.mark.parametrize(("case", "way"), [*product(FEW, ["shuffled", "loader"]), ("lists", "in order")])
def test_values_that_come_again_are_made_once_where_few_rows_are_read_at_a_time(
    tmp_path: Path, case: str, way: str
) -> None:
    make, count = FEW[case]
    make(tmp_path / "a.parquet")
    found = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, way)
    assert (found["error"], found["rows"]) == ("", count if way != "loader" else -(-count // read_limited.BATCH))
    assert found["bytes"] < 2 * BUDGET, found
    assert found["seconds"] < SECONDS, found


@pytest.mark.parametrize(
    ("case", "way"), [*product(SPOILED, ["in order", "loader", "loader that skips"]), ("lists", "shuffled")]
)
def test_values_that_come_again_are_made_once_beside_one_that_cannot_be_read(
    tmp_path: Path, case: str, way: str
) -> None:
    make, bad, said = SPOILED[case]
    make(tmp_path / "a.parquet")
    found = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, way)
    if "skips" in way:
        assert (found["error"], found["rows"]) == ("", -(-bad // read_limited.BATCH))
    else:
        where = (
            rf"DataError: .*a\.parquet:{bad}, column 'v': its value cannot be read: .*{said}.*; leave the column out"
        )
        assert re.match(where, found["error"]), found
        assert found["rows"] == bad or way != "in order"
    assert found["bytes"] < 2 * BUDGET, found
    assert found["seconds"] < SECONDS, found


# --- robots


def with_column(path: Path, name: str, values: Any, **options: Any) -> None:
    """The same parquet file with one more column, or another one in its place."""
    table = pq.read_table(path)
    columns = {one: table.column(one) for one in table.column_names} | {name: values}
    write(path, columns, **options)


def robot(tmp_path: Path, episodes: list[int]) -> Path:
    """A robot data set whose frames have a note each; and one that is small, to be read before."""
    features = {"note": ("string", (1,))}
    for folder, lengths in ((tmp_path / "set", episodes), (tmp_path / "set-warm", [3, 3])):
        write_robot_dataset(folder, episodes=lengths, cameras={}, extra_features=features, episodes_per_data_file=1000)
        with_column(next(folder.glob("meta/episodes/*/*.parquet")), "l", [["a"]] * len(lengths))
    return tmp_path / "set"


def data_file(folder: Path) -> Path:
    return next(folder.glob("data/*/*.parquet"))


@pytest.mark.parametrize("row_groups", ["of all episodes", "of each"])
def test_a_text_that_comes_again_in_many_frames_of_a_robot_is_there_once(tmp_path: Path, row_groups: str) -> None:
    folder = robot(tmp_path, [150] * 6)
    with_column(data_file(folder), "note", again(900), row_group_size=900 if row_groups == "of all episodes" else 150)
    found = cost(f"lerobot:{folder}", tmp_path, "robot")
    assert (found["error"], found["rows"]) == ("", 900)
    assert found["bytes"] < 2 * BUDGET, found


def test_episodes_of_a_robot_that_fit_one_by_one_are_refused_where_all_that_are_held_do_not(tmp_path: Path) -> None:
    """Four megabytes each, and the pool holds all of them."""
    folder = robot(tmp_path, [8] * 32)
    texts = pa.array([f"{i:03d}" * (MB // 6) for i in range(8 * 32)])
    with_column(data_file(folder), "note", texts, row_group_size=8, use_dictionary=False)
    found = cost(f"lerobot:{folder}", tmp_path, "robot")
    assert re.search(r"DataError: .*column 'note'.* bytes .*HEADRACE_MEMORY_BYTES", found["error"]), found
    assert found["bytes"] < 2 * BUDGET, found


def test_lists_of_texts_that_come_again_in_many_episodes_are_read_as_they_are_stored(tmp_path: Path) -> None:
    folder = robot(tmp_path, [1] * 300)
    with_column(next(folder.glob("meta/episodes/*/*.parquet")), "l", lists(again(300)))
    found = cost(f"lerobot:{folder}", tmp_path, "robot's table")
    assert (found["error"], found["rows"]) == ("", 300)
    assert found["bytes"] < 2 * BUDGET, found


@pytest.mark.parametrize("files", [1, 5])
def test_tables_of_episodes_that_do_not_fit_are_refused_before_they_are_decoded(tmp_path: Path, files: int) -> None:
    """All files together, where each would fit alone."""
    folder = robot(tmp_path, [1] * 100)
    path = next(folder.glob("meta/episodes/*/*.parquet"))
    whole = pq.read_table(path)
    for i, each in ((i, 100 // files) for i in range(files)):
        part = path.with_name(f"file-{i:03d}.parquet")
        pq.write_table(whole.slice(i * each, each), part)
        texts = repeated(pa.string()).slice(0, each)
        with_column(part, "l", lists(texts), **in_delta("l.list.element"))
    found = cost(f"lerobot:{folder}", tmp_path, "robot's table")
    assert re.match(
        rf"DataError: .*meta/episodes/.*\.parquet, row group 0, column 'l\.list\.element': its rows take up to [\d,]+ "
        rf"bytes in memory, [\d,]+ of them this column, and all metadata may take {BUDGET:,} \(HEADRACE_MEMORY_BYTES\)",
        found["error"],
    ), found
    assert found["bytes"] < 2 * BUDGET, found


def test_chunks_that_fit_one_by_one_are_refused_where_all_of_them_do_not(tmp_path: Path) -> None:
    """A pool holds many of them: 9 MB each, and no more than 50 in all."""
    data = {"t": pa.array([bytes([i]) * (3 * MB) for i in range(24)])}
    write(tmp_path / "a.parquet", data, row_group_size=3, use_dictionary=False)
    spec = f"parquet:{tmp_path}/a.parquet"
    found = cost(spec, tmp_path, "shuffled")
    assert re.search(
        r"row group \d, column 't': 3 rows take up to .*other chunks hold [1-9][\d,]+ and the", found["error"]
    )
    assert found["bytes"] < 2 * BUDGET, found
    in_order = cost(spec, tmp_path, "in order")
    assert (in_order["error"], in_order["rows"]) == ("", 24)
    assert in_order["bytes"] < 2 * BUDGET, in_order


@pytest.mark.parametrize("case", ["a dictionary in slices", "in a list", "one list of many"])
def test_the_same_read_by_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """There is no room on the disk for the file, so its row groups are read where they lie."""
    make, _ = {**READ, **REFUSED}[case]
    make(tmp_path / "a.parquet")
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HEADRACE_CACHE_BYTES", "1")
        hub.push("org/bomb", {"data/train-0.parquet": (tmp_path / "a.parquet").read_bytes()})
        found = cost("hf:org/bomb", tmp_path, "loader")
    assert bool(found["error"]) == (case in REFUSED), found
    assert found["bytes"] < 2 * BUDGET, found


@pytest.mark.parametrize("case", READ)
def test_what_is_read_within_a_budget_is_what_is_read_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Smaller, so that both are at hand."""
    monkeypatch.setitem(globals(), "LARGE", "y" * 20_000)
    READ[case][0](tmp_path / "a.parquet")
    found = []
    for budget in (1 << 40, BUDGET // 10):
        monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(budget))
        with rows(f"parquet:{tmp_path}/a.parquet", shuffle=True, cache_dir=tmp_path / "data") as stage:
            found.append([(row.address, row.data) for row in stage])
    assert found[0] == found[1]
    assert len(found[0]) == READ[case][1]


def test_sizes_that_only_look_too_large_are_looked_at_closely(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By their headers alone, these pages might become more than the budget."""
    words = [f"https://example.org/a/{i:06}" for i in range(20_000)]
    data = {
        "t": pa.array(words),
        "l": lists(pa.array(words)),
        "f": pa.array([[1, 2, 3]] * 20_000, pa.list_(pa.int8(), 3)),
    }
    options = {
        "use_dictionary": False,
        "column_encoding": {"t": "DELTA_BYTE_ARRAY", "l.list.element": "DELTA_BYTE_ARRAY"},
    }
    for version, codec in (("1.0", "zstd"), ("2.0", "snappy"), ("1.0", "none")):
        write(tmp_path / "a.parquet", data, data_page_version=version, **{**options, "compression": codec})
        monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(8 * MB))
        with rows(f"parquet:{tmp_path}/a.parquet", cache_dir=tmp_path / "data") as stage:
            assert [(row.data["t"], row.data["l"]) for row in stage] == [(word, [word]) for word in words]


def test_a_large_row_group_of_lists_is_weighed_slice_by_slice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it is ten times the budget; a slice is not."""
    flat = pa.array(np.arange(5 * MB, dtype=np.int32) % 1000)
    write(tmp_path / "a.parquet", {"l": lists(flat, 1000)}, row_group_size=5000, data_page_size=1 << 16)
    monkeypatch.setenv("HEADRACE_MEMORY_BYTES", str(36 * MB))
    with rows(f"parquet:{tmp_path}/a.parquet", cache_dir=tmp_path / "data") as stage:
        assert sum(len(row.data["l"]) for row in stage) == 5 * MB


def test_a_dictionary_that_cannot_have_its_values_is_refused(tmp_path: Path) -> None:
    """Its header says that it has 2**31 - 1 of them."""
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"t": ["ab", "cd"] * 50}), path, compression="none", write_statistics=False)
    data = path.read_bytes()
    head = b"\x4c\x15\x04\x15\x00"  # a dictionary of 2 values, PLAIN
    assert data.count(head) == 1
    start = data.index(head)
    long = b"\x4c\x15" + zigzag(2**31 - 1) + b"\x15\x00"
    footer = pq.read_metadata(path)
    offset = footer.row_group(0).column(0).dictionary_page_offset
    # The header grows by four bytes, which its page makes up for: what is behind it stays where it is.
    assert offset < start
    path.write_bytes(data[:start] + long + data[start + len(head) + 4 :])
    said = r"a\.parquet, row group 0, column 't' at offset 4: it is damaged: "
    with pytest.raises(DataError, match=said), rows(f"parquet:{path}", cache_dir=tmp_path / "data") as stage:
        list(stage)


def test_decimals_are_weighed_as_they_are_in_memory(tmp_path: Path) -> None:
    values = pa.array([Decimal("1.5")] * 100, pa.decimal128(5, 1))
    pq.write_table(pa.table({"d": values}), tmp_path / "a.parquet", store_decimal_as_integer=True)
    schema = pq.read_metadata(tmp_path / "a.parquet").schema.column(0)
    assert schema.physical_type == "INT32"
    assert Form(Leaf("d", flat=True), schema, values.type).width * len(values) >= values.nbytes


# --- values


def coded(values: Any) -> Any:
    """The same array with its texts in dictionaries."""
    kind = values.type
    if pa.types.is_string(kind):
        return values.dictionary_encode()
    if pa.types.is_struct(kind):
        parts = [coded(values.field(i)) for i in range(kind.num_fields)]
        return pa.StructArray.from_arrays(parts, [f.name for f in kind], mask=values.is_null())
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(values.offsets, values.keys, coded(values.items))
    if pa.types.is_fixed_size_list(kind):
        return pa.FixedSizeListArray.from_arrays(coded(values.values), kind.list_size, mask=values.is_null())
    if pa.types.is_list(kind):
        return pa.ListArray.from_arrays(values.offsets, coded(values.values), mask=values.is_null())
    return values


NESTED: dict[str, Any] = {
    "lists": pa.array([["a", "b", None], None, [], ["a"]]),
    "lists of lists": pa.array([[["a"], None, ["b", "a"]], [], None, [[]]]),
    "structs": pa.array([{"t": "a", "n": 1}, None, {"t": None, "n": 2}, {"t": "a", "n": None}]),
    "lists of structs": pa.array([[{"role": "u", "n": 1}, None], [{"role": "u", "n": 2}], None, []]),
    "structs of lists": pa.array([{"l": ["a", "b"]}, {"l": None}, None, {"l": []}]),
    "maps": pa.array([[("k", "a")], [], [("k", "a"), ("l", None)], [("m", "b")]], pa.map_(pa.string(), pa.string())),
    "lists of fixed length": pa.array([["a", "b"], None, ["b", None], ["a", "a"]], pa.list_(pa.string(), 2)),
    "texts": pa.array(["a", None, "b", "a"]),
}


@pytest.mark.parametrize("case", NESTED)
def test_values_in_dictionaries_come_as_others_do_and_are_shared(case: str) -> None:
    plain, dictionaries = NESTED[case], coded(NESTED[case])
    assert "dictionary" in str(dictionaries.type)
    for first in range(4):
        for count in range(5 - first):
            assert to_python(dictionaries.slice(first, count)) == plain.slice(first, count).to_pylist()
    assert to_python(dictionaries.take(pa.array([3, 0, 1]))) == plain.take(pa.array([3, 0, 1])).to_pylist()


def test_a_value_of_a_list_that_comes_again_is_one_value() -> None:
    values = pa.DictionaryArray.from_arrays(pa.array([0] * 100), pa.array(["long" * 100]))
    assert len({id(text) for row in to_python(lists(values, 10)) for text in row}) == 1


@pytest.mark.parametrize("order", [np.arange(9), np.arange(9)[::-1].copy()], ids=["in order", "out of order"])
def test_rows_that_are_asked_for_one_by_one_share_what_comes_again(order: Any) -> None:
    def opened(values: Any) -> OpenChunk:
        data = pa.record_batch({"l": lists(values, 100), "t": values.slice(0, 9)})
        return OpenChunk(Chunk(0, 9, 0, 0, 0, 0, 100), data, order, ("s", 0, "shard"))

    def made(*parts: Any) -> int:
        return len({id(text) for part in parts for texts in part["l"] for text in texts})

    assert made(pick(opened(again(900)), [1, 7, 3], "s", 0).columns) == made(opened(again(900)).part(2, 4)) == 1
    spoiled = opened(not_utf8([0] * 400 + [1] * 100 + [0] * 400))
    with pytest.raises(DataError, match=r"shard:4, column 'l': its value cannot be read: "):
        spoiled.part(0, 9)
    assert made(spoiled.part(0, 3), spoiled.part(3, 1), spoiled.picked([5, 6, 8]), spoiled.part(7, 1)) == 1


def test_of_a_large_dictionary_only_what_is_used_is_made() -> None:
    column = pa.DictionaryArray.from_arrays(pa.array([7, None, 7, 500]), pa.array([str(i) for i in range(1000)]))
    assert to_python(column) == ["7", None, "7", "500"]


def test_what_is_in_memory_is_counted_until_it_is_released() -> None:
    budget = MemoryBudget(100)
    before = budget.in_use()
    first, second = MemoryUse(10), MemoryUse(30)
    assert budget.in_use() == before + 40
    first.release()
    second.change(20)
    assert budget.in_use() == before + 20
    del second
    assert budget.in_use() == before


def test_a_chunk_may_take_half_of_the_budget_or_what_the_others_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_USES", {})
    budget, others = MemoryBudget(100), MemoryUse(10)
    assert (budget.preferred(), budget.most(0)) == (50, 50)
    others.change(80)
    assert (budget.preferred(), budget.most(0)) == (20, 50)
    others.change(120)
    assert (budget.preferred(), budget.most(0)) == (-20, 30)

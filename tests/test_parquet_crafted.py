"""Parquet files by hand, whose headers say one thing to us and another to pyarrow, are refused before they are read."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_by_hand import (
    DELTA_BYTES,
    DELTA_LENGTHS,
    DICTIONARY,
    INT32,
    PLAIN,
    REPEATED,
    Struct,
    data_page,
    dictionary_page,
    level_runs,
    packed,
    same_index,
    texts,
    varint,
    write_column,
    zigzag,
)
from read_limited import BUDGET, MB, cost

pytestmark = pytest.mark.timeout(100)

ROWS = 900
WORDS = dictionary_page(2, texts(b"x" * MB, b"y"))
REFERENCES = data_page(ROWS, DICTIONARY, same_index(ROWS))
LENGTHS = 300_000_000
BLOCK = 1 << 25


def header(values: int, encoding: int) -> Struct:
    return Struct().i32(1, values).i32(2, encoding).i32(3, 3).i32(4, 3)


def many_lengths() -> bytes:
    """So many lengths of 0, in a few bytes."""
    block = zigzag(0) + b"\0" * 512
    return varint(BLOCK) + varint(512) + varint(LENGTHS) + zigzag(0) + block * -(-LENGTHS // BLOCK)


def page_size_twice() -> bytes:
    body = texts(b"x" * MB, b"y")
    head = Struct().i32(1, 2).i32(2, len(body)).i32(3, len(packed(body))).struct(7, Struct().i32(1, 2).i32(2, PLAIN))
    return head.field(2, 6, zigzag(50)).end() + packed(body) + REFERENCES


CRAFTED: dict[str, tuple[bytes, int, str]] = {
    "a second dictionary": (
        WORDS
        + data_page(ROWS - 1, DICTIONARY, same_index(ROWS - 1))
        + dictionary_page(2, texts(b"a", b"b"))
        + data_page(1, DICTIONARY, same_index(1)),
        ROWS,
        "a second dictionary, or a late one",
    ),
    "more values than 32 bits": (
        WORDS + data_page(1, PLAIN, texts(b"a"), header(2**32 + 1, PLAIN)) + REFERENCES,
        ROWS,
        "does not say what is in it",
    ),
    "a page's size twice": (page_size_twice(), ROWS, "with the number 2, or twice"),
    "an encoding twice": (
        WORDS + data_page(ROWS, DICTIONARY, same_index(ROWS), header(ROWS, DICTIONARY).field(2, 6, zigzag(PLAIN))),
        ROWS,
        "with the number 2, or twice",
    ),
    "an encoding once more as field 65538": (
        WORDS + data_page(ROWS, DICTIONARY, same_index(ROWS), header(ROWS, PLAIN).field(65538, 5, zigzag(DICTIONARY))),
        ROWS,
        "with the number 65538",
    ),
    "a header of many fields": (
        WORDS + Struct().i32(1, 0).end()[:-1] + b"\x11" * (2 * MB) + b"\0" + REFERENCES,
        ROWS,
        "with the number 1001",
    ),
    "lengths": (data_page(10, DELTA_LENGTHS, many_lengths()), 10, "has the lengths of 300,000,000"),
    "lengths of beginnings": (data_page(10, DELTA_BYTES, many_lengths() * 2), 10, "has the lengths of 300,000,000"),
}


def test_a_sound_file_by_hand_is_read(tmp_path: Path) -> None:
    write_column(tmp_path / "a.parquet", WORDS + REFERENCES, ROWS)
    found = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, "shuffled")
    assert (found["rows"], found["error"]) == (ROWS, "")
    assert found["bytes"] < 2 * BUDGET, found


@pytest.mark.parametrize("case", CRAFTED)
def test_headers_that_can_be_read_in_two_ways_are_refused(tmp_path: Path, case: str) -> None:
    pages, rows, said = CRAFTED[case]
    write_column(tmp_path / "a.parquet", pages, rows, has_dictionary=pages.startswith(WORDS[:8]))
    found = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, "shuffled")
    where = rf"DataError: {tmp_path}/a\.parquet, row group 0, column 't' at offset 4: it is damaged: "
    assert re.match(where + ".*" + re.escape(said), found["error"]), found
    assert found["bytes"] < BUDGET // 4, found


@pytest.mark.parametrize("way", ["shuffled", "in order"])
def test_a_row_over_many_pages_that_is_the_first_of_its_slice_is_weighed_whole(tmp_path: Path, way: str) -> None:
    def page(*runs: tuple[int, int]) -> bytes:
        count = sum(count for count, _ in runs)
        return data_page(count, PLAIN, level_runs(*runs) + level_runs((count, 1)) + b"\0" * (4 * count))

    pages = page((1000, 0)) + page((1, 0), (MB - 1, 1)) + page((MB, 1)) * 19 + page((999, 0))
    values = 1000 + 20 * MB + 999
    write_column(tmp_path / "a.parquet", pages, 2000, kind=INT32, repetition=REPEATED, values=values)
    found = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, way)
    assert re.search(r"row group 0, column 't': 1,000 rows take up to [\d,]+ bytes in memory", found["error"]), found
    assert found["bytes"] < 2 * BUDGET, found


def test_looking_into_levels_takes_little_memory(tmp_path: Path) -> None:
    count = 72 * MB
    levels = varint((count // 8) << 1 | 1) + b"\0" * (count // 8)
    body = len(levels).to_bytes(4, "little") + levels + level_runs((count, 0))
    pages = data_page(count, PLAIN, body)
    write_column(tmp_path / "a.parquet", pages, count, kind=INT32, repetition=REPEATED)
    found = cost(f"parquet:{tmp_path}/a.parquet", tmp_path, "shuffled")
    assert "column 't': 1,000 rows take up to" in found["error"], found
    assert found["bytes"] < 2 * BUDGET, found


def test_the_search_for_a_damaged_column_reads_few_rows_at_a_time(tmp_path: Path) -> None:
    """The other column would be a gigabyte in a batch of 1,000 rows. Its footer gives it slices of a few rows."""
    sink = pa.BufferOutputStream()
    data = {"t": pa.array(["x" * MB]).take(pa.array([0] * 1000)), "z": [bytes([i % 256]) * 40 for i in range(1000)]}
    options = {"use_dictionary": False, "column_encoding": {"t": "DELTA_BYTE_ARRAY"}, "store_schema": False}
    pq.write_table(pa.table(data), sink, compression="zstd", write_statistics=False, **options)
    whole = bytearray(sink.getvalue().to_pybytes())
    group = pq.read_metadata(pa.BufferReader(bytes(whole))).row_group(0)
    last = group.column(1).data_page_offset + group.column(1).total_compressed_size
    whole[last - 30 : last - 5] = b"\xff" * 25
    start = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    before, size, after = bytes(whole[start:-8]).rpartition(b"\x16" + zigzag(group.total_byte_size))
    footer = before + b"\x16" + zigzag(2 * 10**10) + after
    assert size
    path = tmp_path / "a.parquet"
    path.write_bytes(bytes(whole[:start]) + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    found = cost(f"parquet:{path}", tmp_path, "in order")
    assert re.search(r"row group 0, column 'z' at offset \d+: it is damaged: ", found["error"]), found
    assert found["bytes"] < 2 * BUDGET, found

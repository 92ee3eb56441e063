"""Text and JSON-lines files: every row is found by seeking, and is what an obvious reader gives."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.catalog import lines as catalog
from headrace.catalog.lines import LineIndex, LineKind, index_file, index_lines
from headrace.catalog.plain import PlainFile
from headrace.fetch import lines as fetch
from headrace.fetch.lines import LineReader

BOM = b"\xef\xbb\xbf"


def index_of(path: Path, kind: LineKind, **options: Any) -> LineIndex:
    with PlainFile(path) as source:
        return index_lines(source, kind, **options)


def reader_of(path: Path, kind: LineKind, **options: Any) -> LineReader:
    return LineReader(path, index_of(path, kind, **options), kind=kind)


def rows_of(reader: LineReader, start: int, stop: int) -> list[Any]:
    found = reader.read(start, stop)
    return found if isinstance(found, list) else found["text"].to_pylist()


def txt_oracle(data: bytes) -> list[str]:
    *closed, last = data.removeprefix(BOM).split(b"\n")
    return [line.removesuffix(b"\r").decode() for line in closed] + ([last.decode()] if last else [])


def jsonl_oracle(data: bytes) -> list[Any]:
    return [json.loads(line) for line in data.removeprefix(BOM).split(b"\n") if line.strip()]


def check_every_range(folder: Path, data: bytes, kind: LineKind, every: int, block: int, expected: list[Any]) -> None:
    path = folder / f"data.{kind}"
    path.write_bytes(data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(catalog, "BLOCK", block)
        patch.setattr(fetch, "PIECE", block)
        index = LineIndex.from_json(json.loads(json.dumps(index_of(path, kind, every=every).to_json())))
        assert index == index_of(path, kind, every=every)
        assert index.rows == len(expected)
        reader = LineReader(path, index, kind=kind)
        for start in range(len(expected) + 1):
            for stop in range(start, len(expected) + 1):
                assert rows_of(reader, start, stop) == expected[start:stop]
        reader.close()


ENDS = ["\n", "\n", "\n\n", "\r\n", "\r", "\r\r\n", "\u2028", "\x85", "\x0b", "\x0c"]
WORDS = ["a", "bc", "ü", "日本", "𝄞", "a\0bcd", "\ufeff", " ", "\t", "a longer run of words"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
json_lines = st.builds(
    lambda value, ascii_only, separators, before, after: (
        before + json.dumps(value, ensure_ascii=ascii_only, separators=separators).encode("utf-8", "replace") + after
    ),
    st.dictionaries(st.text(max_size=5), json_values, max_size=4),
    st.booleans(),
    st.sampled_from([(",", ":"), (", ", ": "), (" ,", " : "), (",", "\t:")]),
    st.sampled_from([b"", b"", b" ", b"\t "]),
    st.sampled_from([b"", b"", b" ", b"\r"]),
)
blank_lines = st.sampled_from([b"", b" ", b"\r", b"\t\x0b\x0c ", b" " * 30])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


@settings(max_examples=150, deadline=None)
@given(
    parts=st.lists(st.sampled_from(ENDS + WORDS), max_size=16),
    mark=st.booleans(),
    every=st.integers(1, 5),
    block=st.integers(4, 30),
)
def test_every_range_of_text_rows_is_what_splitting_gives(
    folder: Path, parts: list[str], mark: bool, every: int, block: int
) -> None:
    data = (BOM if mark else b"") + "".join(parts).encode()
    check_every_range(folder, data, "txt", every, block, txt_oracle(data))


@settings(max_examples=150, deadline=None)
@given(
    found=st.lists(json_lines | blank_lines, max_size=10),
    mark=st.booleans(),
    closed=st.booleans(),
    every=st.integers(1, 4),
    block=st.integers(4, 60),
)
def test_every_range_of_json_rows_is_what_parsing_line_by_line_gives(
    folder: Path, found: list[bytes], mark: bool, closed: bool, every: int, block: int
) -> None:
    data = (BOM if mark else b"") + b"\n".join(found) + (b"\n" if closed else b"")
    check_every_range(folder, data, "jsonl", every, block, jsonl_oracle(data))


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (BOM, []),
        (b"\n", [""]),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\nb", ["a", "", "b"]),
        (b"a\r\nb\r\n", ["a", "b"]),
        (b"a\rb\n", ["a\rb"]),
        (b"a\r", ["a\r"]),
        (b"\r\n", [""]),
        (BOM + b"a\nb", ["a", "b"]),
        (b"a\n" + BOM + b"b", ["a", "\ufeffb"]),
        (b"a\0b\nc", ["a\0b", "c"]),
    ],
)
def test_what_is_a_row_of_text(tmp_path: Path, data: bytes, expected: list[str]) -> None:
    check_every_range(tmp_path, data, "txt", 2, 1 << 20, expected)


def test_blank_lines_are_no_json_rows_and_escaped_surrogates_are_fine(tmp_path: Path) -> None:
    data = b'\n \t\r\n{"a": "\\ud800"}\r\n\n\n {"b": 2} \n\x0c\n'
    check_every_range(tmp_path, data, "jsonl", 1, 1 << 20, [{"a": "\ud800"}, {"b": 2}])


def test_a_row_is_read_from_its_own_chunk_and_from_nowhere_else(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"".join(b"row %d\n" % k for k in range(10_000)))
    asked = []

    class Recording(PlainFile):
        def read_bytes(self, start: int, stop: int) -> bytes:
            asked.append((start, stop))
            return super().read_bytes(start, stop)

    index = index_file(path, "txt")
    reader = LineReader(Recording(path), index, kind="txt")
    assert rows_of(reader, 7_100, 7_102) == ["row 7100", "row 7101"]
    assert asked == [(index.offsets[7], index.offsets[8])]
    reader.close()


def test_one_row_of_a_chunk_of_long_lines_needs_no_more_than_a_piece(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "PIECE", 1 << 16)
    path = tmp_path / "a.txt"
    path.write_bytes((b"x" * 50_000 + b"\n") * 400)
    reader = reader_of(path, "txt")
    tracemalloc.start()
    try:
        assert rows_of(reader, 0, 1) == ["x" * 50_000]
        assert tracemalloc.get_traced_memory()[1] < 2_000_000
    finally:
        tracemalloc.stop()
    reader.close()


@pytest.mark.alone
def test_the_index_pass_is_quick_and_holds_only_a_few_blocks(tmp_path: Path) -> None:
    path = tmp_path / "big.txt"
    lines = b"".join(b"%d some words of a line\n" % k for k in range(40_000))
    with path.open("wb") as file:
        for _ in range(128 * (1 << 20) // len(lines)):
            file.write(lines)
    index_file(path, "txt")
    began = time.perf_counter()
    index = index_file(path, "txt")
    seconds = time.perf_counter() - began
    assert index.bytes / seconds > 200e6
    assert len(json.dumps(index.to_json())) < 10 * len(index.offsets)
    tracemalloc.start()
    try:
        index_file(path, "txt")
        assert tracemalloc.get_traced_memory()[1] < 16 * catalog.BLOCK
    finally:
        tracemalloc.stop()


def _object_text(pairs: list[tuple[str, str]]) -> str:
    return "{" + ",".join(f"{json.dumps(key)}{' ' * (len(value) % 3)}:{value}" for key, value in pairs) + "}"


pairs_trees = st.recursive(
    st.sampled_from(["x", '": y', "a\\", '": ', " :", '"', "  : "]).map(json.dumps) | st.just("1"),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ",".join(items) + "]")
        | st.lists(st.tuples(st.sampled_from(["a", "b", "c\\", '"', ":"]), inner), max_size=3).map(_object_text)
    ),
    max_leaves=8,
)


def _has_key_twice(text: str) -> bool:
    twice = False

    def look(pairs: list[tuple[str, Any]]) -> None:
        nonlocal twice
        twice = twice or len({key for key, _ in pairs}) < len(pairs)

    json.loads(text, object_pairs_hook=look)
    return twice


@settings(max_examples=300, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("abc"), pairs_trees), max_size=3).map(_object_text))
def test_a_key_is_refused_exactly_when_it_is_there_twice(text: str) -> None:
    line = text.encode()
    if _has_key_twice(text):
        with pytest.raises(fetch._BadLine, match="twice"):
            fetch.parse_objects([b"{}", line], [0, 1])
    else:
        assert fetch.parse_objects([line, b"{}"], [0, 1]) == [json.loads(text), {}]


def test_a_reader_works_on_both_sides_of_a_fork_and_the_index_imports_nothing_heavy(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"".join(b'{"k": %d}\n' % k for k in range(5_000)))
    script = f"""
import os, sys
import headrace.catalog.lines as c
assert not {{"numpy", "pyarrow", "torch", "zstandard"}} & set(sys.modules), sorted(sys.modules)
from headrace.fetch.lines import LineReader
reader = LineReader({str(path)!r}, c.index_file({str(path)!r}, "jsonl"), kind="jsonl")
child = os.fork()
for k in range(0, 5000, 100):
    start = k if child else 4900 - k
    assert [row["k"] for row in reader.read(start, start + 100)] == list(range(start, start + 100))
reader.close()
if child:
    assert os.waitpid(child, 0)[1] == 0
else:
    os._exit(0)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

"""Text and JSON-lines files that are bad, odd, or change: each gets a sentence with file, row, line and what to do."""

from __future__ import annotations

import json
import os
import re
import socket
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.catalog import lines as catalog
from headrace.catalog.lines import LineIndex, LineKind, index_file, index_lines
from headrace.catalog.plain import PlainFile, Signature
from headrace.errors import Changed, DataError, HeadraceError, NotAllowed, NotFound, SpecError
from headrace.fetch import lines as fetch
from headrace.fetch.lines import LineReader

BOM = b"\xef\xbb\xbf"


def index_of(path: Path, kind: LineKind, **options: Any) -> LineIndex:
    with PlainFile(path) as source:
        return index_lines(source, kind, **options)


def reader_of(path: Path, kind: LineKind, **options: Any) -> LineReader:
    return LineReader(path, index_of(path, kind, **options), kind=kind)


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
@pytest.mark.parametrize("fill", [b"x", b" "])
def test_a_line_of_a_gigabyte_is_refused_while_it_is_read(tmp_path: Path, kind: LineKind, fill: bytes) -> None:
    path = tmp_path / "long"
    with path.open("wb") as file:
        file.write(b'{"a": 1}\n\n' + fill * 10_000_000)
        file.truncate(1 << 30)
    tracemalloc.start()
    try:
        with pytest.raises(DataError) as caught:
            index_of(path, kind, max_line_bytes=8 << 20)
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()
    assert re.search(r"long: line 3 is longer than 8,388,608 bytes; split it", str(caught.value))


def test_a_long_line_inside_a_block_is_refused_by_its_number(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"aa\naaa\naaaa\naaaaa\n")
    assert index_of(path, "txt", max_line_bytes=5).rows == 4
    with pytest.raises(DataError, match="line 3 is longer than 3 bytes"):
        index_of(path, "txt", max_line_bytes=3)


BAD_LINES = {
    "cut off": (b'{"a": ', r"byte 20\) is not JSON, column 7: the line ends inside the object; .* jq -c \."),
    "pretty-printed": (b"{", r"column 2: the line ends inside the object; one object per line"),
    "no value": (b'{"a": x}', r"byte 20\) is not JSON, column 7: Expecting value, in a line of 8 characters"),
    "trailing": (b'{"a": 1} {"b": 2}', r"column 9: something follows the object, in a line of 17 characters"),
    "single quotes": (b"{'a': 1}", r"column 2: Expecting property name"),
    "control byte": (b'{"a": "\x1b[31m"}', r"column 8: Invalid control character at, in a line of 14 characters"),
    "array": (b'[{"a": 1}]', r"is an array; .*looks like a JSON array: convert it with jq -c '\.\[\]'"),
    "open array": (b"[", r"looks like a JSON array: convert it with jq -c '\.\[\]'"),
    "string": (b'"abc"', r"is a string, not an object; one object per line"),
    "number": (b" 17", r"byte 15\) is a number, not an object"),
    "null": (b"null", r"is null, not an object"),
    "NaN": (b'{"a": NaN}', r"has NaN, which is not JSON; write null"),
    "Infinity": (b'{"a": [Infinity]}', r"has Infinity, which is not JSON"),
    "-Infinity": (b'{"a": {"b": -Infinity}}', r"has -Infinity, which is not JSON"),
    "bare NaN": (b"NaN", r"has NaN, which is not JSON"),
    "twice": (b'{"a": 1, "b": 2, "a": 3}', r"byte 31\) has a key twice in one object, the second time here; keep one"),
    "twice inside": (b'{"x": [{"a" :1,"a" :1}]}', r"byte 29\) has a key twice"),
    "twice, escaped": (b'{"a": 1, "\\u0061"\t: "\\":"}', r"byte 23\) has a key twice"),
    "twice, behind look-alikes": (
        '{"ä": {"a": "{"}, "b": ["a:", "\\"a\\":"], "a": {}, "b": 1}'.encode(),
        r"byte 65\) has a key twice in one object",
    ),
    "depth": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, r"is nested too deeply to be read; flatten it"),
    "array depth": (b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", r"is nested too deeply"),
    "long int": (b'{"a": ' + b"7" * 10_000 + b"}", r"has a number that cannot be read \(.*4300 digits.*string"),
    "not UTF-8": (b'{"a": "\xfc"}', r"byte 21\) is not UTF-8: invalid start byte .* iconv -f latin1 -t UTF-8"),
    "surrogate bytes": (b'{"a": "\xed\xa0\x80"}', r"byte 21\) is not UTF-8"),
    "mark inside": (BOM + b'{"a": 1}', r"begins with a byte order mark, which only the start of a file may have"),
    "NUL": (b'{"a": 1}\0', r"column 9: something follows the object, in a line of 9 characters"),
}


@pytest.mark.parametrize("case", BAD_LINES)
def test_a_bad_json_line_is_named_by_file_row_line_and_byte(tmp_path: Path, case: str) -> None:
    line, message = BAD_LINES[case]
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"ok": 1}\r\n \n\n' + line + b"\n" + b'{"ok": 2}\n')
    reader = reader_of(path, "jsonl", every=2)
    with pytest.raises(DataError) as caught:
        reader.read(0, 3)
    assert re.search(r"bad\.jsonl: row 1 \(line 4, byte \d+\) ", str(caught.value))
    assert re.search(message, str(caught.value)), str(caught.value)
    assert len(str(caught.value)) < 500
    assert reader.read(0, 1) == [{"ok": 1}]
    assert reader.read(2, 3) == [{"ok": 2}]
    reader.close()


@pytest.mark.parametrize("piece", [70, 8 << 20])
def test_the_line_of_a_late_bad_row_counts_the_blank_lines_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int
) -> None:
    monkeypatch.setattr(fetch, "PIECE", piece)
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"a": 1}\n\n' * 2_500 + b"oops\n")
    reader = reader_of(path, "jsonl")
    with pytest.raises(DataError, match=r"row 2500 \(line 5001, byte 25000\) is not JSON, column 1: Expecting value"):
        reader.read(2_400, 2_501)
    reader.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("lines")


@settings(max_examples=300, deadline=None)
@given(
    at=st.integers(0, 200), byte=st.integers(0, 255), cut=st.integers(0, 200), kind=st.sampled_from(["txt", "jsonl"])
)
def test_a_flipped_or_cut_file_gives_rows_or_an_error_of_the_family(
    folder: Path, at: int, byte: int, cut: int, kind: LineKind
) -> None:
    data = bytearray(b'{"text": "gr\xc3\xbc\xc3\x9fe", "n": [1, 2.5e3, {"k": null}]}\r\n' * 4)
    data[at % len(data)] = byte
    path = folder / "fuzz"
    path.write_bytes(data[: len(data) - cut % 40])
    try:
        reader = reader_of(path, kind)
        assert len(reader.read(0, reader.index.rows)) == reader.index.rows
        reader.close()
    except HeadraceError:
        pass


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"ok\nna\xefve\nok",
            r"row 1 \(line 2, byte 5\) is not UTF-8: invalid continuation byte at byte 3 of its 5;.*iconv",
        ),
        (b"ok\r\nok\r\n\xff\r\n", r"row 2 \(line 3, byte 8\) is not UTF-8"),
        # the two halves of a letter, in two rows
        (b"a\xc3\n\xbcb", r"row 0 \(line 1, byte 1\) is not UTF-8: unexpected end of data"),
    ],
)
def test_text_in_another_encoding_is_named_by_row_line_and_byte(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "mixed.txt"
    path.write_bytes(data)
    reader = reader_of(path, "txt", every=2)
    with pytest.raises(DataError, match=r"mixed\.txt: " + message):
        reader.read(0, reader.index.rows)
    reader.close()


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("héllo\nworld\n".encode("utf-16"), "UTF-16 text; convert it with iconv"),
        ("hello world\nhello world\n".encode("utf-16-le"), "UTF-16 text without a byte order mark"),
        (b"\x1f\x8b\x08\x00abc", "gzip data; give it a name that ends in .gz"),
        (b"\x28\xb5\x2f\xfdabc", "zstd data; give it a name that ends in .zst"),
        (b"PAR1\x15\x04abc", "a parquet file"),
    ],
)
def test_what_is_not_plain_text_is_refused_by_what_it_is(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"a\.txt is not plain text: .*" + re.escape(message)):
        index_file(path, "txt")


def make_socket(path: Path) -> None:
    folder = os.open(path.parent, os.O_RDONLY)
    # a path below /proc is short, which the address of a socket has to be
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{folder}/{path.name}")
    os.close(folder)


ODD: dict[str, tuple[Callable[[Path], object], type[HeadraceError], str]] = {
    "folder": (Path.mkdir, DataError, "is a folder, not a file; name its files with a glob"),
    "fifo": (os.mkfifo, DataError, "is a fifo, not a regular file"),
    "socket": (make_socket, DataError, "is a socket, not a regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), DataError, "is a device, not a regular file"),
    "broken link": (lambda path: path.symlink_to("gone"), NotFound, "is a broken symbolic link: gone does not exist"),
    "loop": (lambda path: path.symlink_to(path), NotFound, "lead in a circle"),
    "missing": (lambda path: None, NotFound, "no such file"),
}


@pytest.mark.parametrize("case", ODD)
def test_what_is_not_a_regular_file_is_refused_at_once(tmp_path: Path, case: str) -> None:
    make, kind, message = ODD[case]
    path = tmp_path / "odd.txt"
    make(path)
    with pytest.raises(kind) as caught:
        index_file(path, "txt")
    assert "odd.txt" in str(caught.value)
    assert message in str(caught.value)


def test_a_file_that_turns_into_a_fifo_before_the_open_does_not_block(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.txt"
    os.mkfifo(path)
    plain = tmp_path / "plain"
    plain.touch()
    found = plain.stat()
    monkeypatch.setattr(os, "stat", lambda _: found)
    with pytest.raises(DataError, match="is a fifo"):
        PlainFile(path)


def test_a_file_without_permission_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a")

    def refuse(*_: object) -> int:
        raise PermissionError(13, "Permission denied")

    if os.geteuid() == 0:
        monkeypatch.setattr(os, "open", refuse)
    path.chmod(0)
    with pytest.raises(NotAllowed, match=r"a\.txt may not be read by this user \(Permission denied\); chmod"):
        index_file(path, "txt")


def test_names_with_nul_and_control_bytes_come_out_escaped(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"a\\x00b: no such file"):
        index_file("a\0b", "txt")
    with pytest.raises(NotFound, match=r"\\x1b\[31m: no such file"):
        index_file(tmp_path / "\x1b[31m", "txt")


def append(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"more\n")


CHANGES: dict[str, Callable[[Path], object]] = {
    "grows": append,
    "shrinks": lambda path: os.truncate(path, 5),
    "is replaced": lambda path: (path.with_name("new").write_bytes(b"x" * 30), path.with_name("new").replace(path)),
    "is removed": lambda path: path.unlink(),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_file_that_changes_during_the_pass_is_changed_while_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"0123456789\n" * 10)
    os.utime(path, ns=(1, 1))
    monkeypatch.setattr(catalog, "BLOCK", 16)

    class Moving(PlainFile):
        reads = 0

        def read_bytes(self, start: int, stop: int) -> bytes:
            self.reads += 1
            if self.reads == 3:
                CHANGES[case](path)
            return super().read_bytes(start, stop)

    with Moving(path) as source, pytest.raises(Changed, match=r"a\.txt changed while reading: "):
        index_lines(source, "txt")


def test_a_file_of_the_kernel_with_no_size_is_not_taken_for_an_empty_one() -> None:
    with pytest.raises(Changed, match="it goes on after its size of 0 bytes"):
        index_file("/proc/self/status", "txt")


def test_closing_twice_is_fine_and_leaves_no_descriptor(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\n")
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    reader = reader_of(path, "txt")
    reader.close()
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.read(0, 1)
    del reader
    reader_of(path, "txt").read(0, 1)
    with pytest.raises(Changed):
        PlainFile(path, signature=Signature(1, 2, 3))
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_a_file_that_changed_since_the_index_says_what_differs(tmp_path: Path, kind: LineKind) -> None:
    path = tmp_path / "a"
    path.write_bytes(b'{"a": 1}\n' * 3)
    with PlainFile(path) as source:
        index, signature = index_lines(source, kind), source.signature
    os.utime(path, ns=(1, 2))
    with pytest.raises(Changed, match=r"a changed since its rows were counted: mtime_ns was \d+, is 2; put the old"):
        LineReader(path, index, kind=kind, signature=signature)
    reader = LineReader(path, index, kind=kind)
    path.write_bytes(b'{"a": 2}\n' * 3)
    with pytest.raises(Changed, match=r"a changed while reading: mtime_ns was 2"):
        reader.read(0, 3)
    reader.close()
    path.write_bytes(b"{}\n")
    with pytest.raises(Changed, match="it has 3 bytes and had 27"):
        LineReader(path, index, kind=kind)


@pytest.mark.parametrize("kind", ["txt", "jsonl"])
def test_a_file_of_the_same_size_with_fewer_rows_is_changed(tmp_path: Path, kind: LineKind) -> None:
    path = tmp_path / "a"
    path.write_bytes(b'{"a": 1}\n' * 3)
    index = index_file(path, kind)
    path.write_bytes(b'{"a": 1}\n{"a": 1,"b": 234}\n')
    reader = LineReader(path, index, kind=kind)
    with pytest.raises(Changed, match="it ends at row 2, not at 3, though its size is the same"):
        reader.read(0, 3)
    reader.close()


def test_rows_outside_the_file_and_the_wrong_kind_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"a\nb\n")
    reader = reader_of(path, "txt")
    for start, stop in ((-1, 1), (1, 0), (1, 3), (3, 3)):
        with pytest.raises(SpecError, match=f"rows {start} to {stop} were asked for, of a file with 2 rows"):
            reader.read(start, stop)
    with pytest.raises(SpecError, match="were counted as txt, not as jsonl"):
        LineReader(path, reader.index, kind="jsonl")
    reader.close()


@pytest.mark.parametrize(
    "change",
    [
        "rows=5",
        "rows=2.0",
        "rows=true",
        "every=0",
        'every="1"',
        "offsets=[3,-3]",
        "offsets=[1e99]",
        "offsets=null",
        'kind="csv"',
        "bytes=2",
    ],
)
def test_a_damaged_index_is_refused(change: str) -> None:
    name, _, value = change.partition("=")
    good = {"kind": "jsonl", "rows": 2, "every": 1, "offsets": [0, 3], "blanks": [0, 1], "size": 9, "bytes": 9}
    assert LineIndex.from_json(good).to_json() == good
    with pytest.raises(DataError, match="a line index is damaged"):
        LineIndex.from_json(good | {name: json.loads(value)})
    with pytest.raises(DataError, match="a line index is damaged"):
        LineIndex.from_json([])

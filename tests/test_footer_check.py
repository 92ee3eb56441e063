"""The check of parquet footers reads each one as pyarrow does, so that no schema gets past it unseen."""

from __future__ import annotations

import base64
import json
import random
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from parquet_by_hand import Struct, varint, zigzag

from headrace.catalog import thrift
from headrace.catalog.brackets import is_deep
from headrace.catalog.footer import parse_footer
from headrace.catalog.local import LocalOrigin
from headrace.catalog.shard import Shard
from headrace.catalog.thrift import Malformed, check_footer
from headrace.errors import DataError

pytestmark = pytest.mark.timeout(120)

LEVELS = 5000
GROUP, LEAF = b"\x35\0\x18\x01a\x15\x02\0", b"\x15\x02\x25\0\x18\x01a\0"
"""A column with one inside, and one without, of eight bytes each."""
LIST, STRUCT, DOUBLE, I32, I64, TEXT, TRUE = 9, 12, 7, 5, 6, 8, 1


def schema(kind: int = STRUCT, levels: int = LEVELS) -> bytes:
    """Columns inside each other, in a list that says it is of `kind`."""
    return bytes([0xF0 | kind]) + varint(levels + 1) + GROUP * levels + LEAF


def footer_of(columns: bytes, *, before: bytes = b"\x15\x02", field: bytes = b"\x19") -> bytes:
    return before + field + columns + b"\x16\0\x19\x0c\0"


def hidden_by(other: Struct) -> bytes:
    """A footer that begins with a field of which pyarrow and a check that believes it see other ends. What follows is
    sound, so that the field alone is reason to refuse it."""
    return other.end()[:-1] + b"\x09" + zigzag(2) + schema(levels=1) + b"\0"


def listed(kind: int, *items: bytes) -> bytes:
    return bytes([len(items) << 4 | kind]) + b"".join(items)


def group_with(field: int, kind: int, value: bytes) -> Struct:
    """A footer's row groups, of which one has this field."""
    return Struct().i32(1, 1).field(4, LIST, listed(STRUCT, Struct().field(field, kind, value).end()))


def column_with(field: int, kind: int, value: bytes) -> Struct:
    column = Struct().struct(3, Struct().field(field, kind, value))
    return group_with(1, LIST, listed(STRUCT, column.end()))


HIDDEN: dict[str, bytes] = {
    "as doubles": footer_of(schema(DOUBLE)),
    "as texts": footer_of(schema(TEXT)),
    "as numbers": footer_of(schema(I64)),
    "as truth values": footer_of(schema(TRUE)),
    "as nothing": footer_of(schema(0)),
    "as an unknown kind": footer_of(schema(13)),
    "under a number of more than 16 bits": footer_of(schema(), field=b"\x09" + zigzag(65536 + 2)),
    "under a negative number": footer_of(schema(), field=b"\x09" + varint((65536 - 2) * 2 - 1)),
    "behind a field of no kind": footer_of(schema(), before=b"\x15\x02\x1c\x10"),
    "given twice": footer_of(schema(levels=1), field=b"\x19")[:-1] + b"\x09" + zigzag(2) + schema(levels=2) + b"\0",
    "children as 64 bits": footer_of(schema().replace(b"\x15\x02\0", b"\x16\x02\0")),
    "children of more than 32 bits": footer_of(
        listed(STRUCT, GROUP.replace(b"\x15\x02\0", b"\x15" + varint((1 << 32) + 2) + b"\0"), LEAF)
    ),
    "more columns than 32 bits": footer_of(bytes([0xFC]) + varint((1 << 32) + 1) + LEAF),
    "row groups as doubles": hidden_by(Struct().i32(1, 1).field(4, LIST, listed(DOUBLE, b"\0" * 8))),
    "key values as texts": hidden_by(Struct().i32(1, 1).field(5, LIST, listed(TEXT, b"\0"))),
    "orders as numbers": hidden_by(Struct().i32(1, 1).field(7, LIST, listed(I32, b"\0"))),
    "columns of a row group as doubles": hidden_by(group_with(1, LIST, listed(DOUBLE, b"\0" * 8))),
    "sorted columns as doubles": hidden_by(group_with(4, LIST, listed(DOUBLE, b"\0" * 8))),
    "encodings as doubles": hidden_by(column_with(2, LIST, listed(DOUBLE, b"\0" * 8))),
    "a path as doubles": hidden_by(column_with(3, LIST, listed(DOUBLE, b"\0" * 8))),
    "key values of a column as doubles": hidden_by(column_with(8, LIST, listed(DOUBLE, b"\0" * 8))),
    "encodings of pages as doubles": hidden_by(column_with(13, LIST, listed(DOUBLE, b"\0" * 8))),
    "sizes as doubles": hidden_by(column_with(16, STRUCT, Struct().field(2, LIST, listed(DOUBLE, b"\0" * 8)).end())),
    "a text longer than 31 bits": hidden_by(Struct().i32(1, 1).field(6, TEXT, varint((1 << 32) + 1) + b"a")),
    "a number of eleven bytes": hidden_by(Struct().field(1, I32, b"\x80" * 10 + b"\0")),
}
"""Footers whose schema pyarrow would read, and a check that believes what they say would not."""


@pytest.mark.parametrize("name", HIDDEN)
def test_a_footer_that_pyarrow_could_read_in_another_way_is_refused(name: str) -> None:
    with pytest.raises(Malformed):
        check_footer(HIDDEN[name])


@pytest.mark.parametrize("version", ["18.0.0", "25.9.9"])
def test_a_pyarrow_that_does_not_survive_such_a_footer_never_gets_it(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The installed one may bear it."""
    monkeypatch.setattr(pa, "__version__", version)
    monkeypatch.setattr(pq, "read_metadata", lambda *args: pytest.fail("pyarrow got it"))
    for footer in (*HIDDEN.values(), footer_of(schema())):
        with pytest.raises(DataError, match="its parquet footer at offset .* cannot be read"):
            parse_footer(Shard("a.parquet", 4 + len(footer), "1", LocalOrigin()), footer)


def test_the_same_footers_without_what_is_wrong_are_taken() -> None:
    check_footer(footer_of(schema(levels=3)))
    extended = Struct().i32(1, 1).items(2, STRUCT, [GROUP, LEAF]).field(32767, TEXT, b"\x03abc").end()
    check_footer(extended)  # the format keeps this number for others
    check_footer(Struct().i32(1, 1).field(5, LIST, b"\x00").items(2, STRUCT, [GROUP, LEAF]).end())


TENSOR = pa.list_(pa.float32(), 4)
ARROW = b"ARROW:schema"


def described(
    *pairs: tuple[bytes, bytes], logical: Struct | None = None, key: int = 1, names: tuple[str, ...] = ("t",)
) -> bytes:
    """A footer of columns of texts with metadata by keys. `key`: the number of the field that comes first."""
    columns = []
    for name in names:
        column = Struct().i32(1, 6).i32(3, 1).text(4, name)
        columns.append((column if logical is None else column.struct(10, logical)).end())
    listed_ = bytes([0xFC]) + varint(1 + len(names)) + Struct().text(4, "schema").i32(5, len(names)).end()
    footer = Struct().i32(1, 1).field(2, LIST, listed_ + b"".join(columns)).i64(3, 0).items(4, STRUCT, [])
    both = [(pair, (key, 3 - key)) for pair in pairs]
    found = [Struct().field(i, TEXT, text(p[i - 1])).field(j, TEXT, text(p[j - 1])).end() for p, (i, j) in both]
    return footer.items(5, STRUCT, found).end()


def text(value: bytes) -> bytes:
    return varint(len(value)) + value


def arrow(kind: pa.DataType, name: str, meta: bytes, **more: str) -> bytes:
    """A schema of Arrow in base64, with an extension type."""
    told = {"ARROW:extension:name": name, "ARROW:extension:metadata": meta}
    fields = [pa.field("t", kind, metadata=told)]
    return base64.b64encode(pa.schema(fields, metadata=more or None).serialize().to_pybytes())


def opaque(meta: bytes, **more: str) -> bytes:
    return arrow(pa.null(), "arrow.opaque", meta, **more)


def in_json(count: int) -> dict[str, bytes]:
    """Footers whose descriptions have so many levels of JSON."""
    deep = b"[" * count
    plain = opaque(deep)
    return {
        "a tensor": described((ARROW, arrow(TENSOR, "arrow.fixed_shape_tensor", deep))),
        "the shape of a tensor": described((ARROW, arrow(TENSOR, "arrow.fixed_shape_tensor", b'{"shape":' + deep))),
        "objects": described((ARROW, opaque(b'{"a":' * count))),
        "lists and objects": described((ARROW, opaque(b'[{"a" : ' * count))),
        "ends in texts": described((ARROW, opaque(b'["]","}",{"]":' * count))),
        "behind a quote": described((ARROW, opaque(deep, k='"'))),
        "behind quotes that are escaped": described((ARROW, opaque(b'["\\\\","a\\"b",' * count, k='\\"'))),
        "the second of two": described((ARROW, opaque(b"{}")), (ARROW, plain)),
        "a value before its key": described((ARROW, plain), key=2),
        "no base64 behind it": described((ARROW, plain.rstrip(b"=") + b"!" + b"AA")),
        "a geometry": described(logical=Struct().struct(17, Struct().field(1, TEXT, text(deep)))),
        "a geometry by a key": described(
            (b"k", deep), logical=Struct().struct(17, Struct().field(1, TEXT, text(b"projjson:k")))
        ),
    }


@pytest.mark.parametrize("name", in_json(1))
def test_a_footer_with_json_inside_json_without_end_never_gets_to_pyarrow(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_footer(in_json(45)[name])
    footer = in_json(5000)[name]
    with pytest.raises(Malformed, match="JSON in its metadata is too deeply nested, more than 100 levels"):
        check_footer(footer)
    monkeypatch.setattr(pq, "read_metadata", lambda *args: pytest.fail("pyarrow got it"))
    for version in ("18.0.0", "25.9.9"):
        monkeypatch.setattr(pa, "__version__", version)
        with pytest.raises(DataError, match="its parquet footer at offset .* cannot be read: JSON"):
            parse_footer(Shard("a.parquet", 4 + len(footer), "1", LocalOrigin()), footer)


def test_metadata_that_people_have_is_no_deep_json() -> None:
    """Also where brackets are lengths: names of 91 and 123 bytes."""
    names = [f"{i:0{n}d}" for n in (91, 123) for i in range(300)]
    features = {"info": {"features": {name: {"dtype": "string", "_type": "Value"} for name in names}}}
    columns = [pa.field(name, pa.list_(pa.struct([("a[", pa.int8())]))) for name in names]
    schema = pa.schema(columns, metadata={"huggingface": json.dumps(features), "pandas": json.dumps([[names]] * 50)})
    sink = pa.BufferOutputStream()
    pq.write_table(schema.empty_table(), sink)
    data = sink.getvalue().to_pybytes()
    check_footer(data[-8 - int.from_bytes(data[-8:-4], "little") :])
    check_footer(described((b"k", b"[" * 100 + b"\0" + b"[" * 100), names=tuple(f"[{i}" for i in range(200))))


@pytest.mark.parametrize("name", ["[{}, {})", "({}, {}]", "[{}", 'says "{}" [', "x\\[{}", "{{{}"])
def test_names_of_columns_with_brackets_are_no_deep_json(name: str) -> None:
    """Such as those of intervals: pandas writes each of them twice into its description."""
    names = [name.format(i, i + 1) for i in range(500)]
    columns = [{"name": n, "field_name": n, "pandas_type": "float64", "metadata": None} for n in names]
    table = pa.table({n: [1.0] for n in names}).replace_schema_metadata({"pandas": json.dumps({"columns": columns})})
    check_footer(footer_in(table))


def footer_in(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink)
    data: bytes = sink.getvalue().to_pybytes()
    return data[-8 - int.from_bytes(data[-8:-4], "little") : -8]


def test_an_arrow_schema_that_nobody_has_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thrift, "MOST_ARROW", 100)
    with pytest.raises(Malformed, match=r"an Arrow schema of 104 bytes, more than 100"):
        check_footer(described((ARROW, b"A" * 104)))
    check_footer(described((ARROW, b"A" * 100)))


def test_json_is_deep_wherever_it_begins() -> None:
    draw, words = random.Random(5), ["[", "]", "{", '"', '\\"', "]]]", "a\\", "\n", '"[', "é"]
    for _ in range(500):
        value: object = 1
        for _ in range(101):
            word = "".join(draw.choices(words, k=2))
            value = draw.choice(([word, value], {word: value}, [value, word], [[word], {}, value]))
        for number in range(2):
            before, behind = ("".join(draw.choices(words, k=draw.randrange(6))) for _ in range(2))
            indent, ascii_ = draw.choice((None, 1)), number == 0
            assert is_deep((before + json.dumps(value, indent=indent, ensure_ascii=ascii_) + behind).encode())


CHILD = """
import sys
from headrace import rows
from headrace.errors import DataError
for path in sys.argv[2:]:
    try:
        print("rows", len(list(rows(f"parquet:{path}", cache_dir=sys.argv[1]))))
    except DataError as error:
        print(error)
"""


def test_no_such_footer_ends_the_process(tmp_path: Path) -> None:
    """pyarrow before 26 dies of those that it reads."""
    paths = []
    deep = {
        "as doubles": footer_of(schema(DOUBLE, 30_000)),
        "under 65538": footer_of(schema(levels=30_000), field=b"\x09" + zigzag(65538)),
    }
    for name, footer in (HIDDEN | deep | in_json(1_000_000)).items():
        paths.append(tmp_path / f"{name}.parquet")
        paths[-1].write_bytes(b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1")
    command = [sys.executable, "-c", CHILD, str(tmp_path / "data"), *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, preexec_fn=limited)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    assert len(done.stdout.splitlines()) == len(paths)


def limited() -> None:
    """4 GiB of address space and no core file: set before Python starts."""
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def written(**options: object) -> bytes:
    """The footer of a real file with every kind of list in it, without a full stop (in a path they part names)."""
    table = pa.table(
        {
            "a": pa.array([[{"b": [1, 2], "c": "x"}]] * 3),
            "m": pa.array([[("k", 1)]] * 3, pa.map_(pa.string(), pa.int64())),
            "d": pa.array([1, 2, 3], pa.decimal128(10, 2)),
            "t": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
        }
    ).replace_schema_metadata({"k": "v"})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, sorting_columns=[pq.SortingColumn(0)], row_group_size=2, store_schema=False, **options)
    data: bytes = sink.getvalue().to_pybytes()
    return data[-8 - int.from_bytes(data[-8:-4], "little") :]


def by_change(footer: bytes, draw: random.Random) -> bytes:
    changed = bytearray(footer)
    for _ in range(draw.choice((1, 1, 2, 3))):
        at = draw.randrange(len(footer) - 8)
        changed[at] = draw.choice(
            (0x19, 0x1A, 0x1C, 0x15, 0x16, 0x09, 0x0C, 0x3C, 0x10, changed[at] ^ 1 << draw.randrange(8))
        )
    return bytes(changed).replace(b".", b"/")


def by_cut(footer: bytes, draw: random.Random) -> bytes:
    at, length = draw.randrange(len(footer) - 8), draw.randrange(1, 24)
    more = draw.randrange(len(footer) - 8)
    added = footer[more : more + length] if draw.random() < 0.5 else b""
    body = footer[:at] + added + footer[at + (0 if added else length) : -8]
    return body.replace(b".", b"/") + len(body).to_bytes(4, "little") + b"PAR1"


@pytest.mark.parametrize("spoil", [by_change, by_cut])
def test_what_the_check_takes_is_as_deep_as_it_says(spoil: Callable[[bytes, random.Random], bytes]) -> None:
    """A footer with a few bytes changed is refused by the check, or by pyarrow, or both see the same depth."""
    draw, both = random.Random(14), 0
    for footer in (written(), written(use_dictionary=False, data_page_version="2.0")):
        assert check_footer(footer) > 3
        for _ in range(1500):
            other = spoil(footer, draw)
            try:
                depth = check_footer(other)
                meta = pq.read_metadata(pa.BufferReader(b"PAR1" + other))
                paths = [meta.schema.column(c).path for c in range(meta.num_columns)]
            except (Malformed, pa.ArrowException, OSError, UnicodeDecodeError):
                continue
            both += 1
            assert max((path.count(".") + 1 for path in paths), default=0) <= depth
    assert both > 100

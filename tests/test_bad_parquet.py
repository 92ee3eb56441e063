"""Parquet files that are damaged, encrypted, hostile or odd: the right rows, or an error that names file and place."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import mutants
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refused import check_refused, everything, refusal

from headrace import Faults, load, rows
from headrace.catalog.footer import GroupRows
from headrace.catalog.thrift import Malformed, check_footer
from headrace.errors import DataError, HeadraceError
from headrace.fetch import parquet
from headrace.testing import LocalHub

pytestmark = pytest.mark.timeout(60)

N = 10
AGAIN = "fetch it, or write it, again"


def simple() -> bytes:
    """One column 'n' of the whole numbers up to N, in the plainest of files."""
    sink = pa.BufferOutputStream()
    options = {"compression": "none", "use_dictionary": False, "store_schema": False, "write_statistics": False}
    pq.write_table(pa.table({"n": list(range(N))}), sink, **options)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


def zigzag(number: int) -> bytes:
    """A whole number as thrift writes it."""
    return varint(((number << 1) ^ (number >> 63)) & ((1 << 64) - 1))


def varint(number: int) -> bytes:
    """A number from 0 on as thrift writes lengths."""
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def patched(*changes: tuple[bytes, bytes]) -> bytes:
    """The simple file with changes to its footer, which each must find their place."""
    data = simple()
    body, footer = data[: -8 - (n := int.from_bytes(data[-8:-4], "little"))], data[-8 - n : -8]
    for old, new in changes:
        assert old in footer
        footer = footer.replace(old, new)
    return body + footer + len(footer).to_bytes(4, "little") + b"PAR1"


def with_rows(of_file: int, of_group: int, of_column: int = N) -> bytes:
    """The simple file with other numbers of rows in its footer."""
    size = zigzag(pq.read_metadata(pa.BufferReader(simple())).row_group(0).total_byte_size)
    ten = zigzag(N)
    return patched(
        (b"n\0\x16" + ten, b"n\0\x16" + zigzag(of_file)),
        (b"\x16" + size + b"\x16" + ten, b"\x16" + size + b"\x16" + zigzag(of_group)),
        (b"n\x15\0\x16" + ten, b"n\x15\0\x16" + zigzag(of_column)),
    )


def with_length(length: int) -> bytes:
    return simple()[:-8] + length.to_bytes(4, "little") + b"PAR1"


def with_codec(codec: int) -> bytes:
    return patched((b"\x19\x18\x01n\x15\0", b"\x19\x18\x01n\x15" + zigzag(codec)))


def with_offset(offset: int) -> bytes:
    return patched((b"\x26\x08", b"\x26" + zigzag(offset)))


def with_type(number: int) -> bytes:
    return patched((b"\x15\x04\x25\x02\x18\x01n", b"\x15" + zigzag(number) + b"\x25\x02\x18\x01n"))


FOOTER = rf"its parquet footer at offset \d+ cannot be read: .*; {AGAIN}"
GROUP = "row group 0, column 'n' at offset"
DESCRIBED = f"its footer describes column 'n' in a way that cannot be read: .*{AGAIN}"
FILES: dict[str, tuple[Callable[[], bytes], str]] = {
    "no bytes": (lambda: b"", f"has 0 bytes and so is no parquet file.*{AGAIN}"),
    "half a magic": (lambda: b"PA", "has 2 bytes and so is no parquet file"),
    "magic only": (lambda: b"PAR1PAR1", "has 8 bytes and so is no parquet file"),
    "an empty footer": (lambda: b"PAR1\0\0\0\0PAR1", FOOTER),
    "no footer": (lambda: simple()[:-20], r"has no parquet footer: its last 4 bytes \(at offset \d+\) are not b'PAR1'"),
    "a web page": (lambda: b"<html>" + b" " * 300, "has no parquet footer"),
    "a long footer": (lambda: with_length(10**9), r"its footer claims 1000000000 bytes at offset \d+, in a file of"),
    "a footer of 4 GB": (lambda: with_length(2**32 - 1), r"its footer claims 4294967295 bytes at offset"),
    "half a footer": (lambda: with_length(20), FOOTER),
    "an encrypted footer": (lambda: simple()[:-4] + b"PARE", "is an encrypted parquet file; decrypt it first"),
    "an encrypted column": (lambda: encrypted(), "has encrypted columns; decrypt it first"),
    "an unknown codec": (lambda: with_codec(63), f"{GROUP} 4: this pyarrow cannot read it: Unsupported .*codec"),
    "LZO": (lambda: with_codec(3), f"{GROUP} 4: this pyarrow cannot read it: .*LZO.*; write it again"),
    "an unknown type": (lambda: with_type(63), FOOTER),
    "an offset behind the end": (
        lambda: with_offset(10**6),
        rf"column 'n' of row group 0 claims bytes 1000000 to 1000\d\d\d of a file of \d+; .*{AGAIN}",
    ),
    "an offset behind the world": (lambda: with_offset(2**62), DESCRIBED),
    "an offset before the start": (lambda: with_offset(-5), DESCRIBED),
    "an offset beside": (lambda: with_offset(9), f"{GROUP} 9: it is damaged: .*; {AGAIN}"),
    "rows left out": (lambda: with_rows(7, 7), f"column 'n' of row group 0 has 10 values for 7 rows.*{AGAIN}"),
    "rows too many": (lambda: with_rows(12, 12), "column 'n' of row group 0 has 10 values for 12 rows"),
    "rows of no page": (lambda: with_rows(12, 12, 12), "row group 0 at offset 4: 10 rows were read where 12 are"),
    "rows of no group": (lambda: with_rows(11, 10), "its row groups have 10 rows, its footer says 11"),
    "less than no rows": (lambda: with_rows(-1, -1, -1), "its row groups have -1 rows"),
    "a trillion rows": (lambda: with_rows(*[2**40] * 3), "says it has over 2,147,483,648 rows, .*more than we read"),
    "a billion rows": (lambda: with_rows(*[10**9] * 3), "10 rows were read where 1000 are declared"),
}


def encrypted() -> bytes:
    """A file whose footer can be read, but not its column."""
    import pyarrow.parquet.encryption as pe

    class Keys(pe.KmsClient):  # type: ignore[misc]
        def wrap_key(self, key: bytes, master: str) -> bytes:
            return base64.b64encode(key)

    factory = pe.CryptoFactory(lambda _: Keys())
    config = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["n"]}, plaintext_footer=True)
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    sink, data = pa.BufferOutputStream(), pa.table({"n": [1]})
    with pq.ParquetWriter(sink, data.schema, encryption_properties=properties) as writer:
        writer.write_table(data)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]


@pytest.mark.parametrize("case", FILES)
def test_a_file_that_cannot_be_read_is_named_with_the_place(tmp_path: Path, case: str) -> None:
    make, said = FILES[case]
    if case == "an unknown codec" and int(pa.__version__.split(".")[0]) < 26:
        pytest.skip("pyarrow before 26 takes an unknown codec for none, which is right of this file")
    (tmp_path / "bad.parquet").write_bytes(make())
    for shuffle in (False, True):
        error = refusal(f"parquet:{tmp_path}/bad.parquet", tmp_path, shuffle=shuffle)
        check_refused(error, DataError, rf"^{tmp_path}/bad\.parquet[ ,:].*{said}")


@pytest.mark.parametrize("case", ["no footer", "LZO", "an encrypted column", "rows of no page"])
def test_the_same_on_the_hub_is_named_with_repo_and_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    make, said = FILES[case]
    with LocalHub() as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        commit = hub.push("org/bad", {"data/train-0.parquet": make()})
        error = refusal("hf:org/bad", tmp_path)
    check_refused(error, DataError, rf"^org/bad@{commit[:8]}/data/train-0\.parquet[ ,:].*{said}")


def test_one_flipped_bit_under_a_checksum_is_found_and_only_where_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    table = pa.table({"a": list(range(3000)), "b": [str(i) for i in range(3000)]})
    pq.write_table(table, path, write_page_checksum=True, row_group_size=1500, compression="none", use_dictionary=False)
    chunk, data = pq.read_metadata(path).row_group(1).column(1), bytearray(path.read_bytes())
    data[chunk.data_page_offset + chunk.total_compressed_size - 3] ^= 1
    path.write_bytes(data)
    place = rf"row group 1, column 'b' at offset {chunk.data_page_offset}"
    with rows(f"parquet:{path}", cache_dir=tmp_path / "data") as stage:
        found = [next(stage).data["a"] for _ in range(1500)]
        for _ in range(2):  # it does not go away, and nothing is passed over
            with pytest.raises(DataError, match=rf"a\.parquet, {place}: it is damaged: .*CRC.*; {AGAIN}"):
                next(stage)
    assert found == list(range(1500))
    assert len(everything(f"parquet:{path}", tmp_path, columns=["a"])) == 3000


def test_damage_anywhere_gives_the_rows_or_an_error_and_never_fewer_rows(tmp_path: Path) -> None:
    """In a process of its own: what pyarrow does not catch ends the process."""
    command = [sys.executable, mutants.__file__, str(tmp_path), "80"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, f"died of seed {(tmp_path / 'seed').read_text()}: {done.stderr[-2000:]}"
    found = json.loads(done.stdout)
    assert list(found) == [*mutants.WRITERS, "body"]
    for name, counts in found.items():
        assert counts.pop("error") > 30
        assert counts.pop("right") > 5
        if name != "body":  # only pages with checksums can tell other values from the right ones
            counts.pop("values", 0)
        assert counts == {}, name


# --- values


def not_utf8(*values: bytes) -> Any:
    """A text column that is not text."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


UTF8 = "'utf-8' codec can't decode byte 0xff in position 1"
VALUES: dict[str, tuple[Callable[[], Any], int, str]] = {
    "text": (lambda: not_utf8(b"ok", b"ok", b"b\xffd", b"ok"), 2, UTF8),
    "text in a struct": (lambda: pa.StructArray.from_arrays([not_utf8(b"ok", b"b\xffd")], ["t"]), 1, UTF8),
    "text in a list": (lambda: pa.ListArray.from_arrays([0, 1, 2], not_utf8(b"ok", b"b\xffd")), 1, UTF8),
    "text in a dictionary": (
        lambda: not_utf8(b"ok" * 50, b"b\xffd" * 50).take(pa.array([0] * 70 + [1] + [0] * 900)),
        70,
        UTF8,
    ),
    "a time after the last year": (lambda: pa.array([0, 2**60], pa.timestamp("us")), 1, "out of range"),
    "a day after the last year": (lambda: pa.array([0, 2**30], pa.date32()), 1, "magnitude"),
    "a time zone of Mars": (
        lambda: pa.array([None, None, None, 0], pa.timestamp("us", "Mars/Olympus")),
        3,
        "(zoneinfo|time zone)",
    ),
}


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("case", VALUES)
def test_a_value_that_cannot_be_made_is_named_by_row_and_column(tmp_path: Path, case: str, shuffle: bool) -> None:
    make, row, said = VALUES[case]
    column, name = make(), "\x1b[31mv"
    pq.write_table(pa.table({"n": list(range(len(column))), name: column}), tmp_path / "a.parquet")
    spec = f"parquet:{tmp_path}/a.parquet"
    where = rf"a\.parquet:{row}, column '\\+x1b\[31mv': its value cannot be read: .*{said}.*; leave the column out"
    check_refused(refusal(spec, tmp_path, shuffle=shuffle), DataError, where)
    assert len(everything(spec, tmp_path, columns=["n"], shuffle=shuffle)) == len(column)


def test_a_bad_value_in_a_dictionary_that_no_row_has_harms_nobody(tmp_path: Path) -> None:
    table = pa.table({"t": not_utf8(b"ok" * 50, b"b\xffd" * 50).take(pa.array([0] * 1000 + [1]))})
    pq.write_table(table, tmp_path / "a.parquet")
    with rows(f"parquet:{tmp_path}/a.parquet", cache_dir=tmp_path / "data") as stage:
        assert [next(stage).data["t"] for _ in range(500)] == ["ok" * 50] * 500


@pytest.mark.parametrize("other", ["", None, "x"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_bad_value_harms_no_other_row_whatever_the_other_columns_hold(
    tmp_path: Path, other: str | None, shuffle: bool
) -> None:
    """A column that is empty in every row has a dictionary without bytes."""
    texts = not_utf8(*(b"b\xffd" if i == 100 else b"row %d" % i for i in range(400)))
    pq.write_table(pa.table({"t": texts, "input": pa.array([other] * 400, pa.string())}), tmp_path / "a.parquet")
    faults = Faults(policy="skip", budget=1)
    with load(
        f"parquet:{tmp_path}/a.parquet", batch_size=8, shuffle=shuffle, faults=faults, cache_dir=tmp_path / "c"
    ) as loader:
        given = [pair for batch in loader for pair in zip(batch["t"], batch["input"], strict=True)]
    assert sorted(given) == sorted((f"row {i}", other) for i in range(400) if i != 100)


ODD: dict[str, tuple[Any, list[Any]]] = {
    "nanoseconds": (pa.array([1_000, None], pa.timestamp("ns")), [datetime(1970, 1, 1, 0, 0, 0, 1), None]),
    "decimals": (pa.array([Decimal("1.50"), None], pa.decimal256(60, 2)), [Decimal("1.50"), None]),
    "large numbers": (pa.array([2**64 - 1, None], pa.uint64()), [2**64 - 1, None]),
    "half floats": (pa.array([np.float16(1.5), None], pa.float16()), [1.5, None]),
    "maps": (pa.array([[("a", 1)], None], pa.map_(pa.string(), pa.int64())), [[("a", 1)], None]),
    "nothing": (pa.nulls(2), [None, None]),
    "a large list": (pa.array([list(range(300_000))]), [list(range(300_000))]),
    "a large text": (pa.array(["x" * 9_000_000, ""]), ["x" * 9_000_000, ""]),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_values_come_through_as_python_has_them(tmp_path: Path, case: str) -> None:
    column, want = ODD[case]
    pq.write_table(pa.table({"v": column}), tmp_path / "a.parquet")
    assert [row["v"] for row in everything(f"parquet:{tmp_path}/a.parquet", tmp_path)] == want


def test_nanoseconds_that_datetime_cannot_hold_are_not_cut_off(tmp_path: Path) -> None:
    """pyarrow makes pandas timestamps of them, and refuses where there is no pandas."""
    pq.write_table(pa.table({"t": pa.array([1], pa.timestamp("ns"))}), tmp_path / "a.parquet")
    code = (
        "import sys\n"
        "class NoPandas:\n"
        "    def find_spec(name, *_):\n"
        "        if name == 'pandas': raise ImportError(name)\n"
        "sys.meta_path.insert(0, NoPandas)\n"
        "from headrace import rows\n"
        "try: list(rows(sys.argv[1], cache_dir=sys.argv[2]))\n"
        "except Exception as e: print(type(e).__name__, e)\n"
    )
    command = [sys.executable, "-c", code, f"parquet:{tmp_path}/a.parquet", str(tmp_path / "data")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    assert done.stdout.startswith("DataError ")
    assert "a.parquet:0, column 't': its value cannot be read: " in done.stdout


@pytest.mark.parametrize("kind", ["list", "struct"])
def test_types_nested_too_deeply_are_refused(tmp_path: Path, kind: str) -> None:
    column, depth = pa.int64(), 150
    for _ in range(depth):
        column = pa.list_(column) if kind == "list" else pa.struct([("a", column)])
    pq.write_table(pa.table({"v": pa.nulls(1, column)}), tmp_path / "a.parquet")
    said = "(too deeply nested|Invalid flatbuffers message)"  # new and old pyarrow
    check_refused(refusal(f"parquet:{tmp_path}/a.parquet", tmp_path), DataError, rf"a\.parquet: .*{said}")


def nested_in_each_other(levels: int) -> bytes:
    """A file without rows whose one column is the only one in a group, which is in a group, and so on."""
    root, group, leaf = b"\x48\x01s\x15\x02\0", b"\x35\x02\x18\x01g\x15\x02\0", b"\x15\x02\x25\x02\x18\x01n\0"
    footer = b"\x15\x02\x19\xfc" + varint(levels + 2) + root + group * levels + leaf + b"\x16\0\x19\x0c\0"
    return b"PAR1" + footer + len(footer).to_bytes(4, "little") + b"PAR1"


READ_ALL = (
    "import sys\n"
    "from headrace import rows\n"
    "from headrace.errors import HeadraceError\n"
    "try: print('rows', len(list(rows(sys.argv[1], cache_dir=sys.argv[2]))))\n"
    "except HeadraceError as e: print(type(e).__name__, e)\n"
)


def in_a_child(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, f"status {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("levels", [150, 30_000])
def test_a_footer_of_columns_nested_without_end_is_refused_and_ends_no_process(tmp_path: Path, levels: int) -> None:
    """In a process of its own: pyarrow before 26 dies of it."""
    (tmp_path / "deep.parquet").write_bytes(nested_in_each_other(levels))
    said = in_a_child(READ_ALL, f"parquet:{tmp_path}/deep.parquet", str(tmp_path / "data"))
    assert re.match(rf"DataError {tmp_path}/deep\.parquet: its parquet footer at offset 4 cannot be read: ", said), said
    assert "too deeply nested" in said
    assert AGAIN in said


def test_a_file_of_a_robot_data_set_nested_without_end_is_refused_too(tmp_path: Path) -> None:
    (tmp_path / "deep.parquet").write_bytes(nested_in_each_other(30_000))
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from headrace.catalog.local import LocalOrigin\n"
        "from headrace.catalog.shard import Shard\n"
        "from headrace.errors import DataError\n"
        "from headrace.fetch.memory import MemoryBudget\n"
        "from headrace.fetch.parquet import ParquetReader\n"
        "from headrace.lerobot.projection import Allowance, read_columns\n"
        "path = Path(sys.argv[1])\n"
        "found = path.stat()\n"
        "shard = Shard(str(path), found.st_size, str(found.st_mtime_ns), LocalOrigin())\n"
        "reader = lambda: ParquetReader(shard, path, None, budget=MemoryBudget(1 << 30))\n"
        "for read in (reader, lambda: read_columns(shard, lambda s: s.names, Allowance(1 << 30))):\n"
        "    try: read()\n"
        "    except DataError as e: print(e)\n"
    )
    assert in_a_child(code, str(tmp_path / "deep.parquet")).count("too deeply nested") == 2


@pytest.mark.parametrize("levels", [0, 50, 98])
def test_a_schema_that_pyarrow_reads_is_not_too_deep_for_the_check_before(levels: int) -> None:
    footer = nested_in_each_other(levels)[4:]
    check_footer(footer)
    assert pq.read_metadata(pa.BufferReader(b"PAR1" + footer)).num_columns == 1


@pytest.mark.parametrize("where", ["schema", "second schema", "unknown field", "list of lists", "map"])
def test_the_check_of_a_footer_finds_depth_wherever_it_is(where: str) -> None:
    sound = nested_in_each_other(1)[4:-9]
    deep = nested_in_each_other(5000)
    schema = deep[deep.index(b"\x19\xfc") + 1 : -12]
    added = {
        "second schema": b"\x09\x04" + schema,
        "unknown field": b"\x0c\x28" + b"\x1c" * 5000 + b"\0" * 5001,
        "list of lists": b"\x09\x28" + b"\x19" * 5000 + b"\x03",
        "map": b"\x0b\x28" + b"\x01\x5b\x02" * 5000,
    }
    footer = deep[4:-8] if where == "schema" else sound + added[where] + b"\0"
    with pytest.raises(Malformed, match="or twice" if where == "second schema" else "too deeply nested"):
        check_footer(footer)


@pytest.mark.parametrize("footer", [b"", b"\x15", b"\x18\xff\xff\x03a", b"\x1d\0"])
def test_the_check_of_a_footer_refuses_what_is_none(footer: bytes) -> None:
    with pytest.raises(Malformed):
        check_footer(footer)


def test_a_row_group_that_says_it_is_a_bomb_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "MIN_CAP", 1 << 20)
    pq.write_table(pa.table({"n": [1], "t": [b"\0" * 5_000_000]}), tmp_path / "a.parquet", compression="zstd")
    spec = f"parquet:{tmp_path}/a.parquet"
    said = r"the [\d,]+ bytes of row group 0 decompress to 5,000,\d+, which looks like a bomb"
    check_refused(refusal(spec, tmp_path), DataError, rf"a\.parquet: {said}")
    assert everything(spec, tmp_path, columns=["n"]) == [{"n": 1}]


def test_more_than_two_gigabytes_in_one_column_of_a_chunk_say_so() -> None:
    class Uncombined:
        def to_batches(self) -> list[int]:
            return [1, 2]

        def combine_chunks(self) -> Uncombined:
            return self

    with pytest.raises(pa.ArrowNotImplementedError, match="more than 2 GiB"):
        parquet._one_batch(Uncombined())


def test_sizes_of_large_row_groups_do_not_overflow() -> None:
    sizes = np.array([3 << 20] * 16, dtype=np.int64)  # 3 GiB each, in KiB
    groups = GroupRows(sizes, sizes, {"a": 3 << 34, "b": 3 << 34}, ())
    assert groups.nbytes(["a"]).tolist() == [3 << 29] * 16
    assert groups.nbytes(None).tolist() == [3 << 30] * 16


def test_no_descriptor_is_left_behind_by_a_file_that_is_refused(tmp_path: Path) -> None:
    (tmp_path / "bad.parquet").write_bytes(FILES["an offset behind the end"][0]())
    refusal(f"parquet:{tmp_path}/bad.parquet", tmp_path)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - a count
    for _ in range(5):
        with pytest.raises(HeadraceError):
            everything(f"parquet:{tmp_path}/bad.parquet", tmp_path)
    assert len(os.listdir("/proc/self/fd")) == before  # noqa: PTH208

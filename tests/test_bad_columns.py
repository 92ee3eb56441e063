"""The columns of a source's shards: where they agree, and the error that names both shards where they do not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from refused import check_refused, everything, refusal

from headrace import rows
from headrace.catalog.schemas import same_values
from headrace.errors import DataError, SpecError

A: dict[str, Any] = {"text": ["a"], "n": [1]}
MIXED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "another type": (
        A,
        {"text": ["b"], "n": ["x"]},
        r"column 'n' is int64 in \S+/000.parquet but string in \S+/001.parquet; .*headrace\.rows\(\.\.\., columns=",
    ),
    "a column less": (
        A,
        {"text": ["b"]},
        r"column 'n' is in \S+/000.parquet but not in \S+/001.parquet; .*headrace\.rows\(\.\.\., columns=",
    ),
    "a column more": (
        {"text": ["b"]},
        A,
        r"column 'n' is in \S+/001.parquet but not in \S+/000.parquet; .*headrace\.rows\(\.\.\., columns=",
    ),
    "inside a struct": (
        {"s": [{"x": 1}]},
        {"s": [{"x": "1"}]},
        r"column 's' is struct<x: int64> in .* but struct<x: string>",
    ),
    "a struct with less": (
        {"s": [{"x": 1, "y": 2}]},
        {"s": [{"x": 1}]},
        "column 's' is struct<x: int64, y: int64> in .* but struct<x: int64>",
    ),
    "escape codes": ({"\x1b[31mred": [1]}, {"blue": [1]}, r"column '\\+x1b\[31mred' is in"),
}


def write_tables(folder: Path, *tables: Any, **options: Any) -> str:
    folder.mkdir(exist_ok=True)
    for i, table in enumerate(tables):
        pq.write_table(
            table if isinstance(table, pa.Table) else pa.table(table), folder / f"{i:03d}.parquet", **options
        )
    return f"parquet:{folder}/*.parquet"


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("case", MIXED)
def test_shards_that_do_not_agree_are_named_both_with_the_column(tmp_path: Path, case: str, shuffle: bool) -> None:
    one, other, said = MIXED[case]
    check_refused(refusal(write_tables(tmp_path / "in", one, other), tmp_path, shuffle=shuffle), DataError, said)


def test_nulls_in_the_first_shard_do_not_hide_that_later_ones_disagree(tmp_path: Path) -> None:
    spec = write_tables(tmp_path / "in", {"s": pa.nulls(1)}, {"s": [1]}, {"s": pa.nulls(2)}, {"s": ["x"]})
    check_refused(
        refusal(spec, tmp_path), DataError, r"column 's' is int64 in \S+/001.parquet but string in \S+/003.parquet"
    )


SAME: dict[str, tuple[Any, Any, list[str] | None]] = {
    "another order": (A, {"n": [1], "text": ["a"]}, None),
    "all null": (A, {"text": ["a"], "n": pa.nulls(1)}, None),
    "all null first": ({"text": ["a"], "n": pa.nulls(1)}, A, None),
    "all null inside": ({"l": [[1]], "s": [{"x": [None]}]}, {"l": [[]], "s": [{"x": ["a"]}]}, None),
    "not null": ({"n": [1]}, pa.table({"n": [1]}, pa.schema([pa.field("n", pa.int64(), nullable=False)])), None),
    "never null inside": (
        {"l": pa.array([[1]], pa.list_(pa.field("item", pa.int64(), nullable=False)))},
        {"l": pa.array([[1]], pa.large_list(pa.int64()))},
        None,
    ),
    "other text types": ({"t": ["a"]}, {"t": pa.array(["a"], pa.large_string()).dictionary_encode()}, None),
    "the odd column is not read": (A, {"text": ["a"], "n": ["x"]}, ["text"]),
    "the column that lacks is not read": (A, {"text": ["a"]}, ["text"]),
}


@pytest.mark.parametrize("case", SAME)
def test_shards_whose_rows_look_alike_agree(tmp_path: Path, case: str) -> None:
    one, other, columns = SAME[case]
    found = everything(write_tables(tmp_path / "in", one, other), tmp_path, columns=columns)
    assert len(found) == 2
    assert set(found[0]) == set(found[1])


def test_lists_of_older_writers_agree_with_those_of_newer_ones(tmp_path: Path) -> None:
    spec = write_tables(tmp_path / "in", {"l": [[1]]})
    pq.write_table(pa.table({"l": [[2]]}), tmp_path / "in" / "old.parquet", use_compliant_nested_type=False)
    assert [row["l"] for row in everything(spec, tmp_path)] == [[1], [2]]


def test_two_columns_of_one_name_are_refused_where_they_are_read(tmp_path: Path) -> None:
    twice = pa.table([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "b"])
    spec = write_tables(tmp_path / "in", twice, twice)
    check_refused(
        refusal(spec, tmp_path), DataError, r"000.parquet: 2 columns are named 'a'.*headrace\.rows\(\.\.\., columns="
    )
    assert everything(spec, tmp_path, columns=["b"]) == [{"b": 3}] * 2


def test_a_large_source_sees_another_schema_when_it_comes_to_it(tmp_path: Path) -> None:
    spec = write_tables(tmp_path / "in", A)
    first = (tmp_path / "in" / "000.parquet").read_bytes()
    for i in range(1, 530):
        (tmp_path / "in" / f"{i:03d}.parquet").write_bytes(first)
    pq.write_table(pa.table({"text": ["b"], "n": ["x"]}), tmp_path / "in" / "520.parquet")
    said = r"column 'n' is int64 in \S+/000.parquet but string in \S+/520.parquet"
    with rows(spec, cache_dir=tmp_path / "data") as stage:
        assert stage.reading.rules.coordinate == "windows"
        assert [next(stage).data for _ in range(520)] == [{"text": "a", "n": 1}] * 520
        for _ in range(2):  # it does not go away, and nothing is passed over
            with pytest.raises(DataError, match=said):
                next(stage)
    check_refused(refusal(spec, tmp_path, shuffle=True), DataError, said)
    assert len(everything(spec, tmp_path, columns=["text"])) == 530
    check_refused(
        refusal(spec, tmp_path, columns=["no"]), SpecError, "no column 'no' in .*/000.parquet; it has text, n"
    )


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("int64", "null", True),
        ("list<element: null>", "list<item: struct<a: int64, b: string>>", True),
        ("struct<a: null, b: int64>", "struct<a: list<element: string>, b: int64>", True),
        ("struct<a: timestamp[us, tz=UTC], b: null>", "struct<a: null, b: decimal128(5, 2)>", True),
        ("large_list<element: large_string not null>", "list<item: string_view>", True),
        ("struct<a: null, b: int64>", "struct<a: string, b: string>", False),
        ("struct<null_a: int64>", "struct<other: int64>", False),
        ("struct<a: null>", "struct<b: null>", False),
        ("struct<a: null>", "list<element: null>", False),
        ("int64", "int32", False),
        ("string", "binary", False),
        ("fixed_size_list<element: float>[3]", "fixed_size_list<element: float>[4]", False),
    ],
)
def test_types_are_the_same_where_their_values_are(one: str, other: str, same: bool) -> None:
    assert same_values(one, other) is same
    assert same_values(other, one) is same
    assert same_values(one, one)

"""Columns that name types of the `datasets` package are read alike, whether and whenever it is imported."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.testing import write_robot_dataset

ORDERS = ("never", "first", "last", "in between")
WRITE = """
import sys
import numpy as np
from datasets import Array2D, Array3D, Dataset, Features, List, Value

nested = {"inner": Array2D((2, 2), "float32"), "number": Value("int64")}
features = Features(
    {
        "matrix": Array2D((2, 3), "float32"),
        "cube": Array3D((2, 2, 2), "int64"),
        "nested": nested,
        "listed": List(Array2D((1, 2), "float32")),
        "number": Value("int64"),
    }
)
rows = [
    {
        "matrix": (np.arange(6).reshape(2, 3) + i).tolist() if i != 3 else None,
        "cube": (np.arange(8).reshape(2, 2, 2) * i).tolist(),
        "nested": {"inner": [[1, 2], [3, i]], "number": i},
        "listed": [[[1, 2]]] * (i % 3),
        "number": i,
    }
    for i in range(9)
]
Dataset.from_list(rows, features=features).to_parquet(sys.argv[1], batch_size=4)
"""
READ = """
import json, sys

order, what, path, cache = sys.argv[1:]
if order == "first":
    import datasets
import headrace
from headrace import StreamingLeRobotDataset
if order == "last":
    import datasets

def between():
    if order == "in between":
        import datasets

if what == "robot":
    data = StreamingLeRobotDataset("r", root=path, cache_dir=cache)
    between()
    found = [{k: v.tolist() if hasattr(v, "tolist") else v for k, v in item.items()} for item in data]
elif what == "rows":
    reader = headrace.rows(f"parquet:{path}:number", columns=["matrix", "number"], cache_dir=cache)
    between()
    found = [row.data for row in reader]
    first = headrace.rows(f"parquet:{path.replace('*', '0')}:number", cache_dir=cache)
    found += [row.data for row in first]
else:
    spec = f"parquet:{path.replace('*', '0')}:number"
    loader = headrace.load(spec, batch_size=2, shuffle=False, num_workers=1, cache_dir=cache)
    between()
    with loader:
        found = [dict(batch) for batch in loader]
json.dump(found, sys.stdout)
assert ("datasets" in sys.modules) == (order != "never")
"""


def run(script: str, *arguments: object) -> str:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two shards; the columns of the second are plain lists."""
    folder = tmp_path_factory.mktemp("arrays")
    run(WRITE, folder / "rows-0.parquet")
    schema = pa.schema({"matrix": pa.list_(pa.list_(pa.float32())), "number": pa.int64()})
    more = [{"matrix": [[9.0, 8.0, 7.0], [6.0, 5.0, 4.0]], "number": 9}]
    pq.write_table(pa.Table.from_pylist(more, schema), folder / "rows-1.parquet")
    return folder / "rows-*.parquet"


@pytest.fixture(scope="module")
def robot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    shapes: dict[str, Any] = {"matrix": ("float32", (2, 3)), "cube": ("int64", (2, 2, 2)), "flag": ("bool", (1,))}
    folder = tmp_path_factory.mktemp("robot") / "set"
    return write_robot_dataset(folder, episodes=(3, 4), fps=10, cameras={}, extra_features=shapes)


def test_features_of_several_dimensions_of_a_robot(robot: Path, tmp_path: Path) -> None:
    found = {order: json.loads(run(READ, order, "robot", robot, tmp_path / order)) for order in ORDERS}
    assert len(found["never"]) == 7
    assert {(len(item["matrix"]), len(item["matrix"][0])) for item in found["never"]} == {(2, 3)}
    for order in ORDERS:
        assert found[order] == found["never"], order


@pytest.mark.parametrize("what", ["rows", "load"])
def test_columns_of_several_dimensions_of_a_file(file: Path, tmp_path: Path, what: str) -> None:
    found = {order: json.loads(run(READ, order, what, file, tmp_path / order)) for order in ORDERS}
    assert len(found["never"]) == (19 if what == "rows" else 5)
    assert found["never"][-1]["nested"] in (
        {"inner": [[1, 2], [3, 8]], "number": 8},
        [{"inner": [[1, 2], [3, 8]], "number": 8}],
    )
    for order in ORDERS:
        assert found[order] == found["never"], order


def test_files_counted_with_and_without_the_package_agree(file: Path, tmp_path: Path) -> None:
    """What one run keeps of a file's columns is used by the next."""
    one = run(READ, "first", "rows", file, tmp_path)
    assert json.loads(run(READ, "never", "rows", file, tmp_path)) == json.loads(one)

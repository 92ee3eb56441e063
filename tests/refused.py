"""All rows of a source through the public door, and the error it ends in: what the tests of bad input share."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace import rows
from headrace.catalog.source import Source
from headrace.errors import HeadraceError

CANARY = "hf_CANARYcanaryCANARYcanary"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"


def everything(spec: str | Source, tmp_path: Path, **options: Any) -> list[dict[str, Any]]:
    with rows(spec, cache_dir=tmp_path / "data", **options) as stage:
        return [row.data for row in stage]


def refusal(spec: str | Source, tmp_path: Path, **options: Any) -> HeadraceError:
    """The error of our family that reading everything ends in. Its message is fit to be shown and holds no secret."""
    with pytest.raises(HeadraceError) as caught:
        everything(spec, tmp_path, **options)
    message = str(caught.value)
    assert all(c.isprintable() or c == "\n" for c in message), repr(message)
    assert len(message) < 1500, message
    told = "".join(traceback.format_exception(caught.value))
    assert CANARY not in told
    assert not re.search(r"https?://[^\s'\"]*\?", message), message
    return caught.value


def check_refused(error: HeadraceError, kind: type[HeadraceError], said: str) -> None:
    assert type(error) is kind, repr(error)
    assert re.search(said, str(error), re.DOTALL), str(error)


def a_parquet(columns: dict[str, Any] | None = None) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns or {"text": ["a", "b"], "n": [1, 2]}), sink)
    return sink.getvalue().to_pybytes()  # type: ignore[no-any-return]

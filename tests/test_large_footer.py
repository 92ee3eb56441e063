"""A file of very many row groups: its footer is in memory once, however many lanes read from it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.catalog import footer
from headrace.testing import write_parquet

GROUPS, LANES = 400, 8


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose footers were parsed, each time."""
    found: list[str] = []
    parse = footer._parsed

    def counted(shard: Any, data: bytes) -> Any:
        found.append(shard.path)
        return parse(shard, data)

    monkeypatch.setattr(footer, "_parsed", counted)
    return found


@pytest.mark.parametrize("shuffle", [False, True])
def test_the_lanes_of_a_process_share_the_footer_of_a_file(tmp_path: Path, parsed: list[str], shuffle: bool) -> None:
    path = write_parquet(tmp_path / "in", [[10] * GROUPS])[0]
    loader = headrace.load(f"parquet:{path}", shuffle=shuffle, lanes=LANES, batch_size=4, cache_dir=tmp_path / "data")
    steps = iter(loader)
    uids = [uid for _ in range(2 * LANES) for uid in next(steps)["uid"]]
    assert len(parsed) <= 2  # for the index, and for all readers
    uids += [uid for batch in steps for uid in batch["uid"]]
    assert len(uids) == len(set(uids)) == 10 * GROUPS


def test_a_footer_goes_with_the_last_reader(tmp_path: Path, parsed: list[str]) -> None:
    gc.collect()
    before = set(footer._PARSED)  # what other tests still hold
    path = write_parquet(tmp_path / "in", [[10] * GROUPS])[0]
    with headrace.rows(f"parquet:{path}", cache_dir=tmp_path / "data") as stage:
        next(stage)
        assert len(set(footer._PARSED) - before) == 1
    del stage
    gc.collect()
    assert set(footer._PARSED) <= before

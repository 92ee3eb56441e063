"""pack="none" cuts off what is too long, and says so once."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from streaming import World
from torch.utils.data import DataLoader

import headrace
from headrace.serve.loader import Loader
from headrace.testing import write_parquet


@pytest.fixture
def spec(tmp_path: Path) -> str:
    write_parquet(tmp_path / "in", [[3]], row=lambda _, i: {"ids": [i] * 50})
    return f"parquet:{tmp_path}/in/*.parquet:ids"


def opened(spec: str, tmp: Path, **options: Any) -> Loader:
    return headrace.load(
        spec, **{"seq_len": 20, "pack": "none", "batch_size": 1, "epochs": 1, "cache_dir": tmp / "cache", **options}
    )


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("workers", [0, 2])
def test_one_warning_tells_of_tokens_that_are_cut_off(
    spec: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, workers: int
) -> None:
    with opened(spec, tmp_path, num_workers=workers) as loader:
        assert sum(batch.num_tokens for batch in loader) == 60
        assert loader.stats()["tokens_truncated"] == 90
    (line,) = said(caplog)
    assert "cuts off what is longer than seq_len=20: 30 tokens up to here; stats()['tokens_truncated'] counts" in line


@pytest.mark.parametrize("options", [{"seq_len": 50}, {"pack": "best_fit"}, {"pack": "concat"}])
def test_nothing_is_said_where_nothing_is_cut(
    spec: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, options: dict[str, Any]
) -> None:
    with opened(spec, tmp_path, **options) as loader:
        assert sum(batch.num_tokens for batch in loader) == 150
    assert said(caplog) == []


def test_under_a_dataloader_it_is_said_too(spec: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(spec, tmp_path) as loader:
        assert len(list(DataLoader(loader.dataset, batch_size=None))) == 3
    assert len(said(caplog)) == 1


def test_samples_that_are_cut_are_told_of(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    world = World(tmp_path)
    dataset = world.memory({"a": lambda i: {"instruction": "w " * 40, "output": f"[a {i}]"}}).make(max_per_epoch=3)
    caplog.clear()
    assert len(list(dataset.loader(1, pack="none", seq_len=20))) == 6
    (line,) = said(caplog)
    assert "1 samples up to here; stats()['samples_truncated']" in line

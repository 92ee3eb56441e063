"""`known:` specs in `headrace.load`: where a set has no column of text, its formatter writes it."""

from __future__ import annotations

import json
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import tokenizers
from streaming import picture

import headrace
from headrace import Loader
from headrace.errors import DataError
from headrace.make.tokens import TOKENS
from headrace.testing import LocalHub
from headrace.testing.tokenizers import write_tokenizer

ROWS = 40


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return write_tokenizer(tmp_path / "tokenizer", vocab=400)


def push(hub: LocalHub, folder: Path, repo: str, rows: list[dict[str, Any]], env: pytest.MonkeyPatch) -> None:
    path = folder / "repo" / "data" / "train-00000-of-00001.parquet"
    path.parent.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=7)
    hub.push(repo, folder / "repo")
    for name, value in hub.env().items():
        env.setenv(name, value)


def dolly(i: int) -> dict[str, Any]:
    return {"instruction": f"ask {i}", "context": "" if i % 2 else f"given {i}", "response": f"[{i}]", "category": "x"}


def texts(loader: Loader, folder: Path, batches: int | None = None) -> list[str]:
    decoder = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    return [
        decoder.decode(batch["input_ids"][row].tolist(), skip_special_tokens=False)
        for batch in islice(loader, batches)
        for row in range(len(batch["input_ids"]))
    ]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_set_without_a_column_of_text_is_written_by_its_formatter(
    hub: LocalHub, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    push(hub, tmp_path, "databricks/databricks-dolly-15k", [dolly(i) for i in range(ROWS)], monkeypatch)

    def make(num_workers: int) -> Loader:
        how: dict[str, Any] = {"seq_len": 96, "batch_size": 2, "epochs": 1, "lanes": 2, "cache_dir": tmp_path / "data"}
        return headrace.load("known:Dolly-15k", tokenizer=tokenizer, num_workers=num_workers, **how)

    with make(workers) as loader:
        full = texts(loader, tokenizer)
    for i in range(ROWS):
        assert sum(text.count(f"[{i}]") for text in full) == 1
        assert sum(text.count(f"ask {i}<") + text.count(f"ask {i}\n") for text in full) == 1
    for cut in range(0, len(full) // 2, 3):
        with make(0) as first:
            head = texts(first, tokenizer, cut) if cut else []
            state = json.loads(json.dumps(first.state_dict()))
        with make(workers) as second:
            second.load_state_dict(state)
            assert head + texts(second, tokenizer) == full, cut


def test_what_headrace_makes_up_is_loaded_too(tokenizer: Path, tmp_path: Path) -> None:
    how: dict[str, Any] = {"seq_len": 64, "batch_size": 2, "cache_dir": tmp_path / "data", "steps_per_epoch": 5}
    with headrace.load("known:Synth-CoT,known:Synth-Commits", tokenizer=tokenizer, **how) as loader:
        found = "".join(texts(loader, tokenizer))
    assert TOKENS["assistant_start"] in found
    assert TOKENS["think_start"] in found


def test_media_do_not_go_into_sequences_of_tokens(
    hub: LocalHub, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    image = {"bytes": picture(3), "path": "3.png"}
    rows = [{"image": image, "query": "how many?", "label": ["four"], "human_or_machine": 0}] * 4
    push(hub, tmp_path, "HuggingFaceM4/ChartQA", rows, monkeypatch)
    how: dict[str, Any] = {"tokenizer": tokenizer, "seq_len": 32, "cache_dir": tmp_path / "data"}
    refused = pytest.raises(DataError, match=r"has images, videos or sounds.*TrueStreamingDataset")
    with headrace.load("known:ChartQA", **how) as loader, refused:
        next(iter(loader))

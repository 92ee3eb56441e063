"""The example: a model that reads packed documents apart, and a run that a kill does not change by a bit."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor

from headrace.batch import Batch
from headrace.testing.corpus import document, write_corpus
from headrace.testing.tokenizers import write_tokenizer
from headrace.tools.train_text import GPT, Shape, checkpoints, document_mask, learning_rate, loss_of, save

ROOT = Path(__file__).parent.parent
SHAPE = Shape(vocab=50, seq_len=16, width=16, layers=2, heads=2)


def packed(*lengths: int, seed: int = 0) -> Batch:
    """One sequence of documents with random tokens."""
    torch.manual_seed(seed)
    ids = torch.randint(50, (1, sum(lengths)))
    labels = ids.clone()
    labels[0, [sum(lengths[:i]) for i in range(len(lengths))]] = -100
    positions = torch.cat([torch.arange(n) for n in lengths])[None]
    batch = Batch({"input_ids": ids, "labels": labels, "position_ids": positions})
    batch.document_ids = torch.repeat_interleave(torch.arange(1, len(lengths) + 1), torch.tensor(lengths))[None]
    return batch


def logits(model: GPT, batch: Batch) -> Tensor:
    with torch.no_grad():
        out: Tensor = model(batch["input_ids"], batch["position_ids"], batch.document_ids)
    return out[0]


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(1)
    return GPT(SHAPE)


# --- the model


def test_a_document_reads_the_same_alone_and_packed_behind_others(model: GPT) -> None:
    batch = packed(5, 7, 4)
    second = Batch({name: value[:, 5:12] for name, value in batch.items()})
    second.document_ids = batch.document_ids[:, 5:12]
    assert torch.allclose(logits(model, batch)[5:12], logits(model, second), atol=1e-6)


def test_a_token_changes_only_what_comes_after_it_in_its_document(model: GPT) -> None:
    batch = packed(5, 7, 4)
    before = logits(model, batch)
    batch["input_ids"][0, 7] = (batch["input_ids"][0, 7] + 1) % 50
    changed = (logits(model, batch) != before).any(-1).nonzero().flatten().tolist()
    assert changed == [7, 8, 9, 10, 11]


def test_padding_looks_at_something_so_that_no_logit_is_lost(model: GPT) -> None:
    batch = packed(5, 3)
    batch.document_ids[0, 5:] = 0
    assert document_mask(batch.document_ids).any(-1).all()
    assert logits(model, batch).isfinite().all()


def test_the_loss_is_of_the_next_token_of_the_same_document(model: GPT) -> None:
    batch = packed(5, 7, 4)
    found = torch.log_softmax(logits(model, batch), -1)
    targets = [(i, int(batch["input_ids"][0, i + 1])) for i in range(15) if i + 1 not in (5, 12)]
    expected = -sum(float(found[i, token]) for i, token in targets) / len(targets)
    assert loss_of(model, batch).item() == pytest.approx(expected, rel=1e-5)


def test_the_learning_rate_rises_then_falls_and_never_stops() -> None:
    rates = [learning_rate(step, 100, 1.0) for step in range(1, 101)]
    top = rates.index(max(rates))
    assert rates[: top + 1] == sorted(rates[: top + 1])
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert max(rates) == 1.0
    assert min(rates) > 0.05


# --- checkpoints


def test_two_checkpoints_stay_and_half_a_one_is_never_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for step in (5, 10, 15, 100_000_000):
        save(tmp_path, step, {"step": step})
    assert [torch.load(path, weights_only=True)["step"] for path in checkpoints(tmp_path)] == [15, 100_000_000]

    def full(state: dict[str, Any], file: Any) -> None:
        file.write(b"half")
        raise OSError("disk full")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="disk full"):
        save(tmp_path, 100_000_005, {})
    assert len(checkpoints(tmp_path)) == 2


# --- the corpus


def test_the_corpus_is_the_same_for_a_seed_and_says_where_each_row_lies(tmp_path: Path) -> None:
    paths = write_corpus(tmp_path / "a", 2, 700, seed=3)
    again = write_corpus(tmp_path / "b", 2, 700, seed=3)
    other = write_corpus(tmp_path / "c", 2, 700, seed=4)
    rows = [row for path in paths for row in pq.read_table(path).to_pylist()]
    assert rows == [row for path in again for row in pq.read_table(path).to_pylist()]
    assert [row["text"] for row in rows] != [t for path in other for t in pq.read_table(path)["text"].to_pylist()]
    assert [row["uid"] for row in rows] == [f"{path.name}:{r}" for path in paths for r in range(700)]
    assert rows[5]["text"] == document(3, paths[0].name, 5)
    assert [pq.read_metadata(path).num_row_groups for path in paths] == [2, 2]


def test_a_tokenizer_is_the_same_for_the_same_texts(tmp_path: Path) -> None:
    texts = [document(0, "s", row) for row in range(200)]
    first, second = (write_tokenizer(tmp_path / name, 400, texts=texts) / "tokenizer.json" for name in "ab")
    assert first.read_bytes() == second.read_bytes()


def test_documents_differ_in_length_as_text_does() -> None:
    lengths = sorted(len(document(0, "s", row)) for row in range(2000))
    assert lengths[100] < 80
    assert 100 < lengths[1000] < 200
    assert lengths[1900] > 500
    assert lengths[-1] < 8000


# --- the run

STEPS, EVERY = 24, 6

KILLED_AT_A_STEP = """
import os, signal
from headrace.tools import train_text
run = train_text.run
def killed(*words):
    for record in run(*words):
        if record["step"] == {step}:
            os.kill(os.getpid(), signal.SIGKILL)
        yield record
train_text.run = killed
train_text.train(train_text.parse())
"""

KILLED_IN_A_SAVE = """
import os, pathlib, signal
from headrace.tools import train_text
rename = pathlib.Path.rename
def killed(path, target):
    if pathlib.Path(target).name == "step-{step:08d}.pt":
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(path, target)
pathlib.Path.rename = killed
train_text.train(train_text.parse())
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    paths = write_corpus(folder / "in", 3, 60)
    texts = [text for path in paths for text in pq.read_table(path)["text"].to_pylist()]
    write_tokenizer(folder / "tokenizer", 300, texts=texts)
    return folder


def start(corpus: Path, out: Path, *words: str, code: str = "", status: int = 0) -> str:
    command = [sys.executable, *(("-c", code) if code else (str(ROOT / "examples" / "train_text.py"),))]
    sizes = ["--seq-len", "64", "--batch-size", "4", "--width", "32", "--heads", "2", "--dropout", "0.1"]
    command += [f"parquet:{corpus}/in/*.parquet", "--tokenizer", str(corpus / "tokenizer"), "--out", str(out), *sizes]
    command += ["--steps", str(STEPS), "--save-every", str(EVERY), "--spans", *words]
    said = out.with_suffix(".txt")
    with said.open("w") as file:  # a pipe would stay open as long as a worker of a killed run
        done = subprocess.run(command, cwd=out.parent, stdout=file, stderr=file, timeout=100, check=False)
    assert done.returncode == status, said.read_text()
    return said.read_text()


def committed(out: Path) -> dict[int, tuple[str, Any]]:
    """What counts of a log: each step as it was run last."""
    records = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return {record["step"]: (record["loss"], record["spans"]) for record in records}


@pytest.fixture(scope="module", params=[0, 2], ids=["no workers", "two workers"])
def straight(corpus: Path, request: pytest.FixtureRequest) -> tuple[dict[int, tuple[str, Any]], list[str]]:
    """An uninterrupted run."""
    words = ["--workers", str(request.param)]
    out = corpus / f"straight-{request.param}"
    start(corpus, out, *words)
    return committed(out), words


def test_killed_runs_resume_to_the_same_losses_to_the_last_bit(
    corpus: Path, tmp_path: Path, straight: tuple[dict[int, tuple[str, Any]], list[str]]
) -> None:
    expected, words = straight
    out = tmp_path / "run"
    start(corpus, out, *words, code=KILLED_AT_A_STEP.format(step=EVERY + 3), status=-signal.SIGKILL)
    assert [path.name for path in checkpoints(out)] == [f"step-{EVERY:08d}.pt"]
    start(corpus, out, *words, "--resume", code=KILLED_IN_A_SAVE.format(step=3 * EVERY), status=-signal.SIGKILL)
    assert [path.name for path in checkpoints(out)] == [f"step-{n * EVERY:08d}.pt" for n in (1, 2)]
    said = start(corpus, out, *words, "--resume")
    assert f"resume: spec=parquet:{corpus}/in/*.parquet:text sample_row=" in said
    log = [json.loads(line)["step"] for line in (out / "log.jsonl").read_text().splitlines()]
    assert log == [*range(1, EVERY + 4), *range(EVERY + 1, 3 * EVERY + 1), *range(2 * EVERY + 1, STEPS + 1)]
    assert committed(out) == expected
    losses = [float.fromhex(loss) for loss, _ in expected.values()]
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5])


def test_a_folder_with_a_run_in_it_is_not_written_over(corpus: Path, tmp_path: Path) -> None:
    save(tmp_path, 6, {})
    said = start(corpus, tmp_path, status=1)
    assert "holds a run already" in said
    assert "Traceback" not in said

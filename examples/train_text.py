"""Train a small GPT on packed text. Kill it at any moment; with --resume it goes on as if nothing had happened.

    python examples/train_text.py 'parquet:corpus/*.parquet' --tokenizer corpus/tokenizer --out run
    python examples/train_text.py 'parquet:corpus/*.parquet' --tokenizer corpus/tokenizer --out run --resume

Everything that decides the next step is in a checkpoint: the model, the optimizer, torch's random numbers, and where
the loader is. On one thread the losses after a resume are those of an uninterrupted run, to the last bit.
"""

from __future__ import annotations

import argparse
import json
import logging
import math
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor, nn

import headrace

KEEP = 2
"""Checkpoints that stay: the last one, and the one before in case the disk spoils the last."""


# --- the model


@dataclass(frozen=True)
class Shape:
    vocab: int
    seq_len: int
    width: int
    layers: int
    heads: int
    dropout: float = 0.0


class Layer(nn.Module):
    """Attention, then an MLP, each added to what came in."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.heads = shape.heads
        self.norm_1 = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)
        self.dropout = nn.Dropout(shape.dropout)
        self.norm_2 = nn.LayerNorm(shape.width)
        self.mlp = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width), nn.GELU(), nn.Linear(4 * shape.width, shape.width)
        )

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        x = x + self.dropout(self.out(attended.transpose(1, 2).flatten(2)))
        mixed: Tensor = self.dropout(self.mlp(self.norm_2(x)))
        return x + mixed


class GPT(nn.Module):
    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab, shape.width)
        self.positions = nn.Embedding(shape.seq_len, shape.width)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.LayerNorm(shape.width)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, input_ids: Tensor, position_ids: Tensor, document_ids: Tensor) -> Tensor:
        mask = document_mask(document_ids)
        x = self.tokens(input_ids) + self.positions(position_ids)
        for layer in self.layers:
            x = layer(x, mask)
        return F.linear(self.norm(x), self.tokens.weight)  # the head is the embedding, read the other way


def document_mask(document_ids: Tensor) -> Tensor:
    """Who may look at whom: a token at itself and what came before it in its own document."""
    same = document_ids[:, :, None] == document_ids[:, None, :]
    return same.tril()[:, None]


def loss_of(model: nn.Module, batch: headrace.Batch) -> Tensor:
    """Labels come unshifted: the token at i is what was to be predicted at i - 1; -100 is not learned."""
    logits: Tensor = model(batch["input_ids"], batch["position_ids"], batch.document_ids)
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten(), ignore_index=-100)


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Up over the first steps, down by a cosine; a function of the step alone, so there is nothing to save."""
    warmup = min(20, steps // 10 + 1)
    if step <= warmup:
        return peak * step / warmup
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * (step - warmup) / max(steps - warmup, 1))))


# --- checkpoints


def save(folder: Path, step: int, state: dict[str, Any]) -> None:
    """Whole or not at all, also after a power cut: written under another name, synced, renamed, the folder synced."""
    part = folder / ".checkpoint.part"
    with part.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    part.rename(folder / f"step-{step:08d}.pt")
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
    for old in checkpoints(folder)[:-KEEP]:
        old.unlink()


def checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    return sorted(folder.glob("step-*.pt"))


# --- the run


@dataclass
class Trainer:
    """What is learned, and how far."""

    model: GPT
    optimizer: torch.optim.Optimizer
    step: int = 0

    def state_dict(self) -> dict[str, Any]:
        return {
            "step": self.step,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "random": torch.get_rng_state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        torch.set_rng_state(state["random"])

    def learn(self, batch: headrace.Batch, rate: float) -> float:
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.model, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.step += 1
        return loss.item()


def train(options: argparse.Namespace) -> None:
    logging.basicConfig(format="%(message)s")
    logging.getLogger("headrace").setLevel(logging.INFO)  # among others, where a resumed run goes on
    torch.set_num_threads(options.threads)
    torch.manual_seed(options.seed)
    torch.use_deterministic_algorithms(True)
    options.out.mkdir(parents=True, exist_ok=True)
    saved = checkpoints(options.out)
    if saved and not options.resume:
        sys.exit(f"{options.out} holds a run already: go on with it with --resume, or give another --out")
    model = GPT(shape_of(options))
    trainer = Trainer(model, torch.optim.AdamW(model.parameters(), lr=options.rate, weight_decay=0.1))
    state = torch.load(saved[-1], weights_only=True) if saved else None
    if state:
        trainer.load_state_dict(state)
    asked = time.perf_counter()
    with headrace.load(
        options.specs,
        tokenizer=str(options.tokenizer),
        eos=options.eos,
        seq_len=options.seq_len,
        batch_size=options.batch_size,
        num_workers=options.workers,
        seed=options.seed,
    ) as loader:
        if state:
            loader.load_state_dict(state["loader"])
        with progress(trainer.step, options.steps) as show:
            for record in run(trainer, loader, options, asked):
                show(record)


def run(trainer: Trainer, loader: Any, options: argparse.Namespace, asked: float) -> Iterator[dict[str, Any]]:
    """Step by step, each with a record in the log. A step waits for its batch, the first for the loader to open too."""
    batches = iter(loader)  # without end
    with (options.out / "log.jsonl").open("ab", buffering=0) as log:
        while trainer.step < options.steps:
            batch = next(batches)
            waited = time.perf_counter() - asked
            loss = trainer.learn(batch, learning_rate(trainer.step + 1, options.steps, options.rate))
            took = time.perf_counter() - asked
            record = {
                "step": trainer.step,
                "loss": loss.hex(),
                "tokens_per_second": round(batch.num_tokens / took),
                "wait_ms": round(1000 * waited, 3),
                "step_ms": round(1000 * took, 3),
                "at": time.time(),
            }
            if options.spans:
                record["spans"] = [[*span.address[1:], *span[1:]] for spans in batch.spans for span in spans]
            log.write(json.dumps(record).encode() + b"\n")  # one write: a kill leaves a whole line or none
            yield record
            if trainer.step % options.save_every == 0 or trainer.step == options.steps:
                save(options.out, trainer.step, {**trainer.state_dict(), "loader": loader.state_dict()})
            asked = time.perf_counter()


def shape_of(options: argparse.Namespace) -> Shape:
    from tokenizers import Tokenizer

    vocab = Tokenizer.from_file(str(options.tokenizer / "tokenizer.json")).get_vocab_size()
    return Shape(vocab, options.seq_len, options.width, options.layers, options.heads, options.dropout)


@contextmanager
def progress(first: int, steps: int) -> Iterator[Any]:
    """A bar on a terminal; one line at the end everywhere."""
    console = Console(stderr=True)
    text = "loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s  waiting for data {task.fields[wait]:.1%}"
    columns = (TextColumn("step"), MofNCompleteColumn(), BarColumn(), TextColumn(text), TimeRemainingColumn())
    tokens = waited = took = 0.0
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=steps, completed=first, loss=math.nan, speed=0.0, wait=0.0)

        def show(record: dict[str, Any]) -> None:
            nonlocal tokens, waited, took
            tokens += record["tokens_per_second"] * record["step_ms"] / 1000
            waited += record["wait_ms"] / 1000
            took += record["step_ms"] / 1000
            loss = float.fromhex(record["loss"])
            bar.update(task, completed=record["step"], loss=loss, speed=tokens / took, wait=waited / took)

        yield show
    if took:
        end = f"{tokens / took:,.0f} tokens/s, {waited / took:.1%} of the time spent waiting for data"
        print(f"steps {first + 1} to {steps}: {end}")


def parse(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Train a small GPT on packed text.")
    parser.add_argument("specs", nargs="+", help="sources, for example parquet:corpus/*.parquet or hf:org/name:train")
    parser.add_argument("--tokenizer", type=Path, required=True, help="a folder with a tokenizer.json")
    parser.add_argument("--eos", help="the token that ends each document, where the tokenizer names none")
    parser.add_argument("--out", type=Path, required=True, help="checkpoints and log.jsonl go here")
    parser.add_argument("--resume", action="store_true", help="go on from the last checkpoint, if there is one")
    parser.add_argument("--spans", action="store_true", help="log which tokens of which rows each step had")
    for name, default in {"steps": 200, "save-every": 20, "seed": 0, "workers": 0, "threads": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in {"seq-len": 128, "batch-size": 8, "width": 96, "layers": 2, "heads": 4}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--rate", type=float, default=3e-3, help="the highest learning rate")
    return parser.parse_args(words)


if __name__ == "__main__":
    train(parse())

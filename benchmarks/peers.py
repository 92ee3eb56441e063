"""The same work done by other libraries, where they are installed."""

from __future__ import annotations

import contextlib
import importlib
import io
import logging
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from common import is_installed
from corpus import Corpus


def count(items: Any) -> int:
    """Ask for every item, as a training loop would."""
    rows = 0
    for _ in items:
        rows += 1
    return rows


def hf_dataset(corpus: Corpus, cache: Path, buffer: int | None = None, *, seed: int = 0, **how: int) -> Any:
    """A streaming dataset of Hugging Face `datasets`, opened anew. `how` goes to its shuffle."""
    from datasets import config, load_dataset

    # Up to 5 s of sleep at the end of a shuffled pass are no part of reading; without it the peer looks better.
    config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
    _hush("datasets")
    files = [str(path) for path in corpus.files]
    found = load_dataset("parquet", data_files=files, split="train", streaming=True, cache_dir=str(cache / "datasets"))
    return found if buffer is None else found.shuffle(seed=seed, buffer_size=buffer, **how)


def trl_sequences(corpus: Corpus, cache: Path, tokenizer: Path, seq_len: int, skip: int = 0) -> Iterator[list[int]]:
    """Packed sequences by `datasets` streaming, a batched map that tokenizes, and the packing of TRL."""
    hide_broken_torchvision()
    from transformers import PreTrainedTokenizerFast
    from trl.data_utils import pack_dataset

    encoder: Any = PreTrainedTokenizerFast.from_pretrained(str(tokenizer))
    end: str = encoder.eos_token

    def tokenize(batch: dict[str, list[str]]) -> dict[str, Any]:
        texts = [text + end for text in batch["text"]]
        return {"input_ids": encoder(texts, return_attention_mask=False)["input_ids"]}

    rows = hf_dataset(corpus, cache)
    found = (rows.skip(skip) if skip else rows).map(tokenize, batched=True, remove_columns=rows.column_names)
    # Of its ways to pack, the best fit that loses no token.
    for sequence in pack_dataset(found, seq_len, "bfd_split"):
        yield sequence["input_ids"]


def hide_broken_torchvision() -> None:
    """litdata brings one along that may not fit torch; transformers can do without, but not with a broken one."""
    try:
        importlib.import_module("torchvision")
    except Exception:
        sys.modules["torchvision"] = None  # type: ignore[assignment]


def lit_dataset(corpus: Corpus, cache: Path, shuffle: bool) -> Any:
    from litdata import StreamingDataset
    from litdata.streaming.item_loader import ParquetLoader

    return StreamingDataset(
        str(corpus.folder), item_loader=ParquetLoader(), shuffle=shuffle, cache_dir=str(cache / "litdata")
    )


def contenders(corpus: Corpus, cache: Path) -> dict[str, Callable[[], int] | None]:
    """Name to what runs it; None: not installed."""
    found: dict[str, Callable[[], int] | None] = dict.fromkeys(
        ("datasets, in order", "datasets, shuffle(1000)", "litdata, in order", "litdata, shuffled")
    )
    if is_installed("datasets"):
        found["datasets, in order"] = lambda: count(hf_dataset(corpus, cache))
        found["datasets, shuffle(1000)"] = lambda: count(hf_dataset(corpus, cache, 1000))
    if is_installed("litdata", "polars"):
        index_for_litdata(corpus)
        found["litdata, in order"] = lambda: count(lit_dataset(corpus, cache, False))
        found["litdata, shuffled"] = lambda: count(lit_dataset(corpus, cache, True))
    return found


def index_for_litdata(corpus: Corpus) -> None:
    from litdata.streaming.writer import index_parquet_dataset

    _hush("litdata")
    if not (corpus.folder / "index.json").exists():
        with contextlib.redirect_stderr(io.StringIO()):
            index_parquet_dataset(str(corpus.folder))


def _hush(name: str) -> None:
    """Only errors: progress and good advice would be part of the time."""
    logging.getLogger(name).setLevel(logging.ERROR)

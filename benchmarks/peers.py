"""The same work done by other libraries, where they are installed."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Callable
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
        _index_for_litdata(corpus)
        found["litdata, in order"] = lambda: count(lit_dataset(corpus, cache, False))
        found["litdata, shuffled"] = lambda: count(lit_dataset(corpus, cache, True))
    return found


def _index_for_litdata(corpus: Corpus) -> None:
    from litdata.streaming.writer import index_parquet_dataset

    _hush("litdata")
    if not (corpus.folder / "index.json").exists():
        with contextlib.redirect_stderr(io.StringIO()):
            index_parquet_dataset(str(corpus.folder))


def _hush(name: str) -> None:
    """Only errors: progress and good advice would be part of the time."""
    logging.getLogger(name).setLevel(logging.ERROR)

"""The files the benchmarks read. Made once per folder, always the same bytes of data, without a Python loop per row."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

GROUP_ROWS = 1000
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
VOCABULARY = 30_000
WORDS = 270
"""Per text, in the middle; their lengths spread as those of web pages do. About 1.5 kB."""


@dataclass(frozen=True)
class Corpus:
    """Shards of equal size."""

    folder: Path
    shards: int
    shard_rows: int

    @property
    def rows(self) -> int:
        return self.shards * self.shard_rows

    @property
    def spec(self) -> str:
        return f"parquet:{self.folder}/*.parquet"

    @property
    def files(self) -> list[Path]:
        return [self.folder / f"train-{i:05d}-of-{self.shards:05d}.parquet" for i in range(self.shards)]

    @property
    def made(self) -> bool:
        return all(path.exists() for path in self.files)

    def write(self, shard: int, table: Any) -> None:
        """Complete or not there: an interrupted run leaves no half file behind."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.files[shard]
        part = path.with_suffix(".part")
        pq.write_table(table, part, compression="zstd", row_group_size=GROUP_ROWS)
        part.rename(path)


def web_pages(folder: Path, shards: int, shard_rows: int) -> Corpus:
    """Text of words as often as in language, with the columns that a crawl has."""
    corpus = Corpus(folder / f"pages-{shards}x{shard_rows}", shards, shard_rows)
    if corpus.made:
        return corpus
    chance = np.random.default_rng(1)
    words = _vocabulary(chance)
    share = 1 / (np.arange(len(words)) + 2.7)
    edges = np.cumsum(share / share.sum())
    for shard in range(shards):
        texts = [
            _texts(chance, words, edges, min(GROUP_ROWS, shard_rows - first))
            for first in range(0, shard_rows, GROUP_ROWS)
        ]
        numbers = np.arange(shard * shard_rows, (shard + 1) * shard_rows)
        sites = _strings(chance.integers(0, 5000, shard_rows))
        times = pa.array(chance.integers(1_400_000_000, 1_700_000_000, shard_rows), pa.timestamp("s"))
        columns = {
            "text": pa.concat_arrays(texts),
            "id": _joined("<urn:uuid:", _strings(chance.integers(2**50, 2**60, shard_rows)), "-", _strings(numbers)),
            "url": _joined("https://www.site", sites, ".example.org/articles/", _strings(numbers), ".html"),
            "date": pc.strftime(times, format="%Y-%m-%dT%H:%M:%SZ"),
            "score": chance.random(shard_rows),
            "language": pa.array(np.array(["en", "de", "fr"])[chance.integers(0, 3, shard_rows)]),
        }
        corpus.write(shard, pa.table(columns))
    return corpus


def small_rows(folder: Path, shards: int, shard_rows: int) -> Corpus:
    """Many rows of few bytes: their number, and a short text."""
    corpus = Corpus(folder / f"small-{shards}x{shard_rows}", shards, shard_rows)
    if corpus.made:
        return corpus
    for shard in range(shards):
        numbers = np.arange(shard * shard_rows, (shard + 1) * shard_rows)
        corpus.write(shard, pa.table({"n": numbers, "text": _joined("row ", _strings(numbers), " of many small ones")}))
    return corpus


def sorted_classes(folder: Path, shards: int, shard_rows: int, classes: int) -> Corpus:
    """Rows sorted by class over all shards, as a folder of images or a crawl by date would be."""
    corpus = Corpus(folder / f"sorted-{shards}x{shard_rows}", shards, shard_rows)
    if corpus.made:
        return corpus
    numbers = np.arange(corpus.rows)
    for shard in range(shards):
        mine = numbers[shard * shard_rows : (shard + 1) * shard_rows]
        corpus.write(shard, pa.table({"n": mine, "label": mine * classes // corpus.rows}))
    return corpus


def _vocabulary(chance: np.random.Generator) -> Any:
    """Made-up words; the short ones come first, so they are the frequent ones."""
    share = 0.93 ** np.arange(len(LETTERS))
    lengths = np.sort(chance.poisson(5, VOCABULARY) + 2)
    letters = np.array(list(LETTERS))[chance.choice(len(LETTERS), lengths.sum(), p=share / share.sum())]
    pieces = np.split(letters, np.cumsum(lengths)[:-1])
    # Every word is heard at every rank now and then; a strict order by length would make the text far too short.
    nearly = np.argsort(np.arange(VOCABULARY) * chance.lognormal(0, 1.5, VOCABULARY))
    return pa.array(["".join(piece) for piece in pieces]).take(pa.array(nearly))


def _texts(chance: np.random.Generator, words: Any, edges: np.ndarray[Any, Any], rows: int) -> Any:
    counts = np.clip(chance.lognormal(np.log(WORDS), 0.5, rows), 20, 4000).astype(np.int64)
    chosen = edges.searchsorted(chance.random(int(counts.sum()))).clip(0, len(words) - 1)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), words.take(pa.array(chosen))), " ")


def _strings(numbers: np.ndarray[Any, Any]) -> Any:
    return pa.array(numbers).cast(pa.string())


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, "")

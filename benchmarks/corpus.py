"""The files the benchmarks read. Made once per folder, always the same bytes of data, without a Python loop per row."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.testing.tokenizers import EOS, write_tokenizer

GROUP_ROWS = 1000
TRAINED_TEXTS = 2500
"""Of each shard that a tokenizer is trained on."""
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"
VOCABULARY = 30_000
WORDS = 270
"""Per text, in the middle; their lengths spread as those of web pages do. About 1.5 kB."""
COMMAS, STOPS, RARE = 1 / 15, 1 / 18, 1 / 40
"""Of the words of an article: behind how many there is a comma, a full stop, and how many are heard only once."""


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
    edges = _edges(words)
    for shard in range(shards):
        texts = [_texts(chance, words, edges, rows) for rows in _groups(shard_rows)]
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


def articles(folder: Path, shards: int, shard_rows: int, words: int = WORDS) -> Corpus:
    """Numbered texts for tokenizers: sentences, and now and then a word or a number that never comes again.

    Text of a closed list of words would all lie in a tokenizer's cache after a while; language does not.
    """
    corpus = Corpus(folder / f"articles-{shards}x{shard_rows}x{words}", shards, shard_rows)
    if corpus.made:
        return corpus
    chance = np.random.default_rng(2)
    known = _vocabulary(chance)
    forms = pa.concat_arrays(
        [known, _joined(known, ","), _joined(known, "."), pc.utf8_capitalize(known), _joined(known, ".\n\n")]
    )
    edges = _edges(known)
    for shard in range(shards):
        texts = [_sentences(chance, forms, edges, rows, words) for rows in _groups(shard_rows)]
        numbers = np.arange(shard * shard_rows, (shard + 1) * shard_rows)
        corpus.write(shard, pa.table({"n": numbers, "text": pa.concat_arrays(texts)}))
    return corpus


def trained_tokenizer(corpus: Corpus, vocab_size: int) -> Path:
    """A byte-level BPE of the first half of a corpus."""
    folder = corpus.folder.parent / f"tokenizer-{vocab_size}-{corpus.folder.name}"
    if not (folder / "tokenizer.json").exists():
        part = folder.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        half = corpus.files[: (corpus.shards + 1) // 2]
        write_tokenizer(part, vocab_size, texts=(t for path in half for t in column(path, "text")[:TRAINED_TEXTS]))
        part.rename(folder)
    return folder


def token_ids(corpus: Corpus, tokenizer: Path) -> Corpus:
    """The same documents as lists of token numbers, as the tokenizers library gives them, each with its eos."""
    from tokenizers import Tokenizer

    ids = Corpus(corpus.folder.with_name(f"ids-{tokenizer.name}"), corpus.shards, corpus.shard_rows)
    if ids.made:
        return ids
    encoder = Tokenizer.from_file(str(tokenizer / "tokenizer.json"))
    end = encoder.token_to_id(EOS)
    for shard, path in enumerate(corpus.files):
        found = encoder.encode_batch_fast(column(path, "text"), add_special_tokens=False)
        lists = pa.array([[*encoding.ids, end] for encoding in found], pa.list_(pa.int32()))
        ids.write(shard, pa.table({"input_ids": lists}))
    return ids


def column(path: Path, name: str) -> list[Any]:
    values: list[Any] = pq.read_table(path, columns=[name]).column(0).to_pylist()
    return values


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
    words = _spelled(chance, np.sort(chance.poisson(5, VOCABULARY) + 2))
    # Every word is heard at every rank now and then; a strict order by length would make the text far too short.
    nearly = np.argsort(np.arange(VOCABULARY) * chance.lognormal(0, 1.5, VOCABULARY))
    return words.take(pa.array(nearly))


def _spelled(chance: np.random.Generator, lengths: np.ndarray[Any, Any]) -> Any:
    share = 0.93 ** np.arange(len(LETTERS))
    letters = np.array(list(LETTERS))[chance.choice(len(LETTERS), lengths.sum(), p=share / share.sum())]
    return pa.array(["".join(piece) for piece in np.split(letters, np.cumsum(lengths)[:-1])])


def _edges(words: Any) -> np.ndarray[Any, Any]:
    """Where the share of each word ends, from 0 to 1: that of rank r is heard as often as 1 / r."""
    share = 1 / (np.arange(len(words)) + 2.7)
    return np.cumsum(share / share.sum())


def _groups(rows: int) -> list[int]:
    return [min(GROUP_ROWS, rows - first) for first in range(0, rows, GROUP_ROWS)]


def _texts(chance: np.random.Generator, words: Any, edges: np.ndarray[Any, Any], rows: int) -> Any:
    counts, chosen = _choice(chance, edges, rows, WORDS)
    return _in_rows(counts, words.take(pa.array(chosen)))


def _sentences(chance: np.random.Generator, forms: Any, edges: np.ndarray[Any, Any], rows: int, middle: int) -> Any:
    """`forms`: each word plain, with a comma, with a full stop, with a capital, and at the end of a paragraph."""
    counts, chosen = _choice(chance, edges, rows, middle)
    draw = chance.random(len(chosen))
    form = np.select([draw < COMMAS, draw < COMMAS + STOPS * 0.8, draw < COMMAS + STOPS], [1, 2, 4])
    form[1:][(form[:-1] == 2) | (form[:-1] == 4)] = 3
    chosen += form * len(edges)
    rare = np.flatnonzero(chance.random(len(chosen)) < RARE)
    words = _spelled(chance, chance.poisson(6, len(rare)) + 3)
    figures = _strings(chance.integers(0, 100_000, len(rare)))
    once = pc.if_else(pa.array(chance.random(len(rare)) < 0.3), figures, words)
    chosen[rare] = len(forms) + np.arange(len(rare))
    return _in_rows(counts, pa.concat_arrays([forms, once]).take(pa.array(chosen)))


def _choice(chance: np.random.Generator, edges: np.ndarray[Any, Any], rows: int, middle: int) -> tuple[Any, Any]:
    """How many words each text has, and which ones; `middle`: half of the texts have more."""
    counts = np.clip(chance.lognormal(np.log(middle), 0.5, rows), 20, 4000).astype(np.int64)
    return counts, edges.searchsorted(chance.random(int(counts.sum()))).clip(0, len(edges) - 1)


def _in_rows(counts: np.ndarray[Any, Any], words: Any) -> Any:
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), words), " ")


def _strings(numbers: np.ndarray[Any, Any]) -> Any:
    return pa.array(numbers).cast(pa.string())


def _joined(*parts: Any) -> Any:
    return pc.binary_join_element_wise(*parts, "")

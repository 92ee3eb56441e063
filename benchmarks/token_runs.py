"""Those who turn texts into tokens, one batch at a time: headrace, the tokenizer libraries alone, and the peers."""

from __future__ import annotations

import gc
import importlib
import multiprocessing
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias, TypeVar
from unittest.mock import patch

import numpy as np
import peers
from corpus import Corpus, column

import headrace
from headrace.recipe import Tokenize
from headrace.serve.lane import Lane
from headrace.serve.loader import Loader

SEQ_LEN = 2048
BATCH = 8
TEXTS = 256
"""Texts that a library alone gets at once; headrace takes about as many."""

T = TypeVar("T")
Contender: TypeAlias = Callable[[], Iterator[int]]
"""Opens everything anew, then gives the number of tokens of each batch."""


@dataclass(frozen=True)
class Data:
    """One corpus: as texts, and as the token numbers that the tokenizers library makes of them."""

    articles: Corpus
    ids: Corpus
    tokenizer: Path
    cache: Path
    tokens: int
    """All of them, with an eos for each document."""


@dataclass(frozen=True)
class Timing:
    """Of one run. What comes before the first batch is start-up, and no part of the rate."""

    rate: float
    """Tokens per second."""
    first: float
    """Seconds to the first batch."""
    batch: float
    """Seconds per batch."""
    cpu: float
    """Seconds of CPU time per batch in the trainer's process, without its workers."""

    @property
    def cpu_rate(self) -> float:
        """Tokens per second of CPU time, which others on the machine disturb less."""
        return self.rate * self.batch / self.cpu


def one_thread_each() -> None:
    """Of each tokenizer library, in this process and in those that come of it. Before they are used first."""
    os.environ.update(RAYON_NUM_THREADS="1", FASTOKENS_BPE_THREADS="1", TOKENIZERS_PARALLELISM="false")


def load_libraries() -> None:
    """What most contenders need, so that it is there in the processes that are forked from this one."""
    for name in ("torch", "tokenizers", "fastokens", "pyarrow.parquet", "headrace.fetch.shelf"):
        importlib.import_module(name)


def in_a_child(job: Callable[[], T]) -> T:
    """Do it in a process of its own, forked from this one, in which nothing is ever done.

    A tokenizer that is opened where others have been before finds memory in pieces, and is slower for it.
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=lambda: theirs.send(job()))
    process.start()
    theirs.close()
    try:
        return ours.recv()  # type: ignore[no-any-return]
    except EOFError:
        raise RuntimeError("a contender failed; what it said stands above") from None
    finally:
        process.join()
        ours.close()


def timed(run: Contender, expected: int) -> Timing:
    # Those who make many objects at once pay for a collection of all there are: not for what was there before.
    gc.collect()
    gc.freeze()
    opened = time.perf_counter()
    counts = run()
    first = next(counts)
    begun, cpu = time.perf_counter(), time.process_time()
    later = list(counts)
    seconds, cpu = time.perf_counter() - begun, time.process_time() - cpu
    if first + sum(later) != expected:
        raise RuntimeError(f"{first + sum(later)} tokens came, there are {expected}")
    return Timing(sum(later) / seconds, begun - opened, seconds / len(later), cpu / len(later))


# --- headrace


def loader(data: Data, backend: Any, **serving: Any) -> Loader:
    """One exact pass, shuffled. `backend` None: token numbers out of the column."""
    spec = f"{data.ids.spec}:input_ids" if backend is None else data.articles.spec
    tokenizer = None if backend is None else Tokenize(tokenizer=str(data.tokenizer), backend=backend)
    return headrace.load(
        spec, tokenizer=tokenizer, seq_len=SEQ_LEN, batch_size=BATCH, epochs=1, cache_dir=data.cache, **serving
    )


def packed(data: Data, backend: Any, **serving: Any) -> Contender:
    def run() -> Iterator[int]:
        with loader(data, backend, **serving) as batches:
            for batch in batches:
                yield batch.num_tokens

    return run


# --- the others


def tokenizers_alone(data: Data) -> Contender:
    """`encode_batch_fast` on texts in memory; the numbers stay where the library has them."""

    def run() -> Iterator[int]:
        from tokenizers import Tokenizer

        encoder = Tokenizer.from_file(str(data.tokenizer / "tokenizer.json"))
        for texts in _texts(data.articles):
            found = encoder.encode_batch_fast(texts, add_special_tokens=False)
            yield sum(len(encoding) for encoding in found) + len(texts)

    return run


def fastokens_alone(data: Data) -> Contender:
    def run() -> Iterator[int]:
        import fastokens

        encoder = fastokens.Tokenizer.from_json_str((data.tokenizer / "tokenizer.json").read_text())
        for texts in _texts(data.articles):
            ids, _ = encoder.encode_batch_flat(texts, False, False)
            yield len(ids) // 4 + len(texts)

    return run


def trl(data: Data) -> Contender:
    """Sequences as they are packed. That no tensors are made of them is in its favour."""

    def run() -> Iterator[int]:
        sequences = peers.trl_sequences(data.articles, data.cache, data.tokenizer, SEQ_LEN)
        while batch := [len(sequence) for sequence in islice(sequences, BATCH)]:
            yield sum(batch)

    return run


def _texts(corpus: Corpus) -> Iterator[list[str]]:
    # All of them before the first batch, which is where the clock starts.
    texts = [text for path in corpus.files for text in column(path, "text")]
    for start in range(0, len(texts), TEXTS):
        yield texts[start : start + TEXTS]


# --- what they give, and what a state costs


def compared(data: Data, backend: Any) -> dict[str, Any]:
    """One pass, put together again by the addresses in the batches: is it what the tokenizers library gives?"""
    pieces: dict[tuple[str, int], list[tuple[int, Any]]] = defaultdict(list)
    with loader(data, backend) as batches:
        for batch in batches:
            ids = batch["input_ids"].numpy().astype(np.int32)
            for sequence, spans in zip(ids, batch.spans, strict=True):
                at = 0
                for span in spans:
                    place = Path(span.address.shard).name, span.address.row
                    end = at + span.stop - span.start
                    pieces[place].append((span.start, sequence[at:end]))
                    at = end
        stats = batches.stats()
    different = 0
    for path in data.ids.files:
        for row, wanted in enumerate(column(path, "input_ids")):
            found = [tokens for _, tokens in sorted(pieces.pop((path.name, row), []), key=lambda piece: piece[0])]
            different += not found or np.concatenate(found).tolist() != wanted
    return {
        "backend": backend or "ids",
        "documents": data.articles.rows,
        "documents_different": different + len(pieces),
        "tokens": stats["tokens"],
        "tokens_lost": data.tokens - stats["tokens"],
        "fill": stats["fill"],
    }


def state_costs(data: Data) -> dict[str, float]:
    """Of CPU time, per batch: the receipts that are made with each, and asking the loader for its whole state."""
    receipts, states = [], []
    original = Lane._receipt

    def receipt(lane: Lane) -> bytes:
        begun = time.thread_time()
        made = original(lane)
        receipts.append(time.thread_time() - begun)
        return made

    with patch.object(Lane, "_receipt", receipt), loader(data, "fast") as batches:
        for _ in batches:
            begun = time.thread_time()
            batches.state_dict()
            states.append(time.thread_time() - begun)
    return {"receipt_seconds": statistics.mean(receipts), "state_dict_seconds": statistics.mean(states)}

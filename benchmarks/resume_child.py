"""A training run that is killed, and the one that goes on: the process that resume.py starts, and kills.

It gets a task, prints a line of JSON at its first batch, and where it is to be killed a second one when its state is
saved; then it waits for its end.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

import peers
from corpus import Corpus

import headrace

SEQ_LEN = 2048
SEQUENCES = 8
ROWS = 32
"""Of a batch of rows."""
KILL_SECONDS = 300


@dataclass(frozen=True, kw_only=True)
class Task:
    way: str
    folder: str
    shards: int
    shard_rows: int
    tokenizer: str
    cache: str
    state: str = ""
    """The file to go on from; none: from the start."""
    until: int = 0
    """Rows in all, after which the state is saved; 0: the first batch is the last."""
    saved: str = ""

    @property
    def corpus(self) -> Corpus:
        return Corpus(Path(self.folder), self.shards, self.shard_rows)

    def to_json(self) -> str:
        return json.dumps(asdict(self))


class Way(Protocol):
    """A library that reads the corpus in batches and can go on later."""

    @property
    def imports(self) -> tuple[str, ...]:
        """All that would be loaded on the way to the first batch."""

    def batches(self, task: Task, state: Any, rows: int) -> Iterator[tuple[int, Any]]:
        """Go on from a state (None: from the start) after `rows` rows: of each batch, its rows and a name for them."""

    def state(self) -> Any: ...


class HeadraceRows:
    imports = (
        "headrace.serve.door",
        "headrace.recipe_yaml",
        "headrace.fetch.shelf",
        "pyarrow.compute",
        "pyarrow.parquet",
        "rich.progress",
    )

    def batches(self, task: Task, state: Any, rows: int) -> Iterator[tuple[int, Any]]:
        self._loader = headrace.load(task.corpus.spec, batch_size=ROWS, cache_dir=task.cache)
        if state is not None:
            self._loader.load_state_dict(state)
        for batch in self._loader:
            yield batch.num_rows, batch["n"]

    def state(self) -> Any:
        return self._loader.state_dict()


class HeadracePacked:
    imports = (*HeadraceRows.imports, "torch", "tokenizers", "fastokens")

    def batches(self, task: Task, state: Any, rows: int) -> Iterator[tuple[int, Any]]:
        self._loader = headrace.load(
            task.corpus.spec, tokenizer=task.tokenizer, seq_len=SEQ_LEN, batch_size=SEQUENCES, cache_dir=task.cache
        )
        if state is not None:
            self._loader.load_state_dict(state)
        for batch in self._loader:
            # A document that was split counts twice; here few are.
            yield int(batch.document_ids.amax(1).sum()), zlib.crc32(batch["input_ids"].numpy().tobytes())

    def state(self) -> Any:
        return self._loader.state_dict()


class DatasetsState:
    imports = (
        "datasets",
        "datasets.packaged_modules.parquet.parquet",
        "torch",
        "encodings.idna",
        "multiprocessing.synchronize",
    )
    buffer: int | None = None

    def batches(self, task: Task, state: Any, rows: int) -> Iterator[tuple[int, Any]]:
        self._dataset = peers.hf_dataset(task.corpus, Path(task.cache), self.buffer)
        if state is not None:
            self._dataset.load_state_dict(state)
        return _in_batches(self._dataset)

    def state(self) -> Any:
        return self._dataset.state_dict()


class DatasetsShuffled(DatasetsState):
    """The rows that lie in its buffer are no part of its state."""

    buffer = 1000


class DatasetsSkip:
    imports = DatasetsState.imports

    def batches(self, task: Task, state: Any, rows: int) -> Iterator[tuple[int, Any]]:
        return _in_batches(peers.hf_dataset(task.corpus, Path(task.cache)).skip(rows))

    def state(self) -> Any:
        return {}


class TrlSkip:
    """Sequences from the row on where it was; those that were made of rows before it do not come back."""

    imports = (*DatasetsState.imports, "transformers", "trl.data_utils")

    def batches(self, task: Task, state: Any, rows: int) -> Iterator[tuple[int, Any]]:
        tokenizer = Path(task.tokenizer)
        sequences = peers.trl_sequences(task.corpus, Path(task.cache), tokenizer, SEQ_LEN, skip=rows)
        while batch := list(islice(sequences, SEQUENCES)):
            yield 0, zlib.crc32(json.dumps(batch).encode())

    def state(self) -> Any:
        return {}


class LitData:
    imports = (
        "litdata",
        "litdata.streaming.item_loader",
        "polars",
        "torch",
        "torch.profiler._cupti_monitor",
        "tqdm.auto",
    )

    def batches(self, task: Task, state: Any, rows: int) -> Iterator[tuple[int, Any]]:
        from litdata import StreamingDataLoader

        dataset = peers.lit_dataset(task.corpus, Path(task.cache), shuffle=True)
        self._loader = StreamingDataLoader(dataset, batch_size=ROWS)
        if state is not None:
            self._loader.load_state_dict(state)
        for batch in self._loader:
            yield len(batch["n"]), batch["n"].tolist()

    def state(self) -> Any:
        return self._loader.state_dict()


WAYS: dict[str, type[Way]] = {
    "headrace, rows, shuffled": HeadraceRows,
    "headrace, packed tokens, shuffled": HeadracePacked,
    "datasets, rows in order, state_dict": DatasetsState,
    "datasets, rows in order, skip(n)": DatasetsSkip,
    "datasets, rows, shuffle(1000), state_dict": DatasetsShuffled,
    "datasets, packed tokens by TRL, skip(n)": TrlSkip,
    "litdata, rows, shuffled, state_dict": LitData,
}


def _in_batches(rows: Any) -> Iterator[tuple[int, Any]]:
    items = iter(rows)
    while batch := [row["n"] for row in islice(items, ROWS)]:
        yield len(batch), batch


def main() -> None:
    task = Task(**json.loads(sys.argv[1]))
    way = WAYS[task.way]()
    if "trl.data_utils" in way.imports:
        peers.hide_broken_torchvision()
    for name in way.imports:
        with suppress(ModuleNotFoundError):  # what this version of a library does not have is not loaded later either
            importlib.import_module(name)
    imported = time.monotonic()
    given = json.loads(Path(task.state).read_text() if task.state else '{"state": null, "rows": 0}')
    batches = way.batches(task, given["state"], given["rows"])
    count, key = next(batches)
    print(json.dumps({"imported": imported, "first": time.monotonic(), "key": key}), flush=True)
    if not task.until:
        os._exit(0)
    rows = given["rows"] + count
    while rows < task.until:
        rows += next(batches)[0]
    Path(task.saved).write_text(json.dumps({"state": way.state(), "rows": rows}))
    print(json.dumps({"key": next(batches)[1]}), flush=True)
    time.sleep(KILL_SECONDS)


if __name__ == "__main__":
    main()

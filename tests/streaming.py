"""Small sources of every kind for `TrueStreamingDataset`, each row with a name that comes out again of its tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import media_files
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tokenizers
import torch

from headrace.catalog.source import Source
from headrace.make.describe import Tokenize
from headrace.make.formatters import FORMATTERS
from headrace.make.tokenize import Tokenizer, open_tokenizer
from headrace.make.tokens import TOKENS
from headrace.run import Run
from headrace.serve.streaming import TrueStreamingDataset
from headrace.testing.memory import MemorySource
from headrace.testing.tokenizers import write_tokenizer

FUNCTIONS = {name.removeprefix("format_"): function for name, function in FORMATTERS.items()}
CONFIGURED = (
    "shuffle",
    "seed",
    "learn",
    "render",
    "faults",
    "media",
    "max_sample_bytes",
    "decode_threads",
    "opener",
    "cache_dir",
)
RATE = 8000


def chat_row(i: int, name: str = "chat") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"q{i}"}, {"role": "assistant", "content": f"[{name} {i}]"}]}


def code_row(i: int, name: str = "code") -> dict[str, Any]:
    return {"instruction": f"write {i}", "output": f"[{name} {i}]"}


def picture(i: int, form: str = "PNG", size: int = 8) -> bytes:
    """Of one colour, that tells its number."""
    return media_files.encoded(np.full((size, size, 3), i % 256, np.uint8), form)


def vision_row(i: int, name: str = "vision") -> dict[str, Any]:
    image = {"bytes": picture(i, "JPEG" if i % 3 else "PNG"), "path": f"{i}.png"}
    return {"image": image, "question": f"what {i}?", "answer": f"[{name} {i}]"}


def speech(i: int, form: str = "WAV") -> bytes:
    """The more, the longer."""
    return media_files.sound(media_files.tone(RATE, 0.01 * (1 + i % 5)), RATE, form)


def speech_row(i: int, name: str = "voice_asr") -> dict[str, Any]:
    return {"audio": {"bytes": speech(i, "FLAC" if i % 2 else "WAV"), "path": f"{i}.wav"}, "text": f"[{name} {i}]"}


def film_row(i: int, name: str = "video") -> dict[str, Any]:
    """Of one to three frames."""
    data = media_files.clip(list(range(i, i + 1 + i % 3)), size=(16, 16))
    return {"video": data, "question": f"what moves {i}?", "answer": f"[{name} {i}]"}


ROWS: dict[str, tuple[Callable[..., dict[str, Any]], int]] = {
    "conversation": (chat_row, 17),
    "code": (code_row, 7),
    "vision": (vision_row, 9),
    "voice_asr": (speech_row, 5),
    "video": (film_row, 4),
}
TEXTS = ("conversation", "code")


class World:
    """A folder with a tokenizer and a source of each kind: texts as JSON lines, media in parquet."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def tokenizer(self) -> Path:
        texts = [*TOKENS.values(), "what q0? it is write [chat 12] [vision 3]"] * 4
        return write_tokenizer(self.folder / "tokenizer", vocab=320, texts=texts)

    @cached_property
    def opened(self) -> Tokenizer:
        """It takes longer to open than to use."""
        return open_tokenizer(Tokenize(tokenizer=str(self.tokenizer), bos=False, eos=False))

    @cached_property
    def decoder(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_file(str(self.tokenizer / "tokenizer.json"))

    def configs(self, *categories: str) -> dict[str, list[dict[str, Any]]]:
        return {category: [self.entry(category)] for category in categories or ROWS}

    def entry(self, category: str) -> dict[str, Any]:
        make, count = ROWS[category]
        path = self.folder / f"{category}.{'jsonl' if category in TEXTS else 'parquet'}"
        if not path.exists():
            rows = [make(i, category) for i in range(count)]
            write_lines(path, rows) if category in TEXTS else write_table(path, rows)
        return {"name": category, "path": str(path), "split": "train"}

    def make(self, configs: Mapping[str, Any] | Sequence[str] = (), **options: Any) -> TrueStreamingDataset:
        """A small dataset. `configs`: categories, or configurations as they are."""
        if not isinstance(configs, Mapping):
            configs = self.configs(*configs)
        functions = options.pop("functions", FUNCTIONS)
        first = {"cache_dir": self.folder / "data"} | {k: options.pop(k) for k in CONFIGURED if k in options}
        small: dict[str, Any] = {"max_length": 96, "image_size": 8, "video_size": 8, "audio_sample_rate": RATE}
        arguments = (dict(configs), functions, self.opened, dict(TOKENS), options.pop("image_processor", None))
        return TrueStreamingDataset(*arguments, **{**small, **options}).configure(**first)

    def memory(
        self, rows: Mapping[str, Callable[[int], dict[str, Any]]], sizes: Sequence[Sequence[int]] = ((5, 4), (8,))
    ) -> Memory:
        return Memory(self, rows, sizes)

    def text(self, sample: Mapping[str, Any], field: str = "input_ids") -> str:
        """What its tokens say; of labels, those that are learned."""
        ids = sample[field].tolist()
        if field == "input_ids":
            ids = ids[: int(sample["attention_mask"].sum())]
        return str(self.decoder.decode([i for i in ids if i >= 0], skip_special_tokens=False))

    def name(self, sample: Mapping[str, Any]) -> str:
        """Which row of which source it is: 'chat 3'."""
        return names_in(self.text(sample))[-1]

    def names(self, samples: Iterable[Mapping[str, Any]]) -> list[str]:
        return [self.name(sample) for sample in samples]

    def names_of(self, batches: Iterable[Mapping[str, Any]]) -> list[str]:
        """The same, of batches."""
        return self.names(sample for batch in batches for sample in apart(batch))


class Memory:
    """Sources in memory, by name, which count what is opened and read."""

    def __init__(
        self, world: World, rows: Mapping[str, Callable[[int], dict[str, Any]]], sizes: Sequence[Sequence[int]]
    ) -> None:
        self._world, self._rows, self._sizes = world, rows, sizes
        self.asked: list[str] = []
        """Sources that were opened, in order."""
        self.sources: dict[str, MemorySource] = {}
        self.coordinate: Any = "rows"

    def configs(self, category: str = "code") -> dict[str, list[dict[str, Any]]]:
        return {category: [{"name": name, "path": name, "local": True} for name in self._rows]}

    def make(self, **options: Any) -> TrueStreamingDataset:
        return self._world.make(options.pop("configs", self.configs()), **{"opener": self.open, **options})

    def open(self, source: Source, run: Run, revision: str | None) -> MemorySource:
        name = source.path
        self.asked.append(name)
        if name not in self.sources:
            firsts = [sum(map(sum, self._sizes[:shard])) for shard in range(len(self._sizes))]
            row = self._rows[name]
            self.sources[name] = MemorySource(
                str(source), self._sizes, lambda shard, number: row(firsts[shard] + number), self.coordinate
            )
        return self.sources[name]

    @property
    def read(self) -> int:
        """Chunks that were read of all sources."""
        return sum(source.opened for source in self.sources.values())


def saved(dataset: TrueStreamingDataset, folder: Path) -> str:
    """The path of its state."""
    dataset._save_streaming_state(folder / "state.json")
    return str(folder / "state.json")


def named(name: str) -> Callable[[int], dict[str, Any]]:
    return lambda i: code_row(i, name)


def names_in(text: str) -> list[str]:
    return re.findall(r"\[(\w+ \d+(?:\.\d+)?)\]", text)


def apart(batch: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """The samples of a batch, without their media."""
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        yield {"input_ids": ids, "attention_mask": mask}


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_table(path: Path, rows: Sequence[Mapping[str, Any]], group: int = 2) -> Path:
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path, row_group_size=group)
    return path


def whole(sample: Mapping[str, Any]) -> dict[str, Any]:
    """All of a sample or a batch in a form that can be compared."""
    return {name: value.tolist() if torch.is_tensor(value) else value for name, value in sample.items()}

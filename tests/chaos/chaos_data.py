"""The data of chaos runs, and by each a manifest that says what is in it: written here, without the reader's help.

Every row has a name, `<shard>:<row>`, and something that proves its content: a checksum of its payload, the tokens of
its text, the pixels of its picture, or the frame that its pixels show.
"""

from __future__ import annotations

import io
import json
import random
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KINDS = ("rows", "tokens", "pictures", "robot")
SMALLEST, LARGEST = 64 << 10, 2 << 20
SIDE = 8
"""Of a picture, in pixels."""
EPISODES = 24


@dataclass(frozen=True)
class Data:
    """A data set on disk, and the proof of each of its rows."""

    kind: str
    folder: Path
    manifest: dict[str, Any]

    @property
    def repo(self) -> str:
        return f"chaos/{self.kind}"

    @property
    def sizes(self) -> list[int]:
        """Of its files that go through the cache, largest first."""
        files = [path for path in self.folder.rglob("*") if path.suffix in (".parquet", ".mp4")]
        return sorted((path.stat().st_size for path in files), reverse=True)


def make_data(kind: str, root: Path, *, shards: int = 40, seed: int = 0) -> Data:
    """The data set of a kind, made once for a folder."""
    folder, book = root / kind, root / f"{kind}.manifest.json"
    if not book.exists():
        makers: dict[str, Callable[[Path, int, random.Random], dict[str, Any]]] = {
            "rows": _rows,
            "tokens": _tokens,
            "pictures": _pictures,
            "robot": _robot,
        }
        folder.mkdir(parents=True)
        manifest = makers[kind](folder, shards, random.Random(f"{kind}/{seed}"))
        book.write_text(json.dumps(manifest))
    return Data(kind, folder, json.loads(book.read_text()))


def tokenizer_of(root: Path) -> Path:
    """The folder of the tokenizer that token and picture rows are read with."""
    from headrace.testing.tokenizers import write_tokenizer

    folder = root / "tokenizer"
    if not (folder / "tokenizer.json").exists():
        write_tokenizer(folder, vocab=400)
    return folder


def shard_sizes(shards: int, chance: random.Random) -> list[int]:
    """From 64 KB to 2 MB, small ones more often; one of each extreme."""
    spread = LARGEST / SMALLEST
    return [SMALLEST, LARGEST, *(int(SMALLEST * spread ** chance.random()) for _ in range(shards - 2))]


def _rows(folder: Path, shards: int, chance: random.Random) -> dict[str, Any]:
    """Payloads of noise: a third of a shard's rows in each row group."""
    manifest: dict[str, Any] = {}
    for name, size in _names(shards, chance):
        rows: list[dict[str, Any]] = []
        while size > 0:
            payload = chance.randbytes(chance.randrange(2_000, 14_000))
            uid, crc = f"{name}:{len(rows)}", zlib.crc32(payload)
            rows.append({"uid": uid, "payload": payload, "crc": crc})
            manifest[uid] = crc
            size -= len(payload)
        _write(folder / "data" / name, rows)
    return manifest


def _tokens(folder: Path, shards: int, chance: random.Random) -> dict[str, Any]:
    """Texts, and beside them noise that only makes the shard as large as it is. The manifest has each row's tokens."""
    from tokenizers import Tokenizer

    from headrace.testing.tokenizers import EOS

    tokenizer = Tokenizer.from_file(str(tokenizer_of(folder.parent) / "tokenizer.json"))
    end = tokenizer.token_to_id(EOS)
    manifest: dict[str, Any] = {}
    for name, size in _names(shards, chance):
        rows = []
        for row in range(chance.randrange(20, 50)):
            text = " ".join(f"w{chance.randrange(5000)}" for _ in range(1 + int(chance.expovariate(1 / 25))))
            manifest[f"{name}:{row}"] = [*tokenizer.encode(text, add_special_tokens=False).ids, end]
            rows.append({"text": text, "ballast": b""})
        _write(folder / "data" / name, _weighted(rows, size, chance))
    return manifest


def _pictures(folder: Path, shards: int, chance: random.Random) -> dict[str, Any]:
    """Pictures of noise with a question and an answer that names the row; the proof is the picture's pixels."""
    from PIL import Image

    manifest: dict[str, Any] = {}
    for number, (name, size) in enumerate(_names(shards, chance)):
        rows = []
        for row in range(chance.randrange(8, 24)):
            pixels = chance.randbytes(SIDE * SIDE * 3)
            file = io.BytesIO()
            Image.frombytes("RGB", (SIDE, SIDE), pixels).save(file, "PNG")
            uid = f"{number}.{row}"
            manifest[uid] = zlib.crc32(b"".join(pixels[channel::3] for channel in range(3)))
            image = {"bytes": file.getvalue(), "path": f"{uid}.png"}
            rows.append({"image": image, "question": "what?", "answer": f"[pic {uid}]", "ballast": b""})
        _write(folder / "data" / name, _weighted(rows, size, chance))
    return manifest


def _robot(folder: Path, shards: int, chance: random.Random) -> dict[str, Any]:
    """Episodes with a camera; the proof is the episode and frame that the pixels show."""
    from headrace.testing import Camera, write_robot_dataset

    lengths = [chance.randrange(6, 20) for _ in range(EPISODES)]
    cameras = {"observation.images.top": Camera(height=32, width=64, codec="h264", episodes_per_file=1)}
    write_robot_dataset(folder, episodes=lengths, fps=10, cameras=cameras, episodes_per_data_file=2)
    places = [(episode, frame) for episode, length in enumerate(lengths) for frame in range(length)]
    return {str(index): proof_of_frame(*place) for index, place in enumerate(places)}


def proof_of_frame(episode: int, frame: int) -> int:
    return episode * 100_000 + frame


def _names(shards: int, chance: random.Random) -> list[tuple[str, int]]:
    sizes = shard_sizes(shards, chance)
    return [(f"train-{i:05d}-of-{shards:05d}.parquet", size) for i, size in enumerate(sizes)]


def _weighted(rows: list[dict[str, Any]], size: int, chance: random.Random) -> list[dict[str, Any]]:
    """With as much ballast as makes the shard so large."""
    share = size // len(rows)
    return [{**row, "ballast": chance.randbytes(share)} for row in rows]


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path.parent.mkdir(parents=True, exist_ok=True)
    group = -(-len(rows) // 3)
    # With checksums, so that what changes on the way of a read by range is found, not only in a whole file.
    pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=group, compression="none", write_page_checksum=True)

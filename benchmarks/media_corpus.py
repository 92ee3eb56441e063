"""Images and recordings for the benchmarks, in parquet, as the Hub has them: `{bytes, path}` beside a text."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

DIFFERENT = 48
"""Media that are made; the rows have them in turn."""
SIZES = ((500, 375), (640, 480), (1024, 768), (1600, 1200))
"""Those of ImageNet and COCO, and of photos on the web. Large ones are decoded at a fraction of their size, small ones
are not: each is judged by itself."""
GROUP_ROWS = 100
RATE = 24_000
SECONDS = (3, 8)


def photos(path: Path, rows: int, size: tuple[int, int]) -> Path:
    """JPEG of one size: waves, edges and grain."""
    return _write(path, rows, "image", lambda i: _jpeg(_picture(i, *size)), "jpg")


def icons(path: Path, rows: int) -> Path:
    """PNG of 16 x 16."""
    return _write(path, rows, "image", lambda i: _png(_picture(i, 16, 16)), "png")


def recordings(path: Path, rows: int, seconds: int) -> Path:
    """FLAC at 24 kHz."""
    return _write(path, rows, "audio", lambda i: _flac(i, seconds), "flac")


def encoded(path: Path, column: str) -> list[bytes]:
    """The media of all rows, in memory."""
    return [row["bytes"] for row in pq.read_table(path, columns=[column])[column].to_pylist()]


def _write(path: Path, rows: int, column: str, make: Callable[[int], bytes], kind: str) -> Path:
    if not path.exists():
        made = [make(i) for i in range(min(DIFFERENT, rows))]
        media = [{"bytes": made[i % len(made)], "path": f"{i}.{kind}"} for i in range(rows)]
        texts = [f"row {i}" for i in range(rows)]
        table = {column: media, "question": texts, "answer": texts, "text": texts}
        part = path.with_suffix(".part")
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(pa.table(table), part, row_group_size=GROUP_ROWS, compression="none")
        part.rename(path)
    return path


def _picture(number: int, width: int, height: int) -> Any:
    draws = np.random.default_rng(number)
    y, x = np.mgrid[0:height, 0:width]
    found = np.zeros((height, width, 3))
    for wave in _waves(draws, x, y):
        found += wave
    edges = (x * draws.uniform(-1, 1) + y * draws.uniform(-1, 1)) > draws.uniform(0, 200)
    found[edges] *= 0.6
    found += draws.normal(0, 6, found.shape)
    return np.clip(found + 128, 0, 255).astype(np.uint8)


def _waves(draws: np.random.Generator, x: Any, y: Any) -> Iterator[Any]:
    for scale in (200, 60, 20, 8):
        angle = draws.uniform(0, 6.3, 2)
        wave = np.sin((x * np.cos(angle[0]) + y * np.sin(angle[0])) / scale * 6.3 + angle[1])
        yield wave[:, :, None] * draws.uniform(-40, 40, 3)


def _jpeg(picture: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "JPEG", quality=88)
    return file.getvalue()


def _png(picture: Any) -> bytes:
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    return file.getvalue()


def _flac(number: int, seconds: int) -> bytes:
    import soundfile

    draws, time = np.random.default_rng(number), np.arange(seconds * RATE) / RATE
    voice = sum(np.sin(6.283 * draws.uniform(100, 3000) * time) * np.sin(draws.uniform(2, 9) * time) for _ in range(6))
    wave = 0.1 * np.asarray(voice) + draws.normal(0, 0.01, len(time))
    file = io.BytesIO()
    soundfile.write(file, wave.astype(np.float32), RATE, format="FLAC", subtype="PCM_16")
    return file.getvalue()

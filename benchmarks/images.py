"""How fast images and recordings become tensors: against a bare loop over the same bytes, and against the peers.

One run, one process, one thread, the same files. Contenders take turns, and the best of each one's runs counts. What
counts is the time of a core (of all threads of a contender together): others on the machine make no difference.

    python benchmarks/images.py [--quick] [--check] [--data DIR] [--out DIR] [--no-peers] [--repeats N]
"""

from __future__ import annotations

import argparse
import gc
import io
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import media_corpus
import media_memory
import numpy as np
import peers
import torch
from common import (
    Target,
    at_least,
    at_most,
    console,
    data_folder,
    is_installed,
    options,
    print_table,
    print_targets,
    save,
)
from PIL import Image

import headrace
from headrace.fetch.media.load import load_audio, load_image_tensor
from headrace.fetch.media.policy import MediaPolicy
from headrace.make.describe import Tokenize
from headrace.make.tokenize import Tokenizer, open_tokenizer
from headrace.make.tokens import TOKENS
from headrace.testing.tokenizers import write_tokenizer

SIZE = 256
RATE = 16_000
PILLOW = "Pillow: open, convert, resize, tensor"
DECODE = "headrace: decoding alone"
DATASET = "headrace: TrueStreamingDataset"
BATCHES = "headrace: loader, batches of 16"
HF = "datasets, streaming with decode, resize, tensor"
SOUNDFILE = "soundfile, mean, soxr"
SOUND_DECODE = "headrace: decoding alone, sound"
SOUND_DATASET = "headrace: TrueStreamingDataset, sound"
HF_SOUND = "datasets, streaming with decode, sound"


def main() -> int:
    parser = options("Images and recordings per second against bare loops and the peers; memory.")
    parser.add_argument("--repeats", type=int, default=5, help="runs of each contender; the best counts")
    args = parser.parse_args()
    torch.set_num_threads(1)
    with data_folder(args.data) as folder:
        path = write_tokenizer(folder / "tokenizer", vocab=400)
        # Opened once: it is no part of the work on an image.
        tokenizer = open_tokenizer(Tokenize(tokenizer=str(path), bos=False, eos=False))
        images = measure(image_contenders(folder, tokenizer, args), "images", PILLOW, args)
        sounds = measure(sound_contenders(folder, tokenizer, args), "recordings", SOUNDFILE, args)
        rows = 2_000 if args.quick else 50_000
        icons = media_corpus.icons(folder / "icons.parquet", 1_000)
        memory = media_memory.over_rows(icons, path, folder / "cache", rows)
    shown = ", ".join(f"{x:.0f}" for x in memory)
    console.print(f"resident MB after each tenth of {rows:,} images: {shown}")
    targets = judge([*images, *sounds], memory, rows)
    print_targets(targets)
    found = {
        "images": images,
        "sounds": sounds,
        "memory": {"rows": rows, "mb": memory, "slope_mb_per_10k_rows": slope(memory, rows)},
    }
    return save("images", args, found, targets, _headline([*images, *sounds]))


def measure(
    chosen: tuple[dict[str, Callable[[], int] | None], int], what: str, limit: str, args: argparse.Namespace
) -> list[dict[str, Any]]:
    contenders, count = chosen
    running = {name: run for name, run in contenders.items() if run is not None}
    console.print(f"{count:,} {what}; {len(running)} contenders, {args.repeats} turns")
    seconds = best_core_seconds(running, 2 if args.quick else args.repeats, count)
    lines: list[dict[str, Any]] = []
    for name in contenders:
        rate = count / seconds[name] if name in seconds else None
        ratio = seconds[limit] / seconds[name] if name in seconds else None
        lines.append({"name": name, "per_second": rate, "of_bare": ratio})
    shown = [
        (line["name"], f"{line['per_second']:,.0f}", f"{line['of_bare']:.2f}")
        if line["per_second"]
        else (line["name"], "cannot run here", "")
        for line in lines
    ]
    print_table(f"{what} per second of a core", ("", f"{what}/s", "of the bare loop"), shown)
    return lines


def best_core_seconds(contenders: Mapping[str, Callable[[], int]], repeats: int, expected: int) -> dict[str, float]:
    """The least time of a core of `repeats` runs of each, in turns."""
    best = dict.fromkeys(contenders, float("inf"))
    for turn in range(repeats):
        for name, run in contenders.items():
            gc.collect()
            start = time.process_time()
            found = run()
            best[name] = min(best[name], time.process_time() - start)
            if found != expected:
                raise RuntimeError(f"{name} gave {found}, there are {expected}")
        console.print(f"[dim]turn {turn + 1} of {repeats} done[/dim]")
    return best


# --- images


def image_contenders(
    folder: Path, tokenizer: Tokenizer, args: argparse.Namespace
) -> tuple[dict[str, Callable[[], int] | None], int]:
    count = 96 if args.quick else 960
    path = media_corpus.photos(folder / "photos.parquet", count)
    data, policy = media_corpus.encoded(path, "image"), MediaPolicy()

    def streaming() -> headrace.TrueStreamingDataset:
        return dataset(path, "vision", headrace.format_vision, tokenizer, count, folder / "cache")

    found: dict[str, Callable[[], int] | None] = {
        PILLOW: lambda: peers.count(map(by_pillow, data)),
        DECODE: lambda: peers.count(load_image_tensor(one, policy, SIZE) for one in data),
        DATASET: lambda: peers.count(streaming()),
        BATCHES: lambda: sum(len(batch["images"]) for batch in streaming().loader(batch_size=16)),
        HF: None,
    }
    if args.peers and is_installed("datasets"):
        found[HF] = lambda: peers.count(by_datasets(path, "image", folder / "cache"))
    return found, count


def by_pillow(data: bytes) -> torch.Tensor:
    """What one writes by hand."""
    return tensor_of(Image.open(io.BytesIO(data)))


def tensor_of(image: Image.Image) -> torch.Tensor:
    small = image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(small)).permute(2, 0, 1).float().div(255).sub(0.5).div(0.5)


def by_datasets(path: Path, column: str, cache: Path) -> Iterator[Any]:
    from datasets import Audio, config, load_dataset
    from datasets import Image as HfImage

    config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0  # no part of reading; without it the peer looks better
    rows = load_dataset("parquet", data_files=[str(path)], split="train", streaming=True, cache_dir=str(cache / "hf"))
    feature: Any = HfImage() if column == "image" else Audio(sampling_rate=RATE)
    for row in rows.cast_column(column, feature):
        if column == "image":
            yield tensor_of(row["image"])
        else:
            yield torch.as_tensor(row["audio"]["array"])


def dataset(
    path: Path, category: str, function: Callable[..., Any], tokenizer: Tokenizer, count: int, cache: Path
) -> headrace.TrueStreamingDataset:
    configs = {category: [{"name": path.stem, "path": str(path)}]}
    limits: dict[str, Any] = {"max_per_epoch": count, "max_per_dataset": count, "sample_repeat": 1}
    made = headrace.TrueStreamingDataset(
        configs, {category: function}, tokenizer, dict(TOKENS), None, max_length=128, image_size=SIZE, **limits
    )
    return made.configure(cache_dir=cache)


# --- recordings


def sound_contenders(
    folder: Path, tokenizer: Tokenizer, args: argparse.Namespace
) -> tuple[dict[str, Callable[[], int] | None], int]:
    count = 96 if args.quick else 960
    path = media_corpus.recordings(folder / "recordings.parquet", count)
    data, policy = media_corpus.encoded(path, "audio"), MediaPolicy()

    def streaming() -> headrace.TrueStreamingDataset:
        return dataset(path, "voice_asr", headrace.format_voice_asr, tokenizer, count, folder / "cache")

    found: dict[str, Callable[[], int] | None] = {
        SOUNDFILE: lambda: peers.count(map(by_soundfile, data)),
        SOUND_DECODE: lambda: peers.count(load_audio(one, policy, RATE) for one in data),
        SOUND_DATASET: lambda: peers.count(streaming()),
        HF_SOUND: None,
    }
    if args.peers and is_installed("datasets", "torchcodec"):
        found[HF_SOUND] = lambda: peers.count(by_datasets(path, "audio", folder / "cache"))
    return found, count


def by_soundfile(data: bytes) -> torch.Tensor:
    import soundfile
    import soxr

    wave, rate = soundfile.read(io.BytesIO(data), dtype="float32", always_2d=True)
    return torch.from_numpy(soxr.resample(wave.mean(axis=1), rate, RATE))


# --- judgement


def slope(memory: list[float], rows: int) -> float:
    """MB per 10,000 rows, over the later half."""
    late = memory[len(memory) // 2 :]
    return float(np.polyfit(range(len(late)), late, 1)[0]) * 10_000 / (rows / len(memory))


def judge(lines: list[dict[str, Any]], memory: list[float], rows: int) -> list[Target]:
    ratio = {line["name"]: line["of_bare"] for line in lines}
    targets = [at_least(f"{name}: of the bare loop", ratio[name], 0.9) for name in (DECODE, DATASET, BATCHES)]
    targets += [at_least(f"{name}: of the bare loop", ratio[name], 0.9) for name in (SOUND_DECODE, SOUND_DATASET)]
    for ours, theirs in ((DATASET, HF), (SOUND_DATASET, HF_SOUND)):
        if ratio[theirs]:
            targets.append(at_least(f"{ours}: times {theirs}", ratio[ours] / ratio[theirs], 1.5))
    return [*targets, at_most("memory: slope per 10,000 images", slope(memory, rows), 1, " MB")]


def _headline(lines: list[dict[str, Any]]) -> str:
    found = {line["name"]: line for line in lines}
    parts = []
    for word, name in (("images", DATASET), ("recordings", SOUND_DATASET)):
        parts.append(f"{word} {found[name]['per_second']:,.0f}/s ({found[name]['of_bare']:.2f} of a bare loop)")
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())

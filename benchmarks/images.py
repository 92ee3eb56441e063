"""How fast images and recordings become tensors: against a bare loop over the same bytes, and against the peers.

One run, one process, the same files. Contenders take turns, and the best of each one's runs counts. Against the bare
loop the time of a core is judged (of all threads of a contender together). Against the peer the time on the wall is,
and of ours the loader as it comes, which decodes the samples of a batch side by side; the peer has one thread for
that. Each size of image and each length of recording is measured and judged by itself.

    python benchmarks/images.py [--quick] [--check] [--data DIR] [--out DIR] [--no-peers] [--repeats N]
"""

from __future__ import annotations

import argparse
import io
import sys
from collections.abc import Callable, Iterator
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
    best_seconds_of_both,
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
COUNTS = {500: 960, 640: 960, 1024: 480, 1600: 320, 3: 1440, 8: 720}
"""Images of a width, recordings of so many seconds: about as much work each, and a second or more of it, next to which
a start is little."""
PILLOW = "Pillow: open, convert, resize, tensor"
DECODE = "headrace: decoding alone"
DATASET = "headrace: TrueStreamingDataset"
BATCHES = "headrace: loader, batches of 16, one thread"
WIDE = "headrace: loader, batches of 16, as it comes"
HF = "datasets, streaming with decode, resize, tensor"
SOUNDFILE = "soundfile, mean, soxr"
SOUND_DECODE = "headrace: decoding alone, sound"
SOUND_DATASET = "headrace: TrueStreamingDataset, sound"
SOUND_WIDE = "headrace: loader, batches of 16, as it comes, sound"
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
        images = [
            line
            for size in media_corpus.SIZES
            for line in measure(image_contenders(folder, tokenizer, size, args), f"images {size[0]}x{size[1]}", args)
        ]
        sounds = [
            line
            for seconds in media_corpus.SECONDS
            for line in measure(sound_contenders(folder, tokenizer, seconds, args), f"recordings {seconds} s", args)
        ]
        rows = 1_000 if args.quick else 50_000
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
    chosen: tuple[dict[str, Callable[[], int] | None], int], what: str, args: argparse.Namespace
) -> list[dict[str, Any]]:
    """The first contender is the bare loop."""
    contenders, count = chosen
    running = {name: run for name, run in contenders.items() if run is not None}
    best = best_seconds_of_both(running, 2 if args.quick else args.repeats, count)
    bare = best[next(iter(contenders))]
    lines: list[dict[str, Any]] = []
    for name in contenders:
        line: dict[str, Any] = {"of": what, "name": name, "per_second": None, "of_bare": None, "of_bare_wall": None}
        if name in best:
            core, wall = best[name]
            line |= {"per_second": count / core, "of_bare": bare[0] / core, "of_bare_wall": bare[1] / wall}
        lines.append(line)
    shown = [
        (line["name"], f"{line['per_second']:,.0f}", f"{line['of_bare']:.2f}", f"{line['of_bare_wall']:.2f}")
        if line["per_second"]
        else (line["name"], "cannot run here", "", "")
        for line in lines
    ]
    print_table(f"{count:,} {what}", ("", "per second of a core", "of the bare loop", "on the wall"), shown)
    return lines


# --- images


def image_contenders(
    folder: Path, tokenizer: Tokenizer, size: tuple[int, int], args: argparse.Namespace
) -> tuple[dict[str, Callable[[], int] | None], int]:
    count = 4 if args.quick else COUNTS[size[0]]
    path = media_corpus.photos(folder / f"photos-{size[0]}.parquet", count, size)
    data, policy = media_corpus.encoded(path, "image"), MediaPolicy()

    def streaming(threads: int | None = None) -> headrace.TrueStreamingDataset:
        made = dataset(path, "vision", headrace.format_vision, tokenizer, count)
        return made.configure(cache_dir=folder / "cache", decode_threads=threads)

    found: dict[str, Callable[[], int] | None] = {
        PILLOW: lambda: peers.count(map(by_pillow, data)),
        DECODE: lambda: peers.count(load_image_tensor(one, policy, SIZE) for one in data),
        DATASET: lambda: peers.count(streaming()),
        BATCHES: lambda: sum(len(batch["images"]) for batch in streaming(1).loader(batch_size=16)),
        WIDE: lambda: sum(len(batch["images"]) for batch in streaming().loader(batch_size=16)),
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
    path: Path, category: str, function: Callable[..., Any], tokenizer: Tokenizer, count: int
) -> headrace.TrueStreamingDataset:
    configs = {category: [{"name": path.stem, "path": str(path)}]}
    limits: dict[str, Any] = {"max_per_epoch": count, "max_per_dataset": count, "sample_repeat": 1}
    return headrace.TrueStreamingDataset(
        configs, {category: function}, tokenizer, dict(TOKENS), None, max_length=128, image_size=SIZE, **limits
    )


# --- recordings


def sound_contenders(
    folder: Path, tokenizer: Tokenizer, seconds: int, args: argparse.Namespace
) -> tuple[dict[str, Callable[[], int] | None], int]:
    count = 4 if args.quick else COUNTS[seconds]
    path = media_corpus.recordings(folder / f"recordings-{seconds}.parquet", count, seconds)
    data, policy = media_corpus.encoded(path, "audio"), MediaPolicy()

    def streaming() -> headrace.TrueStreamingDataset:
        made = dataset(path, "voice_asr", headrace.format_voice_asr, tokenizer, count)
        return made.configure(cache_dir=folder / "cache")

    found: dict[str, Callable[[], int] | None] = {
        SOUNDFILE: lambda: peers.count(map(by_soundfile, data)),
        SOUND_DECODE: lambda: peers.count(load_audio(one, policy, RATE) for one in data),
        SOUND_DATASET: lambda: peers.count(streaming()),
        SOUND_WIDE: lambda: sum(len(batch["audio"]) for batch in streaming().loader(batch_size=16)),
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
    targets = []
    for what in dict.fromkeys(line["of"] for line in lines):
        ratio = {line["name"]: line["of_bare"] for line in lines if line["of"] == what}
        wall = {line["name"]: line["of_bare_wall"] for line in lines if line["of"] == what}
        ours = [name for name in ratio if name.startswith("headrace") and name not in (WIDE, SOUND_WIDE)]
        targets += [at_least(f"{what}, {name.removeprefix('headrace: ')}: of bare", ratio[name], 0.9) for name in ours]
        theirs = next((wall[name] for name in (HF, HF_SOUND) if wall.get(name)), None)
        if theirs:
            wide = wall.get(WIDE) or wall[SOUND_WIDE]
            targets.append(at_least(f"{what}, loader: times datasets, on the wall", wide / theirs, 1.5))
    return [*targets, at_most("memory: slope per 10,000 images", slope(memory, rows), 1, " MB")]


def _headline(lines: list[dict[str, Any]]) -> str:
    found = [line for line in lines if line["name"] in (DATASET, SOUND_DATASET)]
    parts = [f"{line['of']} {line['per_second']:,.0f}/s ({line['of_bare']:.2f} of a bare loop)" for line in found]
    return "; ".join(parts)


if __name__ == "__main__":
    sys.exit(main())

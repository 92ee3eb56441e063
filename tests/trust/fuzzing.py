"""Good inputs, spoiled: what comes out is a right value or an error of the family, never anything else.

    python tests/trust/fuzzing.py TARGET EXAMPLES SEED FOLDER

runs one target in a process of its own, which a bug in native code may bring down; the input it died of is then
FOLDER/last.
"""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1]))

import hypothesis
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from hypothesis import HealthCheck, Phase, settings
from media_files import clip, encoded, photo, sound, tone
from movies import Held, movie
from near import Ranks, loader_of, packed, recipe_of, several
from spoiled import fit_to_show, spoiled

from headrace import merge_states, rows
from headrace.catalog.layouts import card_folder, card_patterns, read_card
from headrace.catalog.lines import index_lines
from headrace.catalog.plain import PlainFile
from headrace.catalog.source import Source, parse_specs
from headrace.errors import DataError, HeadraceError, SpecError
from headrace.fetch.lines import LineReader
from headrace.fetch.media.audio import decode_audio
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.frames import FrameReader, rgb
from headrace.fetch.media.images import decode_image
from headrace.fetch.media.video import decode_video
from headrace.files import Files
from headrace.recipe import Mix, Recipe

BUDGET = Budget(max_bytes=1 << 20, max_pixels=1 << 16, max_seconds=60, max_frames=500, timeout=5)


class Target(NamedTuple):
    good: Callable[[], list[bytes]]
    """What is spoiled."""
    check: Callable[[bytes, Path], str]
    """Takes an input; gives "value" or "error", or fails."""
    examples: int
    """In a run of all tests."""
    is_native: bool = False
    """Decoded by libraries that are not Python: tried in a process of their own."""
    from_end: int = 0
    """Spoil only so many bytes at the end, such as a footer."""


# --- text that people write


def good_specs() -> list[bytes]:
    texts = [
        "hf:org/name",
        "hf:org/name:train:text",
        "hf:org/name:en:train:text",
        "known:Wikipedia",
        "parquet:/a/b/*.parquet:text",
        "parquet:s3://bucket/x/*.parquet:ids",
        "txt:data/**/x.txt",
        "jsonl:file:///a/b.jsonl:text",
        "hf:a/b,jsonl:c.jsonl",
    ]
    return [text.encode() for text in texts]


def check_spec(data: bytes, folder: Path) -> str:
    text = data.decode("utf-8", "surrogateescape")
    try:
        found = parse_specs(text)
    except HeadraceError as error:
        return fit_to_show(error)
    for source in found:
        assert isinstance(source, Source)
        assert Source.parse(str(source)) == source
    return "value"


def good_recipes() -> list[bytes]:
    recipe = Recipe.of(["txt:a.txt", "jsonl:b/*.jsonl:text"], batch_size=4, mix=Mix(stop="loop"))
    other = Recipe.of("parquet:x.parquet:ids", batch_size=2, pack=packed(64), epochs=2)
    return [recipe.to_yaml().encode(), other.to_yaml().encode()]


def check_recipe(data: bytes, folder: Path) -> str:
    path = folder / "recipe.yaml"
    path.write_bytes(data)
    try:
        found = Recipe.from_yaml(path)
    except SpecError as error:
        return fit_to_show(error)
    assert Recipe.from_yaml(found.to_yaml()) == found
    assert found.describe()
    return "value"


def good_cards() -> list[bytes]:
    card = "---\nlicense: mit\nconfigs:\n- config_name: en\n  data_files:\n  - {split: train, path: 'x/tr*.parquet'}\n"
    return [
        f"{card}  default: true\n---\n# Words\n".encode(),
        b"---\nconfigs: [{config_name: a, data_dir: b}]\n---\n",
    ]


def check_card(data: bytes, folder: Path) -> str:
    try:
        configs = read_card(data.decode("utf-8", "replace"))
        for config in (None, "en"):
            found = card_patterns(configs, config, "train")
            assert found is None or all(isinstance(pattern, str) for pattern in found)
            card_folder(configs, config)
    except HeadraceError as error:
        return fit_to_show(error)
    return "value"


# --- states


@cache
def run_of_state() -> tuple[Recipe, Any, list[dict[str, Any]]]:
    data = several([[[9, 4], [8]], [[2, 3]]], ((3, 9, 1), (12, 2)))
    recipe = recipe_of(data, batch_size=2, pack=packed(24, slack=1))
    states = []
    for topology, steps in (((1, 0), 5), ((1, 0), 20)):
        run = Ranks(recipe, data, topology, lanes=2)
        run.steps(steps)
        states.append(run.state())
        run.close()
    return recipe, data, states


def good_states() -> list[bytes]:
    return [json.dumps(state).encode() for state in run_of_state()[2]]


def check_state(data: bytes, folder: Path) -> str:
    recipe, sources, _ = run_of_state()
    try:
        state = json.loads(data)
    except (ValueError, RecursionError):
        return "no JSON"  # which is not ours to read
    loader = loader_of(recipe, sources, lanes=2)
    try:
        loader.load_state_dict(state)
        batches = [batch for _, batch in zip(range(2), loader, strict=False)]
        assert [batch.m for batch in batches] == list(range(state["m"], state["m"] + 2))
    except HeadraceError as error:
        return fit_to_show(error)
    finally:
        loader.close()
    try:
        merge_states([state])
    except HeadraceError as error:
        fit_to_show(error)
    return "value"


# --- files of rows


def good_lines() -> list[bytes]:
    line = '{"text": "gr\u00fc\u00dfe \\u00fc", "n": [1, -2.5e3, {"k": null, "b": true}], "e": ""}'.encode()
    return [line + b"\n" + line + b"\r\n\r\n" + line, b'\xef\xbb\xbf{"a": 1}\n{"b": "\\ud83d\\ude00"}\n', b"\n\n{}\n"]


def expected_lines(data: bytes) -> list[Any] | None:
    """What the rows must be, found in another way; None where one of them is no row."""
    found: list[Any] = []
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if not line.strip():
            continue
        try:
            value = json.loads(line.decode(), object_pairs_hook=_without_doubles, parse_constant=_no_constant)
        except (ValueError, RecursionError):
            return None
        if not isinstance(value, dict):
            return None
        found.append(value)
    return found


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError
    return dict(pairs)


def _no_constant(word: str) -> None:
    raise ValueError(word)


def check_lines(data: bytes, folder: Path) -> str:
    path = folder / "a.jsonl"
    path.write_bytes(data)
    try:
        with PlainFile(path) as source:
            index = index_lines(source, "jsonl", every=2)
        reader = LineReader(path, index, kind="jsonl")
        try:
            found = list(reader.read(0, index.rows))
        finally:
            reader.close()
    except HeadraceError as error:
        refused = fit_to_show(error, "a.jsonl")
    else:
        assert found == expected_lines(data)
        return "value"
    assert expected_lines(data) is None or is_another_format(data), "good lines were refused"
    return refused


def is_another_format(data: bytes) -> bool:
    """Text that begins like a file of another kind is refused for that."""
    return data[:4] in (b"PAR1",) or b"\0" in data[:4096] or data.startswith((b"version https://git-lfs",))


def good_archives() -> list[bytes]:
    lines = b"".join(b'{"n": %d}\n' % n for n in range(300))
    return [gzip.compress(lines, mtime=0), zstandard.compress(lines), gzip.compress(lines[:50], mtime=0) * 2]


def check_archive(data: bytes, folder: Path) -> str:
    path = folder / ("a.jsonl.gz" if data[:2] == b"\x1f\x8b" else "a.jsonl.zst")
    path.write_bytes(data)
    try:
        with rows(f"jsonl:{path}", cache_dir=folder / "data") as stage:
            found = [row.data for row in stage]
    except HeadraceError as error:
        return fit_to_show(error, path.name)
    assert all(isinstance(row, dict) for row in found)
    return "value"


TABLE_ROWS = 40


@cache
def table() -> Any:
    return pa.table(
        {
            "text": [f"row {i} " * 3 for i in range(TABLE_ROWS)],
            "n": list(range(TABLE_ROWS)),
            "words": [["a"] * (i % 3) for i in range(TABLE_ROWS)],
            "image": [{"bytes": b"x%d" % i, "path": None if i % 2 else "q"} for i in range(TABLE_ROWS)],
        }
    )


def good_tables() -> list[bytes]:
    found = []
    for options in ({"compression": "none"}, {"compression": "zstd"}, {"compression": "snappy", "version": "1.0"}):
        sink = io.BytesIO()
        pq.write_table(table(), sink, row_group_size=15, **options)
        found.append(sink.getvalue())
    return found


def check_table(data: bytes, folder: Path) -> str:
    path = folder / "a.parquet"
    path.write_bytes(data)
    try:
        with rows(f"parquet:{path}", cache_dir=folder / "data", shuffle=len(data) % 2 == 0) as stage:
            found = [row.data for row in stage]
    except HeadraceError as error:
        return fit_to_show(error, path.name)
    assert len(found) == TABLE_ROWS, f"{len(found)} rows"
    return "value"


# --- media


def good_images() -> list[bytes]:
    picture = photo(24, 16)
    return [encoded(picture, form) for form in ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF")]


def check_image(data: bytes, folder: Path) -> str:
    try:
        found = decode_image(data, BUDGET)
    except DataError as error:
        return fit_to_show(error)
    assert found.dtype == np.uint8
    assert found.ndim == 3
    assert found.shape[2] == 3
    assert 0 < found.shape[0] * found.shape[1] <= BUDGET.max_pixels
    return "value"


def good_sounds() -> list[bytes]:
    wave = tone(8000, 0.05)
    return [sound(wave, 8000, form) for form in ("WAV", "FLAC", "OGG")]


def check_sound(data: bytes, folder: Path) -> str:
    try:
        found = decode_audio(data, 8000, BUDGET)
    except DataError as error:
        return fit_to_show(error)
    assert found.dtype == np.float32
    assert found.ndim == 1
    assert len(found) <= 8000 * BUDGET.max_seconds
    return "value"


def good_videos() -> list[bytes]:
    return [clip(list(range(4)), size=(32, 32)), clip(list(range(4)), size=(32, 32), form="matroska")]


def check_video(data: bytes, folder: Path) -> str:
    try:
        found = decode_video(data, 2, 8, BUDGET)
    except DataError as error:
        return fit_to_show(error)
    assert found.shape[1:] == (8, 8, 3)
    assert 0 < len(found) <= 2
    return "value"


def good_movies() -> list[bytes]:
    return [movie(g="4", bf="0", movflags="faststart"), movie(g="12", bf="3")]


def check_movie(data: bytes, folder: Path) -> str:
    try:
        reader = FrameReader(Held(data), budget=BUDGET)
        pixels = [rgb(reader.frames([number])[0]) for number in (0, reader.track.num_frames - 1)]
    except DataError as error:
        return fit_to_show(error)
    assert all(one.ndim == 3 and one.shape[2] == 3 for one in pixels)
    return "value"


TARGETS = {
    "spec": Target(good_specs, check_spec, 400),
    "recipe": Target(good_recipes, check_recipe, 150),
    "card": Target(good_cards, check_card, 250),
    "state": Target(good_states, check_state, 150),
    "lines": Target(good_lines, check_lines, 300),
    "archive": Target(good_archives, check_archive, 120, is_native=True),
    "parquet": Target(good_tables, check_table, 200, is_native=True, from_end=1500),
    "image": Target(good_images, check_image, 400, is_native=True),
    "sound": Target(good_sounds, check_sound, 200, is_native=True),
    "video": Target(good_videos, check_video, 120, is_native=True),
    "frames": Target(good_movies, check_movie, 120, is_native=True),
}


def fuzz(name: str, examples: int, seed: int, folder: Path) -> Counter[str]:
    """Try so many inputs; gives how many ended in what."""
    target = TARGETS[name]
    outcomes: Counter[str] = Counter()

    @hypothesis.seed(seed)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
    )
    @hypothesis.given(spoiled(target.good(), target.from_end))
    def attempt(data: bytes) -> None:
        if target.is_native:
            (folder / "last").write_bytes(data)
        outcomes[target.check(data, folder)] += 1

    attempt()
    return outcomes


if __name__ == "__main__":
    import warnings

    warnings.simplefilter("error")
    for call in ("fsync", "fsync_dir"):  # of many small indices
        setattr(Files, call, lambda *_: None)
    made = fuzz(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    sys.stdout.write(json.dumps(made))

"""Sets whose rows only name their media go all the way too, once the files lie beside the rows or a host is allowed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from media_files import clip, encoded, photo, sound, tone
from media_net import Net, gives
from streaming import RATE, World, write_table
from test_pipeline_schemas import ENTRIES, check, check_batch, made, rows_with_media, statuses

from headrace import collate_fn
from headrace.catalog.known import Known
from headrace.fetch.media import addresses
from headrace.fetch.media.policy import MediaPolicy
from headrace.make.formatters import formatter_for
from headrace.make.sample import MEDIA_FIELDS
from headrace.make.tokens import TOKENS

NAMED = [entry for entry in ENTRIES if not statuses(entry) <= {"data"}]
OPEN = MediaPolicy(hosts=("images.test",))
SECONDS = 42
"""As long as the latest clip of a row."""
MEDIA = {
    "image": ("i.png", encoded(photo(), "PNG")),
    "video": ("v.mp4", clip(list(range(SECONDS)), size=(16, 16), times=[1000 * i for i in range(SECONDS)])),
    "audio": ("a.wav", sound(tone(RATE, SECONDS), RATE)),
}
BY_FILE = ("video_path", "video_id", "audio_id")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    found = World(tmp_path_factory.mktemp("world"))
    (found.folder / "media").mkdir()
    for name, data in MEDIA.values():
        (found.folder / "media" / name).write_bytes(data)
    return found


@pytest.fixture
def net(monkeypatch: pytest.MonkeyPatch) -> Iterator[Net]:
    found = Net()
    monkeypatch.setattr(addresses, "resolve", found.resolve)
    monkeypatch.setattr(addresses, "dial", found.dial)
    found.server.answers = {f"/{name}": gives(data) for name, data in MEDIA.values()}
    yield found
    found.server.close()


def kind_of(field: str) -> str:
    return next(kind for kind in MEDIA if kind in field.replace("speaker_ref", "audio"))


def formatted(entry: Known, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    made = [formatter_for(entry)(row, TOKENS) for row in rows]
    return [one for found in made for one in (found if isinstance(found, list) else [found]) if one is not None]


def swapped(value: Any, names: dict[str, str]) -> Any:
    if isinstance(value, dict):
        return {key: swapped(one, names) for key, one in value.items()}
    if isinstance(value, list):
        return [swapped(one, names) for one in value]
    return names.get(value, value) if isinstance(value, str) else value


def rows_with_names(entry: Known) -> list[dict[str, Any]]:
    """The rows of its schema, which name media that are there: a file beside them, or at an address."""
    rows = rows_with_media(entry)
    by_file = any(entry.field_map.get(field) for field in BY_FILE)
    names = {}
    for sample in formatted(entry, rows):
        for field in MEDIA_FIELDS:
            if isinstance(value := sample.get(field), str):
                name = MEDIA[kind_of(field)][0]
                names[value] = f"media/{name}" if by_file else f"http://images.test/{name}"
    pair = [entry.field_map[side] for side in ("video_a", "video_b") if side in entry.field_map]
    names |= {row[column]: "http://images.test/v.mp4" for row in rows for column in pair}
    return [swapped(row, names) for row in rows]


def entry_of(world: World, entry: Known, rows: list[dict[str, Any]]) -> dict[str, Any]:
    path = write_table(world.folder / f"{entry.name}.parquet", rows)
    return {"name": entry.name, "path": str(path), "field_map": dict(entry.field_map), "format": entry.formatter}


@pytest.mark.parametrize("entry", NAMED, ids=lambda entry: entry.name)
def test_rows_that_name_their_media_become_a_batch_with_them(world: World, net: Net, entry: Known) -> None:
    rows = rows_with_names(entry)
    several = formatted(entry, rows)
    configs = {entry.category: [entry_of(world, entry, rows)]}
    samples = list(made(world, configs, len(several), media=OPEN, max_video_frames=4))
    for sample, one in zip(samples, several, strict=True):
        check(world, sample, one)
    batch = collate_fn(samples)
    check_batch(batch, several)
    assert any(name in batch for name in ("images", "videos", "audio", "gen_images", "gen_videos", "target_audio"))
    assert bool(net.server.requests) == ("url" in {s for one in several for s in one["media_status"].values()})


def test_all_sets_of_videos_and_most_that_make_them_are_among_these() -> None:
    assert sum(entry.category == "video" for entry in NAMED) >= 15
    making = [
        one for entry in NAMED if entry.category == "generation" for one in formatted(entry, rows_with_names(entry))
    ]
    assert sum("gen_videos" in one for one in making) >= 12
    assert any("image" in one and "gen_videos" in one for one in making)

"""Rows in the forms that people keep media in, without a map: file, formatter, media, tokens, batch."""

from __future__ import annotations

from typing import Any

import pytest
from media_files import clip, encoded, photo, sound, tone
from streaming import RATE, World, write_table
from test_pipeline_schemas import check, check_batch, made

from headrace import collate_fn
from headrace.errors import NotAllowed
from headrace.make.formatters import FORMATTERS
from headrace.make.tokens import TOKENS

PICTURE = {"bytes": encoded(photo(), "PNG"), "path": "a.png"}
FILM = {"bytes": clip([1, 2, 3], size=(16, 16)), "path": "a.mp4"}
VOICE = {"bytes": sound(tone(RATE, 0.02), RATE), "path": "a.wav"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def said(*turns: Any) -> list[dict[str, Any]]:
    return [{"role": "assistant" if i % 2 else "user", "content": turn} for i, turn in enumerate(turns)]


def part(kind: str, text: str | None = None) -> dict[str, Any]:
    return {"type": kind, "text": text}


def in_parts(kind: str, *words: str) -> list[dict[str, Any]]:
    asked = [one for word in words for one in (part(kind), part("text", word))]
    return said(asked, [part("text", "So it is.")])


LISTED = {"image": ("images", PICTURE), "video": ("videos", FILM), "audio": ("audios", VOICE)}
FORMS: dict[str, tuple[str, dict[str, Any], dict[str, int]]] = {
    f"{kind} in {how}": (name, {"messages": messages, column: [value, value]}, {found: 2})
    for (kind, (column, value)), name, found in zip(
        LISTED.items(), ("conversation", "tool_use", "agentic"), ("images", "videos", "audio"), strict=True
    )
    for how, messages in {
        "parts": in_parts(kind, "this", "that"),
        "marks": said(f"<{kind}>this<{kind}>that", "So it is."),
    }.items()
} | {
    "all kinds": (
        "conversation",
        {
            "conversations": [
                {"from": "human", "value": "<image>, <video>, <audio>?"},
                {"from": "gpt", "value": "So it is."},
            ],
            "images": [PICTURE],
            "videos": [FILM],
            "audios": [VOICE],
        },
        {"images": 1, "videos": 1, "audio": 1},
    ),
    "videos of bytes": ("video", {"videos": [FILM["bytes"]] * 2, "question": "q", "answer": "a"}, {"videos": 2}),
    "a video of frames": ("video", {"video": [PICTURE] * 3, "question": "q", "answer": "a"}, {"videos": 1}),
    "videos of frames": (
        "video",
        {"videos": [[PICTURE["bytes"]] * 2, [PICTURE["bytes"]] * 3], "question": "q", "answer": "a"},
        {"videos": 2},
    ),
    "a video that is made": ("generation", {"prompt": "p", "video": FILM}, {"gen_videos": 1}),
    "a video that is made, in a list": ("generation", {"prompt": "p", "videos": [FILM]}, {"gen_videos": 1}),
    "an image set in motion": (
        "generation",
        {"prompt": "p", "prompt_asset": PICTURE, "video": FILM["bytes"]},
        {"images": 1, "gen_videos": 1},
    ),
    "the better of two videos": (
        "generation",
        {"prompt": "p", "video1": FILM, "video2": FILM, "weighted_results1_A": 0.2, "weighted_results2_A": 0.8},
        {"gen_videos": 1},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_media_of_a_row_become_media_of_a_batch(world: World, form: str) -> None:
    name, row, wanted = FORMS[form]
    path = write_table(world.folder / f"{form}.parquet", [row])
    one = FORMATTERS[f"format_{name}"](row, TOKENS)
    assert isinstance(one, dict)
    configs = {name: [{"name": form, "path": str(path), "format": f"format_{name}"}]}
    samples = list(made(world, configs, 1))
    check(world, samples[0], one)
    batch = collate_fn(samples)
    assert {kind: len(batch[kind]) for kind in ("images", "videos", "audio", "gen_videos") if kind in batch} == wanted
    if form != "a video of frames":
        check_batch(batch, [one])


def test_samples_are_resampled_from_the_rate_of_their_row(world: World) -> None:
    path = write_table(
        world.folder / "rate.parquet", [{"audio": [0.1] * 4 * RATE, "sr": 4 * RATE, "text": "one second"}]
    )
    configs = {"voice_asr": [{"name": "rate", "path": str(path), "format": "format_voice_asr"}]}
    (sample,) = made(world, configs, 1)
    assert sample["audio"].shape == (RATE,)


@pytest.mark.parametrize("column", ["image_url", "img_url", "image_urls"])
def test_an_image_at_an_address_is_refused_like_a_video(world: World, column: str) -> None:
    value: Any = ["http://x.test/a.png"] if column == "image_urls" else "http://x.test/a.png"
    path = write_table(world.folder / f"{column}.parquet", [{column: value, "question": "q", "answer": "a"}])
    configs = {"vision": [{"name": column, "path": str(path), "format": "format_vision"}]}
    with pytest.raises(NotAllowed, match="addresses are not followed"):
        list(made(world, configs, 1))

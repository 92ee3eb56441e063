"""Rows with the real columns of every known data set go through its formatter."""

from __future__ import annotations

import random
from typing import Any

import pytest
from formatting import MEDIA, check
from schemas import SPECIAL, rows_of

from headrace.catalog.known import Known, all_known, known
from headrace.errors import HeadraceError
from headrace.make.fields import columns_of
from headrace.make.formatters import FORMATTERS, columns_for, formatter_for
from headrace.make.tokens import TOKENS

ENTRIES = [entry for entry in all_known() if entry.columns]
NO_TEXT = {"filter", "language", "clean", "makes", "clip", "action_number", "correctness", "rank", "deleted", "state"}
NO_TEXT |= {"id", "parent", "tree", "labels", "role", "score_a", "score_b", "generations", "answer_index", "errors"}
NO_TEXT |= {"video_b", "image_b"}
SEEN = {
    "image": ("image", "gen_images"),
    "images": ("images",),
    "image_url": ("image",),
    "source_image": ("image",),
    "source_image_url": ("image",),
    "target_image": ("gen_images",),
    "image_a": ("gen_images",),
    "video_a": ("gen_videos",),
    **dict.fromkeys(("video", "video_path", "video_url", "video_id"), ("video", "gen_videos")),
    **dict.fromkeys(("audio", "audio_id"), ("audio", "target_audio")),
}
"""Fields of a map that name media, and the keys that they come out under."""


def samples_of(entry: Known, row: dict[str, Any]) -> list[dict[str, Any]]:
    given: dict[str, Any] = row
    if entry.group_by:
        reply = {**row, "message_id": "reply", "parent_id": row["message_id"], "role": "assistant", "text": "It is so."}
        given = {"rows": [row, reply]}
    found = formatter_for(entry)(given, TOKENS)
    return found if isinstance(found, list) else [] if found is None else [found]


def test_sixty_data_sets_and_more_have_a_schema() -> None:
    assert len(ENTRIES) >= 160
    wanted = ["code", "conversation", "tool_use", "agentic", "vision", "video", "generation", "voice_asr", "voice_tts"]
    for category in wanted:
        assert sum(entry.category == category for entry in ENTRIES) >= 6


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_a_row_of_its_schema_becomes_samples(entry: Known) -> None:
    samples = samples_of(entry, rows_of(entry)[0])
    assert bool(samples) == entry.trainable
    for sample in samples:
        check(sample)
        assert any(is_learned and text.strip() for text, is_learned in sample["segments"])


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_what_the_map_names_is_in_the_samples(entry: Known) -> None:
    row = rows_of(entry)[0]
    samples = samples_of(entry, row)
    shown = "\n".join(sample["text"] for sample in samples).lower()
    for field, path in entry.field_map.items():
        if not samples or field in NO_TEXT or field in SEEN or not path:
            continue
        first = path.split("|")[0]
        values = [
            row[column] for column in columns_of({field: first}, row) if column not in SPECIAL.get(entry.name, {})
        ]
        for text in (value for value in values if isinstance(value, str)):
            assert text.lower() in shown, f"{field}: {text}"
        if path.startswith("="):
            assert path[1:].lower() in shown


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_media_of_the_map_are_referred_to(entry: Known) -> None:
    for sample in samples_of(entry, rows_of(entry)[0]):
        for field, keys in SEEN.items():
            if entry.field_map.get(field):
                assert any(sample.get(key) is not None for key in keys), field
        if not any(entry.field_map.get(field) for field in SEEN):
            assert not any(key in sample for key in MEDIA)


@pytest.mark.parametrize("entry", [e for e in ENTRIES if len(rows_of(e)) > 1], ids=lambda entry: entry.name)
def test_nulls_give_samples_without_them_or_none(entry: Known) -> None:
    for sample in samples_of(entry, rows_of(entry)[1]):
        check(sample)
        assert "None" not in sample["text"]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_the_columns_of_the_map_are_all_that_is_needed(entry: Known) -> None:
    for row in rows_of(entry):
        columns = columns_for(entry, row)
        if columns is not None:
            assert samples_of(entry, {name: row[name] for name in columns}) == samples_of(entry, row)


JUNK: list[Any] = [
    None,
    True,
    0,
    -1,
    10**30,
    float("nan"),
    "",
    "x",
    "[1]",
    "['a']",
    '{"a": 1}',
    b"",
    b"\xff",
    [],
    [None],
]
JUNK += [
    [[]],
    ["a", "b"],
    {},
    {"a": None},
    [{"role": "user", "content": None}],
    [{"from": "gpt", "value": [1]}],
    {"text": []},
]
JUNK += [
    [{"user": 1, "assistant": [2]}],
    {"bytes": None, "path": None},
    "<think>",
    "</think>x",
    "A",
    "9",
    {1: 2},
    (1, 2),
]


def spoiled(value: Any, dice: random.Random) -> Any:
    """A value with some of its parts lost, and some in the place of others."""
    if dice.random() < 0.15:
        return dice.choice(JUNK)
    if isinstance(value, dict):
        return {key: spoiled(item, dice) for key, item in value.items() if dice.random() > 0.05}
    return [spoiled(item, dice) for item in value if dice.random() > 0.05] if isinstance(value, list) else value


@pytest.mark.parametrize("seed", range(4))
def test_spoiled_rows_give_samples_or_an_error_of_ours(seed: int) -> None:
    dice = random.Random(seed)
    good = 0
    for entry in ENTRIES * 3:
        row = {name: spoiled(value, dice) for name, value in rows_of(entry)[0].items()}
        use = dice.choice([formatter_for(entry), *FORMATTERS.values()]) if dice.random() < 0.4 else formatter_for(entry)
        try:
            found = use({"rows": [row, row]} if entry.group_by else row, TOKENS)
        except HeadraceError:
            continue
        for sample in found if isinstance(found, list) else [] if found is None else [found]:
            check(sample)
            good += 1
    assert good > 100


@pytest.mark.parametrize("entry", [e for e in all_known() if e.synth], ids=lambda entry: entry.name)
def test_made_up_sets_become_samples_too(entry: Known) -> None:
    synth = pytest.importorskip("headrace.synth")
    for i in range(12):
        (sample,) = samples_of(entry, synth.row(entry.synth, i))
        check(sample)
        assert any(is_learned for _, is_learned in sample["segments"])


def test_a_map_is_read_for_columns_that_are_there() -> None:
    assert columns_for(known("WildChat-1M"), ["conversation", "toxic", "openai_moderation", "redacted"]) == [
        "conversation",
        "toxic",
        "redacted",
    ]
    assert columns_for(known("Golang-Coder"), ["a", "b"]) is None
    assert columns_for(known("MP-DocVQA"), ["question", "answers", "image_1", "image_12", "doc_id"]) == [
        "question",
        "answers",
        "image_1",
        "image_12",
    ]

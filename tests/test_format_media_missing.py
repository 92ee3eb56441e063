"""Rows without the image, video or sound that they are about: an error that names what is missing, unless the field map
says that it is optional."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from formatting import one, run
from streaming import World, vision_row, write_table

from headrace import Faults
from headrace.catalog.known import known
from headrace.errors import DataError, SpecError
from headrace.make.formatters import formatter_for
from headrace.make.tokens import TOKENS
from headrace.sequence.finish import several

NOTHING: dict[str, Any] = {
    "null": None,
    "an empty struct": {},
    "a struct without either": {"bytes": None, "path": None},
    "a struct of nothing": {"bytes": b"", "path": ""},
    "no bytes": b"",
    "no name": "",
    "a blank name": "  ",
    "no items": [],
    "items of nothing": [None, {"bytes": None, "path": None}],
}
QUESTION = {"question": "What is it?", "answer": "A cat."}


def talk(question: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": "A cat."}]}


ROWS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a question about an image": ("vision", "image", QUESTION),
    "pairs about an image": ("vision", "image", {"texts": [{"user": "What?", "assistant": "A cat."}]}),
    "a caption of an image": ("vision", "image", {"caption": "A cat."}),
    "a marked image": ("vision", "images", talk("<image>What?")),
    "an image that is not marked": ("vision", "images", talk("What?")),
    "a question about a video": ("video", "video", QUESTION),
    "a caption of a video": ("video", "video", {"caption": "A cat."}),
    "a marked video": ("video", "video", talk("<video>What?")),
    "a transcript": ("voice_asr", "audio", {"text": "A cat."}),
    "a conversation about a sound": ("voice_asr", "audio", talk("<audio>What?")),
    "a text to be read": ("voice_tts", "audio", {"text": "A cat."}),
}


@pytest.mark.parametrize("what", NOTHING)
@pytest.mark.parametrize("name", ROWS)
def test_a_row_without_what_it_is_about_is_a_data_error(name: str, what: str) -> None:
    kind, column, row = ROWS[name]
    medium = column.removesuffix("s")
    with pytest.raises(DataError, match=f"the row has no {medium}.*optional: ={medium}"):
        run(kind, {**row, column: NOTHING[what]})
    with pytest.raises(DataError, match=f"the row has no {medium}.*optional: ={medium}"):
        run(kind, row)
    assert run(kind, {**row, column: b"there"})


@pytest.mark.parametrize("what", NOTHING)
@pytest.mark.parametrize("column", ["image", "images"])
@pytest.mark.parametrize(
    ("formatter", "words"),
    [("document", {"text": "A long page."}), ("anti_hallucination", {"context": "A long page."})],
)
def test_a_question_needs_the_pictures_or_the_words_it_is_about(
    formatter: str, words: dict[str, str], column: str, what: str
) -> None:
    """A column for pictures shows that there should be some; a row without one may be about anything."""
    with pytest.raises(DataError, match="the row has no image.*optional: =image"):
        run(formatter, {**QUESTION, column: NOTHING[what]})
    assert "image" not in one(formatter, {**QUESTION, **words, column: NOTHING[what]})
    assert "image" not in one(formatter, {**QUESTION, column: NOTHING[what]}, {"optional": "=image"})
    assert "image" not in one(formatter, QUESTION)


def test_a_conversation_that_speaks_of_no_picture_needs_none() -> None:
    assert "image" not in one("conversation", {**talk("What?"), "images": []})


@pytest.mark.parametrize("what", NOTHING)
@pytest.mark.parametrize(
    ("formatter", "field", "row"),
    [
        ("conversation", "image", {"prompt": "What?", "response": "A cat."}),
        ("conversation", "audio", {"prompt": "What?", "response": "A cat."}),
        ("anti_hallucination", "image", QUESTION),
        ("document", "images", QUESTION),
        ("generation", "image", {"prompt": "A cat."}),
        ("generation", "image_a", {"prompt": "A cat."}),
        ("generation", "video_path", {"prompt": "A cat."}),
        ("generation", "source_image", {"prompt": "A cat.", "instruction": "Draw a hat."}),
        ("generation", "target_image", {"instruction": "Draw a hat.", "source_image": b"there"}),
    ],
)
def test_a_medium_that_the_map_names_has_to_be_there(
    formatter: str, field: str, row: dict[str, Any], what: str
) -> None:
    fields = {field: "column"}
    assert run(formatter, {**row, "column": b"there"}, fields)
    with pytest.raises(DataError, match="the row has no .*column"):
        run(formatter, {**row, "column": NOTHING[what]}, fields)
    optional = {**fields, "optional": "=image,video,audio"}
    kept = run(formatter, {**row, "column": NOTHING[what]}, optional)
    assert all(sample.get(key) != b"there" or key == "image" for sample in kept for key in sample)


@pytest.mark.parametrize("name", [name for name in ROWS if ROWS[name][0] in ("vision", "video")])
def test_an_optional_medium_may_be_missing(name: str) -> None:
    formatter, column, row = ROWS[name]
    medium = column.removesuffix("s")
    found = run(formatter, {**row, column: None}, {"optional": f"={medium}"})
    assert all(medium not in sample for sample in found)
    assert bool(found) == ("caption" not in row)  # of which nothing is left
    assert run(formatter, {**row, column: b"there"}, {"optional": f"={medium}"})[0][medium] == b"there"


def test_what_may_be_optional_is_a_kind_of_media() -> None:
    with pytest.raises(SpecError, match="optional: 'picture' is not one of image, video, audio"):
        run("vision", QUESTION, {"optional": "=picture"})
    with pytest.raises(DataError, match="no image"):
        run("vision", QUESTION, {"optional": "=audio, video"})
    with pytest.raises(DataError, match="no image"):
        run("vision", {**QUESTION, "optional": "image"})  # a column of that name is not the map's word


@pytest.mark.parametrize(
    ("formatter", "column"),
    [("vision", "images"), ("conversation", "images"), ("video", "videos"), ("voice_asr", "audios")],
)
@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_list_with_a_hole_is_a_data_error(formatter: str, column: str, place: int) -> None:
    kind = column[:-1]
    row = talk(f"<{kind}> <{kind}> <{kind}>?")
    media: list[dict[str, Any]] = [{"bytes": b"1", "path": f"{i}.mp4"} for i in range(3)]
    assert len(one(formatter, {**row, column: media})[column]) == 3
    media[place] = {"bytes": None, "path": None}
    with pytest.raises(DataError, match=f"{kind} {place} of 3 .*holds nothing"):
        run(formatter, {**row, column: media})


def test_a_mark_whose_list_is_empty_is_a_data_error() -> None:
    row = talk("<image>What?")
    blank: list[Any] = [[], {}, b"", {"bytes": None, "path": None}]
    for nothing in blank:
        with pytest.raises(DataError, match="the row has no image"):
            run("conversation", {**row, "image": nothing})
    assert "<image>What?" in one("conversation", row)["text"]


def test_known_sets_whose_images_are_optional_keep_their_rows() -> None:
    row = {
        "image": None,
        "question": "Which?",
        "choices": ["a", "b"],
        "answer": 1,
        "hint": "",
        "lecture": "",
        "solution": "",
    }
    assert "image" not in (format_row("ScienceQA", row) or {"image": 1})
    page = {
        "confirmed_task": "Buy.",
        "target_action_reprs": "click",
        "action_reprs": ["click"],
        "target_action_index": "0",
    }
    assert "image" not in (format_row("Multimodal-Mind2Web", {**page, "screenshot": None}) or {"image": 1})
    with pytest.raises(DataError, match="the row has no image"):
        format_row("ChartQA", {"image": None, "query": "Which?", "label": ["a"]})


def format_row(name: str, row: dict[str, Any]) -> Any:
    return formatter_for(known(name))(row, TOKENS)


def test_a_formatter_of_ones_own_may_not_lose_an_item_of_a_list() -> None:
    assert several("image", "images", [b"1", None]) == [b"1", None]
    assert several("image", "image", None) == []


# --- in a run


@pytest.mark.parametrize("nothing", [None, {"bytes": None, "path": None}, {"bytes": b"", "path": None}], ids=repr)
def test_rows_that_lost_their_images_stop_a_run_or_are_counted(tmp_path: Path, nothing: Any) -> None:
    world = World(tmp_path)
    rows = [{**vision_row(i), **({"image": nothing} if i in (1, 4) else {})} for i in range(8)]
    configs = {"vision": [{"name": "v", "path": str(write_table(world.folder / "v.parquet", rows))}]}
    options: dict[str, Any] = {"max_per_epoch": 6, "sample_repeat": 1}
    with pytest.raises(DataError, match="the row has no image.*holds nothing"):
        list(world.make(configs, **options))
    dataset = world.make(configs, faults=Faults(policy="skip", budget=2), **options)
    samples = list(dataset)
    assert world.names(samples) == [f"vision {i}" for i in (0, 2, 3, 5, 6, 7)]
    assert all(sample["images"].shape[0] == 3 for sample in samples)
    assert dataset._streaming_state["skipped_rows"] == 2
    optional = {"vision": [{**configs["vision"][0], "field_map": {"optional": "=image"}}]}
    assert ["images" in sample for sample in world.make(optional, **options)] == [True, False, True, True, False, True]

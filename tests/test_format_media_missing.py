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


TALK_OF_TAGS = talk("What do <image> and <video> mean?")

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


SPOKEN: dict[str, dict[str, Any]] = {
    "conversation": talk("<image>What?"),
    "agentic": talk("<image>What?"),
    "code": {"instruction": "<image>What?", "output": "print(1)"},
    "chain_of_thought": {"question": "<image>What?", "thinking": "Hm.", "answer": "A cat."},
    "anti_hallucination": {"question": "<image>What?", "answer": "A cat.", "context": "A long page."},
    "tool_use": talk("<image>What?"),
}


@pytest.mark.parametrize("what", NOTHING)
@pytest.mark.parametrize("column", ["image", "images"])
@pytest.mark.parametrize("formatter", SPOKEN)
def test_a_mark_whose_column_holds_nothing_is_a_data_error(formatter: str, column: str, what: str) -> None:
    """Null is how most data sets write that there is no image."""
    row = SPOKEN[formatter]
    with pytest.raises(DataError, match="the row has no image.*optional: =image"):
        run(formatter, {**row, column: NOTHING[what]})
    assert "<image>What?" in one(formatter, {**row, column: NOTHING[what]}, {"optional": "=image"})["text"]
    assert one(formatter, {**row, column: b"there"})["image"] == b"there"


@pytest.mark.parametrize("kind", ["image", "video", "audio"])
def test_a_mark_in_a_row_without_a_column_for_it_is_a_word(kind: str) -> None:
    others = {"image": None, "video": None, "audio": None}
    del others[kind]
    assert f"<{kind}>What?" in one("conversation", {**talk(f"<{kind}>What?"), **others})["text"]


@pytest.mark.parametrize("formatter", ["agentic", "anti_hallucination", "document"])
def test_a_mark_may_stand_for_an_image_that_is_named_by_its_address(formatter: str) -> None:
    row = {**talk("<image>What?"), "image_url": "https://host/a.png"}
    assert one(formatter, row)["image"] == "https://host/a.png"


def test_a_conversation_without_a_mark_may_have_no_picture() -> None:
    """As the rows of mixed data sets that are texts."""
    assert "image" not in one("conversation", {**talk("What?"), "image": None, "video": None})
    said = [*talk("What?")["messages"], {"role": "assistant", "content": "The tag <image>."}]
    assert "image" not in one("conversation", {"messages": said, "image": None})


def test_a_mark_for_images_may_stand_for_a_video() -> None:
    assert one("conversation", {**talk("<image>What?"), "image": None, "video": "a.mp4"})["video"] == "a.mp4"
    with pytest.raises(DataError, match="the row has no image"):
        run("conversation", {**talk("<image><video>What?"), "image": None, "video": "a.mp4"})


def test_a_mark_for_images_is_a_word_where_those_for_videos_stand_for_all_of_them() -> None:
    row = {**talk("<video>What is the <image> tag?"), "video": "a.mp4"}
    sample = one("conversation", row)
    assert sample["video"] == "a.mp4"
    assert "What is the <image> tag?" in sample["text"]
    with pytest.raises(DataError, match="the row has no image"):
        run("conversation", {**row, "image": None})
    both = one("conversation", {**talk("<video>and <image>?"), "videos": ["a.mp4", "b.mp4"]})
    assert both["videos"] == ["a.mp4", "b.mp4"]
    assert "<image>" not in both["text"]


def test_a_mark_for_images_that_is_left_over_beside_a_video_is_an_error() -> None:
    row = {**talk("<image>What is <image>?"), "video": "a.mp4"}
    with pytest.raises(DataError, match="1 <image> in the conversation stands for nothing: the row has 1 video"):
        run("conversation", row)
    assert "What is <image>?" in one("conversation", row, {"optional": "=video"})["text"]


@pytest.mark.parametrize("formatter", ["vision", "conversation", "video", "voice_asr"])
def test_more_marks_than_media_are_a_data_error(formatter: str) -> None:
    kind = {"video": "video", "voice_asr": "audio"}.get(formatter, "image")
    row = {**talk(f"<{kind}>A <{kind}>?"), f"{kind}s": [b"1"]}
    with pytest.raises(DataError, match=f"1 <{kind}> in the conversation stands for nothing: the row has 1 {kind}"):
        run(formatter, row)
    later = {"messages": [*row["messages"], *talk(f"<{kind}>B?")["messages"]], f"{kind}s": [b"1"]}
    with pytest.raises(DataError, match=f"2 <{kind}> in the conversation stand for nothing: the row has 1 {kind}"):
        run(formatter, later)
    assert f"A <{kind}>?" in one(formatter, row, {"optional": f"={kind}"})["text"]


def test_marks_are_words_where_parts_stand_for_all_media() -> None:
    parts = [{"type": "text", "text": "This <image> here:"}, {"type": "image"}, {"type": "text", "text": "an <image>?"}]
    row: dict[str, Any] = {**talk(""), "images": [b"1"]}
    row["messages"][0]["content"] = parts
    sample = one("conversation", row)
    assert sample["image"] == b"1"
    assert sample["text"].index("This <image> here:") < sample["text"].index(TOKENS["image_start"])
    assert sample["text"].count("<image>") == 2
    parts += [{"type": "image"}]
    with pytest.raises(DataError, match="the row has"):
        run("conversation", row)


@pytest.mark.parametrize("role", ["system", "tool"])
def test_marks_of_others_are_words_where_those_of_the_user_stand_for_all_media(role: str) -> None:
    said = [{"role": "user", "content": "<image>What?"}, {"role": "assistant", "content": "A cat."}]
    other = {"role": role, "content": "Images are written as <image>."}
    turns = [other, *said] if role == "system" else [*said, other, *talk("Why?")["messages"]]
    sample = one("conversation", {"messages": turns, "images": [b"1"]})
    assert sample["image"] == b"1"
    assert "Images are written as <image>." in sample["text"]


@pytest.mark.parametrize(
    ("row", "mark"),
    [
        ({"instruction": "Explain the <audio> tag of HTML.", "output": "It plays.", "file": None}, "<audio>"),
        ({**TALK_OF_TAGS, "frames": None, "media_url": None}, "<video>"),
        ({**TALK_OF_TAGS, "clip_id": None, "contentUrl": None}, "<video>"),
    ],
)
def test_a_null_column_that_may_be_about_anything_loses_nothing(row: dict[str, Any], mark: str) -> None:
    assert mark in one("code" if "output" in row else "conversation", row)["text"]


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        *(("image", name) for name in ("jpg", "png", "screenshot", "img_url", "image_path", "image_url")),
        *(("video", name) for name in ("mp4", "video_path", "mp4_url", "youtube_id", "video_id")),
        *(("audio", name) for name in ("wav", "flac", "mp3", "speech", "waveform", "audio_path")),
    ],
)
def test_a_mark_whose_null_column_can_be_of_its_kind_only_is_a_data_error(kind: str, column: str) -> None:
    row = {**talk(f"<{kind}>What?"), column: None}
    with pytest.raises(DataError, match=f"the row has no {kind}.*optional: ={kind}"):
        run("conversation", row)
    assert f"<{kind}>What?" in one("conversation", row, {"optional": f"={kind}"})["text"]


def test_numbered_columns_may_end_in_nothing() -> None:
    """So do data sets write rows with fewer images than others; a hole before an image is none of these."""
    row = {**QUESTION, "image_1": b"1", "image_2": b"2", "image_3": None, "image_4": None}
    assert one("vision", row)["images"] == [b"1", b"2"]
    with pytest.raises(DataError, match="image 0 of 2"):
        run("vision", {**row, "image_1": None})


MAPPED_HOLES: dict[str, tuple[str, dict[str, Any], dict[str, str]]] = {
    "one of several sources": (
        "generation",
        {"instruction": "Draw a hat.", "src": [b"1", None], "dst": b"2"},
        {"instruction": "instruction", "source_image": "src", "target_image": "dst"},
    ),
    "a record that is null": (
        "vision",
        {**QUESTION, "shots": [{"image": b"1"}, None, {"image": b"2"}]},
        {"image": "shots.image"},
    ),
    "a record that is a text": (
        "vision",
        {**QUESTION, "shots": [{"image": b"1"}, "cat.png", {"image": b"2"}]},
        {"image": "shots.image"},
    ),
    "a record without it, of several places": (
        "vision",
        {**QUESTION, "shots": [{"image": b"1"}, None]},
        {"image": "nowhere|shots.image"},
    ),
}


@pytest.mark.parametrize("name", MAPPED_HOLES)
def test_a_hole_where_the_map_leads_is_a_data_error(name: str) -> None:
    formatter, row, fields = MAPPED_HOLES[name]
    with pytest.raises(DataError, match="image 1 of . in the row holds nothing"):
        run(formatter, row, fields)
    assert run(formatter, row, {**fields, "optional": "=image"})


def test_texts_of_records_leave_out_those_that_are_none() -> None:
    row = {"turns": [{"t": "one"}, None, {"t": "two"}], "a": "A cat."}
    assert "one\ntwo" in one("conversation", row, {"prompt": "turns.t", "response": "a"})["text"]


@pytest.mark.parametrize("what", NOTHING)
def test_a_voice_that_the_map_names_has_to_be_there(what: str) -> None:
    fields = {"text": "text", "audio": "audio", "speaker_ref": "voice"}
    row = {"text": "A cat.", "audio": b"there"}
    assert one("voice_tts", {**row, "voice": b"voice"}, fields)["speaker_ref"] == b"voice"
    with pytest.raises(DataError, match="the row has no audio: .*speaker_ref: voice"):
        run("voice_tts", {**row, "voice": NOTHING[what]}, fields)
    assert "speaker_ref" not in one("voice_tts", {**row, "voice": NOTHING[what]}, {**fields, "optional": "=audio"})
    assert "speaker_ref" not in one("voice_tts", {**row, "speaker_ref": NOTHING[what]})  # which no map promises


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

"""Where media stand in a text, and what is to be made of words and pictures."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from formatting import T, bare, learned, one, run

from headrace.errors import DataError
from headrace.sequence.finish import several

IMAGE = T["image_start"] + T["image_end"]
VIDEO = T["video_start"] + T["video_end"]
BOX = {"bytes": b"png", "path": "a.png"}


def asked(*content: Any, images: Any = None, column: str = "images") -> dict[str, Any]:
    turns = [{"role": "user", "content": part} for part in content]
    return {"messages": [*turns, {"role": "assistant", "content": "a"}], column: images}


def test_marks_in_the_text_stand_for_images_in_order() -> None:
    sample = one("vision", asked("<image>\nFirst?", "And <image> this?", images=[b"1", b"2"]))
    assert f"<|user|>{IMAGE}First?<|/user|><|user|>And {IMAGE} this?<|/user|>" in sample["text"]
    assert sample["images"] == [b"1", b"2"]


def test_parts_stand_for_the_images_they_number() -> None:
    parts = [{"type": "image", "index": 1, "text": None}, {"type": "text", "text": "or"}, {"type": "image", "index": 0}]
    sample = one("vision", asked(parts, images=[b"1", b"2"]))
    assert f"<|user|>{IMAGE}or{IMAGE}<|/user|>" in sample["text"]
    assert sample["images"] == [b"2", b"1"]


def test_parts_may_carry_their_images() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": "https://h/i.png"}},
        {"type": "image", "image": BOX},
        {"type": "text", "text": "?"},
    ]
    sample = one("vision", asked(parts))
    assert sample["images"] == ["https://h/i.png", BOX]
    assert sample["media_status"] == {"images": "url"}


def test_images_that_nothing_stands_for_come_before_the_first_question() -> None:
    sample = one("vision", asked("What?", images=[b"1"]))
    assert f"<|user|>{IMAGE}What?<|/user|>" in sample["text"]
    assert sample["image"] == b"1"
    sample = one("vision", asked("<image>What?", images=[b"1", b"2"]))
    assert f"<|user|>{IMAGE}{IMAGE}What?<|/user|>" in sample["text"]


def test_a_mark_in_a_row_without_a_column_for_images_stays_a_word() -> None:
    row = asked("The tag <image> is old.")
    with pytest.raises(DataError, match="the row has no image"):
        run("conversation", row)
    del row["images"]
    assert "The tag <image> is old." in one("conversation", row)["text"]


@pytest.mark.parametrize("name", ["vision", "conversation", "tool_use"])
def test_a_part_that_the_row_has_no_image_for_is_an_error(name: str) -> None:
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    with pytest.raises(DataError, match="stands for image, and the row has none"):
        run(name, asked(parts))
    with pytest.raises(DataError, match="stands for image, and the row has 1, all taken"):
        run(name, asked([*parts, *parts], images=[b"1"]))


def test_the_mark_for_images_stands_for_the_video_of_a_video_row() -> None:
    row = {
        "conversations": [{"from": "human", "value": "<image>\nWhat?"}, {"from": "gpt", "value": "a"}],
        "video": "v.mp4",
    }
    assert one("video", row)["text"] == f"<|user|>{VIDEO}What?<|/user|><|assistant|>a<|/assistant|>"


def test_placeholders_are_segments_of_their_own_and_not_learned() -> None:
    sample = one("vision", {"image": b"i", "question": "q", "answer": "a"})
    assert (IMAGE, False) in sample["segments"]


def test_pages_in_columns_are_images_in_order() -> None:
    row = {f"image_{i}": bytes([i]) if i < 4 else None for i in range(1, 21)} | {"question": "q", "answers": "['a']"}
    sample = one("document", row)
    assert sample["images"] == [b"\1", b"\2", b"\3"]
    assert bare(sample["text"]) == "·······q··a·"


@pytest.mark.parametrize(
    ("row", "video", "status"),
    [
        ({"video": b"mp4"}, b"mp4", "data"),
        ({"video": {"bytes": b"mp4", "path": None}}, {"bytes": b"mp4", "path": None}, "data"),
        ({"frames": [b"1", b"2"]}, [b"1", b"2"], "data"),
        ({"video_path": "x/v.mp4", "video_id": "v"}, "x/v.mp4", "path"),
        ({"contentUrl": "https://h/v.mp4"}, "https://h/v.mp4", "url"),
        ({"videoID": "abc"}, "abc", "id"),
        ({"meta": {"video_id": "abc"}}, "abc", "id"),
        ({"video": 4010069381}, 4010069381, "id"),
    ],
)
def test_a_video_is_whatever_refers_to_it_best(row: dict[str, Any], video: Any, status: str) -> None:
    sample = one("video", {**row, "question": "q", "answer": "a"})
    assert sample["video"] == video
    assert sample["media_status"] == {"video": status}


MP4, PNG = b"\x00\x00\x00\x18ftypmp42", b"\x89PNG\r\n\x1a\n"
FILM, FRAME = {"bytes": MP4, "path": "a.mp4"}, {"bytes": PNG, "path": "a.mp4.png"}


@pytest.mark.parametrize(
    "videos",
    [
        [MP4, MP4],
        [FILM, FILM],
        [{"bytes": MP4, "path": None}, {"bytes": None, "path": "b.webm"}],
        [{"bytes": b"?", "path": "a.mp4"}, {"bytes": b"?", "path": "b.mkv"}],
        ["a.mp4", "b"],
        ["https://h/a?x=1.png", "https://h/b.mp4"],
        [[PNG, PNG], [PNG]],
        [["1.jpg", "2.jpg"], ["3.jpg"]],
        [np.zeros((2, 4, 4, 3), np.uint8), np.zeros((3, 4, 4, 3), np.uint8)],
    ],
)
def test_a_list_of_videos_is_several_videos(videos: list[Any]) -> None:
    sample = one("video", asked("<video>", "and <video>", images=videos, column="videos"))
    assert sample["videos"] == videos
    assert sample["text"].startswith(f"<|user|>{VIDEO}<|/user|><|user|>and {VIDEO}<|/user|>")
    assert several("video", "videos", videos) == several("video", "gen_videos", videos) == videos
    assert one("video", {"videos": videos[:1], "question": "q", "answer": "a"})["video"] is videos[0]


@pytest.mark.parametrize(
    "frames",
    [
        [PNG, PNG],
        [FRAME, FRAME],
        [{"bytes": PNG, "path": "cut_from.mp4"}],
        [{"bytes": None, "path": "1.jpg"}],
        ["1.jpg", "2.jpg"],
        [np.zeros((4, 4, 3), np.uint8)] * 2,
        [[[[0, 0, 0]]], [[[9, 9, 9]]]],
    ],
)
def test_a_list_of_images_is_one_video(frames: list[Any]) -> None:
    sample = one("video", asked("<video>", images=frames, column="videos"))
    assert sample["video"] is frames
    assert several("video", "video", frames) == several("video", "gen_videos", frames) == [frames]
    assert one("generation", {"prompt": "p", "video": frames})["gen_videos"] is frames


def test_a_clip_says_from_where_to_where() -> None:
    row = {"video_path": "v.mp4", "sentence": "cut it", "segment": [1.5, 4.0]}
    assert one("video", row, {"caption": "sentence", "clip": "segment"})["clip"] == [1.5, 4.0]


@pytest.mark.parametrize("column", ["image_url", "img_url", "image_urls"])
def test_an_image_may_be_named_by_its_address(column: str) -> None:
    values: list[Any] = ["https://h/i.png", ["https://h/i.png"], {"url": "https://h/i.png"}]
    for value in values:
        for row in ({"question": "q", "answer": "a"}, {"caption": "a"}, asked("<image>q")):
            sample = one("vision", {**row, column: value})
            assert sample["image"] == "https://h/i.png"
            assert sample["media_status"] == {"image": "url"}
    assert one("conversation", {**asked("<image>q"), column: "https://h/i.png"})["image"] == "https://h/i.png"
    assert one("generation", {"prompt": "p", column: "https://h/i.png"})["gen_images"] == "https://h/i.png"


def test_data_come_before_an_address_and_a_link_is_none() -> None:
    row = {"question": "q", "answer": "a", "image_url": "https://h/i.png"}
    assert one("vision", {**row, "image": b"i"})["image"] == b"i"
    for name in ("document", "code", "conversation"):
        assert "media_status" not in one(name, row)
    linked = {"question": "q", "answer": "a", "url": "https://h/page"}
    assert "media_status" not in one("vision", linked, {"optional": "=image"})
    assert "media_status" not in one("vision", row, {"image": "", "question": "question", "answer": "answer"})


# --- speech


@pytest.mark.parametrize("column", ["sampling_rate", "sample_rate", "sr"])
@pytest.mark.parametrize("rate", [44100, 44100.0])
def test_samples_go_with_the_rate_of_their_row(column: str, rate: float) -> None:
    wave: Any
    for wave in ([0.1, 0.2], [[0.1, 0.2], [0.3, 0.4]], np.zeros(4, np.float32)):
        row = {"audio": wave, "text": "t", column: rate, "speaker_ref": wave}
        wanted = {"array": wave, "sampling_rate": 44100}
        assert one("voice_asr", row)["audio"] == wanted
        sample = one("voice_tts", row)
        assert (sample["target_audio"], sample["speaker_ref"]) == (wanted, wanted)
        assert one("conversation", {**asked("<audio>?"), **row})["audio"] == wanted
        assert one("voice_asr", {**row, "audio": {"array": wave, "sampling_rate": None}})["audio"] == wanted
    waves = {**asked("<audio> or <audio>?"), "audios": [[0.1, 0.2], [0.3]], column: rate}
    assert one("conversation", waves)["audios"] == [
        {"array": [0.1, 0.2], "sampling_rate": 44100},
        {"array": [0.3], "sampling_rate": 44100},
    ]


def test_what_knows_its_own_rate_keeps_it() -> None:
    for audio in (b"RIFF", BOX, "a.wav", {"array": [0.1], "sampling_rate": 8000}):
        assert one("voice_asr", {"audio": audio, "text": "t", "sampling_rate": 44100})["audio"] == audio
    assert one("voice_asr", {"audio": [0.1], "text": "t"})["audio"] == [0.1]


def test_a_recording_may_be_named_by_its_address() -> None:
    row = {"audio_url": "https://h/a.wav", "audio_id": "7", "text": "t"}
    assert one("voice_asr", row)["audio"] == "https://h/a.wav"
    assert one("voice_tts", row)["target_audio"] == "https://h/a.wav"
    assert one("voice_asr", {**row, "audio": b"a"})["audio"] == b"a"
    assert (
        one("conversation", asked("<audio>?", images="https://h/a.wav", column="audio_url"))["audio"]
        == row["audio_url"]
    )


def test_speech_without_words_is_no_sample() -> None:
    for row in ({"audio": b"a"}, {"audio": b"a", "text": " "}):
        assert run("voice_asr", row) == []
        assert run("voice_tts", row) == []


def test_speech_whose_audio_is_optional_is_no_sample_without() -> None:
    for row in ({"text": "t"}, {"audio": {"bytes": None, "path": None}, "text": "t"}):
        assert run("voice_asr", row, {"optional": "=audio"}) == []
        assert run("voice_tts", row, {"optional": "=audio"}) == []


@pytest.mark.parametrize("column", ["text", "transcript", "sentence", "transcription", "normalized_text"])
def test_transcripts_are_found_under_their_names(column: str) -> None:
    row = {"audio": BOX, column: "words", "speaker_id": 7}
    assert learned(one("voice_asr", row)) == "words<|/assistant|>"
    assert "aloud: words<" in one("voice_tts", row)["text"]


def test_normalised_text_is_read_aloud() -> None:
    assert "aloud: two<" in one("voice_tts", {"audio": BOX, "text": "2", "text_normalized": "two"})["text"]


def test_a_style_is_part_of_what_is_asked() -> None:
    row = {"audio": BOX, "text": "words", "text_description": "A low voice."}
    assert one("voice_tts", row)["text"].startswith("<|user|>Read this text aloud (A low voice): words<|/user|>")


def test_sounds_are_described_and_no_speech() -> None:
    sample = one("voice_asr", {"audio": BOX, "human_labels": ["Dog", "Bark"]}, {"caption": "human_labels"})
    assert bare(sample["text"]) == "···Describe this audio.··Dog, Bark·"
    assert "has_asr" not in sample


def test_transcripts_are_cleaned_where_the_map_says_so() -> None:
    fields = {"text": "text", "clean": "=speech_tags,lower"}
    assert (
        learned(one("voice_asr", {"audio": BOX, "text": "YES <COMMA> NO <PERIOD>"}, fields)) == "yes, no.<|/assistant|>"
    )
    assert run("voice_asr", {"audio": BOX, "text": "<MUSIC>"}, fields) == []


# --- generation


@pytest.mark.parametrize(
    ("row", "text", "more"),
    [
        ({"Prompt": "p"}, "Generate an image: p", {"has_image_gen": True, "gen_prompts": "p"}),
        ({"jpg": b"i", "caption": "p"}, "Generate an image: p", {"gen_images": b"i"}),
        (
            {"source_img": b"s", "target_img": b"t", "mask_img": b"m", "instruction": "p"},
            "··Edit this image: p",
            {"image": b"s", "gen_images": b"t", "has_image_gen": True},
        ),
        (
            {"original_image": b"s", "edited_image": b"t", "edit_prompt": "p", "edited_prompt": "x"},
            "··Edit this image: p",
            {"image": b"s", "gen_images": b"t"},
        ),
        (
            {"name": "p", "contentUrl": "https://h/v"},
            "Generate a video: p",
            {"gen_videos": "https://h/v", "has_video_gen": True},
        ),
        (
            {"prompt": "p", "prompt_asset": b"s", "video": b"v"},
            "··Generate a video: p",
            {"image": b"s", "gen_videos": b"v", "has_video_gen": True},
        ),
    ],
)
def test_what_is_to_be_made_is_told_from_the_columns(row: dict[str, Any], text: str, more: dict[str, Any]) -> None:
    sample = one("generation", row)
    assert bare(sample["text"]) == f"·{text}·····"
    assert {key: sample.get(key) for key in more} == more


@pytest.mark.parametrize(("first", "second", "winner"), [(0.2, 0.8, 2), (0.8, 0.2, 1), (0.5, 0.5, 1), (None, None, 1)])
def test_of_two_candidates_the_liked_one_is_made(first: Any, second: Any, winner: int) -> None:
    row: dict[str, Any] = {"prompt": "p", "video1": "https://h/1", "video2": "https://h/2"}
    row |= {
        "weighted_results1_A": first,
        "weighted_results1_B": 0.1,
        "weighted_results2_A": second,
        "weighted_results2_B": 0.1,
    }
    fields = {
        "video_a": "video1",
        "video_b": "video2",
        "score_a": "weighted_results1_*",
        "score_b": "weighted_results2_*",
    }
    assert one("generation", row, fields)["gen_videos"] == f"https://h/{winner}"
    assert one("generation", row)["gen_videos"] == f"https://h/{winner}"


def test_each_clip_of_a_video_is_a_sample() -> None:
    row = {"caption": "['a', 'b']", "timestamp": "[['0', '1'], ['1', '2']]", "url": "https://h/v"}
    samples = run("generation", row, {"prompt": "caption", "video_url": "url", "clip": "timestamp"})
    assert [(sample["gen_prompts"], sample["clip"]) for sample in samples] == [("a", ["0", "1"]), ("b", ["1", "2"])]


def test_a_heading_among_the_rows_is_passed_over() -> None:
    fields = {"source_image_url": "column0", "video_url": "column1", "prompt": ""}
    assert run("generation", {"column0": "thumbnail_loc", "column1": "content_loc"}, fields) == []
    sample = one("generation", {"column0": "https://h/i.jpg", "column1": "https://h/v.mp4"}, fields)
    assert (sample["image"], sample["gen_videos"]) == ("https://h/i.jpg", "https://h/v.mp4")


def test_a_prompt_that_looks_like_a_list_is_kept_as_it_is() -> None:
    for fields in ({}, {"prompt": "prompt"}):
        assert one("generation", {"prompt": "[1, 2]"}, fields)["gen_prompts"] == "[1, 2]"

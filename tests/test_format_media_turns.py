"""Conversations of every kind carry the media that their turns stand for."""

from __future__ import annotations

from typing import Any

import pytest
from formatting import T, learned, one, run

from headrace.make.formatters import chat_messages
from headrace.make.formatters.code import SYSTEM
from headrace.make.messages import Ways, messages_of
from headrace.make.turns import Piece, Turn

CHATS = ["conversation", "tool_use", "code", "chain_of_thought", "code_execution", "git_operations", "agentic"]
CHATS += ["anti_hallucination", "document", "vision", "video"]
SHOWN = {kind: T[f"{kind}_start"] + T[f"{kind}_end"] for kind in ("image", "video", "audio")}
DATA = {
    "image": {"bytes": b"\x89PNG\r\n\x1a\n", "path": "a.png"},
    "video": {"bytes": b"\x00\x00\x00\x18ftypmp42", "path": "a.mp4"},
    "audio": {"bytes": b"RIFF0000WAVE", "path": "a.wav"},
}
NAMES = {"image": "a.png", "video": "a.mp4", "audio": "a.wav"}


def asked(content: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": content}, {"role": "assistant", "content": "a"}], **more}


def parts(*kinds: str) -> list[dict[str, Any]]:
    return [*({"type": kind} for kind in kinds), {"type": "text", "text": "What?"}]


@pytest.mark.parametrize("kind", SHOWN)
@pytest.mark.parametrize("name", CHATS)
def test_a_part_or_a_mark_puts_its_medium_into_the_sample(name: str, kind: str) -> None:
    value = DATA[kind]
    for row in (
        asked(parts(kind), **{f"{kind}s": [value]}),
        asked(parts(kind), **{kind: value}),
        asked(f"<{kind}>\nWhat?", **{f"{kind}s": [value]}),
        asked([{"type": kind, kind: value}, {"type": "text", "text": "What?"}]),
        asked([{kind: value, "text": None}, {"text": "What?", kind: None}]),
    ):
        sample = one(name, row)
        assert sample[kind] == value
        assert sample["media_status"] == {kind: "data"}
        assert f"<|user|>{SHOWN[kind]}What?<|/user|><|assistant|>a<|/assistant|>" in sample["text"]
        assert learned(sample) == "a<|/assistant|>"


@pytest.mark.parametrize("kind", SHOWN)
def test_media_stand_where_their_marks_do_in_order(kind: str) -> None:
    row = asked(f"First <{kind}> then <{kind}>?", **{f"{kind}s": [f"1{NAMES[kind]}", f"2{NAMES[kind]}"]})
    sample = one("conversation", row)
    assert sample[f"{kind}s"] == [f"1{NAMES[kind]}", f"2{NAMES[kind]}"]
    assert f"<|user|>First {SHOWN[kind]} then {SHOWN[kind]}?<|/user|>" in sample["text"]


def test_media_of_several_kinds_stand_in_one_conversation() -> None:
    row = asked("<image>, <video> and <audio>?", images=["a.png"], videos=["a.mp4"], audios=["a.wav"])
    for name in (*CHATS, "voice_asr"):
        sample = one(name, row)
        assert {kind: sample[kind] for kind in SHOWN} == NAMES
        assert f"<|user|>{SHOWN['image']}, {SHOWN['video']} and {SHOWN['audio']}?<|/user|>" in sample["text"]


def test_conversations_about_recordings_are_of_the_voice_too() -> None:
    sample = one("voice_asr", asked("<audio>\nWhat is said?", audio=DATA["audio"]))
    assert sample["text"] == f"<|user|>{SHOWN['audio']}What is said?<|/user|><|assistant|>a<|/assistant|>"
    assert sample["dtype"] == "voice_asr"
    assert "has_asr" not in sample
    assert run("voice_asr", asked("What is said?"), {"optional": "=audio"}) == []


@pytest.mark.parametrize("kind", SHOWN)
def test_what_nothing_stands_for_comes_before_the_first_question(kind: str) -> None:
    for value in (DATA[kind], NAMES[kind]):
        for row in (asked("What?", **{kind: value}), {"instruction": "What?", "output": "a", f"{kind}s": [value]}):
            sample = one("conversation", row)
            assert sample[kind] == value
            assert sample["text"].startswith(f"<|user|>{SHOWN[kind]}What?<|/user|>")


def test_a_column_that_shows_nothing_is_left_alone() -> None:
    rows: list[dict[str, Any]] = [
        {"image": "A cat / a dog."},
        {"video": "dQw4w9WgXcQ"},
        {"file": "src/a.wav"},
        {"screenshot": b"i"},
        {"audio": None},
        {"images": []},
    ]
    for more in rows:
        assert "media_status" not in one("code", asked("What?", **more))
    assert "media_status" not in one("conversation", asked("What?", image=b"i"), {"messages": "messages"})
    assert one("conversation", asked("What?", pic=b"i"), {"messages": "messages", "image": "pic"})["image"] == b"i"


def test_media_that_the_turns_bring_are_not_shown_twice() -> None:
    row = asked([{"type": "image", "image": DATA["image"]}, {"type": "text", "text": "What?"}], images=[DATA["image"]])
    assert one("conversation", row)["text"].count(SHOWN["image"]) == 1


def test_a_map_may_name_several_videos() -> None:
    for name in ("video", "conversation"):
        row = asked("<video> or <video>?", clips=["1.mp4", "2.mp4"])
        assert one(name, row, {"messages": "messages", "videos": "clips"})["videos"] == ["1.mp4", "2.mp4"]


def test_results_of_tools_keep_their_pictures() -> None:
    result = [{"type": "text", "text": "Seen:"}, {"type": "image", "image": DATA["image"]}]
    row = asked([{"type": "tool_result", "tool_use_id": "1", "content": result}])
    for name in ("tool_use", "agentic"):
        assert f"{T['tool_result']}Seen:{SHOWN['image']}{T['tool_result_end']}" in one(name, row)["text"]
    row = asked([{"type": "text", "text": "Observation: seen:"}, {"type": "image", "image": DATA["image"]}])
    assert f"{T['exec_result']}seen:{SHOWN['image']}{T['exec_result_end']}" in one("code_execution", row)["text"]


def test_a_system_turn_keeps_its_pictures() -> None:
    row = asked("What?", images=[DATA["image"]])
    row["messages"].insert(0, {"role": "system", "content": [{"type": "text", "text": "s"}, {"type": "image"}]})
    for name in ("conversation", "tool_use"):
        assert one(name, row)["text"].startswith(f"<|system|>{SHOWN['image']}s<|/system|><|user|>What?")


def test_messages_for_templates_have_their_media() -> None:
    row = asked(parts("image"), images=[DATA["image"]])
    assert chat_messages(row)[0]["content"] == f"{SHOWN['image']}What?"


def test_results_keep_their_pictures_where_a_template_has_no_tools() -> None:
    turns = [Turn("tool", (Piece("text", "Seen:"), Piece("image", "", DATA["image"]), Piece("text", "!")))]
    ((message, _),) = messages_of(turns, T, Ways(results=False, media={"image": "<image>"}))
    start, end = ({"type": "text", "text": text} for text in (f"{T['tool_result']}Seen:", f"!{T['tool_result_end']}"))
    assert message == {"role": "user", "content": [start, {"type": "image"}, end]}


def test_code_about_a_picture_has_its_system_text_first() -> None:
    sample = one("code", {"instruction": "<image>\nWrite it.", "output": "x = 1", "image": DATA["image"]})
    assert sample["text"].startswith(f"<|system|>{SYSTEM}<|/system|><|user|>{SHOWN['image']}Write it.<|/user|>")

"""Formatters on rows as anyone would write them, and on rows that nobody would."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
from formatting import T, bare, check, learned, one, run
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import DataError, HeadraceError, SpecError
from headrace.make.fields import ALIASES
from headrace.make.formatters import FORMATTERS, find_formatter, format_code, with_fields
from headrace.make.tokens import TOKENS, full_tokens

PLAIN: list[tuple[str, dict[str, Any], str]] = [
    (
        "code",
        {"instruction": "Add.", "output": "a + b", "language": "python"},
        "<|system|>You are an expert programmer. Write clean, efficient code.<|/system|><|user|>Add.<|/user|>"
        "<|assistant|>```python\na + b\n```<|/assistant|>",
    ),
    (
        "code",
        {"prompt": "Add.", "code": "a + b"},
        "<|system|>You are an expert programmer. Write clean, efficient code.<|/system|><|user|>Add.<|/user|>"
        "<|assistant|>```python\na + b\n```<|/assistant|>",
    ),
    (
        "conversation",
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}
        | {"conversations": None, "response": "a"},
        "<|system|>s<|/system|><|user|>u<|/user|><|assistant|>a<|/assistant|>",
    ),
    (
        "conversation",
        {"conversations": [{"from": "human", "value": "u"}, {"from": "gpt", "value": "a"}]},
        "<|user|>u<|/user|><|assistant|>a<|/assistant|>",
    ),
    (
        "tool_use",
        {"query": "q", "tools": [{"name": "f"}], "response": '{"name": "f"}'},
        '<|system|>You have access to the following tools:\n[\n  {\n    "name": "f"\n  }\n]<|/system|>'
        '<|user|>q<|/user|><|assistant|><|tool_call|>{"name": "f"}<|/tool_call|><|/assistant|>',
    ),
    (
        "vision",
        {"image": b"i", "question": "q", "answer": "a"},
        "<|user|><|image|><|/image|>q<|/user|><|assistant|>a<|/assistant|>",
    ),
    (
        "video",
        {"video_path": "v.mp4", "prompt": "q", "response": "a"},
        "<|user|><|video|><|/video|>q<|/user|><|assistant|>a<|/assistant|>",
    ),
    (
        "voice_asr",
        {"audio": {"array": [0.0], "sampling_rate": 16000}, "transcript": "t"},
        "<|user|><|audio|><|/audio|>Transcribe this audio.<|/user|><|assistant|>t<|/assistant|>",
    ),
    (
        "voice_tts",
        {"audio": b"a", "text": "t", "reference_audio": b"r"},
        "<|user|>Read this text aloud: t<|/user|><|assistant|><|gen_audio|><|/gen_audio|><|/assistant|>",
    ),
    (
        "generation",
        {"image": b"i", "prompt": "p"},
        "<|user|>Generate an image: p<|/user|><|assistant|><|gen_image|><|/gen_image|><|/assistant|>",
    ),
    (
        "generation",
        {"video": b"v", "text": "p"},
        "<|user|>Generate a video: p<|/user|><|assistant|><|gen_video|><|/gen_video|><|/assistant|>",
    ),
]


@pytest.mark.parametrize(("name", "row", "text"), PLAIN)
def test_plain_rows_read_as_documented(name: str, row: dict[str, Any], text: str) -> None:
    sample = one(name, row)
    assert sample["text"] == text
    assert sample["dtype"] == name


def test_media_targets_and_flags_come_along() -> None:
    samples = [one(name, row) for name, row, _ in PLAIN]
    vision, video, asr, tts, image, made = samples[-6:]
    assert vision["image"] == b"i"
    assert video["video"] == "v.mp4"
    assert asr["has_asr"] is True
    assert asr["audio"] == {"array": [0.0], "sampling_rate": 16000}
    assert (tts["has_tts"], tts["target_audio"], tts["speaker_ref"]) == (True, b"a", b"r")
    assert (image["has_image_gen"], image["gen_images"], image["gen_prompts"]) == (True, b"i", "p")
    assert (made["has_video_gen"], made["gen_videos"], made["gen_prompts"]) == (True, b"v", "p")
    assert not any("has_asr" in sample for sample in samples if sample["dtype"] != "voice_asr")


@pytest.mark.parametrize(("name", "row", "text"), PLAIN)
def test_headers_and_questions_are_not_learned_answers_and_their_ends_are(
    name: str, row: dict[str, Any], text: str
) -> None:
    answer = text.partition(T["assistant_start"])[2]
    assert learned(one(name, row)) == answer


def test_every_formatter_is_registered_under_its_name() -> None:
    assert len(FORMATTERS) == 15
    for name, function in FORMATTERS.items():
        assert function.__name__ == name
        assert find_formatter(name) is find_formatter(name.removeprefix("format_")) is function
    with pytest.raises(SpecError, match="nearest: format_vision"):
        find_formatter("visoin")


def test_formatters_under_a_map_go_to_other_processes() -> None:
    mapped = pickle.loads(pickle.dumps(with_fields(format_code, {"prompt": "Q", "code": "A"})))  # noqa: S301
    assert "```python\nx\n```" in mapped({"Q": "q", "A": "x"}, TOKENS)["text"]


def test_a_map_without_fields_is_the_formatter_itself() -> None:
    assert with_fields(format_code, {}) is format_code


@pytest.mark.parametrize("name", sorted(FORMATTERS))
def test_an_empty_row_gives_no_sample(name: str) -> None:
    assert FORMATTERS[name]({}, TOKENS) is None


@pytest.mark.parametrize("name", sorted(FORMATTERS))
@pytest.mark.parametrize("row", [None, 7, "text", [1], [{"text": "x"}]])
def test_what_is_no_row_is_refused(name: str, row: Any) -> None:
    with pytest.raises(DataError, match="a row is a mapping"):
        FORMATTERS[name](row, TOKENS)


def test_tokens_of_ones_own_are_used_and_the_missing_ones_stand_in() -> None:
    sample = FORMATTERS["format_conversation"](
        {"instruction": "q", "output": "<think>t</think>a"}, {"user_start": "U:"}
    )
    assert isinstance(sample, dict)
    assert sample["text"] == "U:q<|/user|><|assistant|><|think|>t<|/think|>a<|/assistant|>"


def test_tokens_are_checked_once_before_rows_flow() -> None:
    assert full_tokens() == dict(TOKENS)
    assert full_tokens({"user_start": "U", "my_own": "x"})["my_own"] == "x"
    with pytest.raises(SpecError, match="'user_start' is meant"):
        full_tokens({"user_strat": "U"})
    with pytest.raises(SpecError, match="names and values are strings"):
        full_tokens({"user_start": 7})  # type: ignore[dict-item]
    with pytest.raises(SpecError, match="a mapping of names"):
        FORMATTERS["format_text"]({"text": "x"}, ["<s>"])  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="a string is expected"):
        FORMATTERS["format_conversation"]({"prompt": "q", "response": "a"}, {"user_start": 7})  # type: ignore[dict-item]


def test_no_mark_is_used_twice() -> None:
    assert len(set(TOKENS.values())) == len(TOKENS)
    assert all(
        f"{name}_end" in TOKENS or name.endswith(("_end", "_start")) or name in ("bos", "eos", "pad") for name in TOKENS
    )


def test_the_row_says_whether_it_is_for_training() -> None:
    assert one("conversation", {"prompt": "q", "response": "a", "is_training": False})["is_training"] is False
    assert "is_training" not in one("conversation", {"prompt": "q", "response": "a"})
    assert learned(one("conversation", {"messages": [{"role": "user", "content": "q"}], "is_training": False})) == ""


def test_long_texts_are_kept_whole() -> None:
    long = "x = 1\n" * 50_000
    assert long.strip() in one("code", {"instruction": "q", "output": long})["text"]
    assert one("text", {"text": long})["text"] == long


def test_rendered_texts_are_learned_in_the_assistants_spans() -> None:
    text = "<|user|>q<|/user|><|assistant|>a<|/assistant|><|user|>r<|/user|><|assistant|>b"
    assert learned(one("conversation", {"text": text})) == "a<|/assistant|>|b"
    assert one("chain_of_thought", {"text": text})["text"] == text
    assert learned(one("text", {"text": "only words"})) == "only words"


def test_rows_of_a_group_are_taken_one_by_one_where_it_is_no_tree() -> None:
    samples = run("conversation", {"rows": [{"prompt": str(i), "response": "a"} for i in range(3)]})
    assert [bare(sample["text"]) for sample in samples] == [f"·{i}··a·" for i in range(3)]
    assert len(run("text", {"rows": [{"t": "a"}, {"t": "b"}]}, {"text": "t"})) == 2


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
names = sorted(
    {alias for aliases in ALIASES.values() for alias in aliases} | {"rows", "role", "cells", "rank", "labels"}
)
words = st.sampled_from(
    [
        "user",
        "gpt",
        "tool",
        "A",
        "2",
        "[1]",
        '["a"]',
        "{'a': 1}",
        "<think>x",
        "</think>",
        "<tool_call>{</tool_call>",
        "```",
    ]
)
messages = st.lists(
    st.dictionaries(
        st.sampled_from(["role", "from", "content", "value", "tool_calls", "loss", "weight", "thinking", "type"]),
        values | words,
        max_size=4,
    ),
    max_size=4,
)
rows = st.dictionaries(st.sampled_from(names) | st.text(max_size=6), values | words | messages, max_size=7)


@settings(max_examples=250, deadline=None)
@given(st.sampled_from(sorted(FORMATTERS)), rows)
def test_whatever_a_row_holds_gives_samples_or_an_error_of_ours(name: str, row: dict[str, Any]) -> None:
    try:
        found = FORMATTERS[name](row, TOKENS)
    except HeadraceError:
        return
    for sample in found if isinstance(found, list) else [] if found is None else [found]:
        check(sample)


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(sorted(FORMATTERS)),
    rows,
    st.dictionaries(st.sampled_from(sorted(ALIASES)), st.sampled_from(names) | st.text(max_size=8), max_size=4),
)
def test_whatever_a_map_says_gives_samples_or_an_error_of_ours(
    name: str, row: dict[str, Any], fields: dict[str, str]
) -> None:
    try:
        found = with_fields(FORMATTERS[name], fields)(row, TOKENS)
    except HeadraceError:
        return
    for sample in found if isinstance(found, list) else [] if found is None else [found]:
        check(sample)


@pytest.mark.parametrize("said", [False, 0, 0.0, np.False_, np.int64(0), np.float32(0), "false", "False", " no ", "0"])
def test_no_is_no_in_any_words(said: Any) -> None:
    row = {"prompt": "q", "response": "a", "is_training": said}
    assert one("conversation", row)["is_training"] is False
    assert learned(one("conversation", {"messages": [{"role": "user", "content": "q"}], "is_training": said})) == ""


@pytest.mark.parametrize("said", [True, 1, 0.5, np.True_, np.int8(1), "true", "YES", "1"])
def test_yes_is_yes_in_any_words(said: Any) -> None:
    assert one("conversation", {"prompt": "q", "response": "a", "is_training": said})["is_training"] is True


@pytest.mark.parametrize("said", [None, "", "  ", float("nan"), np.float32("nan"), [], {}])
def test_nothing_says_nothing(said: Any) -> None:
    assert "is_training" not in one("conversation", {"prompt": "q", "response": "a", "is_training": said})


@pytest.mark.parametrize("said", ["maybe", "0.0", [False], {"a": 1}, b"no"])
def test_a_flag_that_is_none_is_a_bad_row(said: Any) -> None:
    with pytest.raises(DataError, match="is_training is .*; true or false, a number, or one of true, 1, yes, false"):
        one("conversation", {"prompt": "q", "response": "a", "is_training": said})


def test_a_row_with_nothing_to_say_is_none_whatever_its_flag() -> None:
    for said in (None, 0, True):
        assert not run("agentic", {"Complex_CoT": "user", "is_training": said})

"""Samples whose end is cut off: which of their media go with it, and that finding out takes no longer than the text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from streaming import World, named, picture

from headrace.make.cut import without_cut
from headrace.make.describe import Tokenize
from headrace.make.formatted import Formatted, counts_before
from headrace.make.tokenize import Tokenizer, open_tokenizer
from headrace.make.tokens import TOKENS
from headrace.testing.tokenizers import write_tokenizer

MARK = TOKENS["image_start"] + TOKENS["image_end"]


def before(places: Any, stop: int) -> int:
    """Tokens up to the last that has a character before `stop`, looked for one by one."""
    found = [i for i, (start, _) in enumerate(places) if start < stop]
    return found[-1] + 1 if found else 0


@given(st.lists(st.integers(0, 20), max_size=12), st.lists(st.integers(0, 25), max_size=6))
def test_tokens_before_many_places_are_those_before_each(starts: list[int], stops: list[int]) -> None:
    """Also where the places of tokens step back, which no tokenizer promises not to do."""
    places = np.array([(start, start + 1) for start in starts], np.int64).reshape(-1, 2)
    assert counts_before(places, stops) == [before(places, stop) for stop in stops]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "with eos"])
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    texts = [*TOKENS.values(), "what q0? it is write é 猫 [chat 12] [vision 3]"] * 4
    folder = write_tokenizer(tmp_path_factory.mktemp("tokenizer"), vocab=320, texts=texts)
    return open_tokenizer(Tokenize(tokenizer=str(folder), bos=False, eos="a" if request.param else False))


PARTS = st.lists(st.text("ab é猫\n<>|", max_size=6) | st.just(MARK) | st.just(f"w{MARK}") | st.just(""), max_size=8)


@settings(max_examples=60)
@given(PARTS)
def test_tokens_in_parts_of_a_text_are_those_of_each_part_alone(tokenizer: Tokenizer, texts: list[str]) -> None:
    formatted = Formatted(lambda row, tokens: None, TOKENS, tokenizer)
    segments = [(text, True) for text in texts]
    sizes = [len(ids) for ids in tokenizer.encode(texts)] if texts else []
    whole = "".join(texts)
    stops = list(range(1, len(whole) + 2))
    assert formatted._tokens_in(segments, sizes, stops) == [alone(tokenizer, segments, sizes, stop) for stop in stops]


def alone(tokenizer: Tokenizer, segments: Sequence[tuple[str, bool]], sizes: Sequence[int], stop: int) -> int:
    """Tokens up to one place, found by tokenizing the part that it is in."""
    at = tokens = 0
    for (text, _), size in zip(segments, sizes, strict=True):
        if stop <= at + len(text):
            ((_, places),) = tokenizer.encode_with_places([text])
            return tokens + before(places, stop - at)
        at, tokens = at + len(text), tokens + size
    return tokens


@pytest.mark.parametrize("learn", ["all", "assistant"])
def test_many_marks_cost_no_more_than_the_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, learn: str) -> None:
    """Of 3,000 images in a parquet file of 1.2 kB, the text was tokenized again up to each."""
    count = 300
    world = World(tmp_path)
    asked = {"seen": 0}
    encode = Tokenizer.encode_with_places

    def counting(self: Tokenizer, texts: Sequence[str]) -> Any:
        asked["seen"] += sum(map(len, texts))
        return encode(self, texts)

    monkeypatch.setattr(Tokenizer, "encode_with_places", counting)

    def many(row: Any, tokens: Any) -> Any:
        said = f"{tokens['assistant_start']}{'yes ' * 5}{MARK * count}{tokens['assistant_end']}"
        return {"text": said, "images": [picture(0)] * count, "dtype": "vision"}

    options: dict[str, Any] = {"functions": {"code": many}, "max_per_epoch": 1, "learn": learn}
    source = world.memory({"a": named("a")}, sizes=[[1]])
    (sample,) = source.make(max_length=150, sample_repeat=1, **options)
    marks = world.text(sample).count(MARK)
    assert 1 < marks == len(sample["images"]) < count
    assert 0 < asked["seen"] < 2 * count * len(MARK)


def test_where_marks_and_media_differ_in_number_all_stay() -> None:
    one = {"text": "", "images": [1, 2], "audio": 3}
    assert without_cut(one, {"image": [1, 2, 3]}, lambda stops: [9] * len(stops), 5) == one
    assert without_cut(one, {"image": [1, 2], "audio": [4]}, lambda stops: stops, 1) == {"text": "", "image": 1}
    assert json.dumps(one)  # the sample that was given is as it was

"""Marks of turns and media: unknown names, and marks that the tokenizer splits, are told when a dataset is made."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import tokenizers
from streaming import World, code_row, write_lines

from headrace import TrueStreamingDataset, format_code
from headrace.errors import SpecError
from headrace.make.tokens import TOKENS

COUNT = len(set(TOKENS.values())) - 3
"""Marks that formatters write: not bos, eos and pad."""


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("marks"))


def make(world: World, tokens: Any, function: Any = format_code, tokenizer: Any = None) -> TrueStreamingDataset:
    path = world.folder / "rows.jsonl"
    if not path.exists():
        write_lines(path, [code_row(i, "a") for i in range(3)])
    configs = {"code": [{"name": "a", "path": str(path)}]}
    small: dict[str, Any] = {"max_per_epoch": 3, "sample_repeat": 1, "max_length": 96}
    chosen = world.decoder if tokenizer is None else tokenizer
    made = TrueStreamingDataset(configs, {"code": function}, chosen, tokens, None, **small)
    return made.configure(cache_dir=world.folder / "data")


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def knowing(world: World, *marks: str) -> tokenizers.Tokenizer:
    """The tokenizer with these marks added as special tokens."""
    made = tokenizers.Tokenizer.from_str(world.decoder.to_str())
    made.add_special_tokens([tokenizers.AddedToken(mark, special=True) for mark in marks])
    return made


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("bogus", "tokens has 'bogus', which none of these format functions uses; the names are bos, eos"),
        ("asistant", "tokens has 'asistant', which none of these format functions uses; did you mean 'assistant_"),
        ("user_strat", "tokens has 'user_strat', which no formatter uses; 'user_start' is meant?"),
    ],
)
def test_a_name_that_nobody_uses_is_refused(world: World, name: str, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        make(world, {name: "<x>"})
    assert str(caught.value).startswith(said)


def test_functions_of_ones_own_may_have_names_of_their_own(world: World) -> None:
    def own(sample: dict[str, Any], tokens: dict[str, str]) -> dict[str, Any]:
        return {"text": f"{tokens['mine']}{sample['output']}"}

    (first, *_) = make(world, {**TOKENS, "mine": "<mine>"}, own)
    assert world.text(first).startswith("<mine>")
    with pytest.raises(SpecError, match="'user_start' is meant"):
        make(world, {"user_strat": "<x>"}, own)


def test_marks_that_the_tokenizer_splits_are_told_once(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """And everything works all the same: these are our own defaults."""
    assert len(list(make(world, {}))) == 3
    (said,) = warnings(caplog)
    assert f"does not know {COUNT} of {COUNT} marks and splits them like other text: <|system|> (" in said
    assert "add_special_tokens" in said


def test_marks_that_the_tokenizer_knows_are_not_told_of(world: World, caplog: pytest.LogCaptureFixture) -> None:
    make(world, {}, tokenizer=knowing(world, *TOKENS.values()))
    assert warnings(caplog) == []
    make(world, {}, tokenizer=knowing(world, *(mark for mark in TOKENS.values() if mark != "<|think|>")))
    (said,) = warnings(caplog)
    assert f"does not know 1 of {COUNT} marks and splits them like other text: <|think|> (" in said


def test_marks_around_a_known_token_are_meant_that_way(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """As in ChatML: "<|im_start|>user" is one known token and a word."""
    tokens = {name: f"<|im_start|>{name}\n" for name in TOKENS}
    tokens |= {"system_end": "<|im_end|>\n", "exec": ""}
    make(world, tokens, tokenizer=knowing(world, "<|im_start|>", "<|im_end|>"))
    assert warnings(caplog) == []

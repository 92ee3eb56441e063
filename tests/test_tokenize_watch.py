"""The fast backend is used while it gives what the reference gives, and no longer."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
import tokenizers
from tokenizers import normalizers
from tokenizing import TEXTS, Fake, PanicException, bare, lists, moved, warned

from headrace.errors import SpecError
from headrace.make import backends, probes
from headrace.make.backends import Ids, Offsets, Reference
from headrace.make.describe import Tokenize
from headrace.make.tokenize import open_tokenizer
from headrace.testing.tokenizers import EOS, PAD, write_tokenizer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("tokenizer"), vocab=600)


@pytest.fixture(scope="module")
def core(folder: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))


# --- the fast backend under watch


@pytest.fixture
def plant(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Put a backend in fastokens' place that is wrong for texts with a word."""

    def plant(word: str = "zebra", error: BaseException | None = None) -> None:
        def open_fast(text: str, split_special: bool) -> Fake:
            return Fake(text, lambda t: word in t, error)

        monkeypatch.setattr(backends, "open_fast", open_fast)

    return plant


def test_choosing_the_fast_backend_is_said_once(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    opened = open_tokenizer(folder)
    opened.encode(TEXTS)
    assert [record.levelname for record in caplog.records] == ["INFO"]
    assert re.search("tokenizing with fastokens, which is equal to tokenizers on [0-9]+ probe texts", caplog.text)


@pytest.mark.parametrize("word", ["漢字", "👍🏽", "\u2028", "\r\n", "ب", "def f", EOS, "\x1b", "𠀀", "Ⅷ", "ß", "가"])
def test_a_difference_in_any_script_is_found_before_the_first_text(
    folder: Path, plant: Callable[..., None], caplog: pytest.LogCaptureFixture, word: str
) -> None:
    plant(word)
    opened = open_tokenizer(folder)
    assert opened.backend == "reference"
    assert len(warned(caplog)) == 1
    assert "fastokens is not used, tokenizers is: the text " in caplog.text


def test_a_difference_is_an_error_where_the_fast_backend_is_asked_for(folder: Path, plant: Callable[..., None]) -> None:
    plant("漢字")
    with pytest.raises(SpecError, match="backend='fast': fastokens does not give this tokenizer's ids: the text "):
        open_tokenizer(Tokenize(tokenizer=str(folder), backend="fast"))


FAILURES = [None, ValueError("boom"), PanicException("boom")]


@pytest.mark.parametrize("error", FAILURES, ids=["wrong", "error", "panic"])
def test_a_difference_in_the_first_rows_is_found_and_mended(
    folder: Path,
    core: tokenizers.Tokenizer,
    plant: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    error: BaseException | None,
) -> None:
    plant(error=error)
    opened = open_tokenizer(Tokenize(tokenizer=str(folder), eos=False))
    assert opened.backend == "fast"
    opened.encode(["one", "two"])
    for _ in range(3):
        assert lists(opened.encode(["three", "a zebra"])) == bare(core, ["three", "a zebra"])
        assert opened.backend == "reference"
    (line,) = warned(caplog)
    assert ("text 1 of 2 (7 characters) has" if error is None else "it failed: boom") in line
    assert "no text was given before that had not been compared" in line
    assert moved(opened).backend == "reference"
    assert len(warned(caplog)) == 1


@pytest.mark.parametrize("error", FAILURES, ids=["wrong", "error", "panic"])
def test_a_difference_in_the_middle_of_a_run_is_found_and_mended(
    folder: Path,
    core: tokenizers.Tokenizer,
    plant: Callable[..., None],
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException | None,
) -> None:
    monkeypatch.setattr(backends, "FIRST_TEXTS", 2)
    monkeypatch.setattr(backends, "CHECK_TEXTS", 6)
    monkeypatch.setattr(backends, "CHECK_CHARS", 40)
    plant(error=error)
    opened = open_tokenizer(Tokenize(tokenizer=str(folder), backend="fast", eos=False))
    zebras = ["a zebra", "zebras", "the zebra"]
    calls = 0
    while opened.backend == "fast":
        texts = zebras if calls > 4 else ["one", "two", "three"]
        found = lists(opened.encode(texts))
        calls += 1
        assert calls < 20
    assert calls > 5
    assert found == bare(core, zebras)
    assert lists(opened.encode(zebras)) == bare(core, zebras)
    (line,) = warned(caplog)
    assert "fastokens is not used any longer, tokenizers is:" in line
    assert re.search("[0-9]+ texts given before were not compared.* set backend='reference'", line)


def test_wrong_first_rows_are_an_error_where_the_fast_backend_is_asked_for(
    folder: Path, plant: Callable[..., None]
) -> None:
    plant()
    opened = open_tokenizer(Tokenize(tokenizer=str(folder), backend="fast"))
    with pytest.raises(SpecError, match=r"text 0 of 1 \(7 characters\) has"):
        opened.encode(["a zebra"])


def test_what_cannot_be_opened_by_the_fast_backend_is_left_to_the_reference(
    core: tokenizers.Tokenizer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    other = tokenizers.Tokenizer.from_str(core.to_str())
    other.normalizer = normalizers.NFKC()
    assert open_tokenizer(other).backend == "reference"
    assert "fastokens cannot open this tokenizer" in caplog.text
    assert warned(caplog) == []
    with pytest.raises(SpecError, match="it cannot open it"):
        open_tokenizer(other, Tokenize(tokenizer="x", backend="fast"))


def test_the_watch_takes_a_small_part_of_a_long_run(
    folder: Path, core: tokenizers.Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = [0, 0]

    class Counting(Reference):
        def encode_flat(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
            seen[0] += 1
            seen[1] += sum(map(len, texts))
            return super().encode_flat(texts)

    class Quick:
        def encode_flat(self, texts: Sequence[str]) -> tuple[Ids, Offsets]:
            ids, offsets = Reference(core).encode_flat([text if len(text) <= 256 else "" for text in texts])
            return ids, offsets

    monkeypatch.setattr(backends, "FIRST_TEXTS", 1)
    watched = backends.Watched(Counting(core), Quick(), must=False)
    watched.encode_flat(["first"])
    text = "bakori " * 700
    for _ in range(800):
        watched.encode_flat([text] * 64)
    assert watched.is_fast
    assert 10 <= seen[0] - 1 <= 20
    assert seen[1] < 800 * 64 * len(text) / 10_000


def test_without_fastokens_the_reference_does_it_or_an_error_says_what_to_install(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert open_tokenizer(folder).backend == "reference"
    assert warned(caplog) == []
    with pytest.raises(SpecError, match=re.escape("pip install 'headrace[fast]'")):
        open_tokenizer(Tokenize(tokenizer=str(folder), backend="fast"))


def test_probes_are_the_same_everywhere_and_hold_every_special_token() -> None:
    found = probes.texts([EOS, PAD])
    assert found == probes.texts([EOS, PAD])
    assert {EOS, PAD, ""} <= set(found)
    assert sum(map(len, found)) < 150_000
    assert len({probes.random_text(i) for i in range(100)}) == 100
    assert len(probes.texts([f"<{i}>" for i in range(10_000)])) < len(found) + 1000

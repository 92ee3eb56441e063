"""A tokenizer from outside cannot make gigabytes of a page: it is refused, or the text is."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizing import bare, lists

from headrace.errors import HeadraceError
from headrace.make import growth, probes
from headrace.make.describe import Tokenize
from headrace.make.tokenize import TextError, Tokenizer, open_tokenizer
from headrace.outside_json import PARSED_BYTES
from headrace.testing.tokenizers import write_tokenizer


def replace(pattern: str, content: str, kind: str = "String") -> dict[str, Any]:
    return {"type": "Replace", "pattern": {kind: pattern}, "content": content}


def chain(*rules: dict[str, Any], name: str = "normalizers") -> dict[str, Any]:
    return {"type": "Sequence", name: list(rules)}


def template(pieces: list[dict[str, Any]], ids: list[int]) -> dict[str, Any]:
    token = {"id": "<|begin|>", "ids": ids, "tokens": ["<|begin|>"] * len(ids)}
    return {"type": "TemplateProcessing", "single": pieces, "pair": pieces, "special_tokens": {"<|begin|>": token}}


A, BEGIN = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "<|begin|>", "type_id": 0}}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
MARK = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
SPLIT = {
    "type": "Split",
    "pattern": {"Regex": r"\p{N}{1,3}|\s+|\p{L}+|[^\s\p{L}\p{N}]+"},
    "behavior": "Isolated",
    "invert": False,
}
REGEX = {**BYTES, "use_regex": True}
CHARSMAP = base64.b64encode((4).to_bytes(4, "little") + b"\0" * 4 + b"x" * 1_000_000 + b"\0").decode()

BOMBS: dict[str, dict[str, Any]] = {
    "a character becomes a megabyte": {"normalizer": replace("a", "b" * 1_000_000)},
    "by a pattern": {"normalizer": replace("[a-z]", "b" * 1_000_000, "Regex")},
    "by a pattern of nothing": {"normalizer": replace("", "b" * 100_000, "Regex")},
    "a chain": {"normalizer": chain(*[replace("a", "a" * 10)] * 9)},
    "a chain in chains": {
        "normalizer": chain(chain(*[replace("a", "a" * 10)] * 3), chain(*[replace("a", "a" * 99)] * 3))
    },
    "a chain of bytes": {"normalizer": chain(*[{"type": "ByteLevel"}] * 30)},
    "a chain of bytes in words": {"pre_tokenizer": chain(*[BYTES] * 30, name="pretokenizers")},
    "eleven times bytes in words": {"pre_tokenizer": chain(*[BYTES] * 11, name="pretokenizers")},
    "four times bytes in words": {"pre_tokenizer": chain(*[BYTES] * 4, name="pretokenizers")},
    "bytes with a space before each word": {
        "pre_tokenizer": chain(*[{**BYTES, "add_prefix_space": True}] * 2, name="pretokenizers")
    },
    "marks before each word": {"pre_tokenizer": chain(*[MARK] * 2, name="pretokenizers")},
    "normalizer and words together": {
        "normalizer": chain(*[{"type": "ByteLevel"}] * 11),
        "pre_tokenizer": chain(*[BYTES] * 3, name="pretokenizers"),
    },
    "a long text becomes a longer one": {"normalizer": replace("a" * 2000, "b" * 100_000)},
    "a prefix": {"normalizer": {"type": "Prepend", "prepend": "b" * 100_000}},
    "a map of characters": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}},
    "a decoder": {"decoder": replace("a", "b" * 1_000_000)},
    "copies of a text": {"post_processor": chain(*[template([A, A], [0])] * 30, name="processors")},
    "tokens around a text": {"post_processor": template([BEGIN, A], [0] * 100_000)},
    "many tokens around a text": {"post_processor": template([BEGIN] * 5000 + [A], [0])},
    "the model's own prefix": {"continuing_subword_prefix": "b" * 1000},
    "the model's own suffix": {"end_of_word_suffix": "b" * 1000},
}

REFUSAL = r"times as long, and [\d,]+ times may be; look at its |its post_processor writes a text"

USUAL: dict[str, dict[str, Any]] = {
    "a space": {"normalizer": chain({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))},
    "unicode": {
        "normalizer": chain({"type": "NFKC"}, {"type": "Lowercase"}, {"type": "NFD"}, {"type": "StripAccents"})
    },
    "spaces": {"normalizer": chain({"type": "NFKD"}, replace(" {2,}", "▁", "Regex"), replace("``", '"'))},
    "around": {"post_processor": template([BEGIN, A], [0])},
    "as GPT-2": {"pre_tokenizer": REGEX},
    "as RoBERTa": {"pre_tokenizer": {**REGEX, "add_prefix_space": True}},
    "as Llama 2": {"normalizer": chain({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")), "pre_tokenizer": None},
    "as Llama 3": {"pre_tokenizer": chain(SPLIT, BYTES, name="pretokenizers")},
    "as Qwen": {"normalizer": {"type": "NFC"}, "pre_tokenizer": chain(SPLIT, BYTES, name="pretokenizers")},
    "as Gemma": {"normalizer": replace(" ", "▁"), "pre_tokenizer": {**SPLIT, "pattern": {"String": " "}}},
    "as Falcon": {
        "pre_tokenizer": chain(
            {"type": "Punctuation", "behavior": "Contiguous"},
            REGEX,
            {"type": "Digits", "individual_digits": False},
            name="pretokenizers",
        )
    },
    "as DeepSeek": {"pre_tokenizer": chain(SPLIT, SPLIT, SPLIT, BYTES, name="pretokenizers")},
    "as T5": {
        "normalizer": chain({"type": "NFKC"}, replace(" {2,}", "▁", "Regex")),
        "pre_tokenizer": chain({"type": "WhitespaceSplit"}, MARK, name="pretokenizers"),
    },
    "as ALBERT": {
        "normalizer": chain(
            *(replace("``", '"'), replace("''", '"'), {"type": "NFKD"}, {"type": "StripAccents"}),
            *({"type": "Lowercase"}, {"type": "NFKC"}, replace(" {2,}", " ", "Regex")),
        ),
        "pre_tokenizer": chain({"type": "WhitespaceSplit"}, MARK, name="pretokenizers"),
    },
    "as BERT": {
        "normalizer": {
            "type": "BertNormalizer",
            "clean_text": True,
            "handle_chinese_chars": True,
            "strip_accents": None,
            "lowercase": True,
        },
        "pre_tokenizer": {"type": "BertPreTokenizer"},
    },
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = write_tokenizer(tmp_path_factory.mktemp("tokenizer"), vocab=400)
    found: dict[str, Any] = json.loads((folder / "tokenizer.json").read_text())
    return found


@pytest.fixture
def made(plain: dict[str, Any], tmp_path: Path) -> Callable[[dict[str, Any]], Path]:
    def made(parts: dict[str, Any]) -> Path:
        whole = json.loads(json.dumps(plain))
        for name, part in parts.items():
            if name in whole:
                whole[name] = part
            else:
                whole["model"][name] = part
        path = tmp_path / "tokenizer.json"
        path.write_text(json.dumps(whole))
        return path

    return made


@pytest.fixture
def usual(plain: dict[str, Any], tmp_path: Path) -> Path:
    path = tmp_path / "usual.json"
    path.write_text(json.dumps(plain))
    return path


@pytest.mark.parametrize("name", BOMBS)
def test_a_tokenizer_that_makes_far_more_of_a_text_is_refused_where_it_is_opened(
    made: Callable[[dict[str, Any]], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(BOMBS[name])
    monkeypatch.setattr(Tokenizer, "__init__", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(HeadraceError, match=REFUSAL):
        open_tokenizer(path)


@pytest.mark.parametrize("name", USUAL)
def test_a_usual_tokenizer_is_opened(made: Callable[[dict[str, Any]], Path], name: str) -> None:
    opened = open_tokenizer(made(USUAL[name]))
    assert len(opened.encode(["a  text of wörds"])[0])


@pytest.mark.parametrize("name", USUAL)
def test_long_texts_of_all_scripts_are_no_harm_to_a_usual_tokenizer(
    made: Callable[[dict[str, Any]], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "ROOM", 1000)
    monkeypatch.setattr(growth, "BATCH", 10_000)
    texts = [text * 50 for text in (*probes.SCRIPTS, "한국어 문장 ", "漢字仮名 ", "é", " ", "a b")]
    path = made(USUAL[name])
    opened = open_tokenizer(path, Tokenize(tokenizer=str(path), backend="reference", eos=False))
    core = tokenizers.Tokenizer.from_file(str(path))
    assert lists([ids for ids, _ in opened.encode_with_places(texts)]) == bare(core, texts)
    assert len(opened.encode(texts)) == len(texts)


LIMITED = """
import json, resource, sys
import fastokens, numpy, tokenizers
from headrace.errors import HeadraceError
from headrace.make.tokenize import open_tokenizer

def kilobytes(name):
    return int(open("/proc/self/status").read().split(name + ":")[1].split()[0])

def peak():
    return kilobytes("VmHWM") - before << 10

def told(act):
    try:
        return len(act())
    except HeadraceError as error:
        return str(error)

def limit(plain, room):
    # The library's threads are there before the room is measured.
    open_tokenizer(plain).encode(["a text", "another"] * 100)
    most = (kilobytes("VmSize") << 10) + room
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
"""
TOKENIZED = """
given = json.load(sys.stdin)
limit(given["plain"], given["room"])
before = kilobytes("VmRSS")
opened = open_tokenizer(given["path"])
after = peak()
ways = (opened.encode, opened.encode_with_places)
said = [told(lambda: encode(texts)) for texts in given["batches"] for encode in ways]
print(json.dumps([after, peak(), said]))
"""
REFUSED = """
given = json.load(sys.stdin)
limit(given["plain"], given["room"])
before = kilobytes("VmRSS")
print(json.dumps({name: [told(lambda: [open_tokenizer(path)]), peak()] for name, path in given["paths"].items()}))
"""
BUDGET = 64 * growth.BATCH
"""Bytes of memory for texts that are tokenized together."""


def ran(code: str, **given: Any) -> Any:
    """What a process prints that has so much `room`, and no more, once all modules are there."""
    env = {**os.environ, "RAYON_NUM_THREADS": "2", "OPENBLAS_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "2"}
    command = [sys.executable, "-c", LIMITED + code]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False, env=env)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def memory_of(plain: Path, path: Path, *batches: list[str]) -> tuple[int, int, list[Any]]:
    """Bytes that a process takes to open a tokenizer, those to tokenize texts, and what comes of it: their number, or
    the error. It has twice the budget and no more."""
    opened, taken, said = ran(TOKENIZED, plain=str(plain), path=str(path), room=2 * BUDGET, batches=batches)
    return opened, taken, said


def test_each_refusal_stays_within_twice_the_budget(
    made: Callable[[dict[str, Any]], Path], usual: Path, tmp_path: Path
) -> None:
    """All in one process, whose memory is limited to that: a file has its bytes, and what values of JSON take."""
    paths = {name: made(parts).rename(tmp_path / f"{i}.json") for i, (name, parts) in enumerate(BOMBS.items())}
    budget = max(path.stat().st_size for path in paths.values()) + PARSED_BYTES
    found = ran(REFUSED, plain=str(usual), room=2 * budget, paths={name: str(path) for name, path in paths.items()})
    assert list(found) == list(BOMBS)
    for name, (said, taken) in found.items():
        assert re.search(REFUSAL, str(said)), (name, said)
        assert taken < 2 * budget, (name, taken)


WORST: dict[str, dict[str, Any]] = {
    "each character": {
        "normalizer": replace(".", "é" * 600, "Regex"),
        "pre_tokenizer": chain(*[BYTES] * 3, name="pretokenizers"),
    },
    "one letter": {"normalizer": replace("a", "b" * 4000), "pre_tokenizer": BYTES},
    "words": {"pre_tokenizer": chain(*[BYTES] * 3, name="pretokenizers")},
    "words and marks": {
        "normalizer": {"type": "NFKD"},
        "pre_tokenizer": chain(MARK, name="pretokenizers"),
    },
}
"""Tokenizers that are opened, and make as much of a text as they may."""


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WORST)
def test_the_worst_tokenizer_that_is_opened_stays_within_twice_its_budget(
    made: Callable[[dict[str, Any]], Path], usual: Path, name: str
) -> None:
    """With a long text, and with many short ones that each grow as much as they may."""
    path = made(WORST[name])
    batches = [["é" * 200_000], ["short", "aé" * 300_000], ["aé" * 20] * 100]
    opened, taken, said = memory_of(usual, path, *batches)
    assert opened < 2 * (path.stat().st_size + PARSED_BYTES)
    assert taken < 2 * BUDGET
    assert said[4:] == [100, 100]
    assert len(said) == 6


def test_a_text_that_would_grow_to_gigabytes_is_refused_before_it_does(
    made: Callable[[dict[str, Any]], Path], usual: Path
) -> None:
    _, taken, said = memory_of(usual, made({"normalizer": replace("a", "b" * 4000)}), ["short", "a" * 10_000_000])
    assert taken < 1 << 28  # it is refused before the rules are run on all of it
    assert len(said) == 2
    for line in said:
        assert (
            "text 1 of the list has 10,000,000 characters in 10,000,000 bytes, of which the tokenizer's rules" in line
        )


def test_a_long_text_that_does_not_grow_is_tokenized(
    made: Callable[[dict[str, Any]], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(growth, "ROOM", 10_000)
    opened = open_tokenizer(made({"normalizer": replace("a", "b" * 90)}))
    (ids,) = opened.encode(["b" * 20_000])
    assert len(ids)
    with pytest.raises(TextError, match="text 1 of the list has 20,000 characters"):
        opened.encode(["", "a" * 20_000])

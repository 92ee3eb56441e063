"""A tokenizer from outside cannot make gigabytes of a page: it is refused, or the text is."""

from __future__ import annotations

import base64
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.errors import HeadraceError
from headrace.make import growth
from headrace.make.tokenize import TextError, Tokenizer, open_tokenizer
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
    "normalizer and words together": {
        "normalizer": chain(*[{"type": "ByteLevel"}] * 9),
        "pre_tokenizer": chain(*[BYTES] * 9, name="pretokenizers"),
    },
    "a prefix": {"normalizer": {"type": "Prepend", "prepend": "b" * 100_000}},
    "a map of characters": {"normalizer": {"type": "Precompiled", "precompiled_charsmap": CHARSMAP}},
    "a decoder": {"decoder": replace("a", "b" * 1_000_000)},
    "copies of a text": {"post_processor": chain(*[template([A, A], [0])] * 30, name="processors")},
    "tokens around a text": {"post_processor": template([BEGIN, A], [0] * 100_000)},
    "many tokens around a text": {"post_processor": template([BEGIN] * 5000 + [A], [0])},
    "the model's own prefix": {"continuing_subword_prefix": "b" * 100_000},
}

USUAL = {
    "a space": {"normalizer": chain({"type": "Prepend", "prepend": "▁"}, replace(" ", "▁"))},
    "unicode": {
        "normalizer": chain({"type": "NFKC"}, {"type": "Lowercase"}, {"type": "NFD"}, {"type": "StripAccents"})
    },
    "spaces": {"normalizer": chain({"type": "NFKD"}, replace(" {2,}", "▁", "Regex"), replace("``", '"'))},
    "around": {"post_processor": template([BEGIN, A], [0])},
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


@pytest.mark.parametrize("name", BOMBS)
def test_a_tokenizer_that_makes_far_more_of_a_text_is_refused_where_it_is_opened(
    made: Callable[[dict[str, Any]], Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = made(BOMBS[name])
    monkeypatch.setattr(Tokenizer, "__init__", lambda *_: pytest.fail("it was opened"))
    with pytest.raises(HeadraceError, match=r"times as long, and 10,000 times may be|its post_processor writes a text"):
        open_tokenizer(path)


@pytest.mark.parametrize("name", USUAL)
def test_a_usual_tokenizer_is_opened(made: Callable[[dict[str, Any]], Path], name: str) -> None:
    opened = open_tokenizer(made(USUAL[name]))
    assert len(opened.encode(["a  text of wörds"])[0])


CHILD = """
import resource, sys
from headrace.errors import HeadraceError
from headrace.make.tokenize import open_tokenizer
opened = open_tokenizer(sys.argv[1])
opened.encode(["a"])
used = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (used + (1 << 29), used + (1 << 29)))
for encode in (opened.encode, opened.encode_with_places):
    try:
        encode(["short", "a" * 10_000_000])
    except HeadraceError as error:
        print(error)
"""


@pytest.mark.alone
def test_a_text_that_would_grow_to_gigabytes_is_refused_before_it_does(made: Callable[[dict[str, Any]], Path]) -> None:
    path = made({"normalizer": replace("a", "b" * 4000)})
    ran = subprocess.run([sys.executable, "-c", CHILD, str(path)], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr[-2000:]
    lines = ran.stdout.splitlines()
    assert len(lines) == 2
    assert all(
        "text 1 of the list has 10,000,000 characters, of which the tokenizer's normalizer makes more" in x
        for x in lines
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

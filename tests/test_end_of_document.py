"""Packed texts end with a token that is known, or the user says that they end with none."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import tokenizers

import headrace
from headrace import Pack, Recipe, Tokenize
from headrace.batch import Batch
from headrace.errors import SpecError
from headrace.make.tokenize import Tokenizer, open_tokenizer
from headrace.serve.loader import Loader
from headrace.testing import write_parquet
from headrace.testing.tokenizers import EOS, write_tokenizer

ROWS = 21
ASKS = r"names no end-of-document token.*Its special tokens are .*eos=\"<\|endoftext\|>\".*or eos=False"


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tokenizer.json, and nothing beside it that names its tokens."""
    folder = write_tokenizer(tmp_path_factory.mktemp("bare"), vocab=400)
    (folder / "tokenizer_config.json").unlink()
    return folder / "tokenizer.json"


@pytest.fixture(scope="module")
def core(bare: Path) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(bare))


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("documents")
    write_parquet(folder, [[ROWS]], row=lambda _, i: {"text": f"words {i} " * (1 + i % 5), "ids": [3 + i] * 9})
    return f"parquet:{folder}/*.parquet"


def opened(spec: str, tmp: Path, tokenizer: Any, **options: Any) -> Loader:
    return headrace.load(
        f"{spec}:text", **{"tokenizer": tokenizer, "seq_len": 64, "epochs": 1, "cache_dir": tmp, **options}
    )


def ends(batches: list[Batch], core: tokenizers.Tokenizer) -> int:
    return sum(int((batch["input_ids"][batch.document_ids > 0] == core.token_to_id(EOS)).sum()) for batch in batches)


@pytest.mark.parametrize("kind", ["path", "folder", "object", "description"])
@pytest.mark.parametrize("method", ["best_fit", "concat", "none"])
def test_packing_without_a_known_end_stops_and_asks(
    spec: str, bare: Path, core: tokenizers.Tokenizer, tmp_path: Path, kind: str, method: str
) -> None:
    given = {"path": bare, "folder": bare.parent, "object": core, "description": Tokenize(tokenizer=str(bare))}[kind]
    with opened(spec, tmp_path, given, pack=method) as loader, pytest.raises(SpecError, match=ASKS):
        next(iter(loader))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["path", "object", "description"])
def test_a_token_can_be_named(
    spec: str, bare: Path, core: tokenizers.Tokenizer, tmp_path: Path, kind: str, workers: int
) -> None:
    given = {"path": bare, "object": core, "description": Tokenize(tokenizer=str(bare))}[kind]
    with opened(spec, tmp_path, given, eos=EOS, num_workers=workers) as loader:
        assert ends(list(loader), core) == ROWS
    with opened(spec, tmp_path, given, eos=False, num_workers=workers) as loader:
        assert ends(list(loader), core) == 0


def test_yaml_takes_a_token(spec: str, bare: Path, core: tokenizers.Tokenizer, tmp_path: Path) -> None:
    text = f"parts: ['{spec}:text']\ntokenize:\n  tokenizer: {bare}\n  eos: <|end|>\npack: {{seq_len: 64}}\nepochs: 1\n"
    recipe = Recipe.from_yaml(text)
    assert recipe.tokenize == Tokenize(tokenizer=str(bare), eos=EOS)
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    assert Recipe.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe
    with headrace.load(recipe, cache_dir=tmp_path) as loader:
        assert ends(list(loader), core) == ROWS
    with headrace.load(recipe, eos=False, cache_dir=tmp_path) as loader:
        assert ends(list(loader), core) == 0
    for value, read in (("true", True), ("false", False), ("~", None), ("'true'", "true"), ("yes", "yes")):
        found = Recipe.from_yaml(text.replace("<|end|>", value)).tokenize
        assert found is not None
        assert found.eos == read
    for wrong in ("3", "[a]"):
        with pytest.raises(SpecError, match=r"line 4: tokenize.eos: .* is not true or false, or text"):
            Recipe.from_yaml(text.replace("<|end|>", wrong))


def test_a_token_that_the_tokenizer_does_not_have_is_refused(spec: str, bare: Path, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"eos='<\|ends\|>': .* no such token; did you mean '<\|end\|>'\?"):
        opened(spec, tmp_path, bare, eos="<|ends|>")
    with pytest.raises(SpecError, match=r"eos=True, and the tokenizer has no eos token; name the token"):
        opened(spec, tmp_path, bare, eos=True)


def test_a_named_token_goes_before_the_tokenizers_own(tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer", vocab=400)
    own, named = open_tokenizer(folder), open_tokenizer(Tokenize(tokenizer=str(folder), eos="<|pad|>"))
    assert [one.encode(["a"])[0].tolist()[1:] for one in (own, named)] == [[1], [2]]
    assert (own.needs_eos, named.needs_eos) == (False, False)
    assert own.fingerprint != named.fingerprint
    assert open_tokenizer(Tokenize(tokenizer=str(folder), eos=EOS)).fingerprint == own.fingerprint


def test_columns_of_token_numbers_need_no_end(spec: str, bare: Path, tmp_path: Path) -> None:
    for tokenizer in (None, bare):
        with headrace.load(f"{spec}:ids", tokenizer=tokenizer, seq_len=64, epochs=1, cache_dir=tmp_path) as loader:
            assert sum(batch.num_tokens for batch in loader) == 9 * ROWS


# --- runs that began without


def old_state(
    spec: str, tmp: Path, bare: Path, monkeypatch: pytest.MonkeyPatch, **options: Any
) -> tuple[Any, list[Any]]:
    """A state as it was made before an end was asked for, and what its run would have given next."""
    with monkeypatch.context() as patch, opened(spec, tmp, bare, **options) as loader:
        patch.setattr(Tokenizer, "needs_eos", False)
        batches = iter(loader)
        next(batches)
        state = json.loads(json.dumps(loader.state_dict()))
        return state, [batch["input_ids"].tolist() for batch in batches]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_that_was_made_without_goes_on_without(
    spec: str, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int
) -> None:
    options: dict[str, Any] = {"batch_size": 1, "lanes": 2}
    state, rest = old_state(spec, tmp_path, bare, monkeypatch, **options)
    assert json.loads(state["recipe"])["tokenize"]["eos"] is None
    with opened(spec, tmp_path, bare, num_workers=workers, **options) as loader:
        loader.load_state_dict(state)
        assert [batch["input_ids"].tolist() for batch in loader] == rest
        assert rest
    with opened(spec, tmp_path, bare, eos=False, **options) as loader:
        loader.load_state_dict(state)
        assert [batch["input_ids"].tolist() for batch in loader] == rest


def test_a_source_that_joins_such_a_run_is_packed_as_the_others_are(
    spec: str, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, _ = old_state(spec, tmp_path, bare, monkeypatch, batch_size=1)
    parts: list[Any] = [f"{spec}:text", headrace.Part(source=headrace.Source.parse(f"{spec}:text"), name="new")]
    options: dict[str, Any] = {"seq_len": 64, "epochs": 1, "batch_size": 1, "cache_dir": tmp_path}
    with headrace.load(parts, tokenizer=bare, **options) as loader:
        loader.load_state_dict(state)
        assert {span.address.source for batch in loader for spans in batch.spans for span in spans}


def test_the_same_run_from_its_start_asks(
    spec: str, bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old_state(spec, tmp_path, bare, monkeypatch)
    with opened(spec, tmp_path, bare) as loader, pytest.raises(SpecError, match=ASKS):
        loader.load_state_dict({"batches_consumed": 1, "batch_size": 8})


def test_old_recipes_keep_their_fingerprints() -> None:
    described = [Tokenize(tokenizer="org/tok", eos=eos) for eos in (None, True, False)]
    recipes = [Recipe.of("hf:org/a", pack=Pack(seq_len=2048), tokenize=one) for one in described]
    assert [recipe.fingerprint() for recipe in recipes] == FINGERPRINTS


FINGERPRINTS = ["fcd216fbf0580226", "fd62f2863cf38042", "3ae45b3c1359cced"]
"""As they were before `eos` took a token."""

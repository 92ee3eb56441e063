"""What is given to `load` beside a recipe takes the place of what the recipe says, or is refused."""

from __future__ import annotations

import inspect
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace import Mix, Order, Pack, Recipe, Tokenize
from headrace.errors import SpecError
from headrace.serve.loader import Loader
from headrace.testing import write_parquet
from headrace.testing.tokenizers import write_tokenizer

TEXT = """
parts:
  - "{spec}:ids"
  - source: "{spec}:ids"
    name: again
    weight: 2
order:
  seed: 7
  pool_chunks: 3
pack:
  seq_len: 64
  method: concat
  overlap: 2
batch_size: 4
epochs: 2
tail: drop
"""


def row(shard: str, number: int) -> dict[str, Any]:
    return {"ids": list(range(number + 3, number + 30)), "text": f"some words {number}"}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("overrides")
    write_parquet(folder, [[20]], row=row)
    return f"parquet:{folder}/*.parquet"


@pytest.fixture
def recipe(spec: str, tmp_path: Path) -> str:
    path = tmp_path / "recipe.yaml"
    path.write_text(TEXT.format(spec=spec))
    return str(path)


def described(loader: Loader) -> Recipe:
    with loader:
        return loader._pipeline.recipe


GIVEN: dict[str, tuple[Any, Any]] = {
    "seq_len": (128, lambda r: replace(r, pack=replace(r.pack, seq_len=128))),
    "pack": ("best_fit", lambda r: replace(r, pack=replace(r.pack, method="best_fit"))),
    "batch_size": (8, lambda r: replace(r, batch_size=8)),
    "seed": (0, lambda r: replace(r, order=replace(r.order, seed=0))),
    "shuffle": (False, lambda r: replace(r, order=replace(r.order, shuffle=False))),
    "epochs": (None, lambda r: replace(r, epochs=None)),
    "tail": ("pad", lambda r: replace(r, tail="pad")),
    "mix": (Mix(by="tokens"), lambda r: replace(r, mix=Mix(by="tokens"))),
}


@pytest.mark.parametrize("form", ["yaml", "path", "recipe"])
@pytest.mark.parametrize("name", GIVEN)
def test_an_argument_overrides_what_the_recipe_says(recipe: str, tmp_path: Path, name: str, form: str) -> None:
    """Also one that is equal to the default of `load`."""
    value, change = GIVEN[name]
    read = Recipe.from_yaml(Path(recipe))
    there: Any = {"yaml": recipe, "path": Path(recipe), "recipe": read}[form]
    assert described(headrace.load(there, cache_dir=tmp_path, **{name: value})) == change(read)


def test_what_is_not_given_is_as_the_recipe_says(recipe: str, tmp_path: Path) -> None:
    read = Recipe.from_yaml(Path(recipe))
    assert described(headrace.load(recipe, cache_dir=tmp_path)) == read
    nothing: dict[str, Any] = {"seq_len": None, "mix": None, "eos": None, "tokenizer": None}
    assert described(headrace.load(recipe, cache_dir=tmp_path, **nothing)) == read
    with headrace.load(recipe, cache_dir=tmp_path) as loader:
        assert next(iter(loader))["input_ids"].shape == (4, 64)


def test_batches_are_those_that_were_asked_for(recipe: str, tmp_path: Path) -> None:
    with headrace.load(recipe, seq_len=128, batch_size=3, cache_dir=tmp_path) as loader:
        assert next(iter(loader))["input_ids"].shape == (3, 128)


def test_rows_of_a_recipe_can_be_packed(spec: str, tmp_path: Path) -> None:
    rows = Recipe.of(f"{spec}:text", order=Order(seed=5))
    folder = write_tokenizer(tmp_path / "tokenizer", vocab=400)
    with headrace.load(rows, tokenizer=folder, seq_len=32, cache_dir=tmp_path) as loader:
        made = loader._pipeline.recipe
        assert next(iter(loader))["input_ids"].shape == (8, 32)
    assert made == replace(rows, tokenize=Tokenize(tokenizer=str(folder)), pack=Pack(seq_len=32))


def test_a_description_of_a_tokenizer_overrides_too(spec: str, tmp_path: Path) -> None:
    folder = write_tokenizer(tmp_path / "tokenizer", vocab=400)
    recipe = Recipe.of(f"{spec}:text", tokenize=Tokenize(tokenizer="org/gone"), pack=Pack(seq_len=32))
    other = Tokenize(tokenizer=str(folder), eos=False)
    assert described(headrace.load(recipe, tokenizer=other, cache_dir=tmp_path)).tokenize == other
    # Where it lies now is no change of the recipe, so that states still fit.
    assert described(headrace.load(recipe, tokenizer=folder, cache_dir=tmp_path)) == recipe


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"pack": "concat"}, r"pack='concat' without seq_len"),
        ({"eos": "<|end|>"}, r"eos='<\|end\|>' without a tokenizer"),
        ({"tokenizer": "org/name"}, "tokenizer without seq_len"),
        ({"mix": Mix(by="tokens")}, "mix.by: tokens are counted in sequences only"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"seed": -1}, "seed=-1"),
        ({"tail": "cut"}, "tail='cut'"),
        ({"seq_len": 1}, "seq_len=1"),
    ],
)
@pytest.mark.parametrize("form", ["recipe", "spec"])
def test_what_makes_no_sense_is_refused(spec: str, tmp_path: Path, form: str, given: dict[str, Any], why: str) -> None:
    there = Recipe.of(spec) if form == "recipe" else spec
    with pytest.raises(SpecError, match=why):
        headrace.load(there, cache_dir=tmp_path, **given)


def test_an_overlap_that_does_not_fit_into_a_shorter_sequence_is_refused(recipe: str) -> None:
    with pytest.raises(SpecError, match="overlap=2 is not below seq_len=2"):
        headrace.load(recipe, seq_len=2)


def test_help_shows_the_defaults() -> None:
    shown = str(inspect.signature(headrace.load))
    for default in ("batch_size: 'int' = 8", "shuffle: 'bool' = True", "seed: 'int' = 0", "= 'best_fit'", "= 'pad'"):
        assert default in shown

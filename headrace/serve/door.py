"""`headrace.load`: the way in for a training loop."""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from headrace.catalog.known import for_testing
from headrace.catalog.source import Source
from headrace.errors import SpecError, shown
from headrace.make.describe import Tokenize
from headrace.make.tokenize import Tokenizer, name_of, open_tokenizer
from headrace.mix.describe import Mix, Part, whole, whole_or_none
from headrace.recipe import Order, Recipe
from headrace.run import Run
from headrace.sequence.describe import Pack
from headrace.serve.loader import Loader, Serving
from headrace.serve.pipeline import Opener, Pipeline, open_indexed


def load(
    recipe: Recipe | str | Path | Source | Part | Sequence[str | Source | Part],
    *,
    tokenizer: Any = None,
    seq_len: int | None = None,
    pack: Literal["best_fit", "concat", "none"] = "best_fit",
    batch_size: int = 8,
    shuffle: bool = True,
    seed: int = 0,
    mix: Mix | None = None,
    epochs: int | None = None,
    tail: Literal["drop", "pad", "wrap"] = "pad",
    num_workers: int = 0,
    lanes: int | None = None,
    steps_per_epoch: int | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    cache_dir: str | Path | None = None,
    prefetch: int = 2,
    start_method: str | None = None,
    persistent_workers: bool = False,
    device: Any = None,
    opener: Opener = open_indexed,
) -> Loader:
    """A loader of batches: of rows as they are, or with `seq_len` of packed sequences of tokens.

    `recipe`: specs ("hf:org/a,jsonl:b.jsonl" or a list), a `Recipe`, or the path of a YAML file. `tokenizer`: a folder,
    a tokenizer.json, a Hub name or a tokenizer object; None with `seq_len`: the column holds token numbers. `lanes`:
    logical readers; a run that will change its number of ranks sets it to a common multiple. `device`: batches arrive
    there. With a `Recipe` or YAML, what it describes is described there: only `tokenizer` (an object for the one it
    names) may be given beside.
    """
    run = Run.here(cache_dir=cache_dir, rank=rank, world_size=world_size)
    found, opened = _recipe(recipe, tokenizer)
    if found is None:
        fields = {"mix": mix or Mix(), "batch_size": batch_size, "epochs": epochs, "tail": tail}
        made = None if seq_len is None else Pack(method=pack, seq_len=seq_len)
        tokenize, opened = _tokenize(tokenizer, made)
        order = Order(shuffle=shuffle, seed=seed)
        found = Recipe.of(recipe, order=order, tokenize=tokenize, pack=made, **fields)  # type: ignore[arg-type]
    _refuse_tests(found)
    serving = Serving(
        num_workers=whole("num_workers", num_workers, 0, 1024),
        lanes=_lanes(lanes, run),
        steps_per_epoch=whole_or_none("steps_per_epoch", steps_per_epoch),
        ahead=whole("prefetch", prefetch, 1, 1024),
        start_method=_start_method(start_method),
        persistent_workers=persistent_workers,
        device=device,
    )
    return Loader(Pipeline(found if steps_per_epoch is None else _endless(found), run, opened, opener=opener), serving)


def _refuse_tests(recipe: Recipe) -> None:
    """Test sets are trained on only by who says so."""
    for part in recipe.parts:
        tests = for_testing(part.source)
        if tests is not None and not part.source.allow_eval:
            raise tests.refusal(part.source.split, f"give {shown(part.source)} as a Source with allow_eval=True")


def _recipe(given: Any, tokenizer: Any) -> tuple[Recipe | None, Tokenizer | None]:
    if isinstance(given, str) and given.endswith((".yaml", ".yml")) and ":" not in given:
        given = Path(given)
    if isinstance(given, Path):
        given = Recipe.from_yaml(given)
    if not isinstance(given, Recipe):
        return None, None
    if given.tokenize is None and tokenizer is not None:
        raise SpecError("tokenizer: the recipe does not tokenize; describe it there, under tokenize")
    if given.tokenize is None:
        return given, None
    if tokenizer is None or isinstance(tokenizer, str | Path):
        described = given.tokenize if tokenizer is None else replace(given.tokenize, tokenizer=str(tokenizer))
        return given, open_tokenizer(described)
    return given, open_tokenizer(tokenizer, given.tokenize)


def _tokenize(tokenizer: Any, pack: Pack | None) -> tuple[Tokenize | None, Tokenizer | None]:
    if tokenizer is None:
        return None, None
    if pack is None:
        raise SpecError("tokenizer without seq_len: tokens come in sequences; give seq_len, for example 2048")
    if isinstance(tokenizer, Tokenize):
        return tokenizer, open_tokenizer(tokenizer)
    if isinstance(tokenizer, str | Path):
        described = Tokenize(tokenizer=str(tokenizer))
        return described, open_tokenizer(described)
    described = Tokenize(tokenizer=name_of(tokenizer))
    return described, open_tokenizer(tokenizer, described)


def _endless(recipe: Recipe) -> Recipe:
    """Epochs of so many steps: the data goes on and on beneath them."""
    if recipe.epochs is not None:
        raise SpecError("steps_per_epoch and epochs: an epoch is either so many steps or so many passes; give one")
    if recipe.mix.stop not in (None, "loop"):
        raise SpecError(f"steps_per_epoch with stop={recipe.mix.stop!r}: steps go on for ever; leave stop out")
    return replace(recipe, mix=replace(recipe.mix, stop="loop"))


def _lanes(lanes: int | None, run: Run) -> int | None:
    lanes = whole_or_none("lanes", lanes)
    if lanes is not None and lanes % run.world_size:
        raise SpecError(f"lanes={lanes} cannot be dealt to {run.world_size} ranks; use a multiple of {run.world_size}")
    return lanes


def _start_method(name: str | None) -> str | None:
    known = multiprocessing.get_all_start_methods()
    if name is not None and name not in known:
        raise SpecError(f"start_method={shown(name)!r} is not one of {', '.join(known)}")
    return name

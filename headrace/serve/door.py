"""`headrace.load`: the way in for a training loop."""

from __future__ import annotations

import multiprocessing
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from headrace.catalog.known import for_testing
from headrace.catalog.source import Source
from headrace.errors import SpecError, no_torch, shown, torch_is_here
from headrace.make.describe import Tokenize
from headrace.make.tokenize import Tokenizer, name_of, open_tokenizer
from headrace.mix.describe import Mix, Part, whole, whole_or_none
from headrace.recipe import Order, Recipe, Tail
from headrace.run import Run
from headrace.sequence.describe import Pack
from headrace.serve.loader import Loader, Serving
from headrace.serve.pipeline import Opener, Pipeline, open_indexed

T = TypeVar("T")


class _Default:
    """The default of an argument that a recipe may say something about: it shows whether the argument was given."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)


def _default(value: T) -> T:
    return _Default(value)  # type: ignore[return-value]


# Named here, because the defaults of a function are made once.
_PACK: Literal["best_fit", "concat", "none"] = _default("best_fit")
_BATCH_SIZE, _SHUFFLE, _SEED = _default(8), _default(True), _default(0)
_EPOCHS: int | None = _default(None)
_TAIL: Tail = _default("pad")


def load(
    recipe: Recipe | str | Path | Source | Part | Sequence[str | Source | Part],
    *,
    tokenizer: Any = None,
    eos: str | bool | None = None,
    seq_len: int | None = None,
    pack: Literal["best_fit", "concat", "none"] = _PACK,
    batch_size: int = _BATCH_SIZE,
    shuffle: bool = _SHUFFLE,
    seed: int = _SEED,
    mix: Mix | None = None,
    epochs: int | None = _EPOCHS,
    tail: Tail = _TAIL,
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

    `recipe`: specs ("hf:org/a,jsonl:b.jsonl" or a list), parts with weights and limits (`Part(source="hf:org/a",
    weight=3)`), a `Recipe`, or the path of a YAML file. `mix`: how several parts become one stream. `tokenizer`: a
    folder, a tokenizer.json, a Hub name or a tokenizer object; None with `seq_len`: the column holds token numbers.
    `eos`: the token that ends each document, where the tokenizer does not name one; False: none. `batch_size`: rows, or
    sequences, of a micro-batch. `epochs`: passes over each source in one `iter()`; None: one for rows, endless for
    sequences. `tail`: how ranks that have less than others end. `steps_per_epoch`: steps of one `iter()`; the next goes
    on from there. `lanes`: logical readers; a run that will change its number of ranks sets it to a common multiple.
    `prefetch`: batches that each of `num_workers` processes makes ahead. `device`: batches arrive there.

    With a `Recipe` or YAML, what is given here as well takes the place of what stands there; what is not given, and
    `eos`, `seq_len` or `mix` of None, is as the recipe says.
    """
    run = Run.here(cache_dir=cache_dir, rank=rank, world_size=world_size)
    given = {"pack": pack, "batch_size": batch_size, "shuffle": shuffle, "seed": seed, "epochs": epochs, "tail": tail}
    asked: dict[str, Any] = {name: value for name, value in given.items() if not isinstance(value, _Default)}
    asked |= {name: value for name, value in (("eos", eos), ("seq_len", seq_len), ("mix", mix)) if value is not None}
    found, opened = _recipe(recipe, asked, tokenizer)
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
    pipeline = Pipeline(found if steps_per_epoch is None else _endless(found), run, opened, opener=opener)
    if pipeline.makes_tensors and not torch_is_here():
        raise no_torch("batches of tensors")
    return Loader(pipeline, serving)


def _refuse_tests(recipe: Recipe) -> None:
    """Test sets are trained on only by who says so."""
    for part in recipe.parts:
        tests = for_testing(part.source)
        if tests is not None and not part.source.allow_eval:
            raise tests.refusal(part.source.split, f"give {shown(part.source)} as a Source with allow_eval=True")


def _recipe(given: Any, asked: Mapping[str, Any], tokenizer: Any) -> tuple[Recipe, Tokenizer | None]:
    """What is given and asked for as one recipe, with its tokenizer opened."""
    if isinstance(given, str) and given.endswith((".yaml", ".yml")) and ":" not in given:
        given = Path(given)
    if isinstance(given, Path):
        given = Recipe.from_yaml(given)
    base = given if isinstance(given, Recipe) else None
    tokenize, opened, pack = _tokens(base, asked, tokenizer)
    fields = {"tokenize": tokenize, "pack": pack, **_some(asked, "mix", "batch_size", "epochs", "tail")}
    order = _some(asked, "shuffle", "seed")
    if base is None:
        return Recipe.of(given, order=Order(**order), **fields), opened
    return replace(base, order=replace(base.order, **order), **fields), opened


def _some(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values}


def _tokens(
    recipe: Recipe | None, asked: Mapping[str, Any], tokenizer: Any
) -> tuple[Tokenize | None, Tokenizer | None, Pack | None]:
    """What of rows becomes tokens and sequences: as it is asked for, and in all else as the recipe says."""
    described, pack = (None, None) if recipe is None else (recipe.tokenize, recipe.pack)
    fields = {"method": asked["pack"]} if "pack" in asked else {}
    fields |= _some(asked, "seq_len")
    if pack is None and "pack" in asked and "seq_len" not in asked:
        raise SpecError(
            f"pack={shown(asked['pack'])!r} without seq_len: rows come as they are and are not packed; give seq_len, "
            f"for example 2048, or leave pack out"
        )
    if fields:
        pack = Pack(**fields) if pack is None else replace(pack, **fields)
    if described is None and tokenizer is None:
        if "eos" in asked:
            raise SpecError(f"eos={shown(asked['eos'])!r} without a tokenizer: token numbers are taken as they are")
        return None, None, pack
    if pack is None:
        raise SpecError("tokenizer without seq_len: tokens come in sequences; give seq_len, for example 2048")
    if isinstance(tokenizer, Tokenize):
        described, tokenizer = tokenizer, None
    elif described is None:
        described = Tokenize(tokenizer=name_of(tokenizer))
    described = replace(described, **_some(asked, "eos"))
    if isinstance(tokenizer, str | Path):  # where it lies now: what the recipe calls it stays its name
        return described, open_tokenizer(replace(described, tokenizer=str(tokenizer))), pack
    return described, open_tokenizer(described) if tokenizer is None else open_tokenizer(tokenizer, described), pack


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

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace import recipe as recipe_module
from headrace.catalog.source import Source
from headrace.errors import NotFound, SpecError
from headrace.recipe import Change, Faults, Mix, Order, Pack, Part, Recipe, Skip, Tokenize, skip_address

loose: Any = recipe_module
"""The same without types, for what mypy would not let through."""

A, B = "hf:org/a:train:text", "hf:org/b:train:text"


def src(path: str = "a") -> Source:
    return Source(kind="txt", path=path)


def refused(make: Callable[[], object]) -> str:
    with pytest.raises(SpecError) as caught:
        make()
    return str(caught.value)


# --- what a recipe cannot be


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: loose.Order(seed=-1), "seed=-1 is not a whole number of at least 0"),
        (lambda: loose.Order(seed=2**64), "and at most 18446744073709551615"),
        (lambda: loose.Order(seed=True), "seed=True is not a whole number"),
        (lambda: loose.Order(shuffle="no"), "shuffle='no' is not True or False"),
        (lambda: loose.Order(pool_chunks=0), "pool_chunks=0 is not a whole number of at least 1"),
        (lambda: loose.Order(pool_bytes=1.5), "pool_bytes=1.5 is not a whole number"),
        (lambda: loose.Order(shard_window=10**5000), "shard_window=a number of 16610 bits is not"),
        (lambda: loose.Part(source=5), "source=5 is neither a spec ('parquet:data/*.parquet') nor a Source"),
        (lambda: loose.Part(source=src(), name=3), "name=3 is not text"),
        (
            lambda: loose.Part(source=src(), weight=0),
            "weight=0 is not a number above 0; to leave a part out,",
        ),
        (lambda: loose.Part(source=src(), weight=math.nan), "weight=nan is not a number above 0"),
        (lambda: loose.Part(source=src(), weight=math.inf), "weight=inf is not a number above 0"),
        (lambda: loose.Part(source=src(), weight=10**400), "weight=a number of 1329 bits is not a number above 0"),
        (lambda: loose.Part(source=src(), weight="1"), "weight='1' is not a number above 0"),
        (lambda: loose.Part(source=src(), limit=0), "limit=0 is not a whole number of at least 1"),
        (lambda: loose.Part(source=src(), tokens=0), "tokens=0 is not"),
        (lambda: loose.Part(source=src(), passes=0), "passes=0 is not"),
        (lambda: loose.Change(at=-1, weights={"a": 1}), "at=-1 is not"),
        (lambda: loose.Change(at=0, weights={}), "name at least one part"),
        (lambda: loose.Change(at=0, weights={"a": 0}), "weights['a']=0 is not a number above 0"),
        (lambda: loose.Change(at=0, weights={1: 1}), "1 is not text"),
        (lambda: loose.Change(at=0, weights=3), "weights=3 is not a mapping"),
        (lambda: loose.Mix(by="words"), "by='words' is not one of rows, tokens"),
        (lambda: loose.Mix(order="random"), "order='random' is not one of weights, round_robin"),
        (lambda: loose.Mix(stop="never"), "stop='never' is not one of first_exhausted, all_exhausted, loop"),
        (lambda: loose.Mix(temperature=0), "temperature=0 is not a number above 0; 1 is in proportion to size"),
        (lambda: loose.Mix(schedule=5), "schedule=5 is not a list"),
        (lambda: loose.Mix(schedule=({"a": 1},)), "schedule[0]={'a': 1} is not of type Change"),
        (lambda: loose.Mix(order="round_robin", temperature=2), "temperature: round_robin takes one row of each"),
        (lambda: loose.Mix(order="round_robin", by="tokens"), "by: round_robin takes one row of each"),
        (lambda: loose.Pack(seq_len=1), "seq_len=1 is not a whole number of at least 2"),
        (lambda: loose.Pack(seq_len=8, overlap=8), "overlap=8 is not below seq_len=8"),
        (lambda: loose.Pack(seq_len=8, overlap=-1), "overlap=-1 is not"),
        (lambda: loose.Pack(seq_len=8, slack=-1), "slack=-1 is not"),
        (lambda: loose.Pack(seq_len=8, method="worst_fit"), "is not one of best_fit, concat, none"),
        (lambda: loose.Skip(addresses="a|b|1"), "addresses='a|b|1' is not a list"),
        (lambda: loose.Skip(addresses=["a|b"]), "addresses[0]='a|b' is not of the form spec|shard|row"),
        (lambda: loose.Skip(addresses=["a|b|1", "a|b|-1"]), "addresses[1]='a|b|-1' is not"),
        (lambda: loose.Skip(steps=[1, -2]), "steps[1]=-2 is not"),
        (lambda: loose.Recipe(parts=()), "parts=() is empty"),
        (lambda: loose.Recipe(parts="txt:a"), "parts='txt:a' is not a list"),
        (lambda: loose.Recipe(parts=(src(),)), "is not of type Part"),
        (lambda: loose.Recipe.of(""), "does not start with a kind of source"),
        (lambda: loose.Recipe.of(5), "a spec is a string"),
        (lambda: loose.Recipe.of("txt:a", batch_size=0), "batch_size=0 is not a whole number of at least 1"),
        (lambda: loose.Recipe.of("txt:a", epochs=0), "epochs=0 is not"),
        (lambda: loose.Recipe.of("txt:a", tail="cut"), "tail='cut' is not one of drop, pad, wrap"),
        (lambda: loose.Recipe.of("txt:a", mix="rows"), "mix='rows' is not of type Mix"),
        (lambda: loose.Recipe.of("txt:a", order=None), "order=None is not of type Order"),
        (lambda: loose.Recipe.of("txt:a", pack={"seq_len": 8}), "is not of type Pack"),
        (
            lambda: loose.Recipe.of("txt:a", tokenize=Tokenize(tokenizer="t")),
            "tokenize: tokens come in sequences only",
        ),
        (
            lambda: loose.Recipe.of("txt:a", mix=Mix(by="tokens")),
            "mix.by: tokens are counted in sequences only",
        ),
        (
            lambda: loose.Recipe.of(Part(source=src(), tokens=5)),
            "parts[0].tokens: tokens are counted in",
        ),
        (
            lambda: loose.Recipe.of([Part(source=src(), weight=2)], mix=Mix(order="round_robin")),
            "parts[0].weight=2.0 has no effect with mix.order 'round_robin'",
        ),
        (
            lambda: loose.Recipe.of([Part(source=src("a"), name="x"), Part(source=src("b"), name="x")]),
            "parts[1].name='x' is the name of a part before it",
        ),
        (
            lambda: loose.Recipe.of("txt:a", mix=Mix(schedule=(Change(at=1, weights={"txt:b": 1}),))),
            "mix.schedule[0].weights: 'txt:b' is no part of this recipe; parts: txt:a:text",
        ),
        (
            lambda: loose.Recipe.of("txt:a", skip=Skip(addresses=("txt:b:text|b|1",))),
            "skip.addresses: 'txt:b:text|b|1' is of no part of this recipe; remove it",
        ),
    ],
)
def test_what_cannot_be_is_refused_with_its_field(make: Callable[[], object], said: str) -> None:
    message = refused(make)
    assert said in message
    assert len(message) < 500


@pytest.mark.parametrize("ats", [(5, 5), (5, 4)])
def test_a_schedule_goes_forward(ats: tuple[int, int]) -> None:
    changes = tuple(Change(at=at, weights={"a": 1}) for at in ats)
    assert f"schedule[1].at={ats[1]} is not after the change before it, at 5" in refused(lambda: Mix(schedule=changes))


def test_descriptions_are_frozen_and_plain() -> None:
    import numpy as np

    skip, mix = loose.Skip(steps=[3, 1, 3]), loose.Mix(temperature=np.float32(2))
    recipe = Recipe.of(["txt:a"], batch_size=np.int64(4), mix=mix, skip=skip)
    assert (type(recipe.batch_size), type(recipe.mix.temperature), recipe.skip.steps) == (int, float, (1, 3))
    assert json.loads(json.dumps(recipe.to_dict())) == recipe.to_dict()
    assert hash(recipe) == hash(replace(recipe))
    with pytest.raises(FrozenInstanceError):
        recipe.batch_size = 5  # type: ignore[misc]


def test_tokens_that_are_already_there_need_no_tokenizer() -> None:
    recipe = Recipe.of("parquet:a:ids", pack=Pack(seq_len=8), mix=Mix(by="tokens"))
    assert recipe.tokenize is None


# --- names


def test_specs_sources_and_parts_make_a_recipe() -> None:
    one = Recipe.of("hf:org/a,hf:org/b", batch_size=2)
    assert one == Recipe.of(["hf:org/a", Source.parse("hf:org/b")], batch_size=2)
    assert one == Recipe.of((Part(source=Source.parse("hf:org/a")), "hf:org/b"), batch_size=2)
    assert [part.name for part in one.parts] == [A, B]


def test_a_spec_that_comes_again_gets_a_name_of_its_own() -> None:
    taken = Part(source=src("c"), name=f"{A}#2")
    recipe = Recipe.of(["hf:org/a", "hf:org/b", "hf:org/a", taken, "hf:org/a"])
    assert [part.name for part in recipe.parts] == [A, B, f"{A}#3", f"{A}#2", f"{A}#4"]
    assert Recipe(parts=recipe.parts) == recipe
    many = Recipe.of(["txt:a"] * 5000)
    assert many.parts[-1].name == "txt:a:text#5000"
    other = Recipe.of([src(), Part(source=Source(kind="txt", path="a", allow_partial=True))])
    assert [part.name for part in other.parts] == ["txt:a:text", "txt:a:text#2"]


def test_a_row_to_skip_is_named_by_part_or_by_spec() -> None:
    part = Part(source=src("x|y"), name="mine")
    for name in ("mine", "txt:x|y:text"):
        recipe = Recipe.of(part, skip=Skip(addresses=(f"{name}|shard-1|17",)))
        assert skip_address(recipe.skip.addresses[0]) == (name, "shard-1", 17)


# --- fingerprints


def test_a_fingerprint_is_fixed_for_good() -> None:
    recipe = Recipe.of("hf:org/a", pack=Pack(seq_len=2048), tokenize=Tokenize(tokenizer="org/tok"))
    assert recipe.fingerprint() == "fcd216fbf0580226"


def test_equal_recipes_have_equal_fingerprints_and_each_field_counts() -> None:
    base = Recipe.of(["txt:a", "txt:b"], pack=Pack(seq_len=8))
    assert Recipe.of(["txt:a:text", "txt:b"], pack=Pack(seq_len=8), mix=Mix(by="rows")).fingerprint() == (
        base.fingerprint()
    )
    ordered: list[dict[str, float]] = [{"txt:a:text": 1, "txt:b:text": 2}, {"txt:b:text": 2.0, "txt:a:text": 1.0}]
    mixes = [Mix(schedule=(Change(at=1, weights=weights),)) for weights in ordered]
    assert len({replace(base, mix=mix).fingerprint() for mix in mixes}) == 1
    others: list[dict[str, Any]] = [
        {"parts": base.parts[::-1]},
        {"parts": (replace(base.parts[0], weight=2), base.parts[1])},
        {"parts": (replace(base.parts[0], source=replace(src(), revision="v2")), base.parts[1])},
        {"mix": Mix(by="tokens")},
        {"order": Order(seed=1)},
        {"pack": Pack(seq_len=9)},
        {"tokenize": Tokenize(tokenizer="t")},
        {"batch_size": 9},
        {"epochs": 1},
        {"tail": "drop"},
        {"skip": Skip(steps=(1,))},
        {"faults": Faults(policy="skip")},
        {"mix": mixes[0]},
    ]
    assert {name for other in others for name in other} == {field.name for field in fields(Recipe)}
    prints = {replace(base, **other).fingerprint() for other in others} | {base.fingerprint()}
    assert len(prints) == len(others) + 1


# --- both ways

words = st.text(max_size=12) | st.sampled_from(["1e-3", "yes", "null", "~", "0x1F", "1:30", "-", "- a", "#b", "a: b"])
paths = words.filter(lambda text: bool(text) and "\0" not in text and "://" not in text)
some = st.none() | st.integers(1, 2**63 - 1)
local = st.builds(
    Source,
    kind=st.sampled_from(["txt", "jsonl", "parquet"]),
    path=paths,
    column=words.filter(bool),
    allow_partial=st.booleans(),
)
remote = st.builds(
    Source,
    kind=st.just("hf"),
    path=st.sampled_from(["squad", "org/name", "Org/n.a-m_e"]),
    config=st.sampled_from([None, "en", "20231101.de", "1e3"]),
    split=st.sampled_from(["train", "test", "1"]),
    revision=st.none() | words,
)
weight = st.floats(min_value=1e-300, max_value=1e300)
parts = st.builds(Part, source=local | remote, name=words, weight=weight, limit=some, tokens=some, passes=some)
packs = st.builds(
    Pack,
    method=st.sampled_from(["best_fit", "concat", "none"]),
    seq_len=st.integers(100, 10**6),
    overlap=st.integers(0, 99),
    slack=st.integers(0, 9),
)
tokenizers = st.builds(
    Tokenize,
    tokenizer=words.filter(lambda text: bool(text.strip()) and text.isprintable()),
    bos=st.sampled_from([None, True, False]),
    eos=st.sampled_from([None, True, False, "<|endoftext|>", "true", "3"]),
    threads=st.sampled_from([None, 1, 4]),
)


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    chosen = draw(st.lists(parts, min_size=1, max_size=4, unique_by=lambda part: part.name))
    names = st.sampled_from([part.name for part in chosen])
    ats = sorted(draw(st.sets(st.integers(0, 10**6), max_size=3)))
    changes = [Change(at=at, weights=draw(st.dictionaries(names, weight, min_size=1))) for at in ats]
    rows = draw(st.lists(st.tuples(names, paths, st.integers(0, 10**9)), max_size=3))
    addresses = [f"{name}|{shard.replace('|', '')}x|{row}" for name, shard, row in rows]
    return Recipe(
        parts=tuple(chosen),
        mix=Mix(
            by=draw(st.sampled_from(["rows", "tokens"])),
            temperature=draw(st.none() | weight),
            schedule=tuple(changes),
            stop=draw(st.sampled_from([None, "first_exhausted", "all_exhausted", "loop"])),
        ),
        order=draw(st.builds(Order, shuffle=st.booleans(), seed=st.integers(0, 2**64 - 1), pool_chunks=some)),
        tokenize=draw(st.none() | tokenizers),
        pack=draw(packs),
        batch_size=draw(st.integers(1, 99)),
        epochs=draw(some),
        tail=draw(st.sampled_from(["drop", "pad", "wrap"])),
        skip=Skip(addresses=tuple(addresses), steps=tuple(draw(st.sets(st.integers(0, 10**9), max_size=3)))),
        faults=draw(st.builds(Faults, policy=st.sampled_from(["raise", "skip"]), budget=st.integers(0, 10**6))),
    )


@settings(max_examples=150, deadline=None)
@given(recipes())
def test_a_recipe_comes_back_from_yaml_and_json_as_it_was(recipe: Recipe) -> None:
    assert Recipe.from_yaml(recipe.to_yaml()) == recipe
    again = Recipe.from_dict(json.loads(json.dumps(recipe.to_dict())))
    assert again == recipe
    assert again.fingerprint() == recipe.fingerprint()
    assert all(len(line) < 10_000 and "\x1b" not in line for line in recipe.describe().splitlines())


def test_a_path_that_is_no_utf8_survives(tmp_path: Path) -> None:
    recipe = Recipe.of(src("caf\udce9"))
    (tmp_path / "r.yaml").write_text(recipe.to_yaml(), encoding="utf-8")
    assert Recipe.from_yaml(tmp_path / "r.yaml") == recipe
    assert len(recipe.fingerprint()) == 16


def full() -> Recipe:
    return Recipe.of(
        [
            Part(source=Source.parse("hf:org/a"), weight=0.7),
            "hf:org/b",
            Part(source=Source(kind="txt", path="a:b,c.txt", column="line"), name="notes", limit=1000, passes=2),
        ],
        mix=Mix(by="tokens", schedule=(Change(at=1000, weights={A: 2, "notes": 1.5}),)),
        order=Order(seed=7),
        tokenize=Tokenize(tokenizer="org/tok"),
        pack=Pack(seq_len=2048),
        skip=Skip(steps=(17,)),
    )


def test_yaml_is_written_for_people() -> None:
    written = """\
parts:
  - source: hf:org/a:train:text
    weight: 0.7
  - hf:org/b:train:text
  - source:
      kind: txt
      path: a:b,c.txt
      column: line
    name: notes
    limit: 1000
    passes: 2
mix:
  by: tokens
  schedule:
    - at: 1000
      weights:
        hf:org/a:train:text: 2.0
        notes: 1.5
order:
  seed: 7
tokenize:
  tokenizer: org/tok
pack:
  seq_len: 2048
skip:
  steps:
    - 17
"""
    assert full().to_yaml() == written
    assert Recipe.from_yaml(written) == full()


def test_people_write_numbers_and_words_as_they_like() -> None:
    text = """
        # a comment
        parts: ["hf:org/a", {source: 'hf:org/b', weight: 1e-3, limit: 1_000_000, name: no}]
        order: {shuffle: False}
        epochs: ~
        tail: drop
    """
    recipe = Recipe.from_yaml(text)
    assert [(part.name, part.weight, part.limit) for part in recipe.parts] == [(A, 1, None), ("no", 0.001, 10**6)]
    assert (recipe.order.shuffle, recipe.epochs, recipe.tail) == (False, None, "drop")


def test_a_dict_of_an_older_version_takes_the_defaults_of_what_it_lacks() -> None:
    assert Recipe.from_dict({"parts": [{"source": A}]}) == Recipe.of(A)
    assert "parts[0].wieght: there is no such field; did you mean weight?" in refused(
        lambda: Recipe.from_dict({"parts": [{"source": A, "wieght": 1}]})
    )


# --- bad files

HEAD = "parts:\n  - hf:org/a\n"
SCHEDULE = HEAD + "mix:\n  schedule:\n    - at: 5\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "mix:\n  by: words\n", "line 4: mix.by: 'words' is not one of rows, tokens"),
        (HEAD + "mix:\n  temprature: 2\n", "line 4: mix.temprature: there is no such field; did you mean temperature?"),
        (HEAD + "xyz: 1\n", "line 3: xyz: there is no such field; the fields here are parts, mix, order, tokenize"),
        (HEAD + "batch_size: '8'\n", "line 3: batch_size: '8' is not a whole number"),
        (HEAD + "batch_size: 8.0\n", "line 3: batch_size: 8.0 is not a whole number"),
        (HEAD + "batch_size: yes\n", "line 3: batch_size: 'yes' is not a whole number"),
        (HEAD + "batch_size: true\n", "line 3: batch_size: True is not a whole number"),
        (HEAD + "batch_size: " + "9" * 5000 + "\n", "line 3: batch_size: inf is not a whole number"),
        (HEAD + "batch_size: 0\n", "line 3: batch_size: 0 is not a whole number of at least 1"),
        (HEAD + "order:\n  shuffle: no\n", "line 4: order.shuffle: 'no' is not true or false"),
        (HEAD + "order:\n  seed: -1\n", "line 4: order.seed: -1 is not a whole number of at least 0"),
        (HEAD + "order:\n", "line 3: order: nothing is given; leave the field out to take its default, or give a map"),
        (HEAD + "order: 5\n", "line 3: order: 5 is not a mapping of fields"),
        (HEAD + "pack:\n  overlap: 3\n", "line 3: pack: the field seq_len is missing"),
        (HEAD + "pack:\n  overlap: 9\n  seq_len: 8\n", "line 4: pack.overlap: 9 is not below seq_len=8"),
        (HEAD + "tokenize:\n  tokenizer: 5\n", "line 4: tokenize.tokenizer: 5 is not text; put it in quotes"),
        (HEAD + "tokenize:\n  tokenizer: t\n", "line 3: tokenize: tokens come in sequences only; add pack"),
        (HEAD + "mix: {by: tokens}\n", "line 3: mix.by: tokens are counted in sequences only"),
        (
            SCHEDULE + "      weights: {x: 1}\n",
            "line 6: mix.schedule[0].weights: 'x' is no",
        ),
        (
            SCHEDULE + "      weights: {x: 0}\n",
            "line 6: mix.schedule[0].weights['x']: 0 is",
        ),
        (
            SCHEDULE + "      weights: 5\n",
            "line 6: mix.schedule[0].weights: 5 is not a map",
        ),
        (HEAD + "mix:\n  schedule: {at: 5}\n", "line 4: mix.schedule: {'at': 5} is not a list"),
        (HEAD + "  - source: hf:org/b\n    weight: .nan\n", "line 4: parts[1].weight: nan is not a number above 0"),
        (HEAD + "  - weight: 2\n", "line 3: parts[1]: the field source is missing"),
        (HEAD + "  - csv:x\n", "line 3: parts[1]: spec 'csv:x' does not start with a kind of source"),
        (
            HEAD + "  - source:\n      kind: csv\n      path: x\n",
            "line 4: parts[1].source.kind: 'csv' is not one of hf",
        ),
        (HEAD + "  - source:\n      kind: txt\n      path: ''\n", "line 3: parts[1].source: spec 'txt:': the path is"),
        (HEAD + "skip:\n  addresses:\n    - a|b|1\n    - a|b\n", "line 6: skip.addresses[1]: 'a|b' is not of the form"),
        (HEAD + "skip:\n  steps: [1, x]\n", "line 4: skip.steps[1]: 'x' is not a whole number"),
        (HEAD + "tail: pad\ntail: drop\n", "line 4: tail stands here again; it was given on line 3"),
        (HEAD + "tail: [pad\n", "line 4: this is not YAML: while parsing a flow sequence"),
        (HEAD + "\ttail: pad\n", "line 3: this is not YAML"),
        (HEAD + "? [a]\n: 1\n", "line 3: a field's name is plain text"),
        (HEAD + "---\n" + HEAD, "line 3: this is not YAML: expected a single document"),
        (HEAD + "tail: &x pad\n", "line 3: anchors and aliases (& and *) are not read"),
        (HEAD + "tail: *x\n", "line 3: anchors and aliases"),
        (HEAD + "tail: !!python/object/apply:os.system [ls]\n", "line 3: the tag 'tag:yaml.org,2002:python/object"),
        (HEAD + "tail: !!str pad\n", "line 3: the tag"),
        (HEAD + "<<: {tail: pad}\n", "line 3: <<: there is no such field"),
        (HEAD + "tail: " + "[" * 100_000, "line 3: this is nested deeper than any recipe"),
        (HEAD + "tail: \x07\n", "line 3: the character"),
        ("recipe.yaml", "line 1: 'recipe.yaml' is not a mapping of fields"),
        ("", "line 1: nothing is given; a recipe is a mapping of fields"),
        ("mix: {}\n", "line 1: the field parts is missing"),
        ("parts: []\n", "line 1: parts: () is empty"),
        ("parts: txt:a\n", "line 1: parts: 'txt:a' is not a list"),
        (HEAD + "\x1b[31m: 1\n", "line 3: the character"),
        (HEAD + '"\\e[31m": 1\n', "line 3: \\x1b[31m: there is no such field"),
    ],
)
def test_a_bad_file_is_refused_with_field_and_line(text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(SpecError) as caught:
        Recipe.from_yaml(tmp_path / "recipe.yaml")
    message = str(caught.value)
    assert message.startswith(f"{tmp_path / 'recipe.yaml'} {said}")
    assert len(message) < 1000
    assert refused(lambda: Recipe.from_yaml(text)).startswith(f"recipe {said}")


def test_a_bomb_of_aliases_is_refused_at_its_first_anchor() -> None:
    bomb = "a: &a [x,x,x,x,x,x,x,x,x]\n" + "".join(
        f"{c}: &{c} [{','.join([f'*{b}'] * 9)}]\n" for b, c in zip("abcdefg", "bcdefgh", strict=True)
    )
    assert "line 1: anchors" in refused(lambda: Recipe.from_yaml(bomb))


def test_a_file_that_is_no_recipe_is_refused_before_it_is_read_whole(tmp_path: Path) -> None:
    start = time.monotonic()
    assert "it is not a regular file" in refused(lambda: Recipe.from_yaml(Path("/dev/zero")))
    with (tmp_path / "huge.yaml").open("wb") as file:
        file.truncate(1 << 40)
    assert "is larger than 1,048,576 bytes" in refused(lambda: Recipe.from_yaml(tmp_path / "huge.yaml"))
    assert "is longer than" in refused(lambda: Recipe.from_yaml("# x\n" * 300_000))
    assert time.monotonic() - start < 2
    (tmp_path / "bad.yaml").write_bytes(HEAD.encode() + b"tail: p\xe4d\n")
    assert "bad.yaml line 3: this is not UTF-8" in refused(lambda: Recipe.from_yaml(tmp_path / "bad.yaml"))
    assert "cannot be read as a recipe" in refused(lambda: Recipe.from_yaml(tmp_path))
    assert "got int" in refused(lambda: loose.Recipe.from_yaml(5))
    with pytest.raises(NotFound, match="there is no such recipe file"):
        Recipe.from_yaml(tmp_path / "none.yaml")


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from("parts:- \n{}[]'\"mixbytxt0.1&*!|>%,#?"), max_size=60))
def test_any_text_gives_a_recipe_or_an_error_of_ours(text: str) -> None:
    for whole in (text, f"parts:\n- txt:a\nmix: {text}", f"parts:\n- txt:a\n{text}"):
        try:
            recipe = Recipe.from_yaml(whole)
        except SpecError:
            continue
        assert Recipe.from_yaml(recipe.to_yaml()) == recipe


# --- the drawing


def test_a_recipe_is_drawn_from_batch_to_sources() -> None:
    recipe = full()
    times = "\N{MULTIPLICATION SIGN}"
    drawn = f"""\
Recipe {recipe.fingerprint()}
└─ batch of 8 {times} 2048 tokens, packed best_fit (slack 4), tail pad, 1 micro-batch skipped
   └─ mix by tokens, weights, changes at 1,000
      └─ tokenized by org/tok
         └─ shuffled, seed 7
            ├─ 25.9 → 44.4 %  hf:org/a:train:text         1,234,567 rows
            ├─ 37.0 → 22.2 %  hf:org/b:train:text             5,000 rows
            └─ 37.0 → 33.3 %  notes = txt:a:b,c.txt:line         12 rows  at most 1,000 rows, 2 passes"""
    assert recipe.describe({A: 1_234_567, B: 5_000, "notes": 12}) == drawn


def test_rows_of_one_source_are_drawn_without_a_mix() -> None:
    recipe = Recipe.of("txt:a", order=Order(shuffle=False), epochs=2)
    drawn = f"""\
Recipe {recipe.fingerprint()}
└─ batch of 8 rows, tail pad, 2 passes
   └─ in file order
      └─ 100.0 %  txt:a:text"""
    assert recipe.describe() == drawn


def test_shares_by_temperature_are_drawn_once_rows_are_known() -> None:
    recipe = Recipe.of(
        ["txt:a", "txt:b", "txt:a"], mix=Mix(temperature=2, stop="loop"), pack=Pack(seq_len=8, overlap=2)
    )
    rows = {"txt:a:text": 100, "txt:b:text": 10_000, "txt:a:text#2": 1}
    assert recipe.describe().splitlines()[2:] == [
        "   └─ mix by rows, weights, temperature 2, stop loop",
        "      └─ token ids as they stand in the column",
        "         └─ shuffled, seed 0",
        "            ├─ ? %  txt:a:text",
        "            ├─ ? %  txt:b:text",
        "            └─ ? %  txt:a:text#2",
    ]
    assert recipe.describe(rows).splitlines()[-3:] == [
        "            ├─  9.0 %  txt:a:text       100 rows",
        "            ├─ 90.1 %  txt:b:text    10,000 rows",
        "            └─  0.9 %  txt:a:text#2       1 rows",
    ]
    assert "rows are given for 'txt:c'" in refused(lambda: recipe.describe({"txt:c": 1}))


def test_a_name_cannot_move_the_cursor_of_a_terminal() -> None:
    recipe = Recipe.of(Part(source=src("a\x1b[2J\nb"), name="x\r"))
    assert "x\\r = txt:a\\x1b[2J\\nb:text" in recipe.describe()
    assert len(recipe.describe().splitlines()) == 4


def test_a_recipe_loads_nothing_heavy() -> None:
    code = (
        "import sys\nfrom headrace.recipe import Recipe\nr = Recipe.of('hf:a/b,hf:c/d')\n"
        "assert Recipe.from_yaml(r.to_yaml()) == r\nr.describe()\n"
        "print(sorted({'numpy', 'torch', 'pyarrow', 'tokenizers', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

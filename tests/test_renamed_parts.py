"""A source that is called, spelled or placed in another way goes on; one that was taken out comes back to its place."""

from __future__ import annotations

import json
import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from near import Ledger, Ranks, near, packed, part, recipe_of, several

import headrace
from headrace.batch import Batch
from headrace.catalog.source import Source
from headrace.errors import Changed, StateError
from headrace.recipe import Change, Mix, Part
from headrace.serve.loader import Loader
from headrace.serve.state import merge_states
from headrace.serve.verify import verify
from headrace.stage import State

__all__ = ["near"]  # a fixture

ROWS = 120
KINDS = ("parquet", "jsonl", "txt")


def write_rows(path: Path, first: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = range(first, first + ROWS)
    if path.suffix == ".parquet":
        table = pa.table({"text": [str(n) for n in numbers], "ids": [[n] * (1 + n % 7) for n in numbers]})
        pq.write_table(table, path, row_group_size=16)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps({"text": str(n), "ids": [n] * (1 + n % 7)}) + "\n" for n in numbers))
    else:
        path.write_text("".join(f"{n}\n" for n in numbers))
    return path


def spec_of(tmp_path: Path, kind: str, name: str) -> str:
    return f"{kind}:{tmp_path}/{name}/x.{kind}"


def made(tmp_path: Path, *parts: Any, **options: Any) -> Loader:
    return headrace.load(list(parts), cache_dir=tmp_path / "data", **{"batch_size": 7, **options})


def numbers(batches: list[Batch]) -> list[int]:
    return [int(text) for batch in batches if not batch.pad for text in batch["text"]]


def begun(tmp_path: Path, kind: str, steps: int = 12, **options: Any) -> tuple[State, list[int]]:
    """A run over two sources, stopped; and what it gave."""
    for n, name in enumerate("ab"):
        write_rows(tmp_path / name / f"x.{kind}", n * 1000)
    loader = made(tmp_path, spec_of(tmp_path, kind, "a"), spec_of(tmp_path, kind, "b"), **options)
    batches = iter(loader)
    given = numbers([next(batches) for _ in range(steps)])
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    return state, given


EVERY = [*range(ROWS), *range(1000, 1000 + ROWS)]


def assert_once(given: list[int], rest: list[int], wanted: list[int] = EVERY) -> None:
    twice = {n: count for n, count in Counter([*given, *rest]).items() if count > 1}
    assert not twice, f"{len(twice)} rows came again: {sorted(twice)[:9]}"
    assert sorted([*given, *rest]) == wanted


def respelled(tmp_path: Path, kind: str) -> Any:
    return f"{kind}:{tmp_path}//b/./x.{kind}"


def relative(tmp_path: Path, kind: str) -> Any:
    return f"{kind}:{os.path.relpath(tmp_path)}/b/x.{kind}"


def moved(tmp_path: Path, kind: str) -> Any:
    (tmp_path / "b").rename(tmp_path / "moved")
    return spec_of(tmp_path, kind, "moved")


def file_renamed(tmp_path: Path, kind: str) -> Any:
    (tmp_path / "b" / f"x.{kind}").rename(tmp_path / "b" / f"y.{kind}")
    return f"{kind}:{tmp_path}/b/y.{kind}"


def touched(tmp_path: Path, kind: str) -> Any:
    os.utime(tmp_path / "b" / f"x.{kind}")
    return spec_of(tmp_path, kind, "b")


def named(tmp_path: Path, kind: str) -> Any:
    return Part(source=Source.parse(spec_of(tmp_path, kind, "b")), name="books")


def moved_and_named(tmp_path: Path, kind: str) -> Any:
    return Part(source=Source.parse(moved(tmp_path, kind)), name="books")


def moved_and_named_as_before(tmp_path: Path, kind: str) -> Any:
    name = f"{spec_of(tmp_path, kind, 'b')}:text"
    return Part(source=Source.parse(moved(tmp_path, kind)), name=name)


def with_column(tmp_path: Path, kind: str) -> Any:
    return f"{spec_of(tmp_path, kind, 'b')}:{'text' if kind == 'txt' else 'ids'}"


WAYS: list[Callable[[Path, str], Any]] = [
    respelled,
    relative,
    moved,
    file_renamed,
    touched,
    named,
    moved_and_named,
    moved_and_named_as_before,
    with_column,
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("alone", [False, True], ids=["one of two", "both moved about"])
def test_a_source_under_another_name_or_path_goes_on(
    tmp_path: Path, kind: str, way: Callable[[Path, str], Any], alone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    state, given = begun(tmp_path, kind)
    part_b = way(tmp_path, kind)
    part_a: Any = spec_of(tmp_path, kind, "a")
    if alone:
        (tmp_path / "a").rename(tmp_path / "first")
        part_a = spec_of(tmp_path, kind, "first")
    straight = rest_of(tmp_path, state, part_a, part_b)
    assert_once(given, straight)
    # the state of the run that went on is as good, and what comes is what would have come
    loader = made(tmp_path, part_a, part_b)
    loader.load_state_dict(state)
    batches = iter(loader)
    middle = numbers([next(batches) for _ in range(3)])
    again = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    assert middle + rest_of(tmp_path, again, part_a, part_b) == straight
    report = verify(again, run=loader._pipeline.run)
    assert report.is_reachable, report.all_problems()


def rest_of(tmp_path: Path, state: State, *parts: Any, **trust: Any) -> list[int]:
    loader = made(tmp_path, *parts)
    loader.load_state_dict(state, **trust)
    found = numbers(list(loader))
    loader.close()
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_what_comes_is_what_would_have_come(tmp_path: Path, kind: str) -> None:
    state, _ = begun(tmp_path, kind)
    wanted = rest_of(tmp_path, state, spec_of(tmp_path, kind, "a"), spec_of(tmp_path, kind, "b"))
    found = rest_of(tmp_path, state, spec_of(tmp_path, kind, "a"), moved(tmp_path, kind))
    assert found == wanted


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
@pytest.mark.parametrize("way", [respelled, moved, named])
def test_packed_sequences_go_on_to_the_token(tmp_path: Path, kind: str, way: Callable[[Path, str], Any]) -> None:
    for n, name in enumerate("ab"):
        write_rows(tmp_path / name / f"x.{kind}", n * 1000)
    options: dict[str, Any] = {"seq_len": 32, "batch_size": 2, "epochs": 1}

    def column(spec: Any) -> Any:
        if isinstance(spec, Part):
            return replace(spec, source=replace(spec.source, column="ids"))
        return f"{spec}:ids"

    def tokens(batches: list[Batch]) -> Counter[int]:
        found: Counter[int] = Counter()
        for batch in batches:
            if not batch.pad:
                found.update(batch["input_ids"][batch.document_ids > 0].tolist())
        return found

    parts = [column(spec_of(tmp_path, kind, name)) for name in "ab"]
    loader = made(tmp_path, *parts, **options)
    batches = iter(loader)
    given = tokens([next(batches) for _ in range(6)])
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    loader = made(tmp_path, parts[0], column(way(tmp_path, kind)), **options)
    loader.load_state_dict(state)
    given += tokens(list(loader))
    loader.close()
    wanted = {n: 1 + n % 7 for n in EVERY}
    assert {n: given[n] for n in EVERY} == wanted


def test_a_schedule_speaks_of_the_names_of_now(tmp_path: Path) -> None:
    for n, name in enumerate("ab"):
        write_rows(tmp_path / name / "x.txt", n * 1000)

    def loader(second: str) -> Loader:
        parts = [Part(source=Source.parse(spec_of(tmp_path, "txt", "a")), name="a")]
        parts.append(Part(source=Source.parse(spec_of(tmp_path, "txt", "b")), name=second))
        return made(tmp_path, *parts, mix=Mix(schedule=(Change(at=5, weights={second: 3.0}),)))

    first = loader("b")
    batches = iter(first)
    given = numbers([next(batches) for _ in range(9)])
    state = json.loads(json.dumps(first.state_dict()))
    wanted = numbers(list(batches))
    first.close()
    other = loader("books")
    other.load_state_dict(state)
    assert "books" in other.describe()
    found = numbers(list(other))
    assert found == wanted
    assert_once(given, found)


# --- what is not the same


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_is_new_and_one_that_is_gone_are_told_in_one_warning(
    tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    state, given = begun(tmp_path, kind)
    write_rows(tmp_path / "c" / f"x.{kind}", 5000)
    caplog.clear()
    rest = rest_of(tmp_path, state, spec_of(tmp_path, kind, "a"), spec_of(tmp_path, kind, "c"))
    (told,) = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING and "resume" in r.getMessage()]
    assert f"{kind}:{tmp_path}/c/x.{kind}:text" in told
    assert f"{kind}:{tmp_path}/b/x.{kind}:text" in told
    assert_once([n for n in given if n < ROWS], rest, [*range(ROWS), *range(5000, 5000 + ROWS)])


@pytest.mark.parametrize("kind", KINDS)
def test_other_data_in_the_place_of_a_source_is_refused(tmp_path: Path, kind: str) -> None:
    state, _ = begun(tmp_path, kind)
    specs = [spec_of(tmp_path, kind, "a"), spec_of(tmp_path, kind, "b")]
    write_rows(tmp_path / "b" / f"x.{kind}", 3000)
    loader = made(tmp_path, *specs)
    for trust in (False, True):
        with pytest.raises(Changed, match=rf"b/x\.{kind} is not the file that the state was made on"):
            loader.load_state_dict(state, trust_moved=trust)
    loader.close()


def test_a_mended_shard_goes_on_where_it_is_trusted(tmp_path: Path) -> None:
    state, given = begun(tmp_path, "jsonl")
    specs = [spec_of(tmp_path, "jsonl", "a"), spec_of(tmp_path, "jsonl", "b")]
    path = tmp_path / "b" / "x.jsonl"
    path.write_text(path.read_text().replace('"ids": [1003,', '"ids": [3, 1003,'))
    with pytest.raises(Changed, match=r"trust_changed=\["):
        rest_of(tmp_path, state, *specs)
    assert_once(given, rest_of(tmp_path, state, *specs, trust_changed=["x.jsonl"]))
    with pytest.raises(Changed, match="trust_changed"):
        rest_of(tmp_path, state, *specs, trust_changed=["other.jsonl"])


def test_a_state_of_before_goes_on_with_moved_files_where_they_are_trusted(tmp_path: Path) -> None:
    """Such a state tells nothing of its files but their paths, sizes and times."""
    state, given = begun(tmp_path, "jsonl")
    forced = partial(rest_of, force=True)
    facts = json.loads(state["sources"])
    for fact in facts:
        del fact["identity"]
    state["sources"] = json.dumps(facts)
    specs = [spec_of(tmp_path, "jsonl", "a"), spec_of(tmp_path, "jsonl", "b")]
    named_b = named(tmp_path, "jsonl")
    assert_once(given, forced(tmp_path, state, specs[0], respelled(tmp_path, "jsonl")))
    assert_once(given, forced(tmp_path, state, specs[0], named_b))
    os.utime(tmp_path / "b" / "x.jsonl")
    with pytest.raises(Changed, match="has another size or mtime.*trust_moved=True"):
        forced(tmp_path, state, *specs)
    assert_once(given, forced(tmp_path, state, *specs, trust_moved=True))
    spec = moved(tmp_path, "jsonl")
    assert_once(given, forced(tmp_path, state, specs[0], spec, trust_moved=True))
    (tmp_path / "a").rename(tmp_path / "first")
    both = [spec_of(tmp_path, "jsonl", "first"), spec]
    with pytest.raises(StateError, match="none is the same.*trust_moved=True"):
        forced(tmp_path, state, *both, trust_moved=True)
    parts = [Part(source=Source.parse(one), name=fact["name"]) for one, fact in zip(both, facts, strict=True)]
    with pytest.raises(StateError, match="the state was made with the source .*trust_moved=True"):
        forced(tmp_path, state, *parts)
    assert_once(given, forced(tmp_path, state, *parts, trust_moved=True))


def test_new_data_under_a_name_that_is_taken_gets_another(tmp_path: Path) -> None:
    """The data of b was moved and goes on under its old name; what lies in b now is another source."""
    state, given = begun(tmp_path, "txt")
    specs = [spec_of(tmp_path, "txt", "a"), moved(tmp_path, "txt")]
    loader = made(tmp_path, *specs)
    loader.load_state_dict(state)
    batches = iter(loader)
    given += numbers([next(batches) for _ in range(2)])
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    write_rows(tmp_path / "b" / "x.txt", 3000)
    specs.append(spec_of(tmp_path, "txt", "b"))
    loader = made(tmp_path, *specs)
    loader.load_state_dict(state)
    batches = iter(loader)
    given += numbers([next(batches) for _ in range(2)])
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    assert_once(given, rest_of(tmp_path, state, *specs), [*EVERY, *range(3000, 3000 + ROWS)])


@pytest.mark.parametrize("kind", KINDS)
def test_a_state_is_verified_under_a_recipe_with_other_paths(tmp_path: Path, kind: str) -> None:
    state, _ = begun(tmp_path, kind)
    loader = made(tmp_path, spec_of(tmp_path, kind, "a"), moved(tmp_path, kind))
    report = verify(state, recipe=loader._pipeline.recipe, run=loader._pipeline.run)
    assert report.is_reachable, report.all_problems()


# --- ranks


def test_ranks_that_spell_a_path_in_two_ways_share_it(tmp_path: Path) -> None:
    for n, name in enumerate("ab"):
        write_rows(tmp_path / name / "x.jsonl", n * 1000)
    spellings = [f"jsonl:{tmp_path}/a/x.jsonl", f"jsonl:{tmp_path}//a/./x.jsonl"]
    loaders = [
        made(tmp_path, spec, spec_of(tmp_path, "jsonl", "b"), rank=rank, world_size=2)
        for rank, spec in enumerate(spellings)
    ]
    found = [numbers(list(loader)) for loader in loaders]
    assert_once(found[0], found[1])
    merge_states([loader.state_dict() for loader in loaders])


def test_parts_of_ranks_that_call_a_source_by_two_names_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "a" / "x.jsonl", 0)
    specs = [f"jsonl:{tmp_path}/a/x.jsonl", "jsonl:a/x.jsonl"]
    loaders = [made(tmp_path, spec, rank=rank, world_size=2) for rank, spec in enumerate(specs)]
    for loader in loaders:
        next(iter(loader))
    with pytest.raises(StateError, match="different names read different shares of it; write its path in the same"):
        merge_states([loader.state_dict() for loader in loaders])


def test_parts_of_ranks_with_a_copy_of_the_files_each_go_together(tmp_path: Path) -> None:
    for rank in range(2):
        write_rows(tmp_path / str(rank) / "x.jsonl", 0)
    parts = [Part(source=Source.parse(f"jsonl:{tmp_path}/{rank}/x.jsonl"), name="x") for rank in range(2)]
    loaders = [made(tmp_path, part, rank=rank, world_size=2) for rank, part in enumerate(parts)]
    given: list[int] = []
    for loader in loaders:
        batches = iter(loader)
        given += numbers([next(batches) for _ in range(3)])
    state = merge_states([loader.state_dict() for loader in loaders])
    assert_once(given, rest_of(tmp_path, state, parts[1]), list(range(ROWS)))
    write_rows(tmp_path / "1" / "x.jsonl", 9000)
    other = made(tmp_path, parts[1], rank=1, world_size=2)
    batches = iter(other)
    for _ in range(3):
        next(batches)
    with pytest.raises(StateError, match="facts: x"):
        merge_states([loaders[0].state_dict(), other.state_dict()])


# --- taken out, and back

SHAPES = [[[13, 4], [0], [9]], [[17]], [[8, 6]]]
LENGTHS = ((3, 9, 1, 30, 4), (12, 2), (1, 40, 5))
FIELDS: list[dict[str, Any]] = [
    {"batch_size": 2},
    {"batch_size": 2, "shuffle": False},
    {"batch_size": 2, "epochs": 1, "pack": packed()},
    {"batch_size": 2, "epochs": 1, "pack": packed(method="concat")},
]


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize("topologies", [((1, 2), (1, 2), (1, 2)), ((1, 2), (2, 1), (3, 0)), ((2, 1), (3, 0), (3, 0))])
@pytest.mark.parametrize("fields", FIELDS)
def test_a_part_that_was_taken_out_comes_back_to_its_place(
    fields: dict[str, Any], topologies: tuple[tuple[int, int], ...]
) -> None:
    data = several(SHAPES, LENGTHS)
    whole, less = recipe_of(data, **fields), recipe_of([data[2], data[0]], **fields)
    least = recipe_of([data[0]], **fields)
    for steps in range(0, 12, 3):
        ledger = Ledger(data, "pack" in fields)
        run = Ranks(whole, data, topologies[0])
        ledger.add(run.steps(steps))
        for recipe in (less, least):
            run = Ranks(recipe, data, topologies[1], run.state())
            ledger.add(run.steps(1))
        state = run.state()
        assert len(state["sources"]) + len(state["lanes"]) < 20_000
        run = Ranks(whole, data, topologies[2], state)
        middle = run.state()
        assert [fact["name"] for fact in json.loads(middle["sources"])] == [one.spec for one in data]
        ledger.add(run.steps(2))
        state = run.state()
        if state["epoch"] == 0:  # not ended with those two
            ledger.add(Ranks(whole, data, topologies[0], state).steps())
        ledger.assert_only(0)


@pytest.mark.usefixtures("near")
def test_a_part_that_comes_back_in_a_later_epoch_is_read_whole_in_it() -> None:
    data = several(SHAPES, LENGTHS)
    whole, less = recipe_of(data, batch_size=2), recipe_of(data[:2], batch_size=2)
    run = Ranks(whole, data)
    run.steps(4)
    run = Ranks(less, data, (1, 0), run.state())
    run.steps()
    found = Ledger(data, False).add(Ranks(whole, data, (1, 0), run.state()).steps())
    found.assert_only(1)


@pytest.mark.usefixtures("near")
def test_a_limit_that_changed_while_a_part_was_out_is_refused() -> None:
    data = several(SHAPES, LENGTHS)
    limited = [part(data[0]), part(data[1], limit=9)]
    run = Ranks(recipe_of(data[:2], batch_size=2, parts=limited), data)
    run.steps(3)
    run = Ranks(recipe_of(data[:1], batch_size=2), data, (1, 0), run.state())
    run.steps(1)
    state = run.state()
    with pytest.raises(StateError, match="limit of txt:data1:text: the state was made with 9, here it is 10"):
        Ranks(recipe_of(data[:2], batch_size=2, parts=[part(data[0]), part(data[1], limit=10)]), data, (1, 0), state)
    Ranks(recipe_of(data[:2], batch_size=2, parts=limited), data, (1, 0), state)


@pytest.mark.usefixtures("near")
@pytest.mark.parametrize(
    "away",
    [
        3,
        {},
        {"limit": None, "lanes": []},
        {"limit": 0, "lanes": [{}]},
        {"limit": None, "lanes": [{"src": {}, "tok": 0, "held": [[1]], "rest": []}]},
        {"limit": None, "lanes": [{"src": {}, "tok": -1, "held": [], "rest": []}]},
        {"limit": None, "lanes": [{"src": {}, "tok": 0, "held": [], "rest": []}]},
    ],
)
def test_a_place_that_cannot_be_is_refused(away: Any) -> None:
    data = several(SHAPES, LENGTHS)
    run = Ranks(recipe_of(data, batch_size=2), data)
    run.steps(3)
    run = Ranks(recipe_of(data[:2], batch_size=2), data, (1, 0), run.state())
    state = run.state()
    facts = json.loads(state["sources"])
    facts[2]["away"] = away
    state["sources"] = json.dumps(facts)
    with pytest.raises(StateError):
        Ranks(recipe_of(data, batch_size=2), data, (1, 0), state)


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_that_was_moved_and_mended_at_once_is_not_read_from_its_start(tmp_path: Path, kind: str) -> None:
    for n, name in enumerate(("a/x", "a/y", "b/x")):
        write_rows(tmp_path / f"{name}.{kind}", n * 1000)

    def specs(folder: str) -> list[str]:
        return [f"{kind}:{tmp_path}/{name}/*.{kind}" for name in (folder, "b")]

    loader = made(tmp_path, *specs("a"))
    batches = iter(loader)
    given = numbers([next(batches) for _ in range(20)])
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    (tmp_path / "a").rename(tmp_path / "c")
    write_rows(tmp_path / "c" / f"y.{kind}", 5000)
    loader = made(tmp_path, *specs("c"))
    with pytest.raises(Changed, match=rf"y\.{kind} .*trust_changed"):
        loader.load_state_dict(state)
    loader.load_state_dict(state, trust_changed=[f"y.{kind}"])
    mended = {n + 4000 if 1000 <= n < 1000 + ROWS else n for n in given}
    rest = numbers(list(loader))
    assert len(rest) + len(given) == 3 * ROWS
    assert not mended & set(rest)

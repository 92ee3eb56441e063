"""One bad row does not end a run for good: it is named, can be skipped by name, or is left out and counted."""

from __future__ import annotations

import json
import logging
import re
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from spoiled_rows import KINDS, RAW_KINDS, Spoiled, delivered, jsonl, seen, txt

import headrace
from headrace import Faults, Recipe, Skip
from headrace.batch import Batch
from headrace.errors import DataError, SpecError, StateError
from headrace.serve.loader import Loader
from headrace.serve.state import stamped
from headrace.testing.tokenizers import write_tokenizer

SKIP = Faults(policy="skip")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_tokenizer(tmp_path_factory.mktemp("tokenizer"), vocab=300))


class World:
    def __init__(self, folder: Path, tokenizer: str) -> None:
        self.folder, self.tokenizer = folder, tokenizer

    def load(self, data: Spoiled, *, packed: bool = True, **options: Any) -> Loader:
        options = {"cache_dir": self.folder / "cache", "batch_size": 2 if packed else 5, **options}
        if packed:
            options = {"tokenizer": self.tokenizer, "seq_len": 48, "epochs": 1, **options}
        return headrace.load(data.spec, **options)


@pytest.fixture
def world(tmp_path: Path, tokenizer: str) -> World:
    return World(tmp_path, tokenizer)


CASES = [*((kind, True) for kind in KINDS), *((kind, False) for kind in RAW_KINDS)]


# --- stop


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("kind", "packed"), CASES)
def test_a_bad_row_stops_the_run_and_its_message_has_the_line_that_leaves_it_out(
    world: World, kind: str, packed: bool, shuffle: bool
) -> None:
    data = KINDS[kind](world.folder / "in")
    found: set[str] = set()
    for _ in range(len(data.bad) + 1):
        skip = Skip(addresses=tuple(found))
        with world.load(data, packed=packed, shuffle=shuffle, skip=skip) as loader:
            if len(found) == len(data.bad):
                batches = list(loader)
                break
            with pytest.raises(DataError) as caught:
                list(loader)
            line = re.search(r"load\(\.\.\., (skip=Skip\(addresses=\[.*?\]\))\)", str(caught.value))
            assert line is not None, str(caught.value)
            assert "load(..., faults=Faults(policy='skip'))" in str(caught.value)
            made = eval(f"dict({line[1]})", {"Skip": Skip})["skip"]  # noqa: S307 - what the message says, as it stands
            found |= set(made.addresses)
    assert found == set(data.skip())
    assert delivered(batches) == Counter(data.good)


def test_rows_before_a_bad_one_are_given_before_it_stops_the_run(world: World) -> None:
    folder = world.folder / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b'{"n": 1}\n' * 10 + b"oops\n" + b'{"n": 2}\n' * 10)
    with headrace.load(f"jsonl:{folder}/*", batch_size=1, shuffle=False, cache_dir=world.folder) as loader:
        batches = iter(loader)
        assert [batch["n"] for batch in islice(batches, 10)] == [[1]] * 10
        for _ in range(2):  # and the row is the next one, however often it is asked for
            with pytest.raises(DataError, match="row 10 .*is not JSON"):
                next(batches)


# --- the skip list


@pytest.mark.parametrize("length", [5, 20_000])
def test_all_rows_before_a_bad_line_are_given_in_file_order(tmp_path: Path, length: int) -> None:
    lines = [json.dumps({"n": i, "t": "x" * length}) for i in range(400)]
    lines[333] = lines[333][:-1]
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    given: list[int] = []
    with headrace.rows(f"jsonl:{tmp_path}/a.jsonl", shuffle=False, cache_dir=tmp_path / "c") as stage:
        with pytest.raises(DataError, match=r"a\.jsonl.*333"):
            given += (row.data["n"] for row in stage)
        with pytest.raises(DataError, match=r"a\.jsonl.*333"):
            next(stage)
    assert given == list(range(333))


@pytest.mark.parametrize(("kind", "packed"), CASES)
def test_a_row_on_the_skip_list_is_never_made_ready(world: World, kind: str, packed: bool) -> None:
    data = KINDS[kind](world.folder / "in")
    with world.load(data, packed=packed, skip=Skip(addresses=tuple(data.skip())), lanes=3) as loader:
        assert delivered(loader) == Counter(data.good)
        assert loader.stats()["rows_dropped"] == len(data.bad)
        assert loader.faults == []


@pytest.mark.parametrize("packed", [True, False])
def test_a_row_that_comes_on_the_skip_list_after_the_run_has_stopped_at_it(world: World, packed: bool) -> None:
    data = jsonl(world.folder / "in", "bad JSON")
    found: list[Any] = []
    with world.load(data, packed=packed, lanes=2) as loader:
        with pytest.raises(DataError):
            found.extend(loader)
        state = json.loads(json.dumps(loader.state_dict()))
    with world.load(data, packed=packed, lanes=2, skip=Skip(addresses=tuple(data.skip()))) as loader:
        loader.load_state_dict(state)
        found += list(loader)
    assert delivered(found) == Counter(data.good)


def test_a_row_in_a_skipped_micro_batch_may_be_bad(world: World) -> None:
    data = jsonl(world.folder / "in", "a null text")
    steps: list[int] = []
    for _ in range(8):
        with world.load(data, shuffle=False, skip=Skip(steps=tuple(steps))) as loader:
            try:
                batches = list(loader)
                break
            except DataError:
                steps.append(loader._here.m)
    assert 1 < len(steps) <= len(data.bad)
    assert max(delivered(batches).values()) == 1
    assert not delivered(batches).keys() & data.bad


def test_addresses_that_match_no_row_are_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    data = txt(world.folder / "in")
    shard = sorted(data.rows)[0][0]
    wrong = (f"{data.spec}|part-0.txt|3", f"{data.spec}|{shard}|23")
    with world.load(data, skip=Skip(addresses=(*data.skip(), *wrong))) as loader:
        assert delivered(loader) == Counter(data.good)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == 1, told
    assert told[0].startswith("skip.addresses: 2 of 7 match no row")
    assert "part-0.txt|3 (no shard of that name" in told[0]
    assert "|23 (that shard has 23 rows" in told[0]
    with pytest.raises(SpecError, match="is of no part of this recipe"):
        world.load(data, skip=Skip(addresses=("txt:elsewhere:text|a|1",)))


# --- skip and record


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize(("kind", "packed"), CASES)
def test_rows_that_fail_are_left_out_and_recorded(
    world: World, kind: str, packed: bool, shuffle: bool, caplog: pytest.LogCaptureFixture
) -> None:
    data = KINDS[kind](world.folder / "in")
    with world.load(data, packed=packed, shuffle=shuffle, faults=SKIP, lanes=2) as loader:
        assert delivered(loader) == Counter(data.good)
        assert {fault.address for fault in loader.faults} == set(data.skip())
        assert all(fault.reason for fault in loader.faults)
        assert loader.stats()["rows_dropped"] == len(data.bad)
    told = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(told) == len(data.bad)
    assert all(text.startswith("left out (") for text in told)


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_at_every_batch_goes_on_like_the_run_that_was_not_stopped(
    world: World, packed: bool, shuffle: bool, workers: int
) -> None:
    data = jsonl(world.folder / "in", "bad JSON")
    options: dict[str, Any] = {"packed": packed, "shuffle": shuffle, "faults": SKIP, "lanes": 3}
    states, wanted = [], []
    with world.load(data, **options) as loader:
        states.append(loader.state_dict())
        for batch in loader:
            wanted.append(seen(batch))
            states.append(json.loads(json.dumps(loader.state_dict())))
        last = sorted(fault.address for fault in loader.faults)
    assert last == sorted(data.skip())
    some = range(len(states)) if not workers else range(0, len(states), 5)
    for at in some:
        with world.load(data, **options, num_workers=workers) as loader:
            loader.load_state_dict(states[at])
            if at:
                assert loader.state_dict() == states[at]
            assert [seen(batch) for batch in loader] == wanted[at:], at
            assert sorted(fault.address for fault in loader.faults) == last


def _noting(loader: Loader, states: list[Any]) -> Iterator[Batch]:
    for batch in loader:
        states.append(loader.state_dict())
        yield batch


def test_more_rows_than_the_budget_stop_the_run_at_the_same_place_after_a_resume(world: World) -> None:
    data = jsonl(world.folder / "in", "bad JSON")
    options: dict[str, Any] = {"packed": False, "batch_size": 1, "shuffle": False, "lanes": 1}
    few = Faults(policy="skip", budget=3)
    found: list[Any] = []
    states: list[Any] = []
    with world.load(data, **options, faults=few) as loader:
        wanted = r"3 rows of this lane were left out before it.*budget=3\) allows no more"
        with pytest.raises(DataError, match=wanted):
            found.extend(_noting(loader, states))
        assert len(loader.faults) == 3
    assert delivered(found) == Counter({row for row in data.good if row < sorted(data.bad)[3]})
    for at, state in enumerate(states):
        with world.load(data, **options, faults=few) as loader:
            loader.load_state_dict(state)
            more: list[Any] = []
            with pytest.raises(DataError, match="3 rows of this lane were left out before it"):
                more.extend(loader)
            assert at + 1 + len(more) == len(found)
    with world.load(data, **options, faults=SKIP) as loader:  # a larger budget goes on from there
        loader.load_state_dict(states[-1])
        found += list(loader)
        assert len(loader.faults) == len(data.bad)
    assert delivered(found) == Counter(data.good)


def test_a_row_that_comes_in_every_pass_counts_once(world: World) -> None:
    data = jsonl(world.folder / "in", "bad JSON")
    for packed, options in ((False, {"epochs": 7}), (True, {"epochs": 7}), (True, {"epochs": None})):
        faults = Faults(policy="skip", budget=len(data.bad))
        with world.load(data, packed=packed, faults=faults, lanes=2, **options) as loader:
            found = delivered(islice(loader, 300))
            assert min(found.values()) > 3
            assert {fault.address for fault in loader.faults} == set(data.skip())


def test_epochs_of_the_trainer_count_rows_over_the_whole_run(world: World) -> None:
    data = jsonl(world.folder / "in", "bad JSON")
    with world.load(data, packed=False, faults=Faults(policy="skip", budget=5), lanes=1) as loader:
        for _ in range(3):
            assert delivered(loader) == Counter(data.good)
            assert len(loader.faults) == len(data.bad)


def test_the_policy_is_part_of_the_recipe_and_may_be_given_beside_one(world: World) -> None:
    data = txt(world.folder / "in")
    recipe = Recipe.of(data.spec, batch_size=4, faults=SKIP)
    path = world.folder / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    assert "faults:\n  policy: skip\n" in path.read_text()
    assert "up to 100 bad rows left out per lane" in recipe.describe()
    options: dict[str, Any] = {"cache_dir": world.folder / "cache"}
    for given in (recipe, path):
        with headrace.load(given, **options) as loader:
            assert delivered(loader) == Counter(data.good)
        with headrace.load(given, faults=Faults(), **options) as loader, pytest.raises(DataError):
            list(loader)


def test_a_state_goes_on_under_another_policy(world: World) -> None:
    data = jsonl(world.folder / "in", "bad JSON")
    found: list[Any] = []
    options: dict[str, Any] = {"packed": False, "batch_size": 1, "lanes": 1, "shuffle": False}
    with world.load(data, **options, faults=SKIP) as loader:
        found += islice(loader, 30)
        left_out = loader.faults
        state = loader.state_dict()
    assert len(left_out) == 3
    with world.load(data, **options) as loader:  # and the rows that were left out are still known
        loader.load_state_dict(state)
        with pytest.raises(DataError, match="row 39 "):
            found.extend(loader)
        state = loader.state_dict()
        assert [fault.address for fault in loader.faults] == [fault.address for fault in left_out]
    with world.load(data, **options, faults=SKIP) as loader:
        loader.load_state_dict(state)
        found += list(loader)
        assert {fault.address for fault in loader.faults} == set(data.skip())
    assert delivered(found) == Counter(data.good)


def test_rows_left_out_follow_their_source_when_parts_change_places(world: World) -> None:
    one, two = jsonl(world.folder / "one", "bad JSON"), txt(world.folder / "two")
    options: dict[str, Any] = {"faults": SKIP, "cache_dir": world.folder / "cache", "batch_size": 3}
    found: list[Any] = []
    with headrace.load([one.spec, two.spec], **options) as loader:
        found += islice(loader, 20)
        before = {fault.address for fault in loader.faults}
        state = loader.state_dict()
    assert before
    with headrace.load([two.spec, one.spec], **options) as loader:
        loader.load_state_dict(state)
        assert {fault.address for fault in loader.faults} == before
        found += list(loader)
        assert {fault.address for fault in loader.faults} == {*one.skip(), *two.skip()}
    assert delivered(found) == Counter(one.good | two.good)


@pytest.mark.parametrize("faults", ["x", [[0, 1]], [[0, 1, -1]], [[1, 0, 0]], [[0, 0, True]], [[0, 0, 1.0]]])
def test_a_state_with_impossible_faults_is_refused(world: World, faults: Any) -> None:
    data = txt(world.folder / "in")
    with world.load(data, packed=False, faults=SKIP) as loader:
        next(iter(loader))
        state = loader.state_dict()
        lanes = json.loads(state["lanes"])
        loader.close()
        with pytest.raises(StateError, match="faults: "):
            loader.load_state_dict(
                stamped({**state, "lanes": json.dumps([{**lane, "faults": faults} for lane in lanes])})
            )


def test_a_damaged_file_is_no_bad_row(world: World) -> None:
    headrace.testing.write_parquet(world.folder / "in", [[30]])
    (path,) = (world.folder / "in").iterdir()
    spoiled = bytearray(path.read_bytes())
    spoiled[100:200] = bytes(100)
    path.write_bytes(spoiled)
    with headrace.load(f"parquet:{path}", faults=SKIP, cache_dir=world.folder) as loader:
        with pytest.raises(DataError, match="it is damaged"):
            list(loader)
        assert loader.faults == []


@pytest.mark.parametrize("workers", [0, 1])
def test_bad_rows_behind_the_last_batch_are_left_out_and_listed_too(world: World, workers: int) -> None:
    folder = world.folder / "in"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b'{"n": 1}\n' * 10 + b"oops\n" * 2)
    options: dict[str, Any] = {"batch_size": 5, "shuffle": False, "cache_dir": world.folder, "num_workers": workers}
    with headrace.load(f"jsonl:{folder}/*", faults=SKIP, **options) as loader:
        assert [batch["n"] for batch in loader] == [[1] * 5] * 2
        assert [fault.address.rpartition("|")[2] for fault in loader.faults] == ["10", "11"]
        state = loader.state_dict()
        assert [batch["n"] for batch in loader] == [[1] * 5] * 2
        assert len(loader.faults) == 2, "each counts once, however often it comes"
    with headrace.load(f"jsonl:{folder}/*", faults=SKIP, **options) as loader:
        loader.load_state_dict(state)
        assert len(loader.faults) == 2

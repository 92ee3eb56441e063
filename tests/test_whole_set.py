"""Limits of None: an epoch of a TrueStreamingDataset is the whole set, once; and how often samples come is told."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from streaming import Memory, World
from torch.utils.data import DataLoader

from headrace import TrueStreamingDataset
from headrace.errors import SpecError, StateError

SIZES = {"a": 17, "b": 17}
WHOLE: dict[str, Any] = {"max_per_epoch": None, "max_per_dataset": None, "sample_repeat": 1}


def row(name: str, i: int) -> dict[str, Any]:
    if i % 5 == 4:  # gives no sample
        return {"instruction": "", "output": ""}
    return {"instruction": "w" * (1 + i % 4), "output": f"[{name} {i}]"}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def memory(world: World) -> Memory:
    return world.memory({name: lambda i, name=name: row(name, i) for name in SIZES})  # type: ignore[misc]


ALL = Counter(f"{name} {i}" for name, size in SIZES.items() for i in range(size) if i % 5 != 4)


@pytest.mark.parametrize("shuffle", [False, True])
def test_an_epoch_without_limits_is_the_whole_set_once(world: World, memory: Memory, shuffle: bool) -> None:
    dataset = memory.make(**WHOLE, shuffle=shuffle)
    orders = [world.names(dataset) for _ in range(3)]
    assert [Counter(names) for names in orders] == [ALL] * 3
    assert (orders[0] != orders[1]) == shuffle
    with pytest.raises(TypeError, match="the whole set"):
        len(dataset)
    twice = memory.make(**{**WHOLE, "sample_repeat": 2})
    assert Counter(world.names(twice)) == Counter(dict.fromkeys(ALL, 2))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pack", [None, "best_fit"])
def test_a_loader_gives_the_whole_set_too(world: World, memory: Memory, pack: Any, workers: int) -> None:
    loader = memory.make(**WHOLE).loader(3, pack=pack, seq_len=None if pack is None else 200, num_workers=workers)
    for _ in range(2):
        batches = [batch for batch in loader if not batch.pad]
        if pack is None:
            assert Counter(world.names_of(batches)) == ALL
        else:
            found = Counter(span.address.row for batch in batches for spans in batch.spans for span in spans)
            assert sum(found.values()) == sum(ALL.values())
    with pytest.raises(TypeError, match="not known before it is read"):
        len(loader)
    with pytest.raises(SpecError, match="steps_per_epoch=5 with max_per_epoch=None"):
        memory.make(**WHOLE).loader(3, steps_per_epoch=5)


def test_under_a_plain_dataloader_each_epoch_is_the_whole_set(world: World, memory: Memory) -> None:
    dataset = memory.make(**WHOLE)
    for workers in (2, 2, 0):
        batches = DataLoader(dataset, batch_size=None, num_workers=workers)
        assert Counter(world.names(batches)) == ALL


@pytest.mark.parametrize("cut", [0, 1, 9, 27, 28, 30])
@pytest.mark.parametrize("lanes", [1, 3])
def test_it_resumes_exactly_in_any_epoch(world: World, memory: Memory, cut: int, lanes: int) -> None:
    """Also on another number of lanes."""
    loader = memory.make(**WHOLE).loader(1, lanes=lanes)
    seen = world.names_of(batch for batch in loader if not batch.pad)
    assert Counter(seen) == ALL
    head: list[str] = []
    for _, batch in zip(range(cut), loader, strict=False):
        head += world.names_of([batch])
    state = json.loads(json.dumps(loader.state_dict()))
    loader.close()
    again = memory.make(**WHOLE).loader(1, lanes=4 - lanes)
    again.load_state_dict(state)
    rest = world.names_of(batch for batch in again if not batch.pad)
    if cut < len(seen):
        assert Counter(head + rest) == ALL
    assert Counter(world.names_of(batch for batch in again if not batch.pad)) == ALL


def test_a_saved_state_file_resumes(world: World, memory: Memory, tmp_path: Path) -> None:
    dataset = memory.make(**WHOLE)
    assert Counter(world.names(dataset)) == ALL
    samples = iter(dataset)
    head = world.names(next(samples) for _ in range(5))
    dataset._save_streaming_state(tmp_path / "state.json")
    fresh = memory.make(**WHOLE, resume_state_path=str(tmp_path / "state.json"))
    assert Counter(head + world.names(fresh)) == ALL
    assert Counter(world.names(fresh)) == ALL


def test_bare_positions_say_which_pass_it_is(world: World, memory: Memory, tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text(json.dumps({"dataset_positions": {"a": 34, "b": 20}}))
    dataset = memory.make(**WHOLE, resume_state_path=str(path))
    assert Counter(world.names(dataset)) == Counter(f"b {i}" for i in range(3, 17) if i % 5 != 4)
    assert Counter(world.names(dataset)) == ALL
    path.write_text(json.dumps({"dataset_positions": {"a": 40, "b": 20}}))
    with pytest.raises(StateError, match=r"dataset_positions\['b'\]: 20 rows are less than the 2 passes"):
        list(memory.make(**WHOLE, resume_state_path=str(path)))


def test_one_limit_of_none_is_what_the_other_allows(world: World, memory: Memory) -> None:
    only_epoch = memory.make(max_per_epoch=40, max_per_dataset=None, sample_repeat=1)
    assert (len(only_epoch), len(list(only_epoch))) == (40, 40)
    only_source = memory.make(max_per_epoch=None, max_per_dataset=3, sample_repeat=1)
    assert len(only_source) == 6
    assert Counter(name.split()[0] for name in world.names(only_source)) == {"a": 3, "b": 3}
    limited = memory.make(max_per_epoch=None, max_per_dataset=3, sample_repeat=1, modality_max_values={"text": 4})
    assert len(list(limited)) == 4
    with pytest.raises(SpecError, match="modality_max_values with max_per_epoch=None and max_per_dataset=None"):
        memory.make(**WHOLE, modality_max_values={"text": 4})


def test_a_state_of_the_other_kind_is_refused(memory: Memory, tmp_path: Path) -> None:
    for first, second in ((WHOLE, {"max_per_epoch": 6}), ({"max_per_epoch": 6}, WHOLE)):
        dataset = memory.make(**first)
        next(iter(dataset))
        dataset._save_streaming_state(tmp_path / "state.json")
        with pytest.raises(StateError, match="the state was made with .* set them back, or start anew"):
            list(memory.make(**second, resume_state_path=str(tmp_path / "state.json")))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "an epoch has 2,000 different samples, at most 100 of each data set; each sample is given 2 times"),
        (
            {"sample_repeat": 1, "max_per_epoch": 5},
            "an epoch has 5 different samples, at most 100 of each",
        ),
        (WHOLE, "an epoch has all samples of the data sets; each sample is given once (sample_repeat=1)"),
    ],
)
def test_how_often_samples_come_is_logged_once(
    memory: Memory, caplog: pytest.LogCaptureFixture, options: dict[str, Any], said: str
) -> None:
    caplog.set_level(logging.INFO, "headrace")
    next(iter(memory.make(**options)))
    (line,) = [record.getMessage() for record in caplog.records if "sample_repeat" in record.getMessage()]
    assert line.startswith(f"TrueStreamingDataset: {said}")


def test_the_docstring_says_it() -> None:
    text = TrueStreamingDataset.__doc__ or ""
    assert "`sample_repeat` times" in text
    assert "by default twice" in text

"""A state stays small and cheap, whatever the documents, lanes and sources; what keeps it so loses no token."""

from __future__ import annotations

import gc
import json
import time
from copy import deepcopy
from statistics import median
from typing import Any

import pytest
from near import Ledger, Ranks, loader_of, near, packed, recipe_of, several

from headrace.fetch.plan import Coordinate
from headrace.recipe import Mix, Pack
from headrace.serve import readable
from headrace.serve.readable import Readable
from headrace.serve.state import Saved

__all__ = ["near"]  # a fixture

KIB = 1024
DOCUMENTS = {
    "of 3 tokens": (3,),
    "of 100 tokens": (69, 154, 16, 68, 36, 288),
    "many small ones, then long ones": (*[3] * 3000, *[8000] * 9),
    "one long one among small ones": (5000, *[3] * 900),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_lane_takes_less_than_8_kib_whatever_its_documents(name: str) -> None:
    data = several([[[4000] * 12]], (DOCUMENTS[name],))
    loader = loader_of(recipe_of(data, batch_size=8, pool=16, pack=packed(8192, slack=4)), data)
    tokens = batches = 0
    for batch, _ in zip(loader, range(10), strict=False):
        assert len(loader.state_dict()["lanes"]) < 8 * KIB
        tokens, batches = tokens + batch.num_tokens, batches + 1
    assert tokens > 0.96 * batches * 8 * 8192


@pytest.mark.parametrize("overlap", [0, 2])
@pytest.mark.parametrize("most_chosen", [6, 4096])
@pytest.mark.parametrize("topology", [(1, 0), (2, 1)])
def test_where_too_many_small_pieces_wait_they_are_cut_and_none_is_lost(
    overlap: int, most_chosen: int, topology: tuple[int, int], near: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headrace.sequence.pack.MOST_HELD", 2)
    monkeypatch.setattr("headrace.sequence.pack.MOST_CHOSEN", most_chosen)
    data = several([[[31, 12], [20]]], ((1, 2, 15, 1, 1, 13, 2),))
    recipe = recipe_of(data, batch_size=2, epochs=1, pack=packed(16, slack=3, overlap=overlap))
    whole = Ranks(recipe, data, topology).steps()
    assert any(span.start for batch in whole for spans in batch.spans for span in spans), "one was cut"
    for steps in range(len(whole) // topology[0]):
        run = Ranks(recipe, data, topology)
        ledger = Ledger(data, packed=True).add(run.steps(steps))
        state = run.state()
        assert all(len(lane["held"]) <= 2 for lane in json.loads(state["lanes"]))
        ledger.copy().add(Ranks(recipe, data, topology, state).steps()).assert_only(0)
        ledger.add(Ranks(recipe, data, (3, 0), state).steps()).assert_only(0)


WIDE = {
    "rows": (None, (5,)),
    "documents of 16 to 288 tokens": (packed(8192, slack=4), DOCUMENTS["of 100 tokens"]),
    "documents of 3 tokens": (packed(512, slack=4), DOCUMENTS["of 3 tokens"]),
}


@pytest.mark.alone
@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("name", WIDE)
def test_a_state_of_64_lanes_and_100_sources_takes_under_50_ms_and_8_kib_per_lane(name: str, shuffle: bool) -> None:
    pack, lengths = WIDE[name]
    data = several([[[400] * 3] * 2] * 100, (lengths,))
    fields: dict[str, Any] = {"batch_size": 8 if pack is None else 2, "pool": 16, "mix": Mix(stop="loop")}
    loader = loader_of(recipe_of(data, shuffle=shuffle, pack=pack, **fields), data, lanes=64)
    steps = iter(loader)
    for _ in range(130):
        next(steps)
    for gap in (1, 100):
        times = []
        for _ in range(9 if gap == 1 else 3):
            for _ in range(gap):
                next(steps)
            begun = time.process_time()  # not the time that others on this machine took
            state = loader.state_dict()
            times.append(time.process_time() - begun)
            assert len(state["lanes"]) < 64 * 8 * KIB
            assert len(json.dumps(state)) < 1024 * KIB + 64 * 8 * KIB
        # The least: whatever else the machine does only adds to what a state takes. The median: collections of garbage.
        assert min(times) < 0.05, f"{times}, {gap} steps apart"
        assert median(times) < 0.1, f"{times}, {gap} steps apart"


@pytest.mark.alone
def test_a_state_at_every_step_costs_under_1_percent_of_a_step_of_100_ms() -> None:
    data = several([[[400] * 30] * 4])
    loader = loader_of(recipe_of(data, batch_size=8, pool=16, mix=Mix(stop="loop")), data, lanes=64)
    steps = iter(loader)
    for _ in range(130):
        next(steps)
    times = []
    for _ in range(40):
        begun = time.perf_counter()
        loader.state_dict()
        times.append(time.perf_counter() - begun)
        next(steps)
    assert median(times) < 0.001


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("pack", [None, packed(16, slack=3)])
@pytest.mark.parametrize("coordinate", ["rows", "windows"])
def test_an_entry_that_was_kept_is_the_one_that_would_be_made(
    shuffle: bool, pack: Pack | None, coordinate: Coordinate
) -> None:
    data = several([[[7, 3]] * 9, [[6], [4, 5]] * 5, [[9]] * 8], ((3, 20, 5),), coordinate)
    fields: dict[str, Any] = {"batch_size": 2, "mix": Mix(stop="loop"), "pack": pack}
    loader = loader_of(recipe_of(data, shuffle=shuffle, **fields), data, lanes=4)
    steps = iter(loader)
    for _ in range(24):
        next(steps)
        state = loader.state_dict()
        copy = deepcopy(state)
        Saved.from_state(copy)  # its checksum is right
        _spoil(state)
        assert loader.state_dict() == copy, "what a caller does to a state is not in the next one"
        kept, loader._readable = loader._readable, Readable(loader._pipeline)
        assert loader.state_dict() == copy
        loader._readable = kept


def _spoil(value: Any) -> None:
    """Empty every list and dict in it."""
    for inner in list(value.values() if isinstance(value, dict) else value):
        if isinstance(inner, dict | list):
            _spoil(inner)
    value.clear()


@pytest.mark.parametrize("enabled", [True, False])
def test_the_many_entries_of_a_state_set_off_no_garbage_collections(enabled: bool) -> None:
    data = several([[[400] * 3] * 2] * 50)
    loader = loader_of(recipe_of(data, shuffle=False, batch_size=3), data, lanes=64)
    steps = iter(loader)
    for _ in range(70):
        next(steps)
    begun: list[int] = []

    def noted(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            begun.append(info["generation"])

    was = gc.isenabled()
    (gc.enable if enabled else gc.disable)()
    gc.callbacks.append(noted)
    try:
        entries = loader._readable.entries(loader._here.lanes)
        assert gc.isenabled() == enabled
    finally:
        gc.callbacks.remove(noted)
        (gc.enable if was else gc.disable)()
    assert len(entries.datasets[0]["per_lane"]) == 64
    assert len(begun) < 4, "3,200 lanes of sources are 6,400 objects, and every 700 would set off one"


def test_a_step_makes_only_the_entries_of_sources_that_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    entry = readable._Source.entry

    def noted(source: readable._Source) -> dict[str, Any]:
        made.append(source.i)
        return entry(source)

    monkeypatch.setattr(readable._Source, "entry", noted)
    data = several([[[400] * 3] * 2] * 40)
    loader = loader_of(recipe_of(data, shuffle=False, batch_size=3), data, lanes=8)
    steps = iter(loader)
    for _ in range(30):
        next(steps)
    loader.state_dict()
    assert made == list(range(40))
    for _ in range(20):
        made.clear()
        batch = next(steps)
        loader.state_dict()
        drawn = {address.source for address in batch.addresses}
        assert made == [i for i, one in enumerate(data) if one.spec in drawn]

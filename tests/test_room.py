"""Pictures of a batch are made where they will lie; nobody who writes into a batch changes what comes later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from streaming import World, whole

from headrace import collate_fn
from headrace.errors import DataError
from headrace.fetch.media.tensors import image_tensor
from headrace.make.describe import Faults
from headrace.make.prepare import Ready
from headrace.make.sample import Sample
from headrace.mix.turns import Pick
from headrace.sequence.media import LARGE, collate_in
from headrace.sequence.room import Room
from headrace.sequence.samples import SampleBatcher
from headrace.sequence.side_by_side import Helpers
from headrace.serve.lane import Lane

ONCE: dict[str, Any] = {"max_per_epoch": 10, "max_per_dataset": 10, "sample_repeat": 1}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("names", [("vision",), ("vision", "code"), ("vision", "voice_asr", "video")])
def test_a_batch_is_what_its_samples_make(world: World, names: tuple[str, ...], threads: int) -> None:
    samples = list(world.make(names, **ONCE))
    batches = list(world.make(names, decode_threads=threads, **ONCE).loader(batch_size=4))
    wanted = [collate_fn(samples[at : at + 4]) for at in range(0, len(samples), 4)]
    assert [whole(batch) for batch in batches] == [whole(batch) for batch in wanted]


@pytest.mark.parametrize("names", [("vision",), ("vision", "code")])
def test_who_writes_into_a_batch_changes_nothing_else(world: World, names: tuple[str, ...]) -> None:
    """Not later batches, and not those that fill slots: they are made of the same first samples each time."""

    def given(spoil: bool) -> list[dict[str, Any]]:
        with world.make(names, **ONCE).loader(batch_size=4) as loader:
            loader._pipeline.fix(1)
            lane = Lane(loader._pipeline, 0, 1)
            found = []
            for m in range(6):
                batch = lane.next(m)
                found.append(whole(batch))
                if spoil:
                    batch["images"].fill_(7)
            lane.close()
        assert lane.is_filling
        return found

    assert given(spoil=True) == given(spoil=False)


def test_samples_that_are_given_again_are_as_they_were(world: World) -> None:
    repeated = {**ONCE, "sample_repeat": 3}
    clean = [whole(batch) for batch in world.make(["vision"], **repeated).loader(batch_size=4)]
    found = []
    for batch in world.make(["vision"], **repeated).loader(batch_size=4):
        found.append(whole(batch))
        batch["images"].fill_(7)
    assert found == clean


def test_a_batch_owns_just_its_pictures(world: World) -> None:
    *full, last = list(world.make(["vision"], **ONCE).loader(batch_size=4))
    for batch in [*full, last]:
        pictures = batch["images"]
        assert pictures.is_contiguous()
        assert pictures.untyped_storage().nbytes() == pictures.numel() * 4
    assert len(full) == 2
    assert len(last["images"]) == 2


def batcher(finish: Any, extras: dict[str, Any]) -> tuple[SampleBatcher, Any]:
    rows = (Ready(0, 0, i, "shard", i, [Sample(np.zeros(1, np.int32), None, extras)]) for i in range(6))
    found = SampleBatcher(4, 1, 8, finish, Faults(), lambda pick: None)
    found.picture_size = 2
    picks: Iterator[Pick] = (Pick(row, 0) for row in rows)
    return found, lambda: next(picks, None)


@pytest.mark.parametrize(
    ("extras", "roomy"),
    [({"image": b"x"}, True), ({"images": [b"x"]}, False), ({"image": b"x", "images": [b"y"]}, False), ({}, False)],
    ids=str,
)
def test_only_samples_of_one_picture_each_share_a_room(extras: dict[str, Any], roomy: bool) -> None:
    def finish(row: Ready, sub: int, out: torch.Tensor | None = None) -> dict[str, Any]:
        return {"images": torch.full((3, 2, 2), 1.0 * row.row) if out is None else out.fill_(row.row)}

    made, take = batcher(finish, extras)
    items = made.make(take, 0)
    assert [item.made["images"].max().item() for item in items] == [0, 1, 2, 3]
    assert (items[0].room is not None) is roomy
    assert [item.room for item in made.make(take, 0)] == [None, None], "the last batch is not whole"


def test_a_batch_that_an_error_ended_is_stacked() -> None:
    fails = iter([False, False, True] + [False] * 9)

    def finish(row: Ready, sub: int, out: torch.Tensor | None = None) -> dict[str, Any]:
        if next(fails):
            raise DataError("the disk hiccups")
        return {"images": torch.full((3, 2, 2), 1.0 * row.row) if out is None else out.fill_(row.row)}

    made, take = batcher(finish, {"image": b"x"})
    with pytest.raises(DataError):
        made.make(take, 0)
    items = made.make(take, 0)
    pictures = [item.made["images"] for item in items]
    assert [picture.max().item() for picture in pictures] == [0, 1, 2, 3]
    assert items[0].room is not None
    assert items[0].room.whole(pictures) is None


def test_a_room_is_given_once_and_only_for_its_own_pictures() -> None:
    room = Room(2, 2)
    assert room.whole(room.slots[::-1]) is None
    assert room.whole(room.slots[:1]) is None
    assert room.whole([slot.clone() for slot in room.slots]) is None
    given = room.whole(room.slots)
    assert given is not None
    assert given.data_ptr() == room.slots[0].data_ptr()
    with pytest.raises(AssertionError):
        room.whole(room.slots)


def test_a_picture_is_the_same_wherever_it_is_made() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (7, 9, 3), np.uint8)
    out = torch.full((2, 3, 4, 4), 5.0)
    found = image_tensor(picture, 4, out=out[1])
    assert torch.equal(out[1], image_tensor(picture, 4))
    assert found.data_ptr() == out[1].data_ptr()
    assert torch.equal(out[0], torch.full((3, 4, 4), 5.0))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_pictures_are_float32_on_the_cpu_whatever_torch_makes_by_default(world: World, dtype: torch.dtype) -> None:
    torch.set_default_dtype(dtype)
    torch.set_default_device("meta")
    try:
        batches = list(world.make(("vision",), **ONCE).loader(batch_size=4))
    finally:
        torch.set_default_device(None)
        torch.set_default_dtype(torch.float32)
    assert {(batch["images"].dtype, batch["images"].device.type) for batch in batches} == {(torch.float32, "cpu")}


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("name", ["audio", "videos", "gen_images"])
def test_a_large_batch_is_put_together_by_several(name: str, threads: int) -> None:
    """Each item in its place, with zeros behind it, as by one."""
    shapes: dict[str, list[tuple[int, ...]]] = {
        "audio": [(700_000 + 9 * i,) for i in range(5)],
        "videos": [(3 + i, 3, 128, 128) for i in range(5)],
        "gen_images": [(3, 256, 256)] * 5,
    }
    generator = torch.Generator().manual_seed(1)
    token = {"input_ids": torch.zeros(2, dtype=torch.long), "attention_mask": torch.ones(2, dtype=torch.long)}
    batch = [{**token, name: torch.randn(shape, generator=generator)} for shape in shapes[name]]
    before = set(threading.enumerate())
    with closing(Helpers(threads)) as helpers:
        found = collate_in(None, batch, helpers)
        assert len(set(threading.enumerate()) - before) == threads - 1
    assert found[name].nbytes > LARGE
    for one, place in zip(batch, found[name], strict=True):
        size = len(one[name])
        assert torch.equal(place[:size], one[name])
        assert not place[size:].any()
    alone = collate_fn(batch)
    assert found.keys() == alone.keys()
    assert all(torch.equal(found[key], alone[key]) for key in found if isinstance(found[key], torch.Tensor))

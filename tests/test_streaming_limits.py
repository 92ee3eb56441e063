"""Limits of an epoch hold for the whole run, on any number of lanes, workers and ranks; so do those of bad rows."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from streaming import Memory, World, code_row, named, speech_row, vision_row, write_table
from torch.utils.data import DataLoader

from headrace import Faults, collate_fn
from headrace.errors import DataError, NotAllowed, SpecError
from headrace.mix.turns import MODALITIES, Limits, Quotas
from headrace.serve.streaming import TrueStreamingDataset


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def memory_of(world: World) -> Memory:
    return world.memory({name: named(name) for name in "abc"})


def per_source(names: Sequence[str]) -> dict[str, int]:
    return dict(Counter(name.split()[0] for name in names))


# --- shares of lanes

LIMITS = [
    Limits(per_epoch=20, per_source=7),
    Limits(per_epoch=21, per_source=7),
    Limits(per_epoch=2000, per_source=100),
    Limits(per_epoch=1, per_source=1),
    Limits(per_epoch=13, per_source=10, per_modality={"text": 3, "image": 5, "audio": 7}),
    Limits(per_epoch=12, per_source=3, per_modality={"text": 0, "image": 100}),
]
KINDS = [["text"] * 3, ["text", "image", "text", "audio"], ["image", "video", "image", "text", "text"]]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("kinds", KINDS, ids=str)
@pytest.mark.parametrize("lanes", [1, 2, 3, 7, 64])
def test_lanes_can_give_each_for_itself_what_they_can_give_together(
    limits: Limits, kinds: list[str], lanes: int
) -> None:
    whole = Quotas.of(limits, kinds)
    for epoch in (0, 1, 5):
        shares = [whole.share(kinds, lane, lanes, epoch) for lane in range(lanes)]
        assert sum(share.total for share in shares) == whole.total
        assert [sum(found) for found in zip(*(share.sources for share in shares), strict=True)] == whole.sources
        assert [sum(found) for found in zip(*(share.kinds for share in shares), strict=True)] == whole.kinds
        assert sum(share.reached(kinds).total for share in shares) == whole.reached(kinds).total
        totals = [share.total for share in shares]
        assert max(totals) - min(totals) <= 1


def test_over_the_epochs_no_lane_gets_more_than_another() -> None:
    whole, lanes = Quotas.of(Limits(per_epoch=20, per_source=7), ["text"] * 3), 4
    given = [[whole.share(["text"] * 3, lane, lanes, epoch) for epoch in range(lanes)] for lane in range(lanes)]
    totals = [
        (sum(share.total for share in lane), [sum(share.sources[i] for share in lane) for i in range(3)])
        for lane in given
    ]
    assert totals == [(20, [7, 7, 7])] * lanes


# --- samples


@pytest.mark.parametrize("lanes", [1, 2, 3, 5])
def test_limits_hold_over_all_lanes(world: World, lanes: int) -> None:
    loader = memory_of(world).make(max_per_epoch=20, max_per_dataset=7, sample_repeat=1).loader(2, lanes=lanes)
    for _ in range(3):
        found = per_source(world.names_of(loader))
        assert sum(found.values()) == 20
        assert max(found.values()) <= 7
    exact = memory_of(world).make(max_per_epoch=21, max_per_dataset=7, sample_repeat=2).loader(2, lanes=lanes)
    assert per_source(world.names_of(exact)) == {"a": 14, "b": 14, "c": 14}


@pytest.mark.parametrize("workers", [0, 1, 2, 3])
def test_limits_hold_over_the_workers_of_a_plain_data_loader(world: World, workers: int) -> None:
    dataset = memory_of(world).make(max_per_epoch=21, max_per_dataset=7, sample_repeat=2)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "This DataLoader will create")
        batches = list(DataLoader(dataset, batch_size=4, num_workers=workers, collate_fn=collate_fn))
    names = world.names_of(batches)
    assert per_source(names) == {"a": 14, "b": 14, "c": 14}
    assert set(Counter(names).values()) == {2}


@pytest.mark.parametrize("workers", [0, 2])
def test_limits_hold_over_our_own_workers(world: World, workers: int) -> None:
    dataset = world.make(["conversation", "code", "vision"], max_per_epoch=15, max_per_dataset=6, sample_repeat=2)
    loader = dataset.loader(batch_size=4, num_workers=workers, lanes=2)
    found = per_source(world.names_of(loader))
    assert sum(found.values()) == 30 == loader.stats()["samples"]
    assert max(found.values()) <= 12
    assert len(loader) == loader.stats()["batches"]


def test_limits_hold_over_ranks_and_workers(world: World, as_rank: Callable[[int, int], None]) -> None:
    names = []
    for rank in range(2):
        as_rank(rank, 2)
        dataset = memory_of(world).make(max_per_epoch=21, max_per_dataset=7, sample_repeat=2)
        names += world.names_of(DataLoader(dataset, batch_size=4, num_workers=2, collate_fn=collate_fn))
    assert per_source(names) == {"a": 14, "b": 14, "c": 14}
    assert set(Counter(names).values()) == {2}


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_limits_hold_over_ranks(world: World, ranks: int, as_rank: Callable[[int, int], None]) -> None:
    names, counts = [], []
    for rank in range(ranks):
        as_rank(rank, ranks)
        dataset = memory_of(world).make(max_per_epoch=20, max_per_dataset=7, sample_repeat=2)
        found = world.names(dataset)
        counts.append(len(found))
        names += found
    assert len(names) == 40
    assert max(per_source(names).values()) <= 14
    assert max(counts) - min(counts) <= 2


def test_ranks_of_a_loader_keep_step_and_what_fills_a_step_teaches_nothing(
    world: World, as_rank: Callable[[int, int], None]
) -> None:
    steps, names, pads = [], [], []
    for rank in range(2):
        as_rank(rank, 2)
        loader = memory_of(world).make(max_per_epoch=9, max_per_dataset=3, sample_repeat=1).loader(2)
        batches = list(loader)
        steps.append(len(batches))
        names += world.names_of(batch for batch in batches if not batch.pad)
        pads += [batch for batch in batches if batch.pad]
        assert len(loader) == len(batches)
    assert steps[0] == steps[1] == 3
    assert per_source(names) == {"a": 3, "b": 3, "c": 3}
    assert pads == [] or all((batch["labels"] == -100).all() for batch in pads)


def test_a_step_that_is_only_filled_has_no_labels_to_learn_from(
    world: World, as_rank: Callable[[int, int], None]
) -> None:
    as_rank(1, 2)
    batches = list(memory_of(world).make(max_per_epoch=3, sample_repeat=1).loader(1))
    assert [batch.pad for batch in batches] == [False, True]
    assert (batches[1]["labels"] == -100).all()
    assert (batches[0]["labels"] != -100).any()


@pytest.mark.parametrize("lanes", [1, 2, 3])
def test_modalities_have_limits_of_their_own(world: World, lanes: int) -> None:
    limits = {"text": 3, "image": 5}
    options = {"max_per_epoch": 16, "max_per_dataset": 8, "sample_repeat": 1, "modality_max_values": limits}
    dataset = world.make(["conversation", "code", "vision", "voice_asr"], **options)
    assert dataset.is_dual_training
    loader = dataset.loader(batch_size=2, lanes=lanes)
    for epoch in range(2):
        kinds = Counter(kind for batch in loader for kind in batch["dtype"])
        assert kinds["conversation"] + kinds["code"] == 3
        assert (kinds["vision"], kinds["voice_asr"]) == (5, 8)
        assert dataset._streaming_state["epoch"] == epoch + 1
    assert not memory_of(world).make().is_dual_training


def test_a_modality_without_room_is_left_alone(world: World) -> None:
    memory = world.memory({"a": named("a")})
    configs = {**memory.configs(), "vision": [{"name": "v", "path": "v", "local": True}]}
    memory._rows = {**memory._rows, "v": lambda i: vision_row(i)}
    dataset = memory.make(configs=configs, max_per_epoch=5, modality_max_values={"image": 0})
    assert {sample["dtype"] for sample in dataset} == {"code"}
    assert memory.sources["v"].opened == 0


def test_counts_of_an_epoch_are_told(world: World) -> None:
    dataset = world.make(["code", "vision"], max_per_epoch=9, max_per_dataset=5, sample_repeat=2)
    samples = iter(dataset)
    for total in range(1, 19):
        next(samples)
        state = dataset._streaming_state
        unique = (total + 1) // 2
        assert (state["total_yields"], state["unique_samples"]) == (total, unique)
        counts = {"text": (unique + 1) // 2, "image": unique // 2}
        assert state["modality_counts"] == {**dict.fromkeys(MODALITIES, 0), **counts}
        done = total // 2  # of a sample that comes once more, the row is not done
        assert state["dataset_positions"] == {"code": (done + 1) // 2, "vision": done // 2}
    assert next(samples, None) is None
    assert dataset._streaming_state["epoch"] == 1
    assert dataset._streaming_state["unique_samples"] == 0


# --- rows that fail


def bad_rows(world: World, name: str, bad: Sequence[int], count: int = 12) -> dict[str, Any]:
    rows = [vision_row(i) for i in range(count)]
    for i in bad:
        rows[i]["image"]["bytes"] = rows[i]["image"]["bytes"][:40]
    path = write_table(world.folder / f"{name}.parquet", rows, group=5)
    return {"vision": [{"name": name, "path": str(path)}]}


def told(error: BaseException) -> str:
    return "\n".join([str(error), *getattr(error, "__notes__", [])])


@pytest.mark.parametrize("workers", [None, 0, 1])
def test_a_corrupt_image_raises_with_its_address(world: World, workers: int | None) -> None:
    dataset = world.make(bad_rows(world, "corrupt", [3]), max_per_epoch=12, sample_repeat=2)
    given: list[Any] = []
    samples: Iterator[Any] = iter(dataset) if workers is None else iter(dataset.loader(2, num_workers=workers))
    with pytest.raises(DataError) as caught:
        given.extend(samples)
    assert "corrupt.parquet:3" in told(caught.value)
    assert len(given) == (6 if workers is None else 3)
    if workers is None:
        with pytest.raises(DataError):  # it is still there
            next(iter(dataset))


def test_bad_rows_are_skipped_counted_and_told(world: World, caplog: pytest.LogCaptureFixture) -> None:
    configs = bad_rows(world, "skipped", [0, 4, 5])
    dataset = world.make(configs, max_per_epoch=9, sample_repeat=2, faults=Faults(policy="skip", budget=3))
    names = world.names(dataset)
    assert names == [f"vision {i}" for i in (1, 2, 3, 6, 7, 8, 9, 10, 11) for _ in range(2)]
    state = dataset._streaming_state
    assert state["skipped_rows"] == 3
    assert json.loads(state["headrace"]["lanes"])[0]["bad"] == 3
    warnings = [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]
    warnings = [line for line in warnings if not line.startswith("tokens: the tokenizer does not know")]
    assert len(warnings) == 3
    assert "skipped (2 of at most 3)" in warnings[1]
    assert "skipped.parquet:4" in warnings[1]


def test_one_bad_row_more_than_the_budget_is_an_error(world: World) -> None:
    dataset = world.make(bad_rows(world, "many", [0, 4, 5]), faults=Faults(policy="skip", budget=2))
    with pytest.raises(DataError) as caught:
        list(dataset)
    assert "many.parquet:5" in told(caught.value)
    assert "2 rows of this lane were skipped before it" in told(caught.value)


@pytest.mark.parametrize("lanes", [1, 3])
def test_limits_are_reached_without_the_rows_that_were_skipped(world: World, lanes: int) -> None:
    configs = bad_rows(world, "among", [0, 4, 5])
    options = {"max_per_epoch": 9, "sample_repeat": 2, "faults": Faults(policy="skip", budget=9)}
    loader = world.make(configs, **options).loader(batch_size=2, lanes=lanes)
    assert len(world.names_of(loader)) == 18


@pytest.mark.parametrize("cut", [0, 1, 7, 17])
def test_what_was_skipped_is_counted_on_after_a_resume(world: World, cut: int) -> None:
    configs = bad_rows(world, "again", [0, 4, 5])

    def make(budget: int) -> TrueStreamingDataset:
        return world.make(configs, max_per_epoch=9, sample_repeat=2, faults=Faults(policy="skip", budget=budget))

    whole = world.names(make(3))
    dataset = make(3)
    samples = iter(dataset)
    given = world.names(islice(samples, cut))
    dataset._save_streaming_state(world.folder / "bad.json")
    again = make(3)
    again._load_streaming_state(world.folder / "bad.json")
    assert given + world.names(again) == whole
    assert again._streaming_state["skipped_rows"] == 3
    short = make(2)
    short._load_streaming_state(world.folder / "bad.json")
    if cut < 7:
        with pytest.raises(DataError) as caught:
            list(short)
        assert "2 rows of this lane were skipped before it" in told(caught.value)


@pytest.mark.parametrize("text", ["[a 1]", "\ud800"], ids=["missing", "surrogate"])
def test_rows_that_cannot_be_formatted_can_be_skipped(world: World, text: str) -> None:
    def needs(sample: Any, tokens: Any) -> Any:
        number = int(sample["instruction"].split()[1])
        return {"text": sample["output"] if number % 3 else sample["missing"] if text == "[a 1]" else text}

    memory = world.memory({"a": lambda i: code_row(i, "a")})
    options = {"functions": {"code": needs}, "max_per_epoch": 4, "sample_repeat": 1}
    with pytest.raises(DataError) as caught:
        list(memory.make(**options))
    assert "jsonl:a:text" in told(caught.value)
    dataset = memory.make(**options, faults=Faults(policy="skip", budget=2))
    assert world.names(dataset) == ["a 1", "a 2", "a 4", "a 5"]
    assert dataset._streaming_state["skipped_rows"] == 2


def test_media_that_the_policy_refuses_follow_the_same_rule(world: World) -> None:
    row = {**vision_row(0), "image": "/etc/passwd"}
    memory = world.memory({"v": lambda i: row if i == 1 else vision_row(i)})
    with pytest.raises(NotAllowed, match="passwd"):
        list(memory.make(configs=memory.configs("vision"), max_per_epoch=3))
    dataset = memory.make(configs=memory.configs("vision"), max_per_epoch=3, faults=Faults(policy="skip"))
    assert world.names(dataset) == [f"vision {i}" for i in (0, 2, 3) for _ in range(2)]


@pytest.mark.parametrize("no", [False, 0, 0.0, np.False_, "no", "False"])
def test_a_formatter_of_ones_own_may_say_in_any_words_that_a_row_is_not_for_training(world: World, no: Any) -> None:
    functions = {
        "code": lambda row, tokens: {"text": "x", "is_training": no if row["instruction"][-1] == "0" else None}
    }
    made = world.memory({"a": named("a")}).make(functions=functions, max_per_epoch=2, sample_repeat=1)
    assert ["labels" in sample for sample in made] == [False, True]


def test_a_flag_that_nobody_understands_is_a_bad_row(world: World) -> None:
    rows = {"a": lambda i: {**code_row(i, "a"), "is_training": "maybe" if i == 1 else True}}
    with pytest.raises(DataError, match="is_training is text of 5 characters; true or false") as caught:
        list(world.memory(rows).make(max_per_epoch=3, sample_repeat=1))
    assert "shard-0:1" in "".join(caught.value.__notes__)
    dataset = world.memory(rows).make(max_per_epoch=3, sample_repeat=1, faults=Faults(policy="skip"))
    assert world.names(dataset) == ["a 0", "a 2", "a 3"]


@pytest.mark.parametrize("raw", [True, False])
def test_a_sound_of_less_than_a_sample_follows_it_too(world: World, raw: bool) -> None:
    short = {"array": [0.1], "sampling_rate": 96_000}
    memory = world.memory({"v": lambda i: {**speech_row(i), "audio": short} if i == 1 else speech_row(i)})
    options = {"max_per_epoch": 3, "sample_repeat": 1, "use_raw_waveform": raw}
    dataset = memory.make(configs=memory.configs("voice_asr"), faults=Faults(policy="skip"), **options)
    assert world.names(dataset) == ["voice_asr 0", "voice_asr 2", "voice_asr 3"]


def test_a_processor_that_fails_is_no_bad_row(world: World) -> None:
    def broken(image: Any, return_tensors: str, size: Any) -> Any:
        raise RuntimeError("no such layer")

    dataset = world.make(["vision"], image_processor=broken, faults=Faults(policy="skip"))
    with pytest.raises(RuntimeError, match="no such layer") as caught:
        list(dataset)
    assert "vision.parquet:0" in told(caught.value)


def test_a_processor_that_divides_by_nothing_is_no_bad_row(world: World) -> None:
    class Divides:
        def __call__(self, image: Any, return_tensors: str, size: dict[str, int]) -> Any:
            values = torch.zeros(1, 3, size["height"], size["width"])
            return {"pixel_values": values / 0}

    dataset = world.make(["vision"], image_processor=Divides(), faults=Faults(policy="skip"))
    with pytest.raises(SpecError, match=r"image processor made values that are not numbers .*image_std") as caught:
        list(dataset)
    assert "vision.parquet:0" in told(caught.value)


@pytest.mark.parametrize("bad", [{"policy": "ignore"}, {"budget": -1}, {"budget": 1.5}, {"budget": True}])
def test_a_policy_for_faults_is_checked(bad: dict[str, Any]) -> None:
    with pytest.raises(SpecError):
        Faults(**bad)

"""What a reader with fresh eyes found in robot data sets, each once wrong: states, epochs, faults, files, names."""

from __future__ import annotations

import itertools
import json
import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from pyarrow import parquet
from robots import EPISODES, NUM_FRAMES, numbers, small_set
from torch.utils.data import DataLoader
from torchdata.stateful_dataloader import StatefulDataLoader

from headrace import Loader, StreamingLeRobotDataset, merge_states
from headrace.catalog.frames import Frames
from headrace.catalog.source import Source
from headrace.errors import DataError, SpecError, StateError
from headrace.lerobot import table
from headrace.lerobot.items import Episode
from headrace.lerobot.source import open_robot
from headrace.run import Run
from headrace.serve.verify import verify
from headrace.testing import Camera, LocalHub, write_robot_dataset

BATCH = 4
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*episodes for .* consumers"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot_dataset(tmp_path_factory.mktemp("r") / "set", episodes=EPISODES, fps=10, cameras={})


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_robot_dataset(tmp_path_factory.mktemp("r") / "set", episodes=(4, 4, 4), fps=10, cameras={})


@pytest.fixture(scope="module")
def filmed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_set(tmp_path_factory.mktemp("r") / "set")


def stream(folder: Path, **options: Any) -> StreamingLeRobotDataset:
    return StreamingLeRobotDataset("org/robot", root=folder, episode_pool_size=3, cache_dir=folder / "cache", **options)


def some(items: Any, count: int) -> list[int]:
    return numbers(itertools.islice(items, count))


def batches(loader: Any) -> list[list[int]]:
    return [batch["index"].tolist() for batch in loader]


def resumed(folder: Path, state: Any, **options: Any) -> StreamingLeRobotDataset:
    data = stream(folder, **options)
    data.load_state_dict(json.loads(json.dumps(state)))
    return data


def joined(folder: Path, ranks: int, count: int, **options: Any) -> tuple[dict[str, Any], list[list[int]]]:
    """The state of all ranks after `count` items of each, and what each would give after it."""
    parts, rests = [], []
    for rank in range(ranks):
        data = stream(folder, rank=rank, world_size=ranks, **options)
        items = iter(data)
        some(items, count)
        parts.append(data.state_dict())
        rests.append(numbers(items))
    return merge_states(parts), rests


# --- states of any epoch, and after any other state


@pytest.mark.parametrize("count", [0, 5, NUM_FRAMES])
def test_a_state_of_a_later_epoch_goes_on(folder: Path, count: int) -> None:
    data = stream(folder)
    numbers(data)
    items = iter(data)
    some(items, count)
    state = data.state_dict()
    assert verify(state, run=Run.here(cache_dir=folder / "cache")).is_reachable
    wanted = numbers(items) + numbers(data)
    again = resumed(folder, state)
    found = numbers(again) + (numbers(again) if count < NUM_FRAMES else [])
    assert found == wanted


def test_an_exact_state_after_what_a_trainer_said(folder: Path) -> None:
    run = numbers(stream(folder))
    for more in (0, 1, 4):
        data = stream(folder)
        data.load_state_dict({"batches_consumed": 3, "batch_size": BATCH})
        items = iter(data)
        assert some(items, more) == run[12 : 12 + more]
        state = data.state_dict()
        assert verify(state, run=Run.here(cache_dir=folder / "cache")).is_reachable
        assert numbers(resumed(folder, state)) == run[12 + more :]


def test_parts_of_ranks_after_what_a_trainer_said(folder: Path) -> None:
    parts, rests = [], []
    for rank in range(2):
        data = stream(folder, rank=rank, world_size=2)
        data.load_state_dict({"batches_consumed": 2, "batch_size": BATCH})
        items = iter(data)
        some(items, 2)
        parts.append(data.state_dict())
        rests.append(numbers(items))
    whole = merge_states(parts)
    assert [numbers(resumed(folder, whole, rank=rank, world_size=2)) for rank in range(2)] == rests


def test_an_epoch_that_is_set_keeps_a_state_that_lies_in_it(folder: Path) -> None:
    data = stream(folder)
    first, second = numbers(data), numbers(data)
    again = stream(folder)
    again.load_state_dict({"batches_consumed": 3, "batch_size": BATCH})
    again.set_epoch(0)  # as trainers do before each epoch
    assert numbers(again) == first[12:]
    again.set_epoch(1)
    assert numbers(again) == second
    again.load_state_dict({"batches_consumed": 3, "batch_size": BATCH})
    again.set_epoch(1)
    assert numbers(again) == second


def test_a_state_after_an_epoch_was_set_is_of_that_epoch(folder: Path) -> None:
    data = stream(folder)
    numbers(data)
    data.set_epoch(5)
    state = data.state_dict()
    assert numbers(resumed(folder, state)) == numbers(data)


def test_an_iterator_that_gave_nothing_uses_up_no_epoch(folder: Path) -> None:
    data = stream(folder)
    wanted = [numbers(data), numbers(data)]
    other = stream(folder)
    iter(other)
    assert [numbers(other), numbers(other)] == wanted
    iter(other)
    other.load_state_dict({"batches_consumed": 2, "batch_size": BATCH})
    assert numbers(other) == wanted[0][8:]


def test_a_state_that_is_refused_stays_refused(folder: Path) -> None:
    data = stream(folder)
    next(iter(data))
    other = stream(folder, seed=7)
    other.load_state_dict(data.state_dict())
    for _ in range(2):
        with pytest.raises(StateError, match="seed"):
            iter(other)
    other.set_epoch(0)
    other.load_state_dict({"batches_consumed": 0, "batch_size": 1})
    assert numbers(other) == numbers(stream(folder, seed=7))


# --- workers


def test_epochs_go_on_where_torch_is_seeded_before_each(folder: Path) -> None:
    data = stream(folder)
    loader: Any = DataLoader(data, batch_size=BATCH, num_workers=2)
    torch.manual_seed(0)
    first = batches(loader)
    torch.manual_seed(0)
    second = batches(loader)
    assert first != second
    data.load_state_dict({"batches_consumed": 3, "batch_size": BATCH})
    torch.manual_seed(0)
    assert batches(loader) == first[3:]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_stateful_loader_at_the_end_of_an_epoch_and_in_the_next(folder: Path, workers: int) -> None:
    def loader() -> Any:
        return StatefulDataLoader(stream(folder), batch_size=BATCH, num_workers=workers)

    whole = loader()
    batches(whole)
    end = whole.state_dict()
    items = iter(whole)
    begun = [next(items)["index"].tolist() for _ in range(3)]
    middle = whole.state_dict()
    rest = batches(items)
    for state, wanted in ((end, begun + rest), (middle, rest)):
        again = loader()
        again.load_state_dict(state)
        assert batches(again) == wanted


def test_a_state_that_cannot_be_known_is_said_to_be_none(folder: Path) -> None:
    data = stream(folder)
    numbers(data)
    items = iter(DataLoader(data, batch_size=BATCH, num_workers=1))
    next(items)
    with pytest.warns(UserWarning, match="start of epoch 2"):
        data.state_dict()
    del items
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        data.load_state_dict({"batches_consumed": 1, "batch_size": BATCH})
        assert data.state_dict() == {"batches_consumed": 1, "batch_size": BATCH}


# --- consumers without frames, and consumers that end together


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_lanes_without_frames_do_not_end_the_others(three: Path, consumers: int) -> None:
    state = stream(three, rank=0, world_size=6).state_dict()
    found = [numbers(resumed(three, state, rank=rank, world_size=consumers)) for rank in range(consumers)]
    assert sorted(itertools.chain(*found)) == list(range(12))
    loader: Any = DataLoader(resumed(three, state), batch_size=2, num_workers=consumers)
    assert sorted(itertools.chain(*batches(loader))) == list(range(12))


def test_consumers_without_frames_read_none_of_the_others(three: Path) -> None:
    counts = [len(numbers(stream(three, rank=rank, world_size=6))) for rank in range(6)]
    idle = stream(three, rank=counts.index(0), world_size=6)
    idle._robot.tables  # noqa: B018 - made, so that it could be looked into
    assert numbers(idle) == []
    assert "tables" in idle._robot.__dict__, "nothing was opened, so nothing was closed"


def test_ranks_that_end_at_different_steps_agree_on_the_end_of_an_epoch(folder: Path) -> None:
    data = [stream(folder, rank=rank, world_size=2) for rank in range(2)]
    sizes = [len(numbers(one)) for one in data]
    assert sizes[0] != sizes[1]
    whole = merge_states([one.state_dict() for one in data])
    wanted = [numbers(one) for one in data]
    assert [numbers(resumed(folder, whole, rank=rank, world_size=2)) for rank in range(2)] == wanted


@pytest.mark.parametrize("tail", ["drop", "wrap"])
def test_states_of_consumers_that_end_together(folder: Path, tail: str) -> None:
    ends = [len(rest) for rest in joined(folder, 2, 0, tail=tail)[1]]
    assert ends[0] == ends[1]
    for count in range(ends[0] - 4, ends[0]):
        whole, rests = joined(folder, 2, count, tail=tail)
        assert verify(whole, run=Run.here(cache_dir=folder / "cache")).is_reachable
        assert [numbers(resumed(folder, whole, rank=r, world_size=2, tail=tail)) for r in range(2)] == rests
    whole, _ = joined(folder, 2, ends[0], tail=tail)
    for rank in range(2):
        other = stream(folder, rank=rank, world_size=2, tail=tail)
        other.set_epoch(1)
        found = numbers(resumed(folder, whole, rank=rank, world_size=2, tail=tail))
        assert found == numbers(other), "the next epoch, not an empty one"


@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("tail", ["drop", "wrap"])
def test_consumers_end_together_after_they_were_dealt_anew(folder: Path, tail: str, ranks: int) -> None:
    whole, rests = joined(folder, 2, 20, tail=tail)
    left = set(range(NUM_FRAMES)) - {n for rank in range(2) for n in some(stream(folder, rank=rank, world_size=2), 20)}
    found = [numbers(resumed(folder, whole, rank=rank, world_size=ranks, tail=tail)) for rank in range(ranks)]
    assert len({len(part) for part in found}) == 1
    given = list(itertools.chain(*found))
    if tail == "wrap":
        assert left <= set(given)
        most = len(left) if ranks > 1 else max(map(len, rests)) * 2
        assert len(found[0]) <= most, "what is left is filled up, not a whole epoch given once more"
    else:
        assert set(given) <= left
        assert len(set(given)) == len(given)


@pytest.mark.parametrize("tail", ["pad", "wrap"])
def test_a_rank_without_frames_fills_its_batches(tmp_path: Path, tail: Any) -> None:
    cameras = {"observation.images.top": Camera(height=32, width=64, episodes_per_file=(1, 1))}
    target = small_set(tmp_path / "set", episodes=(2, 2), cameras=cameras)
    steps = set()
    for rank in range(3):
        with stream(target, rank=rank, world_size=3).loader(batch_size=3, tail=tail) as loader:
            steps.add(len([batch["observation.images.top"].shape for batch in loader]))
    assert steps == {1}


# --- faults


class FailsOnce:
    def __init__(self, at: int) -> None:
        self.left = at

    def __call__(self, image: Any) -> Any:
        self.left -= 1
        if not self.left:
            raise DataError("it cannot be seen")
        return image


def test_a_frame_that_failed_is_not_lost(filmed: Path) -> None:
    run = numbers(stream(filmed))
    data = stream(filmed, image_transforms=FailsOnce(6))
    items = iter(data)
    seen = some(items, 5)
    with pytest.raises(DataError, match="seen"):
        next(items)
    state = data.state_dict()
    assert verify(state, run=Run.here(cache_dir=filmed / "cache")).is_reachable
    assert seen + numbers(resumed(filmed, state)) == run
    assert seen + numbers(items) == run, "a fault is not the end of the data"


def test_the_last_frame_may_fail_too(filmed: Path) -> None:
    run = numbers(stream(filmed))
    data = stream(filmed, image_transforms=FailsOnce(NUM_FRAMES))
    items = iter(data)
    seen = some(items, NUM_FRAMES - 1)
    with pytest.raises(DataError, match="seen"):
        next(items)
    assert numbers(resumed(filmed, data.state_dict())) == run[-1:]
    assert seen + numbers(items) == run
    assert list(items) == []


# --- files


def num_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_data_files_are_not_all_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MOST_OPEN", 4)
    target = write_robot_dataset(tmp_path / "set", episodes=[2] * 40, cameras={}, episodes_per_data_file=1)
    items = iter(stream(target))
    next(items)
    before, most = num_open(), 0
    found = 1
    for _ in items:
        found += 1
        most = max(most, num_open())
    assert found == 80
    assert most - before <= 2 * 4


@pytest.mark.parametrize("whole", [1, 8 << 20])
def test_a_data_file_without_room_is_read_by_range(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hub: LocalHub, whole: int
) -> None:
    target = write_robot_dataset(tmp_path / "set", episodes=(3000, 20), fps=10, cameras={}, episodes_per_data_file=1)
    large = max(path.stat().st_size for path in target.glob("data/*/*.parquet"))
    assert large > 2 * max(path.stat().st_size for path in target.glob("meta/**/*.parquet"))
    hub.push("org/robot", target, branch="refs/tags/v3.0")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    monkeypatch.setenv("HEADRACE_CACHE_BYTES", str(large - 1))
    monkeypatch.setattr(table, "WHOLE_BYTES", whole)
    found = numbers(StreamingLeRobotDataset("org/robot", cache_dir=tmp_path / "cache"))
    assert sorted(found) == list(range(3020))


def test_a_stale_pointer_into_a_row_group_that_spans_the_episode(tmp_path: Path) -> None:
    """The footer of the file that the metadata names has episodes 0 to 2 in one group; 1 is not among them."""
    target = write_robot_dataset(tmp_path / "set", episodes=(4, 4, 4), cameras={}, episodes_per_data_file=1)
    first, second, third = sorted(target.glob("data/*/*.parquet"))
    rows = [parquet.read_table(path) for path in (first, second, third)]
    parquet.write_table(pa.concat_tables([rows[0], rows[2]]), first)
    parquet.write_table(rows[1], third)
    second.unlink()
    meta = next(target.glob("meta/episodes/*/*.parquet"))
    told = parquet.read_table(meta)
    place = told.schema.get_field_index("data/file_index")
    parquet.write_table(told.set_column(place, "data/file_index", pa.array([0, 0, 0])), meta)
    assert sorted(numbers(stream(target))) == list(range(12))


# --- names, scales, arguments


def item(folder: Path, **frames: Any) -> dict[str, Any]:
    source = Source(kind="lerobot", path=str(folder), frames=Frames(**frames))
    robot = open_robot(source, Run.here(cache_dir=folder / "cache"), None)
    shelf = robot.shelf(None)
    try:
        return robot.items.make(Episode(0, 0, robot.tables.read(0), robot.items), 3)
    finally:
        shelf.close()


def test_features_can_change_names_with_each_other(filmed: Path) -> None:
    plain = item(filmed, delta_timestamps={"action": (0.0, 0.1)})
    swapped = item(
        filmed,
        delta_timestamps={"action": (0.0, 0.1)},
        rename={"action": "observation.state", "observation.state": "action"},
    )
    assert torch.equal(swapped["action"], plain["observation.state"])
    assert torch.equal(swapped["observation.state"], plain["action"])
    assert torch.equal(swapped["observation.state_is_pad"], plain["action_is_pad"])
    assert len(swapped) == len(plain)
    for taken in ("observation.state", "task"):
        with pytest.raises(SpecError, match=taken):
            item(filmed, rename={"action": taken})


def test_scaled_numbers_keep_their_shape(filmed: Path) -> None:
    assert item(filmed, normalize={"timestamp": "min_max"})["timestamp"].shape == ()
    window = item(filmed, normalize={"timestamp": "min_max"}, delta_timestamps={"timestamp": (-0.1, 0.0, 0.1)})
    assert window["timestamp"].shape == (3,)
    with pytest.raises(SpecError, match="return_uint8"):
        item(filmed, normalize={"observation.images.top": "mean_std"}, return_uint8=True)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"delta_timestamps": {"action": 0.1}}, "delta_timestamps"),
        ({"delta_timestamps": [0.1]}, "delta_timestamps"),
        ({"episodes": 5}, "episodes"),
        ({"episodes": [99]}, "episodes"),
        ({"video_decoder_cache_size": 0}, "video_decoder_cache_size"),
        ({"video_decoder_cache_size": "8"}, "video_decoder_cache_size"),
    ],
)
def test_what_was_given_is_named_where_it_cannot_be(folder: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(SpecError, match=said):
        stream(folder, **options)


def test_the_loader_is_still_the_loader(folder: Path) -> None:
    with stream(folder).loader(batch_size=BATCH) as loader:
        assert isinstance(loader, Loader)
        assert sorted(itertools.chain(*batches(loader))) == list(range(NUM_FRAMES))

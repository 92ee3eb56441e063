"""`TrueStreamingDataset` goes on exactly where it was: from every sample, on any workers and ranks, without reading on
the way."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from streaming import Memory, World, named, saved, whole
from torch.utils.data import DataLoader

from headrace import collate_fn, files, merge_states
from headrace.errors import DataError, StateError
from headrace.make.describe import Faults
from headrace.make.feed import Feed
from headrace.make.prepare import Ready
from headrace.make.sample import Sample
from headrace.mix.turns import Pick
from headrace.sequence.finish import Finish
from headrace.sequence.samples import SampleBatcher
from headrace.sequence.side_by_side import Helpers
from headrace.serve.loader import Loader
from headrace.serve.streaming import TrueStreamingDataset

KEYS = {"epoch", "unique_samples", "total_yields", "dataset_positions", "modality_counts"}
MIXED: dict[str, Any] = {"max_per_epoch": 11, "max_per_dataset": 4, "sample_repeat": 2}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


# --- states


def test_a_state_has_counts_for_people_and_is_json(world: World, tmp_path: Path) -> None:
    dataset = world.make(**MIXED)
    list(islice(iter(dataset), 5))
    found = json.loads(Path(saved(dataset, tmp_path)).read_text())
    assert set(found) == KEYS | {"skipped_rows", "headrace"}
    assert found["dataset_positions"] == {"conversation": 1, "code": 1, "vision": 0, "voice_asr": 0, "video": 0}
    assert found["modality_counts"] == {"text": 2, "image": 1, "video": 0, "audio": 0}
    assert (found["epoch"], found["unique_samples"], found["total_yields"]) == (0, 3, 5)


def test_a_state_before_the_first_sample_opens_nothing_and_loads(world: World, tmp_path: Path) -> None:
    memory = world.memory({"a": named("a")})
    path = saved(memory.make(max_per_epoch=3), tmp_path)
    assert memory.asked == []
    assert world.names(memory.make(max_per_epoch=3, resume_state_path=path)) == [
        "a 0",
        "a 0",
        "a 1",
        "a 1",
        "a 2",
        "a 2",
    ]


def test_a_crash_while_saving_leaves_the_old_state(
    world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = world.make(["code"], **MIXED)
    samples = iter(dataset)
    next(samples)
    path = Path(saved(dataset, tmp_path))
    old = path.read_bytes()
    next(samples)
    for broken in ("write", "fsync", "rename"):

        def fails(*_: Any) -> None:
            raise OSError(errno.EIO, "pulled")

        with monkeypatch.context() as patch:
            patch.setattr(files.Files, broken, fails)
            with pytest.raises(OSError, match="pulled"):
                saved(dataset, tmp_path)
        assert path.read_bytes() == old
        assert [one.name for one in tmp_path.iterdir()] == ["state.json"]
    saved(dataset, tmp_path)
    assert path.read_bytes() != old


def test_without_a_file_a_run_begins(world: World, tmp_path: Path) -> None:
    dataset = world.make(["code"], resume_state_path=str(tmp_path / "none.json"))
    assert world.name(next(iter(dataset))) == "code 0"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "unreadable"),
        ("[]", "a JSON object, this is list"),
        ("{}", "dataset_positions: rows by data set are expected"),
        ('{"dataset_positions": [1]}', "rows by data set"),
        ('{"dataset_positions": {"code": -1}}', "not a count of rows"),
        ('{"dataset_positions": {"code": true}}', "not a count of rows"),
        ('{"dataset_positions": {"other": 3}}', "none is the same"),
        ('{"headrace": 7}', "a state is a dict"),
        ('{"headrace": {"lanes": "[]"}}', "format"),
    ],
)
def test_a_file_that_is_no_state_changes_nothing(world: World, tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "state.json"
    path.write_text(text)
    dataset = world.make(["code"], max_per_epoch=4)
    samples = iter(dataset)
    given = world.names(islice(samples, 3))
    before = dataset._streaming_state
    with pytest.raises(StateError, match=said):
        dataset._load_streaming_state(path)
    assert dataset._streaming_state == before
    assert given + world.names(samples) == world.names(world.make(["code"], max_per_epoch=4))
    with pytest.raises(StateError):
        world.make(["code"], resume_state_path=str(path))


# --- exact


def test_every_sample_of_every_modality_can_be_resumed_from(world: World, tmp_path: Path) -> None:
    """In the middle of repeats, across the end of an epoch, with sources that begin again."""
    dataset = world.make(**MIXED)
    full = [whole(sample) for _ in range(2) for sample in dataset]
    assert len(full) == 44
    for cut in range(0, 44, 3):
        dataset = world.make(**MIXED)
        given = [whole(sample) for sample in islice((s for _ in range(2) for s in dataset), cut)]
        again = world.make(**MIXED, resume_state_path=saved(dataset, tmp_path))
        epochs = 2 - again._streaming_state["epoch"]
        rest = [whole(sample) for _ in range(epochs) for sample in again]
        assert given + rest == full, cut


@pytest.mark.parametrize("shuffle", [False, True])
def test_a_chain_of_resumes_at_every_sample_is_exact(world: World, tmp_path: Path, shuffle: bool) -> None:
    """Rows that give none, one or several samples."""

    def some(sample: Any, tokens: Any) -> Any:
        number = int(sample["instruction"].split()[1])
        return [{"text": sample["output"].replace("]", f".{i}]")} for i in range(number % 4)]

    memory = world.memory({"a": named("a"), "b": named("b")})
    options = {"functions": {"code": some}, "max_per_epoch": 21, "sample_repeat": 3, "shuffle": shuffle, "seed": 3}
    full = world.names(memory.make(**options))
    found: list[str] = []
    path = None
    while len(found) < len(full):
        dataset = memory.make(**options, resume_state_path=path)
        samples = iter(dataset)
        found += world.names(islice(samples, 1 + len(found) % 2))
        path = saved(dataset, tmp_path)
    assert found == full


@pytest.mark.parametrize("workers", [0, 1, 2])
def test_loaders_resume_exactly_with_any_workers(world: World, workers: int) -> None:
    def make() -> Loader:
        return world.make(**MIXED).loader(batch_size=3, num_workers=workers, lanes=2)

    loader = make()
    full = [whole(batch) for _ in range(2) for batch in loader]
    for cut in (1, 4, 10) if workers else range(12):
        loader = make()
        given = [whole(batch) for batch in islice((b for _ in range(2) for b in loader), cut)]
        state = json.loads(json.dumps(loader.state_dict()))
        loader.close()
        with make() as again:
            again.load_state_dict(state)
            rest = [whole(batch) for _ in range(2 - state["epoch"]) for batch in again]
        assert given + rest == full, cut


def test_lanes_that_are_over_before_the_others_resume_in_the_middle_of_a_row(world: World) -> None:
    """A row with samples left for the next epoch does not mean that a lane has more to give in this one."""

    def thrice(sample: Any, tokens: Any) -> Any:
        return [{"text": sample["output"].replace("]", f".{i}]")} for i in range(3)]

    def make() -> Loader:
        memory = world.memory({"a": named("a")})
        return memory.make(functions={"code": thrice}, max_per_epoch=7, sample_repeat=1).loader(1, lanes=2)

    loader = make()
    full = [whole(batch) for _ in range(2) for batch in loader]
    for cut in range(14):
        loader = make()
        given = [whole(batch) for batch in islice((b for _ in range(2) for b in loader), cut)]
        state = loader.state_dict()
        again = make()
        again.load_state_dict(state)
        rest = [whole(batch) for _ in range(2 - state["epoch"]) for batch in again]
        assert given + rest == full, cut


@pytest.mark.parametrize("batch_size", [1, 3, 4])
def test_decoding_side_by_side_makes_no_difference(world: World, batch_size: int) -> None:
    """Neither to what comes, nor to any state on the way."""
    runs = []
    for threads in (1, 3):
        with world.make(decode_threads=threads, **MIXED).loader(batch_size=batch_size, lanes=2) as loader:
            runs.append([(whole(batch), loader.state_dict()["lanes"]) for _ in range(2) for batch in loader])
    assert runs[0] == runs[1]
    assert len(runs[0]) > 3


def test_rows_are_made_ready_while_others_decode(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    real = Feed.make_ready

    def make_ready(self: Feed, rows: int) -> bool:
        made.append(real(self, rows))
        return made[-1]

    def slow_for_others(self: Finish, *given: Any) -> dict[str, Any]:
        time.sleep(0 if threading.current_thread() is threading.main_thread() else 0.05)
        return finish(self, *given)

    finish = Finish.beside
    monkeypatch.setattr(Finish, "beside", slow_for_others)
    monkeypatch.setattr(Feed, "make_ready", make_ready)
    several: dict[str, Any] = {"max_per_epoch": 40, "max_per_dataset": 20, "sample_repeat": 1}
    for threads in (1, 2):
        made.clear()
        with world.make(["conversation", "code"], decode_threads=threads, **several).loader(batch_size=4) as loader:
            assert len(world.names_of(loader)) == 40
        assert any(made) == (threads > 1)


def test_a_bad_sample_among_those_decoded_side_by_side_comes_at_its_turn() -> None:
    """What comes before it in its batch is there at the next try; it is named, and never taken for the end."""
    calls = []

    def finish(row: Ready, sub: int) -> dict[str, Any]:
        calls.append(row.position)
        if row.position == 2 and calls.count(2) == 1:
            raise DataError("row 2 is broken")
        return {"n": row.position}

    rows = iter([Ready(0, 0, i, "shard", i, [Sample(np.zeros(1, np.int32))]) for i in range(6)])
    batcher = SampleBatcher(4, 1, 8, finish, Faults(), lambda pick: None, Helpers(2))

    def take() -> Pick | None:
        return next((Pick(row, 0) for row in rows), None)

    with pytest.raises(DataError, match="row 2 is broken"):
        batcher.make(take, 0)
    assert [item.made["n"] for item in batcher.make(take, 0)] == [0, 1, 2, 3]
    assert [item.made["n"] for item in batcher.make(take, 0)] == [4, 5]
    assert batcher.make(take, 0) == []


def test_workers_make_no_difference(world: World) -> None:
    found = []
    for workers in (0, 1, 2):
        with world.make(**MIXED).loader(batch_size=3, num_workers=workers, lanes=2) as loader:
            found.append([whole(batch) for batch in loader])
    assert found[0] == found[1] == found[2]


def test_a_dataset_and_its_loader_hand_over_to_each_other(world: World, tmp_path: Path) -> None:
    full = world.names(world.make(**MIXED))
    dataset = world.make(**MIXED)
    found = world.names(islice(iter(dataset), 4))
    loader = dataset.loader(batch_size=3)
    found += world.names_of(islice(loader, 2))
    assert dataset._streaming_state["total_yields"] == 10
    again = world.make(**MIXED, resume_state_path=saved(dataset, tmp_path))
    loader.close()
    found += world.names(islice(iter(dataset), 5))
    assert found + world.names(dataset) == full
    assert found[:10] + world.names(again) == full


def test_a_state_of_a_loader_loads_into_a_dataset(world: World, tmp_path: Path) -> None:
    loader = world.make(**MIXED).loader(batch_size=2, lanes=1)
    given = world.names_of(islice(loader, 3))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    rest = world.make(**MIXED, resume_state_path=str(tmp_path / "state.json"))
    assert given + world.names(rest) == world.names(world.make(**MIXED))


# --- by seeking


def test_a_resume_reads_no_more_far_on_than_at_the_start(world: World, tmp_path: Path) -> None:
    sizes = [[20] * 10] * 5
    reads = []
    for cut in (10, 400, 950):
        memory = world.memory({"a": named("a")}, sizes)
        options = {"max_per_epoch": 1000, "max_per_dataset": 1000, "sample_repeat": 1}
        dataset = memory.make(**options)
        samples = iter(dataset)
        list(islice(samples, cut))
        path = saved(dataset, tmp_path)
        samples.close()  # type: ignore[attr-defined]
        memory = world.memory({"a": named("a")}, sizes)
        assert world.name(next(iter(memory.make(**options, resume_state_path=path)))) == f"a {cut}"
        reads.append((memory.read, len(memory.sources["a"]._made)))
    assert {chunks for chunks, _ in reads} == {1}
    assert max(rows for _, rows in reads) <= 20


@pytest.mark.parametrize("coordinate", ["rows", "windows"])
@pytest.mark.parametrize("shuffle", [False, True])
def test_plain_positions_are_sought_over_any_passes(
    world: World, tmp_path: Path, coordinate: str, shuffle: bool
) -> None:
    def make(**more: Any) -> tuple[Memory, TrueStreamingDataset]:
        memory = world.memory({"a": named("a"), "b": named("b")})
        memory.coordinate = coordinate
        options = {"max_per_epoch": 200, "max_per_dataset": 100, "sample_repeat": 1, "shuffle": shuffle}
        return memory, memory.make(**options, **more)

    full = world.names(make()[1])
    for rows in (0, 1, 16, 17, 40, 90):
        path = tmp_path / "plain.json"
        path.write_text(json.dumps({"dataset_positions": {"a": rows, "b": rows}, "epoch": 2}))
        memory, dataset = make(resume_state_path=str(path))
        samples = iter(dataset)
        assert world.names(islice(samples, 20)) == full[2 * rows : 2 * rows + 20]
        assert memory.read <= 8
        state = dataset._streaming_state
        assert state["dataset_positions"] == {"a": rows + 10, "b": rows + 10}
        assert (state["epoch"], state["unique_samples"]) == (2, 20)


def test_a_position_far_behind_the_end_is_arithmetic(world: World, tmp_path: Path) -> None:
    path = tmp_path / "plain.json"
    path.write_text(json.dumps({"dataset_positions": {"a": 17 * 10**9 + 5}}))
    dataset = world.memory({"a": named("a")}).make(resume_state_path=str(path))
    assert world.name(next(iter(dataset))) == "a 5"
    assert world.name(next(iter(world.memory({"a": named("a")}).make()))) == "a 0"


def test_plain_positions_also_place_a_loader(world: World, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "plain.json"
    path.write_text(json.dumps({"dataset_positions": {"a": 4, "gone": 2}}))
    memory = world.memory({"a": named("a"), "b": named("b")})
    loader = memory.make(max_per_epoch=4, sample_repeat=1, resume_state_path=str(path)).loader(batch_size=2)
    assert world.names_of(loader) == ["a 4", "b 0", "a 5", "b 1"]
    assert "gone is not among the data sets here" in caplog.text


# --- other numbers of lanes


class Ranks:
    """Several ranks, one after the other in this process."""

    def __init__(self, world: World, as_rank: Callable[[int, int], None], lanes: int | None) -> None:
        self._world, self._as_rank, self._lanes = world, as_rank, lanes
        self.state: Any = None
        self.batches: list[Any] = []

    def step(self, ranks: int, steps: int | None) -> None:
        """So many steps on so many ranks, or to the end of the epoch."""
        parts = []
        options = {"max_per_epoch": 60, "max_per_dataset": 20, "sample_repeat": 2}
        for rank in range(ranks):
            self._as_rank(rank, ranks)
            dataset = self._world.make(["conversation", "code", "vision"], **options)
            loader = dataset.loader(batch_size=2, lanes=self._lanes)
            if self.state is not None:
                loader.load_state_dict(self.state)
            self.batches += [batch for batch in islice(iter(loader), steps) if not batch.pad]
            parts.append(json.loads(json.dumps(loader.state_dict())))
            loader.close()
        self.state = merge_states(parts)


@pytest.mark.parametrize("ranks", [(1, 2, 3), (3, 2, 1), (2, 3, 2)])
@pytest.mark.parametrize("lanes", [None, 6])
def test_on_other_ranks_nothing_is_lost_and_nothing_comes_twice(
    world: World, as_rank: Callable[[int, int], None], ranks: Sequence[int], lanes: int | None
) -> None:
    run = Ranks(world, as_rank, lanes)
    run.step(ranks[0], 5)
    run.step(ranks[1], 4)
    run.step(ranks[2], None)
    names = world.names_of(run.batches)
    assert Counter(name.split()[0] for name in names) == {"conversation": 40, "code": 40, "vision": 40}
    assert run.state["epoch"] == 1
    run.step(ranks[2], None)
    found = Counter((a.source, a.epoch, a.row) for batch in run.batches for a in batch.addresses)
    assert set(found.values()) == {2}
    # Lanes may be a row apart; 40 samples of each source are more than one pass for all of them.
    for source, rows in (("conversation", 17), ("code", 7), ("vision", 9)):
        assert {row for spec, epoch, row in found if source in spec and epoch == 0} == set(range(rows))


def test_a_state_of_one_rank_asks_for_the_others(
    world: World, as_rank: Callable[[int, int], None], tmp_path: Path
) -> None:
    options = {"max_per_epoch": 12, "sample_repeat": 2}
    as_rank(0, 2)
    dataset = world.make(["code", "vision"], **options)
    given = world.names(islice(iter(dataset), 5))
    part = dataset._streaming_state["headrace"]
    path = saved(dataset, tmp_path)
    as_rank(1, 2)
    other = world.make(["code", "vision"], **options)
    given += world.names(islice(iter(other), 5))
    state = merge_states([part, other._streaming_state["headrace"]])
    as_rank(0, 1)
    with pytest.raises(StateError, match="it is one rank's part"):
        next(iter(world.make(["code", "vision"], **options, resume_state_path=path)))
    (tmp_path / "state.json").write_text(json.dumps(state))
    rest = world.names(world.make(["code", "vision"], **options, resume_state_path=str(tmp_path / "state.json")))
    assert len(given + rest) == 24
    assert Counter(Counter(given + rest).values()) == {2: 12}


@pytest.mark.parametrize("workers", [1, 2])
def test_a_plain_data_loader_begins_where_the_dataset_is(world: World, tmp_path: Path, workers: int) -> None:
    memory = world.memory({"a": named("a"), "b": named("b")})
    options = {"max_per_epoch": 14, "sample_repeat": 2}
    dataset = memory.make(**options)
    given = world.names(islice(iter(dataset), 7))
    again = memory.make(**options, resume_state_path=saved(dataset, tmp_path))
    for one in (again, dataset):
        rest = world.names_of(DataLoader(one, batch_size=3, num_workers=workers, collate_fn=collate_fn))
        assert len(given + rest) == 28
        assert set(Counter(given + rest).values()) == {2}


def test_workers_that_stay_go_on_with_their_own_rows(world: World, tmp_path: Path) -> None:
    """Also where they began in the middle of an epoch."""
    sizes = [[10] * 6]
    options = {"max_per_epoch": 20, "sample_repeat": 1, "max_per_dataset": 20}
    loader = world.memory({"a": named("a")}, sizes).make(**options).loader(batch_size=1, lanes=2)
    given = world.names_of(islice(loader, 7))
    (tmp_path / "state.json").write_text(json.dumps(loader.state_dict()))
    dataset = world.memory({"a": named("a")}, sizes).make(**options, resume_state_path=str(tmp_path / "state.json"))
    batches = DataLoader(dataset, batch_size=1, num_workers=2, collate_fn=collate_fn, persistent_workers=True)
    names = given + world.names_of(batch for _ in range(3) for batch in batches)
    assert sorted(names) == sorted(f"a {i}" for i in range(60))

"""Robot episodes on real ranks: each has its own frames, all of them together every frame, and one state serves all.

Ranks that do not start fail these tests: fewer of them would prove nothing.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from robots import NUM_FRAMES, small_set

from headrace import StreamingLeRobotDataset

BATCH = 4
POINTS = ("0/1", "0/3", "0/7", "2/1", "2/5")
"""Workers, and batches that a trainer has consumed: of the first epoch, and of a later one."""
HERE = Path(__file__).parent


class Ranks:
    """Launches ranks, and reads what each of them wrote down."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.data = folder, small_set(folder / "set")

    def launch(self, ranks: int, scenes: list[str], **more: str) -> None:
        told = self.folder / f"told-{ranks}.json"
        facts = {"folder": str(self.data), "cache": str(self.folder / "cache"), "out": str(self.folder)}
        told.write_text(json.dumps({**facts, "scenes": scenes, **more}))
        run = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"),
                *(str(HERE / "streaming_rank.py"), str(told)),
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, said = run.communicate(timeout=100)
        finally:
            run.terminate()  # it ends its ranks then
            run.communicate()
        assert run.returncode == 0, said[-5000:]
        for scene in scenes:
            self.read(scene, ranks)

    def read(self, scene: str, ranks: int) -> list[dict[str, Any]]:
        """What all ranks saw."""
        found = sorted(path.name for path in self.folder.glob(f"{scene}-*-of-*.json") if f"-of-{ranks}." in path.name)
        assert found == [f"{scene}-{rank}-of-{ranks}.json" for rank in range(ranks)], "not all ranks have started"
        return [json.loads((self.folder / name).read_text()) for name in found]


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    found = Ranks(tmp_path_factory.mktemp("ranks"))
    states = {name: {"batches_consumed": int(name[2:]), "batch_size": BATCH} for name in POINTS}
    file = found.folder / "states.json"
    file.write_text(json.dumps(states))
    found.launch(2, ["by_environment", "by_accelerate_alone", "by_accelerate", "resumed", "half"], states=str(file))
    left = found.folder / "left.json"
    left.write_text(json.dumps(found.read("half", 2)[0]["state"]))
    found.launch(3, ["by_environment", "by_accelerate", "resumed", "rest"], states=str(file), state=str(left))
    return found


def flat(batches: list[list[int]]) -> list[int]:
    return [frame for batch in batches for frame in batch]


KINDS = [(2, "by_environment"), (2, "by_accelerate"), (3, "by_environment"), (3, "by_accelerate")]


@pytest.mark.parametrize(("count", "kind"), KINDS)
@pytest.mark.parametrize("workers", ["0", "2"])
def test_ranks_share_no_frame_and_leave_none_out(ranks: Ranks, count: int, kind: str, workers: str) -> None:
    found = [one[workers] for one in ranks.read(kind, count)]
    for epoch in range(len(found[0])):
        parts = [flat(one[epoch]) for one in found]
        assert all(parts), "a rank without a frame"
        assert sum(len(set(part)) for part in parts) == len(set().union(*parts)), "two ranks have the same frame"
        assert sorted(frame for part in parts for frame in part) == list(range(NUM_FRAMES))
    assert all(one[0] != one[1] for one in found), "epochs are shuffled anew"


@pytest.mark.parametrize("count", [2, 3])
def test_a_rank_is_what_it_is_told_by_hand(ranks: Ranks, count: int) -> None:
    for rank, found in enumerate(ranks.read("by_environment", count)):
        options: dict[str, Any] = {"root": ranks.data, "episode_pool_size": 3, "cache_dir": ranks.folder / "cache"}
        data = StreamingLeRobotDataset("org/robot", rank=rank, world_size=count, **options)
        assert flat(found["0"][0]) == [int(item["index"]) for item in data]
        assert flat(found["0"][1]) == [int(item["index"]) for item in data]


def test_accelerate_gives_the_same_ranks_and_one_that_takes_itself_for_alone_is_not_believed(ranks: Ranks) -> None:
    plain = ranks.read("by_environment", 2)
    alone = ranks.read("by_accelerate_alone", 2)
    # On CPUs Accelerate 1.15 takes each rank for the only one, which 1.0 did not.
    assert [one["accelerate"] for one in alone] in ([[0, 1], [0, 1]], [[0, 2], [1, 2]])
    assert [one["0"] for one in alone] == [one["0"] for one in plain]
    for count in (2, 3):
        told = ranks.read("by_accelerate", count)
        assert [one["accelerate"] for one in told] == [[rank, count] for rank in range(count)]
        assert [one["2"] for one in told] == [one["2"][:2] for one in ranks.read("by_environment", count)]


@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", POINTS)
def test_one_state_file_serves_every_rank(ranks: Ranks, count: int, name: str) -> None:
    straight, resumed = ranks.read("by_environment", count), ranks.read("resumed", count)
    workers, point = name[0], int(name[2:])
    for before, after in zip(straight, resumed, strict=True):
        run = [batch for epoch in before[workers] for batch in epoch]
        found = [batch for epoch in after[name] for batch in epoch]
        assert len(run) > point
        both = min(len(found), len(run) - point)
        assert both
        assert found[:both] == run[point : point + both]


def test_what_two_ranks_leave_three_go_on_with(ranks: Ranks) -> None:
    before, after = ranks.read("half", 2), ranks.read("rest", 3)
    assert before[0]["state"] == before[1]["state"]
    frames = [frame for one in [*before, *after] for frame in flat(one["seen"])]
    assert sorted(frames) == list(range(NUM_FRAMES))
    assert all(one["seen"] for one in after)


def test_ranks_that_did_not_start_fail_the_test(tmp_path: Path) -> None:
    ranks = Ranks.__new__(Ranks)
    ranks.folder = tmp_path
    (tmp_path / "by_environment-0-of-1.json").write_text("{}")
    (tmp_path / "by_environment-0-of-2.json").write_text("{}")
    with pytest.raises(AssertionError, match="not all ranks have started"):
        ranks.read("by_environment", 2)
    assert ranks.read("by_environment", 1) == [{}]

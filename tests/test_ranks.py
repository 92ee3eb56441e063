"""Several ranks, started by torchrun: together they give what one gives, at the same step, and states go anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from rank_script import noted
from serving import ALL_TOKENS, UIDS, loader_of, write_rows

import headrace
from headrace.errors import SpecError, StateError

STEPS = 3
WHOLE: dict[str, Any] = {"rows": UIDS, "tokens": ALL_TOKENS}
LANES = {"lanes": 4}
RESTORED = [("same", 8, False), ("fewer", 4, False), ("more", 16, False), ("partly", 16, True)]
"""Name, lanes of the loader that a checkpoint of 8 lanes goes into, and whether torch may leave out what it lacks."""


class Ranks:
    """Runs scenes under torchrun, and reads what the ranks wrote down."""

    def __init__(self, folder: Path, pattern: str) -> None:
        self.folder, self.pattern = folder, pattern

    def run(self, ranks: int, scenes: dict[str, dict[str, Any]]) -> None:
        told = self.folder / f"scenes-{ranks}.json"
        told.write_text(json.dumps({name: {"pattern": self.pattern, **given} for name, given in scenes.items()}))
        here = Path(__file__).parent
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
        run = subprocess.Popen(
            [*launch, str(here / "rank_script.py"), str(told), str(self.folder)],
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join([str(here), *sys.path])},
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            _, said = run.communicate(timeout=60)
        finally:
            run.terminate()  # it ends its ranks then
            run.communicate()
        assert run.returncode == 0, said[-5000:]
        for name in scenes:  # no rank may be missing: fewer of them would prove nothing
            found = sorted(path.name for path in self.folder.glob(f"{name}-*-of-{ranks}.json"))
            assert found == [f"{name}-{rank}-of-{ranks}.json" for rank in range(ranks)]

    def read(self, name: str, ranks: int) -> list[dict[str, Any]]:
        return [json.loads((self.folder / f"{name}-{r}-of-{ranks}.json").read_text()) for r in range(ranks)]

    def state(self, name: str, ranks: int) -> str:
        path = self.folder / f"state-{name}-{ranks}.json"
        path.write_text(json.dumps(self.read(name, ranks)[0]["state"]))
        return str(path)

    def alone(self, kind: str, steps: int) -> str:
        """The state of one rank after so many steps: no number of ranks need divide them."""
        path = self.folder / f"alone-{kind}-{steps}.json"
        with loader_of(kind, self.pattern, **LANES) as loader:
            batches = iter(loader)
            for _ in range(steps):
                next(batches)
            path.write_text(json.dumps(loader.state_dict()))
        return str(path)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Ranks:
    folder = tmp_path_factory.mktemp("ranks")
    ranks = Ranks(folder, write_rows(folder))
    for count in (2, 4):
        scenes: dict[str, dict[str, Any]] = {}
        for kind in WHOLE:
            workers = {"num_workers": 1} if count == 2 else {}
            scenes[f"epochs-{kind}"] = {"scene": "epochs", "kind": kind, "epochs_run": 2, "options": LANES | workers}
            scenes[f"half-{kind}"] = {"scene": "half", "kind": kind, "steps": STEPS, "options": LANES}
            scenes[f"apart-{kind}"] = {"scene": "apart", "kind": kind, "options": LANES}
        for tail in ("drop", "wrap"):
            options = {**LANES, "tail": tail, "batch_size": 4}
            scenes[f"{tail}-rows"] = {"scene": "epochs", "kind": "rows", "options": options}
            scenes[f"{tail}-tokens"] = {"scene": "epochs", "kind": "tokens", "options": options}
        scenes["killed"] = {"scene": "killed", "kind": "tokens", "options": {**LANES, "num_workers": 1, "prefetch": 1}}
        scenes["endless"] = {"scene": "epochs", "kind": "endless", "epochs_run": 2, "options": LANES}
        if count == 2:
            given = {"scene": "saved", "kind": "rows", "steps": STEPS, "folder": str(folder / "dcp")}
            scenes["saved"] = {**given, "options": {"lanes": 8}}
            given = {"scene": "saved_text", "kind": "rows", "steps": STEPS, "folder": str(folder / "text")}
            scenes["texted"] = {**given, "options": {"lanes": 8}}
        else:
            for name, lanes, partial in RESTORED:
                given = {"scene": "restored", "kind": "rows", "folder": str(folder / "dcp"), "partial": partial}
                scenes[f"restored-{name}"] = {**given, "options": {"lanes": lanes}}
                given = {"scene": "restored_text", "kind": "rows", "folder": str(folder / "text")}
                scenes[f"text-{name}"] = {**given, "options": {"lanes": lanes}}
            for kind in WHOLE:
                state = ranks.state(f"half-{kind}", 2)
                scenes[f"from-2-{kind}"] = {"scene": "go_on", "kind": kind, "state": state, "options": LANES}
                for cut in (5, 6):
                    path = ranks.alone(kind, cut)
                    scenes[f"again-{cut}-{kind}"] = {"scene": "again", "kind": kind, "state": path, "options": LANES}
        ranks.run(count, scenes)
    again: dict[str, dict[str, Any]] = {}
    for kind in WHOLE:
        state = ranks.state(f"half-{kind}", 4)
        again[f"from-4-{kind}"] = {"scene": "go_on", "kind": kind, "state": state, "options": {"lanes": 6}}
    ranks.run(3, again)
    return ranks


def things(batches: list[Any]) -> list[Any]:
    """Rows or tokens, without those that only fill a step."""
    return sorted(thing for _, pad, found in batches if not pad for thing in found)


def in_order(parts: list[list[Any]]) -> list[Any]:
    """The micro-batches of all ranks by their number, without fillers."""
    return sorted(batch for part in parts for batch in part if not batch[1])


@pytest.fixture(scope="module")
def alone(ranks: Ranks) -> dict[str, list[list[Any]]]:
    """Two epochs of one process with as many lanes."""
    found = {}
    for kind in (*WHOLE, "endless"):
        loader = loader_of(kind, ranks.pattern, **LANES)
        found[kind] = [[noted(batch) for batch in loader] for _ in range(2)]
    return found


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", list(WHOLE))
def test_ranks_share_an_epoch_without_loss_or_repeat_and_end_at_the_same_step(
    ranks: Ranks, alone: dict[str, list[list[Any]]], kind: str, count: int
) -> None:
    found = ranks.read(f"epochs-{kind}", count)
    for epoch in range(2):
        parts = [one["epochs"][epoch] for one in found]
        assert len({len(part) for part in parts}) == 1, "one rank has more steps than another"
        assert things([batch for part in parts for batch in part]) == WHOLE[kind]
        for rank, part in enumerate(parts):
            first = part[0][0] - rank
            assert [m for m, _, _ in part] == [first + rank + step * count for step in range(len(part))]
    for epoch in range(2):
        assert in_order([one["epochs"][epoch] for one in found]) == alone[kind][epoch]
    if kind == "rows":
        assert {one["len"] for one in found} == {len(parts[0])}


@pytest.mark.parametrize("count", [2, 4])
def test_epochs_of_a_number_of_steps_go_on_where_the_last_one_ended(
    ranks: Ranks, alone: dict[str, list[list[Any]]], count: int
) -> None:
    found = ranks.read("endless", count)
    assert {len(epoch) for one in found for epoch in one["epochs"]} == {24}
    together = in_order([epoch for one in found for epoch in one["epochs"]])
    assert [m for m, _, _ in together] == list(range(48 * count))
    assert together[:48] == [batch for epoch in alone["endless"] for batch in epoch]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", list(WHOLE))
@pytest.mark.parametrize("tail", ["drop", "wrap"])
def test_ranks_end_together_whatever_becomes_of_the_tail(ranks: Ranks, tail: str, kind: str, count: int) -> None:
    parts = [one["epochs"][0] for one in ranks.read(f"{tail}-{kind}", count)]
    assert len({len(part) for part in parts}) == 1
    found = [thing for part in parts for _, pad, some in part if not pad for thing in some]
    if tail == "drop":
        assert len(found) == len(set(found))
        assert set(found) < set(WHOLE[kind])
    else:
        assert set(found) == set(WHOLE[kind])
        assert len(found) > len(WHOLE[kind])


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", list(WHOLE))
def test_a_state_is_the_same_from_every_rank_and_loads_on_one(
    ranks: Ranks, alone: dict[str, list[list[Any]]], kind: str, count: int
) -> None:
    found = ranks.read(f"half-{kind}", count)
    state = found[0]["state"]
    assert all(one["state"] == state for one in found)
    assert all(one["early"] == found[0]["early"] for one in found)
    assert in_order([one["before"] + one["after"] for one in found]) == alone[kind][0]
    for back in range(3):
        with loader_of(kind, ranks.pattern) as loader:
            loader.load_state_dict(found[0]["early"][back])
            cut = (STEPS - back) * count
            assert loader.state_dict()["m"] == cut
            assert [noted(batch) for batch in loader] == [batch for batch in alone[kind][0] if batch[0] >= cut]


@pytest.mark.parametrize("kind", list(WHOLE))
def test_parts_of_ranks_make_the_same_state_and_are_refused_alone(ranks: Ranks, kind: str) -> None:
    found = ranks.read(f"half-{kind}", 4)
    parts = [one["part"] for one in found]
    assert headrace.merge_states(parts) == found[0]["state"]
    with loader_of(kind, ranks.pattern) as loader:
        with pytest.raises(StateError, match=r"no lanes .* of 4.*merge_states"):
            loader.load_state_dict(parts[1])
        with pytest.raises(StateError, match="no lanes 2 of 4"):
            loader.load_state_dict(headrace.merge_states([parts[0], parts[1], parts[3]]))


@pytest.mark.parametrize("kind", list(WHOLE))
def test_more_ranks_go_on_with_the_same_micro_batches(
    ranks: Ranks, alone: dict[str, list[list[Any]]], kind: str
) -> None:
    before = [one["before"] for one in ranks.read(f"half-{kind}", 2)]
    found = ranks.read(f"from-2-{kind}", 4)
    assert all(one["state"] == ranks.read(f"half-{kind}", 2)[0]["state"] for one in found)
    assert in_order([*before, *(one["after"] for one in found)]) == alone[kind][0]
    assert len({len(one["after"]) for one in found}) == len({len(one["next"]) for one in found}) == 1
    assert things([batch for one in found for batch in one["next"]]) == WHOLE[kind]


@pytest.mark.parametrize("kind", list(WHOLE))
def test_three_ranks_go_on_after_four_without_loss_or_repeat(ranks: Ranks, kind: str) -> None:
    before = [batch for one in ranks.read(f"half-{kind}", 4) for batch in one["before"]]
    found = ranks.read(f"from-4-{kind}", 3)
    assert all(one["state"] == found[0]["state"] for one in found)
    assert found[0]["state"]["L"] == 6
    after = [batch for one in found for batch in one["after"]]
    assert things(before + after) == WHOLE[kind]
    assert len({len(one["after"]) for one in found}) == len({len(one["next"]) for one in found}) == 1
    assert things([batch for one in found for batch in one["next"]]) == WHOLE[kind]


@pytest.mark.parametrize("cut", [5, 6])
@pytest.mark.parametrize("kind", list(WHOLE))
def test_ranks_that_do_not_divide_the_step_of_a_state_meet_in_every_step_after_it(
    ranks: Ranks, alone: dict[str, list[list[Any]]], kind: str, cut: int
) -> None:
    """Also where the loop is left at its last step and begun again."""
    found = [one["loops"] for one in ranks.read(f"again-{cut}-{kind}", 4)]
    assert all([len(loop) for loop in loops] == [len(loop) for loop in found[0]] for loops in found)
    assert in_order([loops[0] for loops in found]) == alone[kind][0][cut:]
    assert in_order([loops[1] for loops in found]) == [], "nothing of the epoch is left"
    assert in_order([loops[2] for loops in found]) == alone[kind][1]


@pytest.mark.parametrize("count", [2, 4])
@pytest.mark.parametrize("kind", list(WHOLE))
def test_a_state_asked_for_at_different_steps_is_an_error_on_all_ranks(ranks: Ranks, kind: str, count: int) -> None:
    found = ranks.read(f"apart-{kind}", count)
    for one in found:
        assert one["said"].startswith("StateError: state_dict() was called at different steps")
        assert f"({4 * count}, 0, 0), ({3 * count}, 0, 0)" in one["said"]
        assert one["state"] == found[0]["state"]


@pytest.mark.parametrize("count", [2, 4])
def test_a_step_that_is_tried_again_on_one_rank_does_not_part_the_ranks(
    ranks: Ranks, alone: dict[str, list[list[Any]]], count: int
) -> None:
    found = ranks.read("killed", count)
    assert [len(one["errors"]) for one in found] == [2 if rank == 1 else 0 for rank in range(count)]
    assert len({len(one["epochs"][0]) for one in found}) == 1
    assert in_order([one["epochs"][0] for one in found]) == alone["tokens"][0]


def test_a_distributed_checkpoint_brings_the_state_back(ranks: Ranks) -> None:
    found = ranks.read("saved", 2)
    assert all(one["same"] for one in found)
    wanted = [noted(batch) for batch in loader_of("rows", ranks.pattern, lanes=8)]
    assert in_order([one["before"] + one["after"] for one in found]) == wanted


@pytest.mark.parametrize("name", [name for name, _, _ in RESTORED])
def test_a_distributed_checkpoint_as_text_goes_into_a_loader_of_any_shape(ranks: Ranks, name: str) -> None:
    before = [part["before"] for part in ranks.read("texted", 2)]
    after = [part["after"] for part in ranks.read(f"text-{name}", 4)]
    wanted = [*(part["before"] for part in ranks.read("saved", 2)), *(part["after"] for part in ranks.read("saved", 2))]
    assert things([b for part in (*before, *after) for b in part]) == things([b for part in wanted for b in part])


@pytest.mark.parametrize("name", [name for name, _, _ in RESTORED])
def test_a_distributed_checkpoint_in_a_loader_of_another_shape_is_whole_or_an_error(ranks: Ranks, name: str) -> None:
    """It puts values into the tree it is given, whatever that lacks or has too much."""
    found = ranks.read(f"restored-{name}", 4)
    assert [one["said"] for one in found] == [""] * 4
    assert {one["lanes"] for one in found} == {8}
    before = [one["before"] for one in ranks.read("saved", 2)]
    wanted = [noted(batch) for batch in loader_of("rows", ranks.pattern, lanes=8)]
    assert in_order([*before, *(one["after"] for one in found)]) == wanted


def test_one_exact_pass_on_several_ranks_asks_for_a_process_group(ranks: Ranks) -> None:
    loader = loader_of("tokens", ranks.pattern, rank=0, world_size=2, **LANES)
    with pytest.raises(SpecError, match="init_process_group"):
        iter(loader)


def test_ranks_without_a_process_group_share_rows_too(ranks: Ranks, alone: dict[str, list[list[Any]]]) -> None:
    loaders = [loader_of("rows", ranks.pattern, rank=rank, world_size=2, **LANES) for rank in range(2)]
    parts = [[noted(batch) for batch in loader] for loader in loaders]
    assert in_order(parts) == alone["rows"][0]
    assert all(None not in pair for pair in zip_longest(*parts))
    whole = headrace.merge_states([loader.state_dict() for loader in loaders])
    assert whole["epoch"] == 1


def test_lanes_that_the_ranks_do_not_divide_are_rounded_up(ranks: Ranks) -> None:
    loaders = [loader_of("rows", ranks.pattern, rank=rank, world_size=3, **LANES) for rank in range(3)]
    assert {loader.state_dict()["L"] for loader in loaders} == {6}
    parts = [[noted(batch) for batch in loader] for loader in loaders]
    assert things([batch for part in parts for batch in part]) == UIDS

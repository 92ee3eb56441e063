"""The check that balances a chaos run's ledgers finds what is wrong with them, and nothing with what is right."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import chaos_host as host
import pytest
from chaos_data import make_data, shard_sizes
from chaos_ledger import Ledger, _samples_undisturbed, check
from chaos_plan import SHORT, plan_of
from chaos_recipes import crc_of
from chaos_run import harm_file

MANIFEST = {f"a:{i}": 100 + i for i in range(12)}
Line = list[Any]


def batch(launch: int, epoch: int, step: int, *rows: int) -> Line:
    return ["batch", launch, epoch, step, [[f"a:{i}", 100 + i] for i in rows]]


def start(launch: int, ranks: int, loaded: list[int] | None, lanes: int = 2) -> list[Line]:
    job = {"ranks": ranks, "workers": 0, "launch": launch}
    return [["start", launch, 0, job], ["load", launch, loaded, 0, lanes, []]]


def good() -> dict[int, list[Line]]:
    """Two ranks, killed after two steps of which one was saved, again; then one rank gives the rest."""
    return {
        0: [
            *start(0, 2, None),
            batch(0, 0, 0, 0, 1),
            ["commit", 0, 1, 0],
            batch(0, 0, 1, 4, 5),
            *start(1, 2, [0, 1]),
            batch(1, 0, 0, 4, 5),
            ["commit", 1, 1, 0],
            batch(1, 0, 1, 8, 9),
            *start(2, 1, [1, 1]),
            batch(2, 0, 0, 8, 9),
            batch(2, 0, 1, 10, 11),
            ["epoch", 2, 0, 2],
            ["end", 2, 2, {"threads": []}],
        ],
        1: [*start(0, 2, None), batch(0, 0, 0, 2, 3), *start(1, 2, [0, 1]), batch(1, 0, 0, 6, 7)],
    }


REFERENCE = {0: [*start(0, 1, None), *(batch(0, 0, step, 2 * step, 2 * step + 1) for step in range(6))]}


def ledger_of(folder: Path, lines: dict[int, list[Line]]) -> Ledger:
    folder.mkdir(parents=True, exist_ok=True)
    for rank, own in lines.items():
        (folder / f"ledger-{rank}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in own))
    return Ledger(folder)


def found(tmp_path: Path, lines: dict[int, list[Line]]) -> list[str]:
    reference = ledger_of(tmp_path / "reference", REFERENCE)
    return check(ledger_of(tmp_path / "run", lines), "rows", MANIFEST, reference)


def test_a_run_that_was_killed_and_went_on_right_is_right(tmp_path: Path) -> None:
    assert found(tmp_path, good()) == []


def change(rank: int, old: Line, new: Line | None) -> Callable[[dict[int, list[Line]]], None]:
    def make(lines: dict[int, list[Line]]) -> None:
        at = lines[rank].index(old)
        lines[rank][at : at + 1] = [] if new is None else [new]

    return make


WRONGS = {
    "L1: epoch 0 lost 2: a:10; a:11": change(0, batch(2, 0, 1, 10, 11), batch(2, 0, 1)),
    "L1: epoch 0 repeated 1: a:8": change(0, batch(2, 0, 1, 10, 11), batch(2, 0, 1, 10, 11, 8)),
    "L2: launch 1 step 0 rank 0": change(0, batch(0, 0, 1, 4, 5), batch(0, 0, 1, 5, 4)),
    "L3: batch 3 of the run (launch 1 step 0 rank 1)": change(1, batch(1, 0, 0, 6, 7), batch(1, 0, 0, 7, 6)),
    "L4: the last launch ended": change(0, ["end", 2, 2, {"threads": []}], None),
    "rank 0 ended with threads left: ['headrace-watch']": change(
        0, ["end", 2, 2, {"threads": []}], ["end", 2, 2, {"threads": ["headrace-watch"]}]
    ),
    "L5: wrong content 1: a:2": change(1, batch(0, 0, 0, 2, 3), ["batch", 0, 0, 0, [["a:2", 7], ["a:3", 103]]]),
    "counts more than ranks [1] were given": change(1, batch(1, 0, 0, 6, 7), None),
    "was never made": change(0, ["commit", 0, 1, 0], ["commit", 0, 2, 0]),
    "began from different checkpoints": change(1, ["load", 1, [0, 1], 0, 2, []], ["load", 1, None, 0, 2, []]),
    "was written out of turn": change(0, batch(0, 0, 0, 0, 1), batch(0, 0, 5, 0, 1)),
}


@pytest.mark.parametrize("told", WRONGS)
def test_what_is_wrong_is_told(tmp_path: Path, told: str) -> None:
    lines = good()
    WRONGS[told](lines)
    assert any(told in problem for problem in found(tmp_path, lines)), found(tmp_path, lines)


def taken_up(at: int, later: list[int]) -> dict[int, list[Line]]:
    """One rank gives the first batches of epoch 0, two ranks the rest of it, and epoch 1 with its batches so."""
    first = [*start(0, 1, None, 6), *(batch(0, 0, n, n) for n in range(at)), ["commit", 0, at, 0]]
    parts = {0: [*first, *start(1, 2, [0, at], 6)], 1: start(1, 2, [0, at], 6)}
    batches = [(0, n) for n in range(at, 6)] + [(1, n) for n in later]
    for n, (epoch, row) in enumerate(batches):
        parts[n % 2].append(batch(1, epoch, n // 2, row))
    return parts


@pytest.mark.parametrize(
    ("at", "later", "told"),
    [
        (2, [0, 1, 2, 3, 4, 5], None),
        (2, [1, 2, 3, 4, 5, 0], "L3: batch 6"),  # between two steps of both: nothing may turn
        (4, [0, 1, 3, 2, 4, 5], "L3: batch 8"),
    ],
)
def test_samples_keep_their_order_over_an_epoch_that_was_taken_up_at_a_step(
    tmp_path: Path, at: int, later: list[int], told: str | None
) -> None:
    assert order_of_samples(tmp_path, taken_up(at, later)) == told


def test_samples_after_an_epoch_that_was_taken_up_between_steps_are_the_same_batches(tmp_path: Path) -> None:
    """Three ranks take it up after one batch: 1, 2, 3 and 4, 5 with a filler; then lanes begin with another one."""

    def run(later: list[int]) -> dict[int, list[Line]]:
        parts = {rank: start(1, 3, [0, 1], 6) for rank in range(3)}
        parts[0] = [*start(0, 1, None, 6), batch(0, 0, 0, 0), ["commit", 0, 1, 0], *parts[0]]
        given = [(0, (n,)) for n in range(1, 6)] + [(0, ())] + [(1, (n,)) for n in later]
        for n, (epoch, rows) in enumerate(given):
            parts[n % 3].append(batch(1, epoch, n // 3, *rows))
        return parts

    for number, (later, told) in enumerate(
        [([1, 2, 3, 4, 5, 0], None), ([0, 1, 2, 3, 4, 5], None), ([1, 2, 3, 4, 5, 7], "L3: epoch 1")]
    ):
        assert order_of_samples(tmp_path / str(number), run(later)) == told


def order_of_samples(folder: Path, ledger: dict[int, list[Line]]) -> str | None:
    """How what is told of it begins."""
    epochs = [(epoch, row) for epoch in range(3) for row in range(6)]
    reference = {0: [*start(0, 1, None), *(batch(0, e, n, row) for n, (e, row) in enumerate(epochs))]}
    found = _samples_undisturbed(ledger_of(folder / "run", ledger), ledger_of(folder / "reference", reference))
    return " ".join(found[0].split()[:3]) if found else None


def test_a_checkpoint_that_nobody_lived_to_write_down_is_one(tmp_path: Path) -> None:
    lines = good()
    lines[0].remove(["commit", 1, 1, 0])
    assert found(tmp_path, lines) == []


def test_ranks_that_end_an_epoch_at_different_steps_are_told(tmp_path: Path) -> None:
    lines = good()
    lines[0].append(["epoch", 1, 0, 2])
    lines[1].append(["epoch", 1, 0, 1])
    assert any(problem.startswith("L4: launch 1: epoch 0") for problem in found(tmp_path, lines))


def test_a_line_that_a_kill_cut_does_not_count(tmp_path: Path) -> None:
    ledger_of(tmp_path / "run", good())
    with (tmp_path / "run" / "ledger-1.jsonl").open("a") as file:
        file.write('["batch",1,0,1,[["a:1')
    ledger = Ledger(tmp_path / "run")
    assert ledger.torn == 1
    assert check(ledger, "rows", MANIFEST, ledger_of(tmp_path / "reference", REFERENCE)) == []


TOKENS = {"a:0": [5, 6, 7, 8], "a:1": [9]}


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        ([("a:0", 0, 3), ("a:0", 3, 4), ("a:1", 0, 1)], None),
        ([("a:0", 0, 3), ("a:1", 0, 1)], "a:0: 4 tokens came as [(0, 3)]"),
        ([("a:0", 0, 4), ("a:0", 2, 4), ("a:1", 0, 1)], "a:0: 4 tokens came as [(0, 4), (2, 4)]"),
        ([("a:0", 0, 4)], "a:1: 1 tokens came as []"),
    ],
)
def test_tokens_are_counted_one_by_one(tmp_path: Path, pieces: list[tuple[str, int, int]], told: str | None) -> None:
    entries = [[uid, crc_of(TOKENS[uid][first:stop]), first, stop] for uid, first, stop in pieces]
    lines = {0: [*start(0, 1, None), ["batch", 0, 0, 0, entries], ["end", 0, 1, {}]]}
    problems = check(ledger_of(tmp_path, lines), "tokens", TOKENS)
    assert (told is None and problems == []) or (told is not None and told in problems[0])


def test_passes_are_whole_once_no_lane_can_be_in_them(tmp_path: Path) -> None:
    manifest = {f"{i}": i for i in range(4)}

    def problems(order: list[tuple[int, int]]) -> list[str]:
        epochs = [order[i : i + 2] for i in range(0, len(order), 2)]
        batches = [["batch", 0, e, e, [[f"{i}", i, n] for i, n in pairs]] for e, pairs in enumerate(epochs)]
        lines = {0: [*start(0, 1, None), *batches, ["end", 0, len(epochs), {}]]}
        return check(ledger_of(tmp_path, lines), "pictures", manifest)

    order = [(i, n) for n in range(3) for i in range(4)]
    assert problems(order) == []
    assert problems([(1, 0), *order[1:]])[0] == "L1: pass 0 repeated 1: 1"
    assert problems([(0, 2), *order[1:]])[0] == "L1: pass 0 lost 1: 0"
    assert problems(order[:-1])[0] == "L1: epoch 5 has 1 samples, not 2"


# --- what the driver needs


def test_a_process_that_hangs_says_where_and_is_ended(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks"
    code = (
        "import faulthandler, sys, time\n"
        "def stuck():\n    print('ready', flush=True)\n    time.sleep(60)\n"
        "faulthandler.enable(open(sys.argv[1], 'w'))\nstuck()\n"
    )
    mark = f"books-{os.getpid()}"
    env = {**os.environ, host.MARK: mark}
    process = subprocess.Popen([sys.executable, "-c", code, str(stacks)], env=env, stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.send_signal(signal.SIGSTOP)
    assert list(host.processes(mark)) == [process.pid]
    host.dump_stacks(host.processes(mark))
    process.communicate(timeout=10)
    assert "in stuck" in stacks.read_text()
    assert host.processes(mark) == {}


def test_a_harmed_file_is_harmed(tmp_path: Path) -> None:
    for harm, size in (("half", 5000), ("flip", 10_000), ("noise", 10_000)):
        path = tmp_path / harm
        path.write_bytes(bytes(10_000))
        path.chmod(0o444)
        harm_file(path, harm, 0.5)
        assert path.stat().st_size == size
        changed = sum(byte != 0 for byte in path.read_bytes())
        assert changed == {"half": 0, "flip": 1, "noise": 4000}[harm]
    harm_file(tmp_path / "half", "gone", 0.5)
    assert not (tmp_path / "half").exists()


def test_a_plan_follows_from_its_seed_and_number() -> None:
    assert plan_of(3, 5, short=False) == plan_of(3, 5, short=False)
    drawn = [plan_of(3, number, short=False) for number in range(200)]
    assert {plan.kind for plan in drawn} == {"rows", "tokens", "pictures", "robot"}
    assert {plan.lanes for plan in drawn} == {4, 6}
    assert {plan.locks for plan in drawn} == {plan.room for plan in drawn} == {True, False}
    first, second = plan_of(3, 5, short=False).chance, plan_of(3, 5, short=False).chance
    assert [first.random() for _ in range(5)] == [second.random() for _ in range(5)]
    assert sum(kills for _, kills, _ in SHORT) >= 30


def test_data_is_the_same_for_a_seed_and_as_large_as_it_says(tmp_path: Path) -> None:
    began = time.monotonic()
    data = [make_data("rows", tmp_path / name, shards=6) for name in "ab"]
    assert data[0].manifest == data[1].manifest
    assert len(data[0].sizes) == 6
    assert 64 << 10 <= min(data[0].sizes) < max(data[0].sizes) <= 2.1 * (1 << 20)
    sizes = shard_sizes(40, plan_of(0, 0, short=True).chance)
    assert len(sizes) == 40
    assert min(sizes) >= 64 << 10
    assert max(sizes) <= 2 << 20
    assert time.monotonic() - began < 20

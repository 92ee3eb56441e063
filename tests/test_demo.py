from __future__ import annotations

import io
import json
import os
import pty
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageColor
from rich.console import Console

from headrace.errors import HeadraceError
from headrace.testing import write_parquet
from headrace.tools import child, curves, demo_train
from headrace.tools import demo as demo_module
from headrace.tools.child import Child, Tail
from headrace.tools.demo import Ledger, play_rows
from headrace.tools.demo_train import Run


def run(*words: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "headrace", *words], cwd=cwd, capture_output=True, text=True, timeout=100, check=False
    )


def test_the_demo_trains_is_killed_resumes_and_nothing_differs(tmp_path: Path) -> None:
    done = run("demo", "--steps", "60", "--plot", "out/curves.png", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Every token exactly once, every loss the same" in done.stdout
    assert done.stdout.count("Killed with SIGKILL") == 1
    assert "60 of 60" in done.stdout
    assert "from open to the first batch after the kill" in done.stdout
    assert [str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*")] == ["out/curves.png"]


def test_a_demo_too_short_for_its_kills_is_refused_in_a_sentence(tmp_path: Path) -> None:
    done = run("demo", "--steps", "60", "--kills", "2", cwd=tmp_path)
    assert done.returncode == 2
    assert "--steps 60 is too short to be killed 2 times; give 80 or more" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_demo_says_which_packages_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo_module, "find_spec", lambda name: None if name == "PIL" else object())
    with pytest.raises(HeadraceError, match="PIL cannot be imported; pip install 'headrace"):
        demo_module.demo(steps=40, kills=1)


def test_rows_alone_are_killed_twice_and_each_comes_once(tmp_path: Path) -> None:
    console = Console(file=io.StringIO(), width=100)
    assert play_rows(tmp_path, 2, console, shards=6, per_shard=1500)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert "Every row exactly once" in said
    assert said.count("Killed with SIGKILL") == 2


# --- ledgers


def test_a_ledger_of_rows_finds_what_was_lost_and_what_came_twice(tmp_path: Path) -> None:
    path = tmp_path / "ledger.txt"
    path.write_text("0 a\n1 b\n2 c\n2 c\n3 a\n")
    ledger = Ledger.read(path, {"a", "b", "c", "d"})
    assert (ledger.seen, ledger.lost, ledger.repeated, ledger.replayed, ledger.same_again) == (4, 1, 1, 1, True)
    assert not ledger.is_exact
    path.write_text("0 a\n1 b\n1 c\n")
    assert not Ledger.read(path, {"a", "c"}).same_again


def step(number: int, *spans: tuple[int, str, int, int, int], loss: float = 1.0) -> dict[str, Any]:
    """A record; a span is (epoch, shard, row, start, stop)."""
    return {"step": number, "loss": loss.hex(), "spans": [[*span[:3], 0, *span[3:]] for span in spans]}


EXPECTED = {("s", 0): 10, ("s", 1): 5}
ALONE = [
    step(1, (0, "data/s", 0, 0, 7)),
    step(2, (0, "data/s", 0, 7, 10), (0, "data/s", 1, 0, 5)),
    step(3, (1, "data/s", 0, 0, 4)),
]


@pytest.mark.parametrize(
    ("records", "facts"),
    [
        (ALONE, {}),
        ([*ALONE[:2], ALONE[1], ALONE[2]], {"steps_again": 1}),
        (ALONE[:2], {"steps_same": 2}),
        ([*ALONE[:2], step(3, (1, "data/s", 0, 0, 4), loss=1.0 + 2**-52)], {"steps_same": 2}),
        ([*ALONE[:2], step(3, (1, "data/s", 0, 1, 4))], {"steps_same": 2}),
        ([ALONE[0], step(2, (0, "data/s", 1, 0, 5)), ALONE[2]], {"steps_same": 2, "rows_lost": 1, "tokens_lost": 3}),
        (
            [ALONE[0], step(2, (0, "data/s", 0, 6, 10), (0, "data/s", 1, 0, 5)), ALONE[2]],
            {"steps_same": 2, "tokens_twice": 1},
        ),
        (
            [ALONE[0], step(2, loss=2.0), *ALONE[1:]],
            {"steps_again": 1, "same_again": False},
        ),
    ],
    ids=["all well", "a step again", "too short", "one bit", "another span", "lost", "twice", "not the same again"],
)
def test_a_ledger_of_tokens_finds_what_differs(records: list[dict[str, Any]], facts: dict[str, Any]) -> None:
    fine = {
        "rows": 2,
        "rows_lost": 0,
        "tokens": 15,
        "tokens_lost": 0,
        "tokens_twice": 0,
        "steps": 3,
        "steps_same": 3,
        "steps_again": 0,
        "same_again": True,
    }
    ledger = demo_train.Ledger.of(Run(records), Run(ALONE), EXPECTED)
    assert vars(ledger) == fine | facts
    assert ledger.is_exact == (set(facts) <= {"steps_again"})


# --- children


def test_a_child_is_killed_when_it_is_far_enough_and_only_then(tmp_path: Path) -> None:
    said = tmp_path / "said"
    code = "import sys, time\nfor i in range(3): print(i, flush=True)\ntime.sleep(float(sys.argv[1]))"
    for seconds, goal, killed in (("60", 3, True), ("0", 9, False), ("0", None, False)):
        with Child([sys.executable, "-c", code, seconds], os.environ, said) as started:
            assert started.follow(lambda: len(list(Tail(said))), goal) == killed
        assert said.read_text() == "0\n1\n2\n"


def test_a_tail_gives_whole_lines_only(tmp_path: Path) -> None:
    tail = Tail(tmp_path / "log")
    assert list(tail) == []
    (tmp_path / "log").write_bytes(b"one\ntw")
    assert list(tail) == [b"one\n"]
    (tmp_path / "log").write_bytes(b"one\ntwo\n")
    assert list(tail) == [b"two\n"]


def test_a_child_that_fails_is_quoted_and_one_that_hangs_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        Child([sys.executable, "-c", "raise SystemExit('no luck')"], os.environ, tmp_path / "said") as failed,
        pytest.raises(HeadraceError, match="ended with 1; its last words: no luck"),
    ):
        failed.follow(lambda: 0)
    monkeypatch.setattr(child, "DEADLINE_SECONDS", 0.3)
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    with Child([sys.executable, "-c", code], os.environ, tmp_path / "said") as hung:
        deadline = time.monotonic() + 30
        while not (tmp_path / "said").read_text().endswith("\n") and time.monotonic() < deadline:
            time.sleep(0.01)
        pid = int((tmp_path / "said").read_text())
        time.sleep(0.3)
        with pytest.raises(HeadraceError, match="did not end in 0 s"):
            hung.follow(lambda: 0)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, signal.SIG_DFL)


# --- the picture


def count(path: Path, color: str) -> int:
    image = Image.open(path).convert("RGB")
    assert image.size == curves.SIZE
    return sum(n for n, found in image.getcolors(1 << 24) or [] if found == ImageColor.getrgb(color))


def test_the_picture_shows_two_curves_apart_where_they_differ(tmp_path: Path) -> None:
    losses = [6 - step / 20 for step in range(100)]
    curves.draw(tmp_path / "same.png", losses, losses, [(60, 50)])
    curves.draw(tmp_path / "apart.png", losses, [*losses[:60], *[5.5] * 40], [])
    broad = {name: count(tmp_path / f"{name}.png", curves.BROAD) for name in ("same", "apart")}
    assert broad["apart"] > broad["same"] > 100
    assert count(tmp_path / "same.png", curves.MARK) > 100
    assert count(tmp_path / "apart.png", curves.MARK) == 0


# --- the command line


def test_rows_can_be_looked_at_from_the_command_line(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[10], [10]])
    done = run("rows", "parquet:in/*.parquet", "-n", "2", "--skip", "9", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert [(f["shard"][-22:], f["row"]) for f in found] == [
        ("00000-of-00002.parquet", 9),
        ("00001-of-00002.parquet", 0),
    ]


def test_a_wrong_command_gets_a_sentence_not_a_traceback(tmp_path: Path) -> None:
    done = run("rows", "parquet:nothing/*.parquet", cwd=tmp_path)
    assert done.returncode == 2
    assert "no file matches nothing/*.parquet" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_long_count_shows_a_bar_on_a_terminal_and_nothing_elsewhere(tmp_path: Path) -> None:
    write_parquet(tmp_path / "in", [[5]] * 12)
    shown = {}
    for terminal in (True, False):
        ours, theirs = pty.openpty()
        words = ["rows", "parquet:in/*.parquet", "-n", "1", "--cache-dir", str(tmp_path / str(terminal))]
        done = subprocess.run(
            [sys.executable, "-m", "headrace", *words],
            cwd=tmp_path,
            stdout=subprocess.PIPE,
            stderr=theirs if terminal else subprocess.PIPE,
            env={**os.environ, "TERM": "xterm"},
            timeout=60,
            check=True,
        )
        os.close(theirs)
        shown[terminal] = os.read(ours, 1 << 16) if terminal else done.stderr
        os.close(ours)
    assert b"reading footers" in shown[True]
    assert shown[False] == b""

"""A worker or a trainer that dies, hangs or fails: it is said at once, and nothing is lost, repeated or left behind."""

from __future__ import annotations

import os
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fetching import wait_until
from serving import (
    is_alive,
    kill_all,
    loader_of,
    on_this_machine,
    open_files,
    seen,
    shared_memory,
    workers,
    write_rows,
)

from headrace.errors import HeadraceError, WorkerError
from headrace.fetch.block import RowBlock
from headrace.make.prepare import AsRows, FromIds
from headrace.serve.pipeline import open_indexed
from headrace.serve.steps import Steps

pytestmark = pytest.mark.timed

BAD = "train-00002-of-00004.parquet:11"


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def wanted(pattern: str) -> dict[str, list[Any]]:
    return {kind: [seen(batch) for batch in loader_of(kind, pattern)] for kind in ("rows", "tokens")}


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No process, open file, shared memory or temporary file stays behind."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    monkeypatch.setenv("TMPDIR", str(temporary))
    before, shared, files = workers(), shared_memory(), len(open_files())
    yield
    wait_until(lambda: workers() == before and shared_memory() <= shared, on_this_machine(3))
    assert len(open_files()) <= files + 1  # multiprocessing keeps one to its helper
    assert list(temporary.rglob("*")) == []


def worker_pids(batches: Any) -> list[int]:
    """In the order of their numbers."""
    assert isinstance(batches, Steps)
    crew = batches._slots._crew
    assert crew is not None
    return [worker.pid for worker in crew._workers]


def until_error(batches: Iterator[Any], seconds: float = 5) -> tuple[list[Any], BaseException]:
    """Batches up to an error, which must come in time."""
    found: list[Any] = []
    began = time.monotonic()
    with pytest.raises(BaseException) as caught:  # noqa: PT012 - it may come with any of them
        while True:
            found.append(seen(next(batches)))
            began = time.monotonic()
    assert time.monotonic() - began < on_this_machine(seconds)
    assert not isinstance(caught.value, StopIteration), "an error was taken for the end"
    return found, caught.value


# --- a worker is killed


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("kind", ["rows", "tokens"])
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.usefixtures("no_nohup")
def test_a_killed_worker_is_named_at_once_and_the_same_iterator_goes_on_exactly(
    pattern: str, wanted: dict[str, list[Any]], how: signal.Signals, kind: str, persistent: bool
) -> None:
    with loader_of(kind, pattern, num_workers=3, persistent_workers=persistent) as loader:
        batches = iter(loader)
        found = [seen(next(batches)) for _ in range(7)]
        pid = worker_pids(batches)[1]
        os.kill(pid, how)
        more, error = until_error(batches)
        found += more
        assert isinstance(error, WorkerError)
        address = found[len(found) - (len(found) - 1 - 1) % 3 - 1][3][-1]  # of the last batch of worker 1
        last = address if kind == "rows" else address[-1]
        said = str(error)
        assert f"worker 1 (pid {pid}) was killed by {how.name}" in said
        assert f"before micro-batch {len(found)}; the last batch it gave is {len(found) - 3}, which ends with" in said
        assert str(last) in said
        assert found + [seen(batch) for batch in batches] == wanted[kind]


def test_a_new_iterator_and_a_state_taken_after_the_error_go_on_exactly(
    pattern: str, wanted: dict[str, list[Any]]
) -> None:
    with loader_of("rows", pattern, num_workers=2, persistent_workers=True) as loader:
        batches = iter(loader)
        found = [seen(next(batches)) for _ in range(4)]
        kill_all(worker_pids(batches))
        more, _ = until_error(batches)
        state = loader.state_dict()
        assert found + more + [seen(batch) for batch in loader] == wanted["rows"]
    with loader_of("rows", pattern) as loader:
        loader.load_state_dict(state)
        assert found + more + [seen(batch) for batch in loader] == wanted["rows"]


def test_a_worker_killed_again_and_again_costs_no_batch(pattern: str, wanted: dict[str, list[Any]]) -> None:
    found: list[Any] = []
    kills = 0
    with loader_of("rows", pattern, num_workers=2, prefetch=1) as loader:
        batches = iter(loader)
        while len(found) < len(wanted["rows"]):
            found.append(seen(next(batches)))
            if kills < 5:
                kill_all(worker_pids(batches)[:1])
                more, _ = until_error(batches)
                found += more
                kills += 1
    assert kills == 5
    assert found == wanted["rows"]


def test_idle_workers_that_die_between_epochs_are_noticed_and_replaced(
    pattern: str, wanted: dict[str, list[Any]]
) -> None:
    with loader_of("rows", pattern, num_workers=2, persistent_workers=True) as loader:
        batches = iter(loader)
        found = [seen(next(batches))]
        pids = worker_pids(batches)
        del batches
        kill_all(pids)
        wait_until(lambda: not any(map(is_alive, pids)))
        more, error = until_error(iter(loader))
        assert isinstance(error, WorkerError)
        assert "was killed by SIGKILL" in str(error)
        assert "it has given no batch yet" in str(error)
        assert found + more + [seen(batch) for batch in loader] == wanted["rows"]


def test_a_stopped_worker_is_given_up_when_its_time_is_over(
    pattern: str, wanted: dict[str, list[Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_WORKER_SECONDS", "1.5")
    for kind in ("rows", "tokens"):
        with loader_of(kind, pattern, num_workers=2) as loader:
            batches = iter(loader)
            found = [seen(next(batches)) for _ in range(3)]
            time.sleep(0.3)  # it has sent what it may send ahead, so what is under way is from a stopped process
            pid = worker_pids(batches)[0]
            os.kill(pid, signal.SIGSTOP)
            more, error = until_error(batches)
            assert len(more) >= 2
            assert isinstance(error, WorkerError)
            assert f"worker 0 (pid {pid}) has given nothing for 1.5 s" in str(error)
            assert "HEADRACE_WORKER_SECONDS" in str(error)
            assert not is_alive(pid)
            found += more
            assert found + [seen(batch) for batch in batches] == wanted[kind]


# --- something goes wrong inside


def planted(monkeypatch: pytest.MonkeyPatch, flag: Path, action: Callable[[], Any]) -> None:
    """`action` happens where the bad row is made ready, in whatever process that is, the first time."""
    for kind in (AsRows, FromIds):
        real: Any = kind.__call__

        def prepare(self: Any, block: RowBlock, real: Any = real) -> Any:
            if any(f"{Path(a.shard).name}:{a.row}" == BAD for a in block.addresses) and not flag.exists():
                if len(block) == 1:
                    flag.touch()
                action()
            return real(self, block)

        monkeypatch.setattr(kind, "__call__", prepare)


def exhaust_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), hard))
    try:
        bytearray(256 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def test_a_worker_that_leaves_while_it_makes_a_batch_is_named_with_its_exit_code(
    pattern: str, wanted: dict[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave() -> None:
        (tmp_path / "flag").touch()
        os._exit(3)

    planted(monkeypatch, tmp_path / "flag", leave)
    with loader_of("rows", pattern, num_workers=2) as loader:
        batches = iter(loader)
        found, error = until_error(batches)
        assert isinstance(error, WorkerError)
        assert "ended with exit code 3 before micro-batch" in str(error)
        assert found + [seen(batch) for batch in batches] == wanted["rows"]


AS_THEY_ARE: set[type[BaseException]] = {RuntimeError, OSError, MemoryError, BrokenPipeError}
"""Also out of a worker."""
NOT_ERRORS: set[type[BaseException]] = {KeyboardInterrupt, GeneratorExit, SystemExit}


@pytest.mark.parametrize("kind", ["rows", "tokens"])
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("error", [StopIteration, *sorted(AS_THEY_ARE | NOT_ERRORS, key=repr)])
def test_an_error_in_a_row_is_raised_once_with_its_address_and_is_never_the_end(
    pattern: str,
    wanted: dict[str, list[Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    error: type[BaseException],
    num_workers: int,
    kind: str,
) -> None:
    def fail() -> None:
        if error in NOT_ERRORS:  # blocks are not tried again for these
            (tmp_path / "flag").touch()
        raise error("planted")

    planted(monkeypatch, tmp_path / "flag", fail)
    with loader_of(kind, pattern, num_workers=num_workers) as loader:
        batches = iter(loader)
        found, caught = until_error(batches)
        told = "\n".join([type(caught).__name__, str(caught), *getattr(caught, "__notes__", [])])
        assert error.__name__ in told
        assert "planted" in told
        name, _, row = BAD.rpartition(":")
        if error not in NOT_ERRORS:
            assert f"{name}:{row}" in told
        if num_workers:
            assert f"while it made micro-batch {len(found)}" in told
        as_it_is = error in AS_THEY_ARE or (error in NOT_ERRORS and num_workers == 0)
        assert type(caught) is error if as_it_is else isinstance(caught, RuntimeError)
        assert found + [seen(batch) for batch in batches] == wanted[kind]


def test_memory_that_runs_out_in_a_worker_is_said_by_the_row(
    pattern: str, wanted: dict[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted(monkeypatch, tmp_path / "flag", exhaust_memory)
    with loader_of("rows", pattern, num_workers=2) as loader:
        batches = iter(loader)
        found, error = until_error(batches)
        assert isinstance(error, MemoryError)
        assert BAD in "\n".join(error.__notes__)
        assert found + [seen(batch) for batch in batches] == wanted["rows"]


class Unsendable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"one is {one}, two is {two}")


def test_an_error_that_cannot_travel_is_told_in_words(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise Unsendable(1, 2)

    planted(monkeypatch, tmp_path / "flag", fail)
    with loader_of("rows", pattern, num_workers=1) as loader:
        _, error = until_error(iter(loader))
        assert isinstance(error, WorkerError)
        assert "Unsendable: one is 1, two is 2" in str(error)
        assert "in fail" in "\n".join(error.__notes__)


def test_a_row_that_stays_bad_stays_an_error(
    pattern: str, wanted: dict[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        (tmp_path / "flag").unlink(missing_ok=True)
        raise ValueError("still bad")

    planted(monkeypatch, tmp_path / "flag", fail)
    for num_workers in (0, 2):
        with loader_of("rows", pattern, num_workers=num_workers) as loader:
            batches = iter(loader)
            found, _ = until_error(batches)
            for _ in range(3):
                more, error = until_error(batches)
                assert more == []
                assert "still bad" in str(error)
            assert found == wanted["rows"][: len(found)]
            assert loader.state_dict()["m"] == len(found)


class OpensOnce:
    def __init__(self, flag: Path) -> None:
        self._flag = flag

    def __call__(self, *given: Any) -> Any:
        if self._flag.exists():
            raise HeadraceError("it opens only once")
        self._flag.touch()
        return open_indexed(*given)


def test_a_source_that_cannot_be_opened_over_there_is_an_error_not_a_hang(pattern: str, tmp_path: Path) -> None:
    opener = OpensOnce(tmp_path / "flag")
    with loader_of("rows", pattern, num_workers=1, start_method="spawn", opener=opener) as loader:
        found, error = until_error(iter(loader), 15)
    assert found == []
    assert isinstance(error, HeadraceError)
    assert "it opens only once" in str(error)


# --- the trainer is killed


TRAINER = """
import os, sys, time
sys.path.insert(0, {tests!r})
from serving import loader_of
from headrace.make.prepare import AsRows
def stuck(real, flag):
    def prepare(*given):
        if os.path.exists(flag):
            open(flag + "-" + str(os.getpid()), "w").close()
            time.sleep(600)
        return real(*given)
    return prepare
if __name__ == "__main__":
    {before}
    loader = loader_of({kind!r}, {pattern!r}, num_workers=3, start_method={method!r}, persistent_workers={persistent})
    batches = iter(loader)
    for _ in range(5):
        next(batches)
    print(*[worker.pid for worker in batches._slots._crew._workers], flush=True)
    {then}
    time.sleep(60)
"""


def trainer(pattern: str, method: str, *, kind: str = "rows", persistent: bool = False, **code: str) -> Any:
    given = {"before": "pass", "then": "pass", "kind": kind, "pattern": pattern, "method": method, **code}
    text = TRAINER.format(tests=str(Path(__file__).parent), persistent=persistent, **given)
    path = Path(pattern).parent.parent / f"trainer-{method}.py"
    path.write_text(text)
    return subprocess.Popen([sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def kill(process: Any) -> None:
    process.kill()
    process.wait()  # not for the end of what it said: its workers have that open too
    process.stdout.close()
    process.stderr.close()


def wait_for_the_end_of(pids: list[int]) -> None:
    try:
        wait_until(lambda: not any(map(is_alive, pids)), on_this_machine(5))
    finally:
        kill_all(pids)


@pytest.mark.parametrize(("method", "times"), [("fork", 5), ("spawn", 1), ("forkserver", 1)])
def test_workers_do_not_outlive_a_killed_trainer(pattern: str, method: str, times: int) -> None:
    started = []
    for n in range(times):
        process = trainer(pattern, method, persistent=n % 2 == 1, then="del batches" if n % 2 else "pass")
        pids = [int(word) for word in process.stdout.readline().split()]
        assert len(pids) == 3, process.stderr.read()
        started += pids
        kill(process)  # and the next one begins at once
    wait_for_the_end_of(started)
    if method == "forkserver":
        for path in Path(tempfile.gettempdir()).glob("pymp-*"):  # where Python's own server listened
            shutil.rmtree(path)


def test_a_worker_that_is_stuck_does_not_outlive_a_killed_trainer(pattern: str, tmp_path: Path) -> None:
    """It waits, for a server or a disk, and looks at no message."""
    flag = tmp_path / "stuck"
    process = trainer(
        pattern,
        "fork",
        before=f"AsRows.__call__ = stuck(AsRows.__call__, {str(flag)!r})",
        then=f"open({str(flag)!r}, 'w').close(); list(batches)",
    )
    pids = [int(word) for word in process.stdout.readline().split()]
    assert len(pids) == 3, process.stderr.read()
    wait_until(lambda: any(Path(f"{flag}-{pid}").exists() for pid in pids), on_this_machine(10))
    assert all(map(is_alive, pids))
    kill(process)
    wait_for_the_end_of(pids)


def test_workers_of_a_stopped_trainer_wait_for_it(pattern: str) -> None:
    process = trainer(pattern, "fork")
    pids = [int(word) for word in process.stdout.readline().split()]
    process.send_signal(signal.SIGSTOP)
    time.sleep(2.5)
    assert all(map(is_alive, pids))
    kill(process)
    wait_for_the_end_of(pids)

"""Workers change how batches come, never which."""

from __future__ import annotations

import gc
import logging
import multiprocessing.process
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import pytest
from fetching import wait_until
from serving import (
    ALL_TOKENS,
    KINDS,
    NUM_ROWS,
    UIDS,
    loader_of,
    seen,
    tokens_in,
    uids_in,
    workers,
    write_rows,
)

import headrace
from headrace.errors import HeadraceError, SpecError
from headrace.fetch.sources import Opened
from headrace.serve.loader import Loader
from headrace.serve.pipeline import open_indexed
from headrace.serve.worker import Worker, _our_ends
from headrace.testing import LocalHub, write_parquet
from headrace.testing.memory import MemorySource
from headrace.testing.tokenizers import write_tokenizer

EPOCHS = 3


@pytest.fixture(scope="module")
def pattern(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_rows(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="module")
def wanted(pattern: str) -> dict[str, list[list[Any]]]:
    """For each kind, the epochs of a loader without workers."""
    found = {}
    for kind in KINDS:
        loader = loader_of(kind, pattern)
        found[kind] = [[seen(batch) for batch in loader] for _ in range(EPOCHS)]
    return found


@pytest.fixture(autouse=True)
def nobody_left() -> Iterator[None]:
    before = workers()
    yield
    gc.collect()
    wait_until(lambda: workers() <= before, 3)


def test_what_the_others_are_compared_with_is_whole(pattern: str, wanted: dict[str, list[list[Any]]]) -> None:
    assert sorted(uids_in(loader_of("rows", pattern))) == UIDS
    assert sorted(tokens_in(loader_of("tokens", pattern))) == ALL_TOKENS
    for kind in KINDS:
        assert all(epochs != wanted[kind][0] for epochs in wanted[kind][1:])


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3, 5])
@pytest.mark.parametrize("kind", list(KINDS))
def test_any_number_of_workers_gives_the_same_batches_epoch_after_epoch(
    pattern: str, wanted: dict[str, list[list[Any]]], kind: str, num_workers: int, persistent: bool
) -> None:
    pids = set()
    with loader_of(kind, pattern, num_workers=num_workers, persistent_workers=persistent) as loader:
        for epoch in range(EPOCHS):
            assert [seen(batch) for batch in loader] == wanted[kind][epoch]
            pids |= workers()
    assert len(pids) == (num_workers if persistent else 0)


@pytest.mark.parametrize(("kind", "num_workers"), [("rows", 1), ("rows", 2), ("rows", 3), ("tokens", 2)])
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_any_start_method_gives_the_same_batches(
    pattern: str, wanted: dict[str, list[list[Any]]], method: str, kind: str, num_workers: int
) -> None:
    options = {"num_workers": num_workers, "start_method": method}
    if num_workers == 1:
        loader = loader_of(kind, pattern, **options)
        assert [[seen(batch) for batch in loader] for _ in range(2)] == wanted[kind][:2]
    with loader_of(kind, pattern, persistent_workers=True, **options) as loader:
        assert [[seen(batch) for batch in loader] for _ in range(EPOCHS)] == wanted[kind]


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_texts_are_tokenized_in_workers_as_they_are_here(tmp_path: Path, method: str) -> None:
    """Also where this process has used the tokenizer, and its threads, before."""
    pattern = write_rows(tmp_path)
    write_tokenizer(tmp_path / "tokenizer", vocab=400)
    options: dict[str, Any] = {"tokenizer": str(tmp_path / "tokenizer"), "seq_len": 64, "batch_size": 2, "epochs": 1}
    options |= {"cache_dir": tmp_path / "cache", "lanes": 4}
    spec = f"parquet:{pattern}:text"
    with headrace.load(spec, **options) as here:
        wanted = [seen(batch) for batch in here]
    with headrace.load(spec, num_workers=2, start_method=method, **options) as there:
        assert [seen(batch) for batch in there] == wanted
    assert len({row for batch in wanted for sequence in batch[4] for row, *_ in sequence}) == NUM_ROWS


def test_a_full_shared_memory_folder_and_few_open_files_do_not_matter(tmp_path: Path) -> None:
    """A container's /dev/shm may have no room for a batch; a trainer may keep more batches than it may open files."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from serving import ALL_TOKENS, loader_of, tokens_in\n"
        "if __name__ == '__main__':\n"
        "    kept = list(loader_of('tokens', sys.argv[2], num_workers=2))\n"
        "    assert len(kept) > 60\n"
        "    assert sorted(tokens_in(kept)) == ALL_TOKENS\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    command = [sys.executable, str(script), str(Path(__file__).parent), write_rows(tmp_path)]
    narrow = 'mount -t tmpfs -o size=4k tiny /dev/shm && ulimit -n 64 && exec "$@"'
    unshared = ["unshare", "-Urm", "sh", "-c", narrow, "sh", *command]
    done = subprocess.run(unshared, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2, 3])
def test_a_loop_left_early_goes_on_with_the_next_one(
    pattern: str, wanted: dict[str, list[list[Any]]], num_workers: int, persistent: bool
) -> None:
    """Workers have made batches ahead by then, of which none may come."""
    found: list[Any] = []
    options: dict[str, Any] = {"num_workers": num_workers, "persistent_workers": persistent, "prefetch": 6}
    with loader_of("rows", pattern, **options) as loader:
        for most in (1, 2, 5, 13, 1, NUM_ROWS):
            for n, batch in enumerate(loader, 1):
                found.append(seen(batch))
                if n == most:
                    time.sleep(0.05)
                    break
        assert found == wanted["rows"][0]
        assert [seen(batch) for batch in loader] == wanted["rows"][1]


def test_an_iterator_that_never_gave_a_batch_takes_none(pattern: str, wanted: dict[str, list[list[Any]]]) -> None:
    with loader_of("rows", pattern, num_workers=2, persistent_workers=True) as loader:
        for _ in range(3):
            iter(loader)
        assert [seen(batch) for batch in loader] == wanted["rows"][0]


@pytest.mark.parametrize("kind", ["rows", "tokens"])
@pytest.mark.parametrize(("before", "after"), [(0, 2), (3, 1), (2, 0), (1, 3)])
def test_a_state_goes_on_with_another_number_of_workers(
    pattern: str, wanted: dict[str, list[list[Any]]], kind: str, before: int, after: int
) -> None:
    for cut in (1, 17):
        with loader_of(kind, pattern, num_workers=before) as loader:
            batches = iter(loader)
            found = [seen(next(batches)) for _ in range(cut)]
            state = loader.state_dict()
        with loader_of(kind, pattern, num_workers=after) as loader:
            loader.load_state_dict(state)
            assert loader.state_dict() == state
            assert found + [seen(batch) for batch in loader] == wanted[kind][0]
            assert [seen(batch) for batch in loader] == wanted[kind][1]


def test_a_state_loaded_into_a_loader_with_idle_workers_is_what_they_go_on_from(
    pattern: str, wanted: dict[str, list[list[Any]]]
) -> None:
    with loader_of("rows", pattern, num_workers=2, persistent_workers=True) as loader:
        batches = iter(loader)
        for _ in range(4):
            next(batches)
        state = loader.state_dict()
        for _ in range(9):
            next(batches)
        del batches
        loader.load_state_dict(state)
        assert [seen(batch) for batch in loader] == wanted["rows"][0][4:]


def test_more_workers_than_lanes_are_not_started(pattern: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "headrace"), loader_of("rows", pattern, lanes=2, num_workers=5) as loader:
        batches = iter(loader)
        next(batches)
        assert len(workers()) == 2
    assert "num_workers=5: 2 are used, one for each lane" in caplog.text


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_workers_start_while_this_process_downloads(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """The parent has connections, leases and a thread that fetches; children have their own."""
    write_parquet(tmp_path / "repo" / "data", [[50, 50]] * 4)
    hub.push("org/rows", tmp_path / "repo")
    monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
    options: dict[str, Any] = {"cache_dir": tmp_path / "data", "lanes": 2, "batch_size": 10}
    with headrace.load("hf:org/rows", **options) as here:
        batches = iter(here)
        first = [seen(next(batches)) for _ in range(3)]
        with headrace.load("hf:org/rows", num_workers=2, start_method=method, **options) as there:
            found = [seen(batch) for batch in there]
        assert first + [seen(batch) for batch in batches] == found
    assert len(found) == 40


def test_a_worker_keeps_the_trainers_signal_handlers_from_running(pattern: str, tmp_path: Path) -> None:
    """Ctrl-C and the signals of schedulers go to all processes; a checkpoint is the trainer's to save."""
    names = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
    before = [signal.signal(name, lambda number, frame: (tmp_path / str(os.getpid())).touch()) for name in names]
    try:
        with loader_of("rows", pattern, num_workers=2) as loader:
            batches = iter(loader)
            found = [seen(next(batches))]
            for pid in workers():
                for name in names:
                    os.kill(pid, name)
            found += [seen(batch) for batch in batches]
    finally:
        for name, handler in zip(names, before, strict=True):
            signal.signal(name, handler)
    assert list(tmp_path.iterdir()) == []
    assert len(found) == len(list(loader))


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_signal_that_comes_while_a_worker_starts_is_the_trainers_too(
    pattern: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    """Between its first instant and the moment it has settled in, it still has the trainer's handlers, or none."""
    names = (signal.SIGUSR1, signal.SIGUSR2, signal.SIGINT)
    handled = tmp_path / "handled"
    handled.mkdir()
    before = [signal.signal(name, lambda number, frame: (handled / str(os.getpid())).touch()) for name in names]
    start = multiprocessing.process.BaseProcess.start

    def start_and_signal(process: multiprocessing.process.BaseProcess) -> None:
        start(process)
        for name in names:
            os.kill(int(process.pid or 0), name)

    monkeypatch.setattr(multiprocessing.process.BaseProcess, "start", start_and_signal)
    try:
        with loader_of("rows", pattern, num_workers=2, start_method=method) as loader:
            found = [seen(batch) for batch in loader]
        assert not set(names) & signal.pthread_sigmask(signal.SIG_BLOCK, ())
    finally:
        for name, handler in zip(names, before, strict=True):
            signal.signal(name, handler)
    assert list(handled.iterdir()) == []
    assert len(found) == len(list(loader))


def test_a_forked_copy_of_the_trainer_does_not_end_its_workers(
    pattern: str, wanted: dict[str, list[list[Any]]]
) -> None:
    for persistent in (False, True):
        loader = loader_of("rows", pattern, num_workers=2, persistent_workers=persistent)
        batches = iter(loader)
        found = [seen(next(batches)) for _ in range(3)]
        pids = workers()
        child = os.fork()
        if child == 0:
            try:
                batches.close()  # type: ignore[attr-defined]
                loader.close()
                del batches, loader
                gc.collect()
            finally:
                os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        found += [seen(next(batches)) for _ in range(10)]
        assert workers() == pids
        assert found + [seen(batch) for batch in batches] == wanted["rows"][0]
        loader.close()


def test_threads_may_start_workers_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Process:
        pid = sentinel = 0

        def __init__(self, **_: Any) -> None:
            pass

        def start(self) -> None:
            pass

    context = SimpleNamespace(get_start_method=lambda: "fork", Process=Process)
    monkeypatch.setattr(multiprocessing, "get_context", lambda _: context)
    pipeline: Any = SimpleNamespace(makes_tensors=False)
    done = threading.Event()

    def start_others() -> None:
        while not done.is_set():
            Worker(pipeline, 0, 1, "fork")._hang_up()

    other = threading.Thread(target=start_others)
    before = sys.getswitchinterval()
    kept = [Worker(pipeline, 0, 1, "fork") for _ in range(100)]
    sys.setswitchinterval(1e-6)
    try:
        other.start()
        for _ in range(20_000):
            assert len(_our_ends()) >= 100
    finally:
        done.set()
        other.join()
        sys.setswitchinterval(before)
        for one in kept:
            one._hang_up()
    assert _our_ends() == ()


def test_what_cannot_be_sent_to_a_worker_is_named(pattern: str) -> None:
    def local(*given: Any) -> Opened:
        return open_indexed(*given)

    loader = loader_of("rows", pattern, num_workers=1, start_method="spawn", opener=local)
    with pytest.raises(SpecError, match=r"start_method='spawn'.*local.*at the top of a module"):
        next(iter(loader))
    with loader_of("rows", pattern, num_workers=1, start_method="fork", opener=local) as loader:
        next(iter(loader))


def test_an_iterator_that_was_replaced_or_closed_does_not_look_like_the_end_of_the_data(pattern: str) -> None:
    for num_workers in (0, 2):
        with loader_of("rows", pattern, num_workers=num_workers) as loader:
            old = iter(loader)
            next(old)
            new = iter(loader)
            next(new)
            with pytest.raises(HeadraceError, match="a later iter"):
                next(old)
            loader.close()
            with pytest.raises(HeadraceError, match="closed"):
                next(new)
            rest = list(loader)
            assert len(rest) == len(loader) - 2


def test_the_end_stays_the_end(pattern: str) -> None:
    with loader_of("rows", pattern, num_workers=2) as loader:
        batches = iter(loader)
        assert len(list(batches)) == len(loader)
        for _ in range(3):
            assert next(batches, None) is None
        state = loader.state_dict()
        assert next(batches, None) is None
        assert loader.state_dict() == state


def test_a_forgotten_loader_takes_its_workers_along(pattern: str) -> None:
    for persistent in (False, True):
        for start in (0, 1, 3):
            loader = loader_of("rows", pattern, num_workers=2, persistent_workers=persistent)
            batches = iter(loader)
            for _ in range(start):
                next(batches)
            pids = workers()
            assert len(pids) == (2 if start else 0)
            del batches
            assert workers() == (pids if persistent else set())
            del loader
            assert workers() == set()


class Interrupt:
    """KeyboardInterrupt at the nth line of what serves batches in this process, once."""

    def __init__(self, nth: int) -> None:
        self.nth, self.seen, self.fired = nth, 0, False
        self.pid = os.getpid()

    def __call__(self, frame: FrameType, event: str, arg: Any) -> Any:
        code = frame.f_code
        ours = code.co_filename.endswith(("steps.py", "loader.py", "crew.py", "serve/worker.py", "wire.py"))
        if code.co_name == "__del__" or self.fired or os.getpid() != self.pid:
            sys.settrace(None)  # what is raised in the first goes nowhere
        return self.line if ours and not self.fired else None

    def line(self, frame: FrameType, event: str, arg: Any) -> Any:
        if event == "line" and not self.fired and not _is_past_the_handover(frame):
            self.seen += 1
            if self.seen == self.nth:
                self.fired = True
                raise KeyboardInterrupt
        return self.line


def _is_past_the_handover(frame: FrameType) -> bool:
    """Signals are looked at where something is called or jumped back to; between a plain store and a return, never."""
    code = frame.f_code
    if code.co_name != "__next__" or not code.co_filename.endswith("steps.py"):
        return False
    lines = Path(code.co_filename).read_text().splitlines()
    return lines[frame.f_lineno - 1].strip() in ("self._is_torn = False", "return batch", "self._is_over = True")


def drained(loader: Loader, trace: Interrupt | None) -> list[Any]:
    """All batches of an epoch; after an interrupt the same iterator goes on."""
    found: list[Any] = []
    batches = iter(loader)
    while True:
        sys.settrace(trace)
        try:
            batch = next(batches, None)
        except KeyboardInterrupt:
            sys.settrace(None)
            continue
        finally:
            sys.settrace(None)
        if batch is None:
            return found
        found.append(seen(batch))


@pytest.mark.parametrize("num_workers", [0, 2])
def test_an_interrupt_at_any_line_loses_and_repeats_no_batch(tmp_path: Path, num_workers: int) -> None:
    source = MemorySource("txt:memory:text", [[3, 4]], lambda shard, row: {"uid": f"{shard}:{row}"})

    def make() -> Loader:
        options: dict[str, Any] = {"lanes": 2, "num_workers": num_workers, "batch_size": 2, "cache_dir": tmp_path}
        return headrace.load("txt:memory", opener=lambda *given: source, **options)

    with make() as loader:
        wanted = [drained(loader, None), drained(loader, None)]
    points = 0
    while True:
        interrupt = Interrupt(points + 1)
        with make() as loader:
            found = [drained(loader, interrupt), drained(loader, None)]
        if not interrupt.fired:
            break
        assert found == wanted, f"line {points + 1}"
        points += 1 if num_workers == 0 else 23
    assert points > 100

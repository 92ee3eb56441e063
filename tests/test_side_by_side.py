"""Jobs that are done by a few threads, of which the one that waits is one."""

from __future__ import annotations

import multiprocessing
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import partial
from itertools import count

import numpy as np
import pytest

from headrace.catalog.stop import pause
from headrace.make.describe import Faults
from headrace.make.prepare import Ready
from headrace.make.sample import Sample
from headrace.mix.turns import Pick
from headrace.sequence.samples import SampleBatcher
from headrace.sequence.side_by_side import Helpers

BEFORE: set[threading.Thread] = set()
"""Threads that others have left, and that go when they are collected."""


@pytest.fixture(autouse=True)
def others() -> None:
    BEFORE.clear()
    BEFORE.update(threading.enumerate())


def helpers() -> list[threading.Thread]:
    found = [thread for thread in threading.enumerate() if thread.name.startswith("headrace-decode")]
    return [thread for thread in found if thread not in BEFORE]


@pytest.mark.parametrize("threads", [1, 2, 3, 8])
def test_each_call_gives_what_its_job_gives_whatever_is_asked_for_first(threads: int) -> None:
    with closing(Helpers(threads)) as own, own.jobs() as begin:
        calls = [begin(partial(pow, 3, number)) for number in range(40)]
        assert [call() for call in reversed(calls)] == [3**number for number in reversed(range(40))]
        assert len(helpers()) <= threads - 1
    assert not helpers()


@pytest.mark.parametrize("threads", [2, 4])
def test_as_many_jobs_run_at_once_as_threads_were_asked_for(threads: int) -> None:
    together = threading.Barrier(threads, timeout=20)
    with closing(Helpers(threads)) as own, own.jobs() as begin:
        calls = [begin(together.wait) for _ in range(threads)]
        assert sorted(call() for call in calls) == list(range(threads))


def ran_in(own: Helpers) -> set[int]:
    """The threads that did some jobs, of which there is one for each."""
    together = threading.Barrier(own.threads, timeout=20)

    def job() -> int:
        together.wait()
        return threading.get_ident()

    with own.jobs() as begin:
        return {wait() for wait in [begin(job) for _ in range(own.threads)]}


def test_helpers_stay_for_the_next_time_until_they_are_sent_away() -> None:
    with closing(Helpers(3)) as own:
        first = ran_in(own)
        assert ran_in(own) == first
        assert len(first) == 3
        assert len(helpers()) == 2
    assert not helpers()
    with closing(own):  # they come again
        assert len(ran_in(own)) == 3
    assert not helpers()


def test_helpers_that_nobody_sends_away_go_by_themselves() -> None:
    own = Helpers(3)
    ran_in(own)
    left = helpers()
    del own
    for thread in left:
        thread.join(20)
    assert len(left) == 2
    assert not helpers()


def test_jobs_that_nobody_waited_for_are_given_up() -> None:
    begun, go_on, ran = threading.Event(), threading.Event(), count()

    def job() -> None:
        begun.set()
        assert go_on.wait(20)
        next(ran)

    with closing(Helpers(2)) as own, own.jobs() as begin:
        for _ in range(20):
            begin(job)
        assert begun.wait(20)
        threading.Timer(0.1, go_on.set).start()
    assert next(ran) == 1
    assert not helpers()


def test_jobs_that_wait_for_a_server_are_ended_by_an_interrupt() -> None:
    begun = threading.Event()

    def job() -> None:
        begun.set()
        pause(600)

    def interrupted() -> None:
        with closing(Helpers(2)) as own, own.jobs() as begin:
            begin(job)
            assert begun.wait(20)
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 30
    assert not helpers()


@pytest.mark.parametrize("fails", [False, True])
def test_jobs_are_done_though_others_who_share_the_threads_end(fails: bool) -> None:
    """As iterators of one data set do: one may be closed by the garbage collector while another decodes."""
    go_on = threading.Event()

    def job() -> int:
        while not go_on.is_set():
            pause(0.01)
        return 7

    def other() -> None:
        with own.jobs() as begin:
            calls = [begin(lambda: 1) for _ in range(3)]
            assert not fails
            assert [call() for call in calls] == [1, 1, 1]

    own = Helpers(3)
    with own.jobs() as begin:
        calls = [begin(job) for _ in range(5)]
        threading.Timer(0.2, go_on.set).start()
        if fails:
            with pytest.raises(AssertionError):
                other()
        own.close()
        assert [call() for call in calls] == [7] * 5
        assert begin(job)() == 7
    assert not helpers()


def test_threads_that_share_helpers_end_them_without_harm_to_each_other() -> None:
    own, odd = Helpers(2), []
    before, until = sys.getswitchinterval(), time.monotonic() + 3

    def good() -> None:
        while time.monotonic() < until:
            try:
                with own.jobs() as begin:
                    assert [call() for call in [begin(lambda: 1) for _ in range(3)]] == [1, 1, 1]
            except BaseException as error:
                odd.append(error)

    def bad() -> None:
        while time.monotonic() < until:
            try:
                with own.jobs() as begin:
                    begin(lambda: 1)
                    raise LookupError  # noqa: TRY301
            except LookupError:
                pass
            except BaseException as error:
                odd.append(error)

    def closing_it() -> None:
        while time.monotonic() < until:
            own.close()

    threads = [threading.Thread(target=work) for work in (good, good, bad, closing_it)]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    finally:
        sys.setswitchinterval(before)
    own.close()
    assert not odd
    assert not helpers()


class ClosedBetween:
    """A lock. Whenever it is free again, another thread ends the helpers first."""

    def __init__(self, own: Helpers) -> None:
        self._own, self._lock, self._is_closing = own, own._lock, False

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()
        if not self._is_closing:
            self._is_closing = True
            other = threading.Thread(target=self._own.close)
            other.start()
            other.join(20)
            self._is_closing = False


def test_threads_that_are_taken_are_ended_by_nobody_else() -> None:
    with closing(Helpers(2)) as own:
        own._lock = ClosedBetween(own)  # type: ignore[assignment]
        for _ in range(3):
            with own.jobs() as begin:
                assert [call() for call in [begin(lambda: 1) for _ in range(3)]] == [1, 1, 1]
    assert not helpers()


def test_a_forked_process_has_helpers_of_its_own() -> None:
    with closing(Helpers(2)) as own:
        here = ran_in(own)
        child = multiprocessing.get_context("fork").Process(target=ran_in, args=(own,))
        child.start()
        child.join(20)
        assert child.exitcode == 0
        assert ran_in(own) == here


def test_a_process_that_is_forked_while_threads_are_taken_can_take_some() -> None:
    taken, over = threading.Event(), threading.Event()
    with closing(Helpers(2)) as own:

        def hold() -> None:
            with own._lock:
                taken.set()
                assert over.wait(20)

        holder = threading.Thread(target=hold)
        holder.start()
        assert taken.wait(20)
        child = multiprocessing.get_context("fork").Process(target=ran_in, args=(own,))
        child.start()
        child.join(20)
        code = child.exitcode
        child.kill()
        over.set()
        holder.join()
        assert code == 0


def test_a_fork_in_the_midst_of_jobs_waits_for_no_thread_of_its_parent() -> None:
    script = """
import os, signal, threading
from headrace.sequence.side_by_side import Helpers
own, over = Helpers(2), threading.Event()
with own.jobs() as begin:
    begin(over.wait)
    if (child := os.fork()) == 0:
        signal.alarm(20)
        raise SystemExit(7)
    _, status = os.waitpid(child, 0)
    over.set()
own.close()
print(os.waitstatus_to_exitcode(status))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.returncode) == ("7\n", 0), done.stderr[-2000:]


def test_jobs_run_while_others_are_still_to_be_begun() -> None:
    ran = threading.Event()
    with closing(Helpers(2)) as own, own.jobs() as begin:
        begin(ran.set)
        assert ran.wait(20)
        assert begin(lambda: 7)() == 7


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_what_a_job_raises_comes_at_its_turn(threads: int) -> None:
    def fails() -> int:
        raise ValueError("this one")

    with closing(Helpers(threads)) as own, own.jobs() as begin:
        first, bad, last = begin(lambda: 1), begin(fails), begin(lambda: 3)
        assert first() == 1
        with pytest.raises(ValueError, match="this one"):
            bad()
        assert last() == 3
    assert not helpers()


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_after_an_exception_nothing_more_is_begun_and_no_thread_is_left(threads: int) -> None:
    ran, begun, go_on = count(), threading.Semaphore(0), threading.Event()

    def job() -> int:
        begun.release()
        assert go_on.wait(20)
        return next(ran)

    def stopped() -> None:
        with closing(Helpers(threads)) as own, own.jobs() as begin:
            for _ in range(200):
                begin(job)
            for _ in range(threads - 1):
                assert begun.acquire(timeout=20)
            threading.Timer(0.1, go_on.set).start()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stopped()
    assert not helpers()
    assert next(ran) == threads - 1  # those that had begun


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_job_that_ends_its_thread_is_heard_of(threads: int) -> None:
    """A processor of the user's may raise anything, also what is no Exception."""

    def ends() -> None:
        raise SystemExit(7)

    def run() -> None:
        with closing(Helpers(threads)) as own, own.jobs() as begin:
            for call in [begin(ends) for _ in range(4)]:
                call()

    with pytest.raises(SystemExit):
        run()
    assert not helpers()


INTERRUPTED = """
import sys, threading, time
from contextlib import closing
from headrace.sequence import side_by_side as module

if sys.argv[1] == "while a thread starts":
    real = threading.Thread.start
    def start(self):
        real(self)
        raise KeyboardInterrupt
    threading.Thread.start = start
else:
    def shutdown(self, **how):
        raise KeyboardInterrupt
    module.ThreadPoolExecutor.shutdown = shutdown
try:
    with closing(module.Helpers(2)) as own, own.jobs() as begin:
        begin(lambda: time.sleep(0.01))()
except KeyboardInterrupt:
    print("interrupted")
"""


@pytest.mark.parametrize("when", ["while a thread starts", "while threads end"])
def test_a_process_ends_after_an_interrupt_at_a_bad_moment(when: str) -> None:
    command = [sys.executable, "-c", INTERRUPTED, when]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "interrupted\n"


def test_an_interrupt_in_a_job_of_the_thread_that_waits_is_raised_at_once() -> None:
    here, in_helper, done = threading.get_ident(), threading.Event(), threading.Event()

    def hold() -> None:
        in_helper.set()
        assert done.wait(20)

    def interrupted() -> None:
        assert threading.get_ident() == here
        done.set()
        raise KeyboardInterrupt

    def work() -> None:
        with closing(Helpers(2)) as own, own.jobs() as begin:
            begin(hold)
            assert in_helper.wait(20)
            begin(interrupted)
            begin(lambda: None)()  # works while it waits

    with pytest.raises(KeyboardInterrupt):
        work()
    assert not helpers()


def test_a_sample_is_begun_before_the_next_one_is_taken() -> None:
    begun = [threading.Event() for _ in range(4)]
    given: list[int] = []

    def finish(row: Ready, sub: int) -> dict[str, int]:
        begun[row.position].set()
        return {"n": row.position}

    def take() -> Pick | None:
        number = len(given)
        if number == 4:
            return None
        if number:
            assert begun[number - 1].wait(20)
        given.append(number)
        return Pick(Ready(0, 0, number, "shard", number, (Sample(np.array([1], np.int32), None, {}),)), 0)

    refused: Callable[[Pick], None] = given.clear  # type: ignore[assignment]
    batcher = SampleBatcher(4, 1, 8, finish, Faults(), refused, Helpers(2))
    assert [item.made["n"] for item in batcher.make(take, 1)] == [0, 1, 2, 3]

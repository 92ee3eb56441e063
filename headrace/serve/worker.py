"""A worker process: makes the micro-batches of its lanes ahead of the trainer.

Main and worker talk over one wire. Down go jobs (where each lane goes on) and, for each batch that was taken, leave to
make one more; up come batches. The trainer's process waits for the wire and for the worker's end at once, so a worker
that dies is noticed at once; a worker looks each second whether the trainer still lives, also while it makes a batch.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
import traceback
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import wait
from typing import Any, NamedTuple

from headrace.address import Address
from headrace.batch import Batch
from headrace.catalog.stop import listen
from headrace.errors import HeadraceError, SpecError, WorkerError, shown
from headrace.limits import starting
from headrace.make.faults import Place
from headrace.make.prepare import Ready
from headrace.run import limit_tokenizer_threads
from headrace.serve.lane import Lane
from headrace.serve.pipeline import Pipeline
from headrace.serve.pulse import Pulse
from headrace.serve.short_folder import use_short_folder
from headrace.serve.wire import Parcel, Wire, parcel

LOOK_SECONDS = 1.0
EXIT_SECONDS = 1.0
"""A worker that was asked to end has so long for it; so has one whose trainer is gone."""

_TRAINERS = (signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that go to all processes of a job, and that a trainer handles for all."""

_ENDS: dict[int, weakref.ref[Wire]] = {}
"""Our ends of the wires to all workers, by their identities. A forked worker closes those it inherits, or it would keep
them open."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """Which micro-batches to make, and where their lanes go on."""

    number: int
    """Counts the jobs of a loader: what comes from an older one is stale."""
    epoch: int
    states: dict[int, bytes]
    lanes: int
    m: int
    """The first micro-batch of this rank."""
    ranks: int
    worker: int = 0
    workers: int = 1

    def slots(self) -> Iterator[int]:
        """The numbers of its micro-batches, in order. A rank's lanes are dealt to its workers in turn."""
        period = self.lanes // self.ranks
        step = 0
        while True:
            for turn in range(self.worker, period, self.workers):
                yield self.m + (step + turn) * self.ranks
            step += period

    def at(self, m: int, states: dict[int, bytes]) -> Job:
        """The same job from micro-batch `m` on, which is one of this worker's."""
        return replace(self, m=m - self.worker * self.ranks, states=states)


class Made(NamedTuple):
    """A micro-batch, and what its lane says beside it."""

    job: int
    batch: Batch
    over: bool
    filling: bool
    dropped: int
    truncated: int
    faults: tuple[tuple[Place, str], ...] = ()
    """Rows that were left out on the way because they failed, and why."""


class Maker:
    """Makes the micro-batches of a job one after the other, here in this process."""

    def __init__(self, pipeline: Pipeline, job: Job, *, counting: bool = False) -> None:
        """`counting`: only to see where the lanes come; no row is read."""
        self._pipeline, self._job, self._counting = pipeline, job, counting
        self._slots = job.slots()
        self._lanes: dict[int, Lane] = {}
        self.m = next(self._slots)
        """The micro-batch that is being made, or comes next."""
        self._is_noted = counting
        """Whether the cache knows what the lanes will read. It is told with the first lane, for it opens the sources,
        and what fails there is told like any error of a batch."""

    def make(self, *, until_over: bool = False, receipt: bool = True) -> Made | None:
        """The next one. None: all lanes are over, and nobody is to be kept step with (or it is to end there)."""
        try:
            lane = self._next_lane(until_over)
            batch = None if lane is None else lane.next(self.m, receipt=receipt)
        except StopIteration as error:  # never the end of the data
            raise RuntimeError(f"StopIteration while micro-batch {self.m} was made: {error}") from error
        if lane is None or batch is None:
            return None
        self._step()
        counts = (lane.is_over, lane.is_filling, lane.dropped, lane.truncated)
        return Made(self._job.number, batch, *counts, lane.faults.take_told())

    @property
    def failed(self) -> Ready | None:
        """The row that the last call could not give."""
        lane = self._lanes.get(self.m % self._job.lanes)
        return None if lane is None else lane.failed

    def leave_out(self) -> None:
        """It is not given."""
        self._lanes[self.m % self._job.lanes].leave_out()

    def receipts(self) -> dict[int, bytes]:
        return {number: lane.last_receipt() for number, lane in self._lanes.items()}

    def _next_lane(self, until_over: bool) -> Lane | None:
        for _ in range(self._job.lanes + 1):
            lane = self.lane(self.m % self._job.lanes)
            ended = lane.is_over or (until_over and self._pipeline.single and lane.is_bare)
            if not ended or (self._job.ranks > 1 and not until_over):
                return lane
            self._step()
        return None

    def _step(self) -> None:
        self.m = next(self._slots)

    def lane(self, number: int) -> Lane:
        """Opened when its turn comes."""
        if not self._is_noted:
            self._pipeline.needs.begin(self, self._job.states, self._job.lanes)
            self._is_noted = True
        if number not in self._lanes:
            lane = Lane(self._pipeline, number, self._job.lanes, self._job.epoch, counting=self._counting)
            try:
                lane.load(self._job.states[number])
            except BaseException:
                lane.close()
                raise
            self._lanes[number] = lane
        return self._lanes[number]

    def close(self) -> None:
        self._pipeline.helpers.close()
        for lane in self._lanes.values():
            lane.close()
        if self._is_noted and not self._counting:
            self._pipeline.needs.end(self)


# --- in the worker


def work(wire: Wire, pulse: Pulse, pipeline: Pipeline, ahead: int, inherited: tuple[Wire, ...]) -> None:
    """The worker's life."""
    _settle_in(pipeline, inherited)
    listen(pulse.beat)
    maker: Maker | None = None
    number, leave, parent = -1, 0, os.getppid()
    try:
        while _trainer_lives(parent):
            if wait([wire.fileno()], 0 if maker is not None and leave else LOOK_SECONDS):
                message = wire.receive()
                if message is None:
                    return
                if isinstance(message, Job):
                    if maker is not None:
                        maker.close()
                    maker, number, leave = Maker(pipeline, message), message.number, ahead
                elif message == number:
                    leave += 1
            elif maker is not None and leave:
                found, goes_on = _next_parcel(maker, number)
                leave = leave - 1 if goes_on else 0
                if found is not None:
                    wire.post(found)
    except (EOFError, BrokenPipeError, ConnectionResetError):
        return  # the trainer is gone, or does not want us any more
    finally:
        if maker is not None:
            maker.close()
        wire.close()


def _settle_in(pipeline: Pipeline, inherited: tuple[Wire, ...]) -> None:
    # Signals are the trainer's: its handlers, which a fork brings along, would save checkpoints here.
    for number in _TRAINERS:
        signal.signal(number, signal.SIG_IGN)
    if callable(signal.getsignal(signal.SIGHUP)):  # under nohup it stays ignored, and else it ends us with the trainer
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _TRAINERS)  # what came meanwhile is ignored now
    signal.set_wakeup_fd(-1)
    for end in inherited:
        end.close()
    tokenize = pipeline.recipe.tokenize
    if tokenize is not None or pipeline.samples is not None:  # a core for each worker, unless more are asked for
        limit_tokenizer_threads((tokenize.threads if tokenize is not None else None) or 1)
    if pipeline.makes_tensors:
        import torch

        torch.set_num_threads(1)
    with suppress(RuntimeError):  # no thread to be had: whether the trainer lives is seen between two batches then
        threading.Thread(target=_watch, args=(os.getppid(),), name="headrace-watch", daemon=True).start()


def _watch(parent: int) -> None:
    """Whatever keeps the worker busy, it does not outlive the trainer for long."""
    while _trainer_lives(parent):
        time.sleep(LOOK_SECONDS)
    time.sleep(EXIT_SECONDS)
    os._exit(1)


def _trainer_lives(parent: int) -> bool:
    trainer = multiprocessing.parent_process()  # under forkserver, the parent is the server
    return os.getppid() == parent and (trainer is None or trainer.is_alive())


def _next_parcel(maker: Maker, number: int) -> tuple[Parcel | None, bool]:
    """The next batch, or the error that came instead; and whether there may be more."""
    m = maker.m
    try:
        made = maker.make()
        return (None, False) if made is None else (parcel(made), True)
    except BaseException as error:
        told = error if isinstance(error, Exception) else WorkerError(f"{type(error).__name__} in a worker: {error}")
        return parcel((number, m, _portable(told), traceback.format_exc())), False


def _portable(error: Exception) -> Exception:
    """The error itself where it survives the way, else one that says the same."""
    from multiprocessing.reduction import ForkingPickler

    try:
        again = ForkingPickler.loads(ForkingPickler.dumps(error))
        if type(again) is type(error) and str(again) == str(error):
            return error
    except Exception as cause:
        return WorkerError(f"{type(error).__name__}: {error} (it cannot be sent: {cause})")
    return WorkerError(f"{type(error).__name__}: {error}")


# --- in the trainer's process


@contextmanager
def _trainers_signals_wait(method: str) -> Iterator[None]:
    """For a worker that starts: from its first instant, until it has settled in; and here just for so long."""
    if method == "spawn":
        resource_tracker.ensure_running()  # it starts with the first spawned process, and would end the wait
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _TRAINERS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _our_ends() -> tuple[Wire, ...]:
    # Another thread may start or end a worker at this moment: nothing of Python runs while the list is made.
    return tuple(wire for one in list(_ENDS.values()) if (wire := one()) is not None)


class Worker:
    """A worker process, seen from the trainer's."""

    def __init__(self, pipeline: Pipeline, number: int, ahead: int, start_method: str | None) -> None:
        if pipeline.makes_tensors:
            import torch  # noqa: F401 - forked workers have it then, and do not import it each for itself
        context: Any = multiprocessing.get_context(start_method)
        method = context.get_start_method()
        if method == "forkserver":
            use_short_folder()
        self.number = number
        self._wire, theirs = Wire.pair()
        _ENDS[id(self._wire)] = weakref.ref(self._wire, partial(_ENDS.pop, id(self._wire)))
        self._pulse = Pulse.for_method(method)
        args = (theirs, self._pulse, pipeline, ahead, _our_ends() if method == "fork" else ())
        self._process = context.Process(target=work, args=args, name=f"headrace-{number}", daemon=True)
        try:
            # The server that forks workers must not keep the mask: the trainer's other children come from it too.
            waiting = nullcontext() if method == "forkserver" else _trainers_signals_wait(method)
            with starting(f"worker {number}"), waiting:
                self._process.start()
        except BaseException as error:
            self._hang_up()
            if not isinstance(error, AttributeError | TypeError) and type(error).__name__ != "PicklingError":
                raise
            raise SpecError(
                f"start_method={method!r}: a worker gets the recipe sent, with its tokenizer and opener, and one of "
                f"them cannot be: {shown(error)}; define it at the top of a module, or use start_method='fork'"
            ) from error
        finally:
            theirs.close()
        self.pid = int(self._process.pid)
        self._job = -1
        self._last: tuple[int, Address | None] | None = None
        """The batch it gave last: its number, and the last address in it."""

    def begin(self, job: Job) -> None:
        self._job, self._last = job.number, None
        try:
            self._wire.send(job)
        except (BrokenPipeError, ConnectionResetError) as error:
            raise self._died(job.m) from error

    def take(self, m: int, stall_seconds: float) -> Made:
        """The next micro-batch, which is number `m`. A worker that waits for a server, or gets bytes, shows life."""
        began = time.monotonic()
        while True:
            left = max(began, self._pulse.last()) + stall_seconds - time.monotonic()
            if left <= 0:
                raise WorkerError(
                    f"{self} has given nothing for {stall_seconds:g} s, not even a sign that it waits for a server; "
                    f"it was to make micro-batch {m}; {self._gave_last()}. Perhaps it waits for a disk (the limit is "
                    f"HEADRACE_WORKER_SECONDS)"
                )
            if not wait([self._wire.fileno(), self._process.sentinel], timeout=left):
                continue
            if not wait([self._wire.fileno()], 0):
                raise self._died(m)
            try:
                message = self._wire.receive()
            except EOFError as error:
                raise self._died(m) from error
            if message[0] != self._job:
                continue
            if not isinstance(message, Made):
                raise self._failed(*message[1:])
            with suppress(BrokenPipeError, ConnectionResetError):  # it died, which the next call says; this one is good
                self._wire.send(self._job)
            self._last = message.batch.m, message.batch.last_address
            return message

    def _failed(self, m: int, error: Exception, trace: str) -> Exception:
        error.add_note(f"in {self}, while it made micro-batch {m}")
        if not isinstance(error, HeadraceError) or isinstance(error, WorkerError):
            error.add_note(trace)
        return error

    def _died(self, m: int) -> WorkerError:
        self._process.join(EXIT_SECONDS)
        code = self._process.exitcode
        how = "ended" if code is None else f"ended with exit code {code}"
        if code is not None and code < 0:
            with suppress(ValueError):
                how = f"was killed by {signal.Signals(-code).name}"
        hint = " (out of memory? see the kernel's log)" if code == -signal.SIGKILL else ""
        return WorkerError(f"{self} {how}{hint} before micro-batch {m}; {self._gave_last()}")

    def _gave_last(self) -> str:
        if self._last is None:
            return "it has given no batch yet"
        m, address = self._last
        return f"the last batch it gave is {m}" + (f", which ends with {shown(address, 1000)}" if address else "")

    def __str__(self) -> str:
        return f"worker {self.number} (pid {self.pid})"

    def dismiss(self) -> None:
        """Ask it to end."""
        with suppress(OSError):
            self._wire.send(None)
        self._hang_up()

    def end(self, deadline: float) -> None:
        """Wait for its end; when there is no more time, make it."""
        self._process.join(max(0.0, deadline - time.monotonic()))
        if self._process.is_alive():
            self._process.kill()
            self._process.join(EXIT_SECONDS)
        with suppress(ValueError):  # not even killed: it hangs in the kernel, and dies with what it waits for
            self._process.close()

    def _hang_up(self) -> None:
        _ENDS.pop(id(self._wire), None)
        self._wire.close()
        self._pulse.close()


def end_all(workers: list[Worker]) -> None:
    """All at the same time: they have one deadline together."""
    deadline = time.monotonic() + EXIT_SECONDS
    for worker in workers:
        worker.dismiss()
    while workers:
        workers[-1].end(deadline)
        workers.pop()

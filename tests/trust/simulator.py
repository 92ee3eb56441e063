"""Threads that run one at a time, in an order that a seed decides, under a clock that nobody waits for.

Each task is a real thread with a baton; it goes on only while it holds it. It hands it over at *points*: system calls,
locks, waits, sleeps. Which task is next is drawn from the seed. When all of them wait, the clock jumps to the first
deadline; when there is none either, that is a deadlock. Tasks belong to processes, and a process can be killed at any
point: its tasks come to an end there, and nothing that they would have done afterwards happens.
"""

from __future__ import annotations

import random
import threading
import traceback
from _thread import allocate_lock, get_ident
from collections.abc import Callable
from typing import Any

TICK = 20e-6
"""Seconds that a step takes: no two things happen at the same time."""
MOMENT = 0.3
MOST_STEPS = 250_000
SHOWN_STEPS = 60


class Killed(BaseException):
    """The process of this task is gone."""


class Found(AssertionError):
    """Something that must not happen did, in the order of events of this seed."""


class Process:
    def __init__(self, number: int, job: Any = None) -> None:
        self.pid = 10**7 + number
        self.job = job
        """What is started again when it is killed."""
        self.is_alive = True


class Task:
    def __init__(self, process: Process, name: str, target: Callable[[], object]) -> None:
        self.process, self.name, self.target = process, name, target
        self.baton = allocate_lock()
        self.baton.acquire()
        self.is_ready, self.is_done, self.was_woken = True, False, False
        self.until: float | None = None
        self.waits_for: object = None
        self.slow = False
        """Gets the baton more rarely than others."""
        self.paused = -100.0
        self.joining: list[Task] = []
        self.thread: object = None
        self.job: Any = None
        """The download that it waits for."""


class World:
    """The scheduler: who is next, what time it is, what happened so far."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.now = 1000.0
        self.steps = 0
        self.trace: list[tuple[int, str, str]] = []
        self.tasks: list[Task] = []
        self.processes: list[Process] = []
        self.failure: Found | None = None
        self.eager = self.random.choice((0.03, 0.15, 0.5))
        """How often a task hands over the baton where it need not..."""
        self.lazy = self.random.choice((0.0, 0.005, 0.03))
        """...and how often it gets no turn for a moment."""
        self.events: dict[int, Callable[[], None]] = {}
        """What happens at which step: kills and pauses."""
        self.on_kill: Callable[[Process], None] = lambda process: None
        self.before_time_passes: Callable[[], None] = lambda: None
        self._idents: dict[int, Task] = {}
        self._dying: list[Task] = []
        self._over = allocate_lock()
        self.current: Task | None = None

    # --- the outside

    def run(self) -> None:
        """Until every task has ended. Raises what was found."""
        self._over.acquire()
        self._give(self._next())
        self._over.acquire()
        self._over.release()
        self.current = None
        if self.failure is not None:
            raise self.failure

    def process(self, job: Any = None) -> Process:
        found = Process(len(self.processes) + 1, job)
        self.processes.append(found)
        return found

    def spawn(self, process: Process, name: str, target: Callable[[], object]) -> Task:
        task = Task(process, f"{process.pid - 10**7}/{name}", target)
        task.slow = self.random.random() < 0.2
        self.tasks.append(task)
        threading.Thread(target=self._run, args=(task,), name=f"simulated {task.name}", daemon=True).start()
        return task

    def fail(self, why: str) -> None:
        """Something was found: everything ends here."""
        if self.failure is None:
            lines = [f"{step:6} {name:12} {what}" for step, name, what in self.trace[-SHOWN_STEPS:]]
            lines += [f"       {task.name:12} waits for {task.waits_for}" for task in self.tasks if not task.is_ready]
            report = "\n".join(lines)
            self.failure = Found(f"seed {self.seed}, step {self.steps}, {self.now - 1000:.3f} s: {why}\n{report}")
        for process in self.processes:
            self._end(process)
        if self.task_here() is not None:
            raise Killed

    # --- for tasks

    def task_here(self) -> Task | None:
        return self._idents.get(get_ident())

    @property
    def me(self) -> Task:
        found = self._idents[get_ident()]
        if not found.process.is_alive:
            raise Killed
        return found

    def point(self, what: str) -> None:
        """Something is about to happen that others can see, or be seen by."""
        me = self.me
        self.steps += 1
        self.now += TICK
        self.trace.append((self.steps, me.name, what))
        if self.steps > MOST_STEPS:
            self.fail(f"no end after {MOST_STEPS} steps")
        event = self.events.pop(self.steps, None)
        if event is not None:
            event()
        chance = self.random.random()
        if chance < self.lazy:
            self.block("its turn", self.random.random() * MOMENT)
        elif chance < self.lazy + self.eager:
            self._yield(me)

    def block(self, why: object, seconds: float | None = None) -> bool:
        """Wait to be woken, or until the time is over (False)."""
        me = self.me
        me.is_ready, me.was_woken, me.waits_for = False, False, why
        me.until = None if seconds is None else self.now + max(seconds, 0.0)
        self._yield(me)
        return me.was_woken

    def wake(self, task: Task) -> None:
        if not task.is_ready:
            task.is_ready, task.was_woken, task.until = True, True, None

    def sleep(self, seconds: float) -> None:
        self.point(f"sleep {seconds:.3f}")
        self.block("sleep", seconds)

    def kill(self, process: Process) -> None:
        """At once, as by SIGKILL, or at its end."""
        if process.is_alive:
            self.trace.append((self.steps, f"{process.pid - 10**7}", "is killed"))
            self._end(process)
            self.on_kill(process)
        if self.task_here() is not None:
            self._yield(self._idents[get_ident()])

    # --- the baton

    def _run(self, task: Task) -> None:
        task.baton.acquire()
        self._idents[get_ident()] = task
        try:
            if task.process.is_alive:
                task.target()
        except Killed:
            pass
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            try:
                self.fail(f"{task.name} ended with {error!r}\n{text}")
            except Killed:
                pass
        finally:
            del self._idents[get_ident()]
            task.is_done = True
            task.target = _nothing  # or those who remember the task would keep all that it had
            self.tasks.remove(task)
            if task in self._dying:
                self._dying.remove(task)
            for other in task.joining:
                self.wake(other)
            self._give(self._next())

    def _end(self, process: Process) -> None:
        process.is_alive = False
        self._dying += [task for task in self.tasks if task.process is process and task not in self._dying]

    def _yield(self, me: Task) -> None:
        found = self._next()
        if found is not me:
            self._give(found)
            me.baton.acquire()
        if not me.process.is_alive:
            raise Killed

    def _give(self, task: Task | None) -> None:
        self.current = task
        (task.baton if task is not None else self._over).release()

    def _next(self) -> Task | None:
        while True:
            if self._dying:
                return self._dying[0]
            if not self.tasks:
                return None
            ready = []
            for task in self.tasks:
                if not task.is_ready and task.until is not None and task.until <= self.now:
                    task.is_ready, task.until = True, None
                if task.is_ready:
                    ready.append(task)
            if ready:
                found = self.random.choice(ready)
                if found.slow and self.random.random() < 0.9:
                    found = self.random.choice(ready)
                return found
            self._jump()

    def _jump(self) -> None:
        """Nobody can go on: time passes."""
        try:
            self.before_time_passes()
            times = [task.until for task in self.tasks if task.until is not None]
            if times:
                self.now = max(self.now, min(times))
            else:
                self.fail("a deadlock: everybody waits, and no time will come")
        except Killed:
            pass


def _nothing() -> None:
    pass

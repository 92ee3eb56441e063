"""Locks, conditions, events, threads and clocks of a simulated world, in the place of `threading` and `time`."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from simulator import Task, World


class RLock:
    """As threading's."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.owner: Task | None = None
        self.depth = 0
        self._waiting: list[Task] = []

    def acquire(self) -> bool:
        self._world.point("lock")
        return self.take(1)

    def take(self, depth: int) -> bool:
        me = self._world.me
        while self.owner is not None and self.owner is not me:
            self._waiting.append(me)
            self._world.block("a lock")
        self.owner = me
        self.depth += depth
        return True

    def release(self) -> None:
        self.depth -= 1
        if self.depth == 0:
            self.free()

    def free(self) -> None:
        self.owner = None
        for task in self._waiting:
            self._world.wake(task)
        self._waiting.clear()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        if self.owner is not None and self.owner is self._world.task_here():
            self.release()  # else it was killed in the middle of a wait


class Condition:
    def __init__(self, world: World, lock: RLock | None = None) -> None:
        self._world, self._lock = world, lock or RLock(world)
        self._waiting: list[Task] = []

    def __enter__(self) -> bool:
        return self._lock.__enter__()

    def __exit__(self, *_: object) -> None:
        self._lock.__exit__()

    def wait(self, timeout: float | None = None) -> bool:
        me, depth = self._world.me, self._lock.depth
        assert self._lock.owner is me
        self._world.point("wait")
        self._waiting.append(me)
        self._lock.depth = 0
        self._lock.free()
        woken = self._world.block(self, timeout)
        if me in self._waiting:
            self._waiting.remove(me)
        self._lock.take(depth)
        return woken

    def notify_all(self) -> None:
        assert self._lock.owner is self._world.me
        for task in self._waiting:
            self._world.wake(task)
        self._waiting.clear()


class Event:
    def __init__(self, world: World) -> None:
        self._world = world
        self._is_set = False
        self._waiting: list[Task] = []

    def set(self) -> None:
        self._world.point("set")
        self._is_set = True
        for task in self._waiting:
            self._world.wake(task)
        self._waiting.clear()

    def is_set(self) -> bool:
        return self._is_set

    def wait(self, timeout: float | None = None) -> bool:
        self._world.point("wait for an event")
        if not self._is_set:
            me = self._world.me
            self._waiting.append(me)
            self._world.block("an event", timeout)
            if me in self._waiting:
                self._waiting.remove(me)
        return self._is_set


class Thread:
    def __init__(self, world: World, target: Callable[[], object], name: str) -> None:
        self._world, self._target, self._name = world, target, name
        self._task: Task | None = None

    def start(self) -> None:
        self._task = self._world.spawn(self._world.me.process, self._name, self._target)
        self._task.thread = self
        self._world.point(f"start {self._task.name}")

    def is_alive(self) -> bool:
        return self._task is not None and not self._task.is_done

    def join(self, timeout: float | None = None) -> None:
        self._world.point("join")
        if self._task is not None and not self._task.is_done:
            me, joining = self._world.me, self._task.joining
            joining.append(me)
            self._world.block("the end of a thread", timeout)
            joining.remove(me)


class Threading:
    """What the code under test takes for the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.local = threading.local

    def RLock(self) -> RLock:
        return RLock(self._world)

    def Condition(self, lock: Any = None) -> Condition:
        return Condition(self._world, lock)

    def Event(self) -> Event:
        return Event(self._world)

    def Thread(self, *, target: Callable[[], object], name: str, daemon: bool) -> Thread:
        assert daemon
        return Thread(self._world, target, name.removeprefix("headrace-"))

    def current_thread(self) -> object:
        return self._world.me.thread


class Time:
    """What the code under test takes for the module."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.sleep = world.sleep

    def monotonic(self) -> float:
        return self._world.now

    def time(self) -> float:
        return 1.7e9 + self._world.now

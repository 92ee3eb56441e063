"""The laws that every stage keeps, as one exam. Public, so that users can examine their own stages."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, TypeVar

from headrace.stage import Stage, State

T = TypeVar("T")


def check_laws(
    make: Callable[[], Stage[T]],
    *,
    positions: Iterable[int] | None = None,
    chain: int = 5,
    key: Callable[[T], Any] = repr,
) -> list[Any]:
    """Examine the stages that `make` opens; gives the items' keys.

    After each of `positions` items (default: all) a state is taken. From each of them a new stage must give the same
    rest; restoring must not change the state; states must survive JSON and keep their shape; a chain of `chain` resumes
    must end where a run in one go ends; asking twice, ending twice and closing twice must change nothing.
    """
    threads, files = _threads(), _open_files()
    items, states = _run_through(make, key)
    chosen = range(len(items) + 1) if positions is None else [p for p in positions if p <= len(items)]
    for k in chosen:
        _check_resume(make, states[k], items[k:], k, key)
    _check_chain(make, items, chain, key)
    _check_load_back(make, states, items, key)
    more = _threads() - threads
    # A server of the test in this process has threads of its own, more or fewer of them.
    ours = {name for name in more if name.startswith("headrace") or name not in threads}
    assert not ours, f"threads are left: {ours}"
    left = _open_files() - files
    assert not left, f"files are left open: {left}"
    return items


def _run_through(make: Callable[[], Stage[T]], key: Callable[[T], Any]) -> tuple[list[Any], list[State]]:
    items, states = [], []
    stage = make()
    states.append(_state(stage))
    shape = _shape(states[0])
    for item in stage:
        items.append(key(item))
        states.append(_state(stage))
        assert _shape(states[-1]) == shape, f"the state changed its shape after {len(items)} items"
    for _ in range(2):
        assert next(stage, None) is None, "the end did not stay the end"
    ended = _state(stage)
    assert _shape(ended) == shape, "the state changed its shape at the end"
    stage.close()
    stage.close()
    assert _state(stage) == ended, "closing changed the state"
    half = make()
    for _ in range(len(items) // 2):
        next(half)
    half.close()
    assert _state(half) == states[len(items) // 2], "closing in the middle changed the state"
    again = make()
    assert [key(item) for item in again] == items, "the same stage gave other items the second time"
    again.close()
    last = make()
    last.load_state_dict(ended)
    assert next(last, None) is None, "a state taken after the end did not stay at the end"
    last.close()
    return items, states


def _check_resume(make: Callable[[], Stage[T]], state: State, rest: list[Any], k: int, key: Callable[[T], Any]) -> None:
    stage = make()
    stage.load_state_dict(state)
    assert _state(stage) == state, f"restoring changed the state at {k}"
    found = [key(item) for item in stage]
    assert found == rest, f"resume after {k} items: {_first_difference(found, rest)}"
    stage.close()


def _check_chain(make: Callable[[], Stage[T]], items: list[Any], chain: int, key: Callable[[T], Any]) -> None:
    """Save, load, go on, several times over, with zero items in between as well."""
    found: list[Any] = []
    state: State | None = None
    step = max(1, len(items) // (chain + 1))
    for link in range(chain + 1):
        stage = make()
        if state is not None:
            stage.load_state_dict(state)
        want = len(items) if link == chain else 0 if link == chain // 2 else step
        for _ in range(want):
            item = next(stage, None)
            if item is None:
                break
            found.append(key(item))
        state = _state(stage)
        stage.close()
    assert found == items, f"a chain of {chain} resumes: {_first_difference(found, items)}"


def _check_load_back(
    make: Callable[[], Stage[T]], states: list[State], items: list[Any], key: Callable[[T], Any]
) -> None:
    """A stage that has been used can be sent anywhere."""
    stage = make()
    for k in (len(items), len(items) // 2, 0):
        stage.load_state_dict(states[k])
        assert [key(item) for item in stage] == items[k:], f"a used stage sent back to {k} gave other items"
    stage.close()


def _state(stage: Stage[Any]) -> State:
    """The state after a trip through JSON; asked for twice, since asking must change nothing."""
    state = stage.state_dict()
    text = json.dumps(state, sort_keys=True)
    assert json.dumps(stage.state_dict(), sort_keys=True) == text, "asking for the state twice gave two states"
    back: State = json.loads(text)
    assert json.dumps(back, sort_keys=True) == text, "the state did not survive JSON"
    return back


def _shape(value: Any) -> Any:
    """Keys and types; lists may grow and shrink."""
    if isinstance(value, dict):
        return {k: _shape(v) for k, v in value.items()}
    return type(value).__name__


def _first_difference(found: list[Any], wanted: list[Any]) -> str:
    for i, (a, b) in enumerate(zip(found, wanted, strict=False)):
        if a != b:
            return f"item {i} is {a}, should be {b}"
    return f"{len(found)} items came, {len(wanted)} should"


def _threads() -> Counter[str]:
    return Counter(t.name for t in threading.enumerate() if t.is_alive())


def _open_files() -> set[tuple[str, str]]:
    found = set()
    for fd in Path("/proc/self/fd").iterdir():
        try:
            target = os.readlink(fd)  # noqa: PTH115 - a name, not a path
        except OSError:
            continue
        if target.startswith("/") and not target.startswith(("/dev", "/proc")):
            found.add((fd.name, target))
    return found

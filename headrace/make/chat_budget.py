"""What a chat template may use up for one sample: steps, and bytes of all values that it makes.

A template is a program from outside. It is stopped by counting, so that it stops at the same place on every machine,
in any thread and in any process. Time is the last resort: only a template that has made millions of steps is asked for
it, and only time of the processor counts, so that a busy machine refuses nothing that an idle one takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from sys import getsizeof
from time import thread_time
from typing import Any

from jinja2.runtime import Context, Undefined
from jinja2.utils import Namespace

STEPS = 1 << 26
"""Statements and expressions that a template may run for one sample. A round of a loop is a few of them."""
ROOM = 1 << 28
"""Bytes of everything that a template may make, search or compare for one sample, all taken together."""
LONGEST = 1 << 26
"""Characters that a template may make of one sample."""

BITS = 1 << 10
"""Of a whole number: the time to multiply and divide grows with their square."""
SAME_HASH = 64
"""Keys of a dict, or items of which each is wanted once, that may have one hash: each is compared with all others.
Texts are not counted, as nobody outside of a process knows their hashes."""
SECONDS = 30.0
"""Of the processor, for one sample. A template that is counted rightly needs a few."""

_STEPS_UNTIMED, _ROOM_UNTIMED = 1 << 15, 1 << 24
"""Steps and bytes between two looks at the clock: few, for steps that take longer than they count for. Most templates
in use end before the first."""
_ITEM = 64
"""Bytes that one value of a list or a dict counts for."""
SPELLED = 16
"""How many times as large a text may become where it is written with escapes, as in a list or in JSON."""
_SCALARS = (bool, float, type(None))
_AT_ONCE = (int, bool)
_HEAD = getsizeof("\u0100" * 2) - 6
"""Bytes of a text that is not ASCII, beside its characters."""
_SHORT = 1 << 12
"""Bytes that may be made before they are counted."""


class TooMuch(Exception):
    """A template that used up what it may use, or asked for something that cannot be bounded."""


class Budget:
    """What is left for one sample."""

    def __init__(self) -> None:
        self.steps, self.room = STEPS, ROOM
        self.look_at_steps, self.look_at_room = max(0, STEPS - _STEPS_UNTIMED), max(0, ROOM - _ROOM_UNTIMED)
        """Where the clock is looked at next."""
        self.width = 1
        """Bytes of a character of what is written: all of it has those of the widest."""
        self.written = 0
        self._began = thread_time()

    def tick(self, count: int) -> bool:
        self.steps -= count
        if self.steps < self.look_at_steps:
            if self.steps < 0:
                raise TooMuch(f"takes more than {STEPS:,} steps for one sample")
            self.look_at_steps = max(0, self.steps - _STEPS_UNTIMED)
            self._check_time()
        return True

    def take(self, size: int) -> None:
        self.room -= size
        if self.room < self.look_at_room:
            if self.room < 0:
                raise TooMuch(f"makes more than {ROOM:,} bytes of values for one sample")
            self.look_at_room = max(0, self.room - _ROOM_UNTIMED)
            self._check_time()

    def hold(self, size: int) -> None:
        """Make sure that so many bytes may be made, of which nobody knows yet how many it will be."""
        if size > self.room:
            raise TooMuch(f"may make more than {ROOM:,} bytes of values for one sample")

    def widen(self, width: int) -> None:
        """What was written becomes part of a text with characters of so many bytes."""
        if width > self.width:
            self.take((width - self.width) * self.written)
            self.width = width

    def _check_time(self) -> None:
        if thread_time() - self._began > SECONDS:
            raise TooMuch(f"takes more than {SECONDS:g} seconds for one sample")


class Counted(Context):
    """The variables of one rendering, with its budget. Code that `chat_sandbox` compiles calls these methods."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._share(Budget())
        self.written = 0
        """Characters that came out so far."""
        self.said: list[tuple[int, int]] = []
        """What stood between generation marks."""

    def _share(self, budget: Budget) -> None:
        self.budget, self.tick, self.take, self.hold = budget, budget.tick, budget.take, budget.hold

    def derived(self, locals: dict[str, Any] | None = None) -> Counted:  # noqa: A002 - the name in jinja2
        made = super().derived(locals)
        assert isinstance(made, Counted)
        made._share(self.budget)
        return made

    def shown(self, value: Any) -> str:
        """A value as it is written."""
        if type(value) is not str:
            value = self.spelled(value)
        budget = self.budget
        if not value.isascii() and budget.width < 4:
            budget.widen(width_of(value))
        budget.written += len(value)
        budget.room -= budget.width * len(value)
        if budget.room < budget.look_at_room:
            budget.take(0)
        return value  # type: ignore[no-any-return]

    def constant(self, text: str) -> str:
        """Text of the template that is not ASCII. Its length counts as steps."""
        if self.budget.width < 4:
            self.budget.widen(width_of(text))
        return text

    def spelled(self, value: Any) -> str:
        """The text that Python makes of a value."""
        if isinstance(value, str | int | float | None):
            self.used(value)
        else:
            size = weigh(value, self.budget.room)
            self.take(size)
            self.hold(SPELLED * size)
        return str(value)

    def made(self, value: Any) -> Any:
        """A new value. What would be made later and unseen is made here."""
        kind = type(value)
        if isinstance(value, str):
            self.take(size_of(value))
        elif kind in (list, tuple, dict, set):
            self.take(2 * _ITEM + 16 * len(value))
        elif isinstance(value, Iterator):
            return self._listed(value)
        elif kind is int and value.bit_length() > BITS:
            raise TooMuch(f"makes a number of more than {BITS:,} bits")
        return value

    def _listed(self, items: Iterator[Any]) -> list[Any]:
        found = []
        for item in items:
            self.tick(1)
            self.take(16)
            found.append(self.made(item))
        return found

    def used(self, value: Any) -> Any:
        """A value that is compared, searched or written from end to end."""
        if type(value) is str:
            self.take(len(value) >> 2)  # no bytes are made
        elif type(value) not in _SCALARS:
            self.take(weigh(value, self.budget.room))
        return value

    def hashed(self, keys: Iterable[Any]) -> None:
        """Values that are put into a dict or a set, which takes long where many have one hash."""
        same: dict[int, list[Any]] = {}
        for key in keys:
            if type(key) is str:
                self.used(key)
                continue
            self.tick(8)
            others = same.setdefault(hash(self.used(key)), [])
            if key not in others:
                others.append(key)
                self.tick(len(others))
                if len(others) > SAME_HASH:
                    raise TooMuch(f"uses more than {SAME_HASH} values with the same hash as keys")

    def keyed(self, pairs: tuple[tuple[Any, Any], ...]) -> Any:
        """`{a: b, c: d}`."""
        self.hashed([key for key, _ in pairs])
        return self.made(dict(pairs))

    def sought(self, wanted: Any, where: Any) -> bool:
        """`wanted in where`: at once by its hash or by calculation, or one by one."""
        self.used(wanted)
        if not isinstance(where, Mapping) and not (type(where) is range and type(wanted) in _AT_ONCE):
            self.used(where)
            self.compared(where, wanted)
        return wanted in where

    def chained(self, value: Any) -> Any:
        """A value in `a in b in c`."""
        if isinstance(value, str):
            self.tick(_comparisons(len(value), len(value) // 2, backward=False) >> 6)
        return self.used(value)

    def compared(self, text: Any, needle: Any, *, backward: bool = False) -> None:
        """One text that is looked for in another."""
        if isinstance(text, str) and isinstance(needle, str):
            self.tick(_comparisons(len(text), len(needle), backward) >> 6)

    def key(self, value: Any) -> Any:
        """A value that is looked up: a text is compared with the one that is there."""
        if type(value) is str:
            self.used(value)
        return value

    def added(self, values: tuple[Any, ...]) -> Any:
        """`a + b + c`."""
        for value in values:
            if type(value) is not str:
                break
        else:
            return self.together(values)
        if not all(isinstance(value, int | float | list) for value in values):  # marked texts escape others
            self.hold(6 * sum(size_of(value) for value in values if isinstance(value, str)))
        found = values[0]
        for value in values[1:]:
            found = self.made(found + value)
        return found

    def joined(self, values: tuple[Any, ...]) -> str:
        """`a ~ b ~ c`."""
        return self.together([value if type(value) is str else self.spelled(value) for value in values])

    def together(self, texts: Sequence[str]) -> str:
        """All texts in one, each character of which takes what the widest does."""
        count = sum(map(len, texts))
        if count > _SHORT:
            self.take(count * max(map(width_of, texts)))
            return "".join(texts)
        text = "".join(texts)
        self.take(size_of(text))
        return text


def width_of(text: str) -> int:
    """Bytes of each character: 1, 2 or 4."""
    return 1 if text.isascii() else min(4, (getsizeof(text) - _HEAD) // (len(text) + 1))


def size_of(text: str) -> int:
    return len(text) if text.isascii() else len(text) * width_of(text)


def _comparisons(length: int, wanted: int, backward: bool) -> int:
    """Characters that Python compares at most to find a text, beside looking at each once. From the end, and in short
    texts, it compares them at each place; else it begins another way, or goes on in it, 2,000 places before the end."""
    places = max(0, length - wanted) + 1
    if not backward and (wanted >= 100 or length >= 30_000):
        places = min(places, 2500)
    return places * wanted


def weigh(value: Any, most: int) -> int:
    """About the bytes of a value with all that is in it, as often as it is in it: a list that holds one list twice is
    written twice. It stops soon after `most`."""
    total, waiting = 0, [value]
    while waiting and total <= most:
        one = waiting.pop()
        if isinstance(one, str):
            total += _ITEM + size_of(one)
        elif isinstance(one, int):
            total += _ITEM + (one.bit_length() >> 1)
        elif isinstance(one, Namespace):
            raise TooMuch("uses a namespace as a value, of which only the attributes can be used")
        elif isinstance(one, Mapping):
            total += _ITEM * (1 + len(one))
            waiting += one.keys()
            waiting += one.values()
        elif isinstance(one, range):
            total += _ITEM * len(one)
        elif hasattr(type(one), "__len__") and not isinstance(one, Undefined | bytes):
            total += _ITEM * (1 + len(one))
            if total <= most:
                waiting += one
        else:
            total += 2 * _ITEM
    return total

"""What lines of a text file take in memory, from their bytes, before they become Python values.

Three bytes of JSON, `{},`, become 72. Here is the most that lines can become: each text by its length, and what is
outside of texts by the number of its bytes, or of its brackets and commas where that is less.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import getsizeof
from typing import TYPE_CHECKING, Any

from headrace.fetch.memory import MemoryBudget, MemoryUse, NoRoom
from headrace.fetch.python_size import FOUR_BYTES, TWO_BYTES

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

STRUCTURE = 48
"""Bytes of Python for a byte of JSON, at most: lists in lists, `[[[`."""
PLENTY, UNKNOWN_SHARE = 16, 8
"""Lines are not measured if 16 times the most that they could become is free, and if all lines that were not measured
could become no more than 1/8 of the budget."""
LIKELY = 4
"""Lines that were not measured count as 4 times their bytes. Real conversations take about twice theirs."""
TEXT = 80
"""Bytes of a Python text without its characters."""
OBJECT, LIST, VALUE, KEY = 216, 128, 42, 48
"""Bytes of an object and a list with a number in them, of each number after that, and of the place of a key."""
DENSE = 16
"""With more than one quote in 16 bytes, texts are not searched for: all bytes count as text and as structure."""
CHARACTER = 4
"""Bytes of a character of a Python text, at most."""
PASSING, PASSING_WIDE = 6, 9
"""Times the bytes of a piece that come and go while it is read: the piece and its parts, its lines, a line as text, and
what malloc does not give back at once. The second: where characters may take four bytes."""
COPIES = 3
"""The same for lines that stay text."""
STEP = 1 << 18
"""Bytes that are searched at once: they stay in the processor's cache."""
ROUNDING = 8
"""Bytes that malloc adds to a value, about."""
ROWS, VALUES = 16, 4096
"""Rows and values that are measured at once: while that is done, there is a list of all values in these rows, and a
dict of these values."""

_QUOTE, _BACKSLASH, _U, _D = 34, 92, 117, 100
"""`\\ud` begins one of two escapes that make a character of four bytes."""


class Held:
    """What the rows of one read take so far, which counts as memory in use until it is released."""

    def __init__(self, label: str, budget: MemoryBudget, first: int) -> None:
        """`first`: the first of the rows."""
        self._label, self._budget, self._first = label, budget, first
        self.memory = MemoryUse()
        self.nbytes = self._unknown = 0
        self.values: Sequence[Any] = ()
        """What the lines that were added have become so far, of JSON."""
        self._measured = self._num_measured = 0
        self._free = budget.preferred()
        self._find_room(0)

    def release(self) -> None:
        self.memory.release()

    def kept(self) -> MemoryUse:
        """What the rows go on to take."""
        return MemoryUse(self.nbytes, self._unknown)

    def check_line(self, nbytes: int, at: int) -> None:
        """Refuse a line that is too long, before all of it was read. `nbytes`: what was read of it so far."""
        if nbytes > self._most:
            self._find_room(nbytes)
        if nbytes > self._most:
            self._refuse(f"the line at byte {at} has more than {nbytes:,} bytes", "split the line")

    def add_json(self, data: bytes, stops: NDArray[np.int64], last: int) -> None:
        """Lines of JSON become Python values, up to row `last`. `stops`: where the line after each of them begins."""
        worst, nbytes, is_ascii = STRUCTURE * len(data), LIKELY * len(data), True
        if worst * PLENTY <= self._free and self._budget.unknown() + worst <= self._budget.nbytes // UNKNOWN_SHARE:
            self._unknown += worst - nbytes
        else:
            is_ascii = data.isascii()
            nbytes = weight(data, stops, is_ascii=is_ascii)
        self.add(nbytes, (PASSING if is_ascii else PASSING_WIDE) * len(data), last)

    def add(self, nbytes: int, passing: int, last: int) -> None:
        """Count `nbytes` more for the rows up to `last`. `passing`: bytes that are needed only while they are read."""
        if not self._fits(nbytes, passing):
            self._measure()
            self._find_room(self.nbytes + nbytes + passing)
        fits = self._fits(nbytes, passing)
        self.nbytes += nbytes
        if not fits:
            self._refuse(
                f"rows {self._first} to {last} may take {self.nbytes:,} bytes in memory, and {passing:,} more while "
                f"they are read",
                "split long lines",
            )
        self.memory.change(self.nbytes + passing, self._unknown)

    def _fits(self, nbytes: int, passing: int) -> bool:
        return self.nbytes + nbytes <= self._most and self.nbytes + nbytes + passing <= self._room

    def _find_room(self, wanted: int) -> None:
        """How much may be read beside other chunks; estimates of these are measured if `wanted` does not fit."""
        own = self.memory.nbytes
        self._room = self._budget.room(wanted - own) + own
        self._most = min(self._budget.nbytes // 2, self._room)

    def _measure(self) -> None:
        """Count what the rows that were read take, instead of the most that they could."""
        if len(self.values) > self._num_measured:
            most = self.nbytes + self._unknown - self._measured
            self._measured += json_bytes(self.values[self._num_measured :], most)
            self._num_measured = len(self.values)
            self.nbytes, self._unknown = self._measured, 0

    def _refuse(self, what: str, todo: str) -> None:
        self.memory.release()
        raise NoRoom(
            f"{self._label}: {what}; a chunk may take {max(self._most, 0):,}: other chunks hold "
            f"{self._budget.in_use():,} and the budget is {self._budget.nbytes:,} (HEADRACE_MEMORY_BYTES). Raise it, "
            f"lower pool_chunks, or {todo}"
        )


def json_bytes(rows: Sequence[Any], most: int) -> int:
    """What values of JSON take; `most` if they take more. Rows that were given out are the caller's, who may have put
    one into itself."""
    total = 0
    for first in range(0, len(rows), ROWS):
        if total >= most:
            return most
        total += _bytes_of(rows[first : first + ROWS], most - total)
    return min(total, most)


def _bytes_of(values: Sequence[Any], most: int) -> int:
    """Level by level, each value about once: objects of a line share their keys, and all share None and small numbers.
    No further than to the level that makes it `most`."""
    total = 0
    while values and total < most:
        inner: list[Any] = []
        for first in range(0, len(values), VALUES):
            some = values[first : first + VALUES]
            some = list(dict(zip(map(id, some), some, strict=True)).values())
            total += sum(map(getsizeof, some)) + ROUNDING * len(some)
            for value in some:
                if type(value) is dict:
                    inner += value
                    inner += value.values()
                elif type(value) is list:
                    inner += value
            if total >= most:
                break
        values = inner
    return total


def weight(data: bytes, stops: NDArray[np.int64], *, is_ascii: bool) -> int:
    """The most that lines of JSON take as Python values. `stops`: where the line after each of them begins."""
    import numpy as np

    raw = np.frombuffer(data, np.uint8)
    quotes = _quotes(raw, len(raw) // DENSE)
    if quotes is None:
        wide = not is_ascii or b"\\u" in data
        texts = TEXT * (int(np.count_nonzero(raw == _QUOTE)) // 2 + 1)
        return _by_marks(raw) + len(raw) + texts + (CHARACTER if wide else 1) * len(raw)
    quotes = _paired(_real(data, raw, quotes), stops)
    sizes = quotes[1::2] - quotes[::2]
    outside = len(raw) - int(sizes.sum())
    structure = STRUCTURE * outside
    if structure > len(raw):
        structure = min(structure, _by_marks(raw) + outside)
    return structure + TEXT * len(sizes) + _characters(data, quotes, sizes, is_ascii)


def _by_marks(raw: NDArray[np.uint8]) -> int:
    """The most that brackets, commas and colons stand for, wherever they are."""
    import numpy as np

    marks = ((b"{", OBJECT), (b"[", LIST), (b",", VALUE), (b":", KEY))
    return sum(nbytes * int(np.count_nonzero(raw == mark[0])) for mark, nbytes in marks)


def _quotes(raw: NDArray[np.uint8], most: int) -> NDArray[np.intp] | None:
    """Where quotes are, without those that have one backslash before them; None if they are more than `most`."""
    import numpy as np

    found, count = [np.zeros(0, np.intp)], 0
    if len(raw) < 2:
        return found[0]
    for at in range(0, len(raw), STEP):
        places = np.flatnonzero(raw[at : at + STEP] == _QUOTE) + at
        # An index that wraps around is that of a line which begins with a quote: it is no object, but is a text.
        places = places[(raw[places - 1] != _BACKSLASH) | (raw[places - 2] == _BACKSLASH) | (places < 2)]
        count += len(places)
        if count > most:
            return None
        found.append(places)
    return np.concatenate(found)


def _real(data: bytes, raw: NDArray[np.uint8], quotes: NDArray[np.intp]) -> NDArray[np.intp]:
    """Without those that have an odd number of backslashes before them."""
    import numpy as np

    if (raw[quotes - 1] != _BACKSLASH).all():
        return quotes
    raw = np.frombuffer(data.replace(b"\\\\", b"//"), np.uint8)
    real: NDArray[np.intp] = quotes[(raw[quotes - 1] != _BACKSLASH) | (quotes == 0)]
    return real


def _paired(quotes: NDArray[np.intp], stops: NDArray[np.int64]) -> NDArray[np.intp]:
    """With another one at the end of each line whose last text does not end: the parser gets no further either."""
    import numpy as np

    odd = np.diff(np.searchsorted(quotes, stops), prepend=0) % 2 == 1
    if not odd.any():
        return quotes
    return np.sort(np.concatenate([quotes, stops[odd] - 2]))


def _characters(data: bytes, quotes: NDArray[np.intp], sizes: NDArray[np.intp], is_ascii: bool) -> int:
    """Bytes of the characters of all texts: one that is large makes all of its text as large."""
    import numpy as np

    raw = np.frombuffer(data, np.uint8)
    escapes = _escapes(raw) if b"\\" in data else np.zeros(0, np.intp)
    if is_ascii and not len(escapes):
        return int(sizes.sum())
    largest = np.maximum.reduceat(raw, quotes)[::2] if len(quotes) else raw[:0]
    width = np.where(largest >= FOUR_BYTES, CHARACTER, np.where(largest >= TWO_BYTES, 2, 1))
    width = np.maximum(width, 1 + _have(escapes, quotes))
    width[_have(escapes[raw[escapes + 2] | 32 == _D], quotes)] = CHARACTER
    return int((width * sizes).sum())


def _have(places: NDArray[np.intp], quotes: NDArray[np.intp]) -> NDArray[np.bool_]:
    """Which texts, from quote to quote, have one of these places in them. There may be far more places than quotes."""
    import numpy as np

    before = np.searchsorted(places, quotes)
    found: NDArray[np.bool_] = before[1::2] > before[::2]
    return found


def _escapes(raw: NDArray[np.uint8]) -> NDArray[np.intp]:
    """Where `\\u` is, and something after it."""
    import numpy as np

    found = [np.zeros(0, np.intp)]
    for at in range(0, len(raw) - 2, STEP):
        after = raw[at + 1 : min(at + 1 + STEP, len(raw) - 1)]
        found.append(np.flatnonzero((raw[at : at + len(after)] == _BACKSLASH) & (after == _U)) + at)
    return np.concatenate(found)

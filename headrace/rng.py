"""Chance from counters: every draw is a pure function of a key and a number.

Library generators do not promise the same stream in their next version, and their state has to be carried along. Here
nothing is carried: `key(...)` names a stream, `mix64(key, i)` is its i-th word, in Python and in numpy alike.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    U64: TypeAlias = NDArray[np.uint64]
    I64: TypeAlias = NDArray[np.int64]

MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15
_M1 = 0xBF58476D1CE4E5B9
_M2 = 0x94D049BB133111EB
DIGEST_FACTOR = 0xD1342543DE82EF95
"""The multiplier A of the running digest; odd, so that folding loses nothing."""


def mix64(key: int, i: int) -> int:
    """The i-th word of the stream `key` (a counter through the splitmix64 finalizer)."""
    z = (key + (i + 1) * _GOLDEN) & MASK
    z = ((z ^ (z >> 30)) * _M1) & MASK
    z = ((z ^ (z >> 27)) * _M2) & MASK
    return z ^ (z >> 31)


def key(*parts: str | int) -> int:
    """The 64-bit name of a stream. Strings and numbers do not collide, nor do ('ab', 'c') and ('a', 'bc')."""
    h = 0
    for part in parts:
        h = mix64(h ^ _word(part), 1) if isinstance(part, str) else mix64(h ^ (part & MASK), 0)
    return h


@lru_cache(maxsize=1024)
def _word(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


def draw(stream: int, k: int, n: int) -> int:
    """The k-th draw of `stream`, a number in [0, n). `n` stays below 2**32."""
    return ((mix64(stream, k) >> 32) * n) >> 32


def mix64_block(stream: int, first: int, count: int) -> U64:
    """`mix64(stream, i)` for i in [first, first + count), at once."""
    import numpy as np

    z = np.arange(first + 1, first + 1 + count, dtype=np.uint64)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(stream)
    return _finish(z)


def draw_block(stream: int, first: int, count: int, n: int) -> I64:
    """`draw(stream, k, n)` for k in [first, first + count), at once."""
    import numpy as np

    z = mix64_block(stream, first, count)
    z >>= np.uint64(32)
    z *= np.uint64(n)
    z >>= np.uint64(32)
    return z.astype(np.int64)


def permutation(stream: int, n: int) -> I64:
    """A permutation of range(n), fixed by the stream for good."""
    import numpy as np

    return np.argsort(mix64_block(stream, 0, n))  # no two words of a stream are equal, so any sort gives this order


def digest_block(d: int, stream: int, positions: I64) -> int:
    """Fold positions into a running digest: d·A + mix64(stream, p) for each p in turn, modulo 2**64."""
    import numpy as np

    n = len(positions)
    z = positions.astype(np.uint64)
    z += np.uint64(1)
    z *= np.uint64(_GOLDEN)
    z += np.uint64(stream)
    words = _finish(z)
    powers = np.empty(n, dtype=np.uint64)
    powers[:1] = 1
    powers[1:] = np.uint64(DIGEST_FACTOR)
    powers = np.multiply.accumulate(powers)
    tail = int(np.add.reduce(words * powers[::-1])) if n else 0
    return (d * pow(DIGEST_FACTOR, n, 1 << 64) + tail) & MASK


def _finish(z: U64) -> U64:
    import numpy as np

    z ^= z >> np.uint64(30)
    z *= np.uint64(_M1)
    z ^= z >> np.uint64(27)
    z *= np.uint64(_M2)
    z ^= z >> np.uint64(31)
    return z

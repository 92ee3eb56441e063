from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headrace import rng

words = st.integers(0, 2**64 - 1)


def test_the_stream_is_what_it_was_in_the_first_release() -> None:
    assert rng.mix64(0, 0) == 0xE220A8397B1DCDAF
    assert rng.key("hf:a/b:train:text", 7) == 0xC579946937D4F729
    assert rng.permutation(rng.key("golden"), 8).tolist() == GOLDEN_PERMUTATION
    assert [rng.draw(rng.key("golden"), k, 1000) for k in range(6)] == GOLDEN_DRAWS


GOLDEN_PERMUTATION = [2, 5, 3, 4, 7, 1, 6, 0]
GOLDEN_DRAWS = [877, 654, 112, 198, 296, 160]


@given(words, st.integers(0, 2**40), st.integers(1, 50))
def test_a_block_is_its_draws_one_by_one(stream: int, first: int, n: int) -> None:
    assert rng.mix64_block(stream, first, 20).tolist() == [rng.mix64(stream, first + i) for i in range(20)]
    assert rng.draw_block(stream, first, 20, n).tolist() == [rng.draw(stream, first + i, n) for i in range(20)]


@given(words, st.integers(0, 300))
def test_a_permutation_holds_each_number_once(stream: int, n: int) -> None:
    assert sorted(rng.permutation(stream, n).tolist()) == list(range(n))


@given(words, words, st.lists(st.integers(0, 2**50), max_size=40), st.integers(0, 40))
def test_a_digest_does_not_depend_on_how_it_was_cut(d: int, stream: int, positions: list[int], cut: int) -> None:
    whole = rng.digest_block(d, stream, np.array(positions, dtype=np.int64))
    half = rng.digest_block(d, stream, np.array(positions[:cut], dtype=np.int64))
    assert rng.digest_block(half, stream, np.array(positions[cut:], dtype=np.int64)) == whole
    slow = d
    for p in positions:
        slow = (slow * rng.DIGEST_FACTOR + rng.mix64(stream, p)) & rng.MASK
    assert slow == whole


def test_keys_tell_names_apart() -> None:
    keys = [
        rng.key("ab", "c"),
        rng.key("a", "bc"),
        rng.key("abc"),
        rng.key("a", 1),
        rng.key("a", "1"),
        rng.key("a", 2),
        rng.key(1, "a"),
    ]
    assert len(set(keys)) == len(keys)
    assert len({rng.key("s", e) for e in range(10_000)}) == 10_000


def test_draws_are_even() -> None:
    counts = np.bincount(rng.draw_block(rng.key("even"), 0, 160_000, 16), minlength=16)
    assert counts.min() > 9_600
    assert counts.max() < 10_400

"""Decoders stay open while they are useful: one thread at a time, one process each, and none is closed while in use."""

from __future__ import annotations

import gc
import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from movies import Held, movie, plain

from headrace.errors import DataError, SpecError, StateError
from headrace.fetch.media.frames import FrameReader, rgb
from headrace.lerobot.decoders import MOST, VideoDecoderCache

SOON = 30.0


class Fake(FrameReader):
    """A reader that has a file open, and notices what must not happen to it."""

    count = 0

    def __init__(self, path: str = os.devnull) -> None:
        super().__init__(Held(b""))
        self.fd = os.open(path, os.O_RDONLY)
        self.used_by = self.closed = 0
        type(self).count += 1

    def use(self) -> None:
        assert not self.closed
        assert not self.used_by
        self.used_by = threading.get_ident()
        time.sleep(0)
        assert self.used_by == threading.get_ident()
        self.used_by = 0
        assert not self.closed

    def close(self) -> None:
        assert not self.used_by
        self.closed += 1
        assert self.closed == 1
        os.close(self.fd)


def num_open() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def threads(work: Callable[[int], object], count: int) -> Iterator[list[BaseException]]:
    """Threads beside the block, which have ended after it; what they raise."""
    failed: list[BaseException] = []

    def run(me: int) -> None:
        try:
            work(me)
        except BaseException as error:
            failed.append(error)

    started = [threading.Thread(target=run, args=(me,), daemon=True) for me in range(count)]
    for thread in started:
        thread.start()
    yield failed
    for thread in started:
        thread.join(SOON)
        assert not thread.is_alive()


def use(cache: VideoDecoderCache, key: str, opened: Callable[[], FrameReader] = Fake) -> FrameReader:
    with cache.get_decoder(key, opened) as reader:
        if isinstance(reader, Fake):
            reader.use()
        return reader


def test_what_was_used_last_stays() -> None:
    cache = VideoDecoderCache(max_size=2)
    first = use(cache, "a")
    assert use(cache, "b") is not first
    assert use(cache, "a") is first
    use(cache, "c")  # b goes
    assert ("a" in cache, "b" in cache, "c" in cache, len(cache)) == (True, False, True, 2)
    assert use(cache, "a") is first
    assert cache.stats() == {"hits": 2, "misses": 3, "evictions": 1, "hit_rate": 0.4, "size": 2}
    cache.clear()


def test_the_size_is_bounded_and_must_mean_something() -> None:
    assert VideoDecoderCache().max_size <= MOST
    assert VideoDecoderCache(10_000).max_size == MOST
    for wrong in (0, -1, True, 1.5, None):
        with pytest.raises(SpecError, match="max_size="):
            VideoDecoderCache(wrong)  # type: ignore[arg-type]
    assert VideoDecoderCache().stats() == {"hits": 0, "misses": 0, "evictions": 0, "hit_rate": 0.0, "size": 0}


def test_two_thousand_videos_leave_no_file_open() -> None:
    gc.collect()  # or files of tests before this one are closed on the way
    cache, before = VideoDecoderCache(max_size=16), num_open()
    readers = []
    for number in range(2000):
        readers.append(use(cache, f"{number}.mp4"))
        assert num_open() <= before + 16
    assert len(cache) == 16
    cache.clear()
    assert num_open() == before
    assert all(isinstance(reader, Fake) and reader.closed for reader in readers)
    assert cache.stats()["evictions"] == 2000 - 16


def test_hit_rates_are_what_the_order_of_use_gives() -> None:
    cache, rng, hits = VideoDecoderCache(max_size=8), random.Random(1), 0
    shelf: list[str] = []
    for _ in range(500):
        key = str(rng.randrange(20))
        if key in shelf:
            shelf.remove(key)
            hits += 1
        shelf = [*shelf, key][-8:]
        use(cache, key)
        assert [key for key in map(str, range(20)) if key in cache] == sorted(shelf, key=int)
    stats = cache.stats()
    assert (stats["hits"], stats["misses"]) == (hits, 500 - hits)
    assert stats["hit_rate"] == hits / 500
    cache.clear()


def test_every_third_open_fails_and_leaves_nothing() -> None:
    cache, before, tries = VideoDecoderCache(max_size=8), num_open(), 0

    def opened() -> Fake:
        nonlocal tries
        tries += 1
        if not tries % 3:
            raise DataError("no such video")
        return Fake()

    failures, rng = 0, random.Random(2)
    for _ in range(600):
        key = str(rng.randrange(16))
        try:
            use(cache, key, opened)
        except DataError:
            failures += 1
            assert key not in cache
            use(cache, key, opened)  # the next one is opened, as if nothing had been
            assert key in cache
        assert num_open() <= before + 8
    assert failures == tries // 3 > 50
    assert cache.stats()["misses"] == tries
    cache.clear()
    assert num_open() == before


def test_videos_that_cannot_be_opened_take_no_room() -> None:
    def broken() -> Fake:
        raise DataError("no such video")

    cache = VideoDecoderCache(max_size=2)
    use(cache, "a")
    use(cache, "b")
    for number in range(10):
        with pytest.raises(DataError):
            use(cache, str(number), broken)
    assert ("b" in cache, len(cache), cache.stats()["evictions"]) == (True, 1, 1)
    cache.clear()


def test_an_error_within_the_block_gives_the_decoder_back() -> None:
    cache = VideoDecoderCache()
    with pytest.raises(DataError, match="bad frame"), cache.get_decoder("a", Fake) as first:
        raise DataError("bad frame")
    assert use(cache, "a") is first
    cache.clear()


def test_a_decoder_in_use_is_closed_when_it_is_given_back() -> None:
    cache = VideoDecoderCache(max_size=1)
    with cache.get_decoder("a", Fake) as held:
        assert isinstance(held, Fake)
        use(cache, "b")  # there is room for one
        assert "a" not in cache
        held.use()
        with cache.get_decoder("b", Fake) as other:
            assert isinstance(other, Fake)
            cache.invalidate("b")
            cache.clear()
            other.use()
        assert other.closed
        held.use()
    assert held.closed
    assert len(cache) == 0


def test_decoders_that_nobody_uses_go_first() -> None:
    cache = VideoDecoderCache(max_size=2)
    with cache.get_decoder("a", Fake) as held:
        use(cache, "b")
        use(cache, "c")
        assert ("a" in cache, "b" in cache, "c" in cache) == (True, False, True)
    assert use(cache, "a") is held
    cache.clear()


def test_invalidated_decoders_are_opened_anew() -> None:
    cache = VideoDecoderCache()
    first = use(cache, "a")
    cache.invalidate("a")
    cache.invalidate("never there")
    assert isinstance(first, Fake)
    assert first.closed
    assert use(cache, "a") is not first
    cache.clear()


def test_a_thread_that_would_wait_for_itself_is_told() -> None:
    cache = VideoDecoderCache()
    with (
        cache.get_decoder("a", Fake),
        pytest.raises(StateError, match="a: this thread has its decoder already"),
        cache.get_decoder("a", Fake),
    ):
        pass
    use(cache, "a")
    cache.clear()


def test_a_decoder_that_does_not_close_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    class Stubborn(Fake):
        def close(self) -> None:
            super().close()
            raise OSError("busy")

    cache = VideoDecoderCache(max_size=1)
    use(cache, "a", Stubborn)
    use(cache, "b")
    assert "the decoder of a could not be closed" in caplog.text
    cache.clear()


# Threads


def test_one_thread_opens_and_others_are_not_held_up() -> None:
    cache, opening, go = VideoDecoderCache(), threading.Event(), threading.Event()
    opens: list[Fake] = []

    def slow() -> Fake:
        opening.set()
        assert go.wait(SOON)
        opens.append(Fake())
        return opens[-1]

    got: list[FrameReader] = []
    with threads(lambda me: got.append(use(cache, "slow", slow)), 3) as failed:
        assert opening.wait(SOON)
        use(cache, "other")  # while slow is being opened
        assert cache.stats()["size"] == 1
        assert "slow" not in cache
        go.set()
    assert failed == []
    assert len(opens) == 1
    assert got == opens * 3
    assert cache.stats() == {"hits": 2, "misses": 2, "evictions": 0, "hit_rate": 0.5, "size": 2}
    cache.clear()


def test_who_waits_for_an_open_that_fails_opens_it_himself() -> None:
    cache, opening, go, tries = VideoDecoderCache(), threading.Event(), threading.Event(), []

    def failing_once() -> Fake:
        tries.append(threading.get_ident())
        if len(tries) == 1:
            opening.set()
            assert go.wait(SOON)
            raise DataError("not this time")
        return Fake()

    with threads(lambda me: use(cache, "a", failing_once), 1) as failed:
        assert opening.wait(SOON)
        with threads(lambda me: use(cache, "a", failing_once), 1) as other:
            time.sleep(0.05)  # so that it waits
            go.set()
    assert [str(error) for error in failed] == ["not this time"]
    assert other == []
    assert len(set(tries)) == 2
    assert "a" in cache
    cache.clear()


def test_an_eviction_while_a_decoder_is_opened_leaves_nothing_open() -> None:
    cache, before = VideoDecoderCache(max_size=1), num_open()
    opening, go = threading.Event(), threading.Event()

    def slow() -> Fake:
        opening.set()
        assert go.wait(SOON)
        return Fake()

    got: list[FrameReader] = []
    with threads(lambda me: got.append(use(cache, "slow", slow)), 1) as failed:
        assert opening.wait(SOON)
        with cache.get_decoder("b", Fake):
            assert "slow" not in cache
        go.set()
    assert failed == []
    assert isinstance(got[0], Fake)
    assert got[0].closed
    assert num_open() == before + 1
    cache.clear()
    assert num_open() == before


def test_an_open_that_fails_late_does_not_take_out_the_one_after_it() -> None:
    cache, opening, go = VideoDecoderCache(max_size=1), threading.Event(), threading.Event()

    def broken() -> Fake:
        opening.set()
        assert go.wait(SOON)
        raise DataError("too late")

    with threads(lambda me: use(cache, "a", broken), 1) as failed:
        assert opening.wait(SOON)
        use(cache, "b")  # the one that is being opened has to go
        mine = use(cache, "a")
        go.set()
    assert [str(error) for error in failed] == ["too late"]
    assert use(cache, "a") is mine
    cache.clear()


def test_many_threads_share_few_decoders_without_a_clash() -> None:
    cache, before = VideoDecoderCache(max_size=4), num_open()

    def work(me: int) -> None:
        rng = random.Random(me)
        for _ in range(300):
            with cache.get_decoder(str(rng.randrange(9)), Fake) as reader:
                assert isinstance(reader, Fake)
                reader.use()
            if not rng.randrange(40):
                cache.invalidate(str(rng.randrange(9)))
            if not rng.randrange(150):
                cache.clear()

    with threads(work, 6) as failed:
        pass
    assert failed == []
    stats = cache.stats()
    assert stats["hits"] + stats["misses"] == 1800
    assert len(cache) <= 4
    assert num_open() == before + len(cache)
    cache.clear()
    assert num_open() == before


def test_threads_get_the_right_pixels() -> None:
    data = {str(seed): movie(g="4", bf="0", frames=24, seed=seed) for seed in range(4)}
    whole = {key: plain(one) for key, one in data.items()}
    cache = VideoDecoderCache(max_size=2)

    def work(me: int) -> None:
        rng = random.Random(me)
        for _ in range(40):
            key, number = str(rng.randrange(4)), rng.randrange(24)
            with cache.get_decoder(key, lambda key=key: FrameReader(Held(data[key]))) as reader:  # type: ignore[misc]
                frame = reader.frames([number])[0]
            assert np.array_equal(rgb(frame), whole[key][number][1])

    with threads(work, 4) as failed:
        pass
    assert failed == []

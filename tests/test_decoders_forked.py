"""Decoders belong to the process that opened them: a forked or spawned one begins with none, and sees right pixels."""

from __future__ import annotations

import multiprocessing
import os
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
from movies import Held, movie, plain

from headrace.fetch.media.frames import FrameReader, rgb
from headrace.lerobot.decoders import VideoDecoderCache

SOON = 30.0


def in_a_fork(work: Callable[[], object]) -> str:
    """What `work` gives in a child, or what it raises."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            said = repr(work())
        except BaseException as error:
            said = f"raised {error!r}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    os.waitpid(pid, 0)
    return said


def test_a_forked_child_begins_with_none_and_leaves_its_parent_s_alone() -> None:
    data = movie(g="30", bf="0")
    whole = plain(data)
    cache = VideoDecoderCache()

    def pixels_are_right(*numbers: int) -> bool:
        with cache.get_decoder("a", lambda: FrameReader(Held(data))) as reader:
            frames = reader.frames(numbers)
        return all(np.array_equal(rgb(frame), whole[n][1]) for n, frame in zip(numbers, frames, strict=True))

    def child() -> Any:
        before = (len(cache), "a" in cache, cache.stats()["misses"])
        right = pixels_are_right(7, 35) and pixels_are_right(8)
        cache.clear()
        return before, right, cache.stats()["hits"], in_a_fork(lambda: (len(cache), pixels_are_right(9)))

    assert pixels_are_right(5)
    with cache.get_decoder("a", lambda: FrameReader(Held(data))) as parents:
        assert in_a_fork(child) == "((0, False, 0), True, 1, '(0, True)')"
        assert np.array_equal(rgb(parents.frames([6])[0]), whole[6][1])
    assert pixels_are_right(7, 20)
    assert cache.stats() == {"hits": 2, "misses": 1, "evictions": 0, "hit_rate": 2 / 3, "size": 1}


def test_a_fork_does_not_inherit_a_lock_that_is_held() -> None:
    data, cache = movie(g="2"), VideoDecoderCache(max_size=2)

    def child() -> Any:
        with cache.get_decoder("a", lambda: FrameReader(Held(data))) as reader:
            return len(reader.frames([3])), len(cache)

    shelf = cache._shelf()
    with shelf._change:
        assert in_a_fork(child) == "(1, 1)"


def test_a_block_that_is_left_in_a_fork_closes_nothing_of_the_parent() -> None:
    cache, closed = VideoDecoderCache(max_size=1), []

    class Watched(FrameReader):
        def close(self) -> None:
            closed.append(os.getpid())

    with cache.get_decoder("a", lambda: Watched(Held(b""))):
        cache.invalidate("a")  # so that giving it back closes it
        pid = os.fork()
    if not pid:
        os._exit(len(closed))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert closed == [os.getpid()]


def spawned(cache: VideoDecoderCache, data: bytes, results: Any) -> None:
    with cache.get_decoder("a", lambda: FrameReader(Held(data))) as reader:
        pixels = rgb(reader.frames([3])[0])
    results.put((cache.max_size, len(cache), cache.stats()["misses"], pixels.tobytes()))


def test_a_spawned_process_gets_an_empty_one_of_the_same_size() -> None:
    data, cache = movie(g="2"), VideoDecoderCache(max_size=7)
    with cache.get_decoder("a", lambda: FrameReader(Held(data))):
        pass
    copy = pickle.loads(pickle.dumps(cache))  # noqa: S301 (our own bytes)
    assert (copy.max_size, len(copy), copy.stats()["misses"]) == (7, 0, 0)
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    process = context.Process(target=spawned, args=(cache, data, results))
    process.start()
    found = results.get()
    process.join(SOON)
    assert found == (7, 1, 1, plain(data)[3][1].tobytes())
    assert len(cache) == 1

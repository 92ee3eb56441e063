"""Frames by number have, bit by bit, the pixels that PyAV gives when it decodes the whole file."""

from __future__ import annotations

import random
import struct
import threading
from fractions import Fraction
from typing import Any

import av
import numpy as np
import pytest
from media_files import clip
from movies import QUIET, Held, box, changed, depths, joined, movie, plain, table
from numpy.typing import NDArray

from headrace.fetch.media import frames as module
from headrace.fetch.media.frames import FrameReader, gray16, rgb
from headrace.fetch.media.mp4 import read_track

X265 = {"x265-params": QUIET}
FORMS: dict[str, dict[str, Any]] = {
    "h264, two to a key": {"g": "2"},
    "h264, thirty to a key": {"g": "30", "bf": "0"},
    "h264, out of order": {"g": "12", "bf": "3"},
    "h264, out of order and index first": {"g": "30", "bf": "3", "movflags": "faststart"},
    "h264, open groups": {"g": "12", "x264-params": "open-gop=1:bframes=3"},
    "h264, not of whole blocks": {"g": "4", "size": (62, 46)},
    "h264, uneven times": {"g": "4", "times": tuple(range(0, 400, 10)), "bf": "0"},
    "av1": {"codec": "libsvtav1", "g": "2", "preset": "12"},
    "av1, thirty to a key and index first": {"codec": "libsvtav1", "g": "30", "preset": "12", "movflags": "faststart"},
    "hevc": {"codec": "libx265", "g": "12", **X265},
    "hevc, two to a key": {"codec": "libx265", "g": "2", **X265},
    "vp9": {"codec": "libvpx-vp9", "g": "12", "deadline": "realtime", "cpu-used": "8"},
    "depth": {"codec": "libx265", "form": "gray12le", "g": "2", "x265-params": f"lossless=1:{QUIET}"},
}


@pytest.fixture(scope="module", autouse=True)
def quiet_encoder() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SVT_LOG", "1")
        yield


def made(name: str) -> bytes:
    if name == "put together":
        return joined(*(movie(frames=length, seed=length, g="2", bf="0") for length in (11, 9, 16)))
    if name == "put together, av1":
        parts = (movie("libsvtav1", length, seed=length, g="2", preset="12") for length in (11, 9, 16))
        return joined(*parts)
    if name == "put together from different settings":
        # What parameters they have then lies between the frames.
        other: dict[str, Any] = {"x264-params": "cabac=0:ref=1"}
        return joined(movie(g="4", bf="0"), movie(g="4", bf="0", seed=2, **other))
    if name == "with an edit list":
        data = movie(g="12", bf="3")
        return changed(data, b"elst", lambda body: table((500, -1, 1 << 16), (900, 2500, 1 << 16)))
    if name == "with sound":
        return clip([3 * i for i in range(60)], options={"g": "12"}, audio=True)
    return movie(**FORMS[name])


MADE = (
    *FORMS,
    "put together",
    "put together, av1",
    "put together from different settings",
    "with an edit list",
    "with sound",
)


@pytest.mark.parametrize("name", MADE)
def test_pixels_are_those_of_a_plain_decode_in_whatever_order_they_are_asked_for(name: str) -> None:
    data = made(name)
    form, pixels = ("gray12le", gray16) if name == "depth" else ("rgb24", rgb)
    whole = plain(data, form)
    reader = FrameReader(Held(data))
    assert reader.track.num_frames == len(whole)

    def check(*numbers: int) -> None:
        for number, frame in zip(numbers, reader.frames(numbers), strict=True):
            pts, expected = whole[number]
            assert frame.pts == pts
            assert np.array_equal(pixels(frame), expected), number

    check(*range(len(whole)))
    for number in range(len(whole)):
        check(number)
    for number in reversed(range(len(whole))):
        check(number)
    rng = random.Random(name)
    for _ in range(30):
        check(*(rng.randrange(len(whole)) for _ in range(rng.choice((1, 2, 5, 9)))))
    check(*reversed(range(len(whole))), *range(len(whole)))


def test_a_number_that_comes_twice_gives_one_frame_twice() -> None:
    first, other, again = FrameReader(Held(movie(g="2"))).frames([7, 3, 7])
    assert first is again
    assert first is not other


def test_depths_come_back_as_they_went_in() -> None:
    found = FrameReader(Held(made("depth"))).frames(range(40))
    for number, frame in enumerate(found):
        assert gray16(frame).dtype == np.uint16
        assert np.array_equal(gray16(frame), depths(number))


def test_times_are_those_of_the_file() -> None:
    times = (0, 10, 500, 510, 4000, 4001)
    reader = FrameReader(Held(movie(g="2", frames=6, times=times)))
    found = [(frame.pts or 0) * (frame.time_base or 0) for frame in reader.frames(range(6))]
    assert found == [Fraction(time, 1000) for time in times]


@pytest.mark.parametrize("colors", [(1, 1, 1, 0), (1, 1, 1, 0x80), (9, 14, 9, 0), (60_000,) * 3 + (0x80,)], ids=str)
@pytest.mark.parametrize("codec", ["h264, two to a key", "av1", "hevc", "vp9"])
def test_colors_are_made_as_the_container_says(codec: str, colors: tuple[int, int, int, int]) -> None:
    more = box(b"colr", b"nclx" + struct.pack(">HHHB", *colors))

    def change(body: bytes) -> bytes:
        (size,) = struct.unpack_from(">I", body, 8)
        return body[:8] + struct.pack(">I", size + len(more)) + body[12:] + more

    data = changed(made(codec), b"stsd", change)
    found = rgb(FrameReader(Held(data)).frames([5])[0])
    assert np.array_equal(found, plain(data)[5][1])
    if codec.startswith("h264"):
        assert not np.array_equal(found, plain(made(codec))[5][1])


# What is read


class Guarded(Held):
    """Of which only some bytes may be read."""

    allowed: tuple[int, int] = (0, 0)

    def read(self, start: int, stop: int) -> bytes:
        assert self.allowed[0] <= start <= stop <= self.allowed[1]
        return super().read(start, stop)


@pytest.mark.parametrize("name", MADE)
def test_the_span_of_frames_is_all_that_is_read_of_them(name: str) -> None:
    data = made(name)
    held, track = Guarded(data), read_track(Held(data))
    rng = random.Random(name)
    for _ in range(20):
        first = rng.randrange(track.num_frames)
        stop = rng.randrange(first, track.num_frames) + 1
        held.allowed = track.span(first, stop)
        assert len(FrameReader(held, track).frames(range(first, stop))) == stop - first


def test_nothing_is_read_before_the_first_frame_and_no_table_twice() -> None:
    held = Held(movie(g="2"))
    reader = FrameReader(held)
    assert held.reads == []
    assert reader.frames([]) == []
    assert reader.track is reader.track
    assert len(held.reads) == 1
    other = FrameReader(held, reader.track)
    other.frames([0])
    assert len(held.reads) == 2


def test_samples_that_lie_together_are_read_at_once() -> None:
    held = Held(movie(g="30", bf="0"))
    reader = FrameReader(held)
    track = reader.track
    ends = track.offsets + track.sizes
    held.reads.clear()
    reader.frames([20])
    assert held.reads == [(track.offsets[0], ends[20])]
    held.reads.clear()
    reader.frames([21, 25])  # on from there
    assert held.reads == [(track.offsets[21], ends[25])]
    held.reads.clear()
    reader.frames([5, 35])  # back, and then to a key frame further on
    assert held.reads == [(track.offsets[0], ends[5]), (track.offsets[30], ends[35])]


def test_reads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "READ", 1000)
    data = movie(g="30", bf="0")
    held = Held(data)
    reader = FrameReader(held)
    largest = int(reader.track.sizes.max())
    held.reads.clear()
    found = reader.frames(range(40))
    assert all(stop - start <= max(1000, largest) for start, stop in held.reads)
    assert len(held.reads) > 2
    assert all(np.array_equal(rgb(frame), pixels) for frame, (_, pixels) in zip(found, plain(data), strict=True))


def test_reading_on_decodes_every_frame_once(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(movie("libsvtav1", g="30", preset="12"))
    reader = FrameReader(held)
    samples: list[int] = []
    packet = module._packet
    monkeypatch.setattr(module, "_packet", lambda body, sample: samples.append(sample) or packet(body, sample))  # type: ignore[func-returns-value]
    for number in range(40):
        reader.frames([number])
    assert samples == list(range(40))


def random_frame(size: tuple[int, int], form: str) -> av.VideoFrame:
    pixels = np.random.default_rng(size).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    return av.VideoFrame.from_ndarray(pixels, format="rgb24").reformat(format=form)


@pytest.mark.parametrize("form", ["yuv420p", "yuvj420p", "yuv444p", "yuv420p10le", "gray", "gray12le", "nv12"])
def test_pixels_are_made_as_a_frame_makes_them_itself(form: str) -> None:
    for size in ((64, 48), (63, 47), (1, 1), (2, 1001), (640, 480), (64, 48)):
        frame = random_frame(size, form)
        found = rgb(frame)
        assert found.shape == (size[1], size[0], 3)
        assert found.dtype == np.uint8
        assert np.array_equal(found, frame.to_ndarray(format="rgb24"))
        assert np.array_equal(gray16(frame), frame.to_ndarray(format="gray12le"))


def test_threads_make_pixels_beside_each_other() -> None:
    frames = [random_frame((64 + 2 * i, 48 + 2 * i), "yuv420p") for i in range(8)]
    expected = [frame.to_ndarray(format="rgb24") for frame in frames]
    found: dict[int, list[NDArray[np.uint8]]] = {}

    def work(me: int) -> None:
        found[me] = [rgb(frames[(i + me) % 8]) for i in range(200)]

    threads = [threading.Thread(target=work, args=(me,)) for me in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for me, arrays in found.items():
        assert all(np.array_equal(array, expected[(i + me) % 8]) for i, array in enumerate(arrays))
    assert len(found) == 4

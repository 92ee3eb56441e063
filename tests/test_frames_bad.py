"""A frame that cannot be had is named, with its file and the reason, and the reader goes on with the others."""

from __future__ import annotations

import struct
from typing import Any

import av
import numpy as np
import pytest
from media_files import mutants
from movies import QUIET, Held, changed, movie, plain

from headrace.errors import DataError, Refused, SpecError, StateError
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.ffmpeg import VIDEO_DECODERS
from headrace.fetch.media.frames import DECODERS, FrameReader, rgb
from headrace.fetch.media.mp4 import read_track

FORMS: dict[str, dict[str, Any]] = {
    "h264, thirty to a key": {"g": "30", "bf": "0"},
    "h264, out of order": {"g": "12", "bf": "3"},
    "av1": {"codec": "libsvtav1", "g": "2", "preset": "12"},
    "hevc": {"codec": "libx265", "g": "12", "x265-params": QUIET},
    "vp9": {"codec": "libvpx-vp9", "g": "12", "deadline": "realtime", "cpu-used": "8"},
}


@pytest.fixture(scope="module", autouse=True)
def quiet_encoder() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SVT_LOG", "1")
        yield


def cut() -> tuple[bytes, bytes, int]:
    """A video with its index first, the same one cut short, and how many frames are left."""
    data = movie(g="4", bf="0", movflags="faststart")
    track = read_track(Held(data))
    return data, data[: int(track.offsets[22]) + 10], 22


def test_of_a_file_that_is_cut_short_all_frames_that_are_there_can_be_read() -> None:
    data, short, left = cut()
    whole = plain(data)
    reader = FrameReader(Held(short))
    for number in range(40):
        if number < left:
            assert np.array_equal(rgb(reader.frames([number])[0]), whole[number][1])
            continue
        with pytest.raises(DataError) as caught:
            reader.frames([number])
        said = str(caught.value)
        assert said.startswith("top/file-000.mp4: frame ")
        assert f"frame {number}" in said
        assert f"it has {len(short):,} of {len(data):,} bytes" in said
        assert f"{40 - left} of 40 frames are lost, from {left} to 39" in said
    assert len(reader.frames(range(left))) == left


@pytest.mark.parametrize("name", ["h264, thirty to a key", "av1", "hevc", "vp9"])
def test_a_damaged_frame_is_named_and_the_others_can_be_read(name: str) -> None:
    data = movie(**FORMS[name])
    track, whole = read_track(Held(data)), plain(data)
    number = 3
    sample = int(track.order[number])
    begin, size = int(track.offsets[sample]), int(track.sizes[sample])
    broken = data[:begin] + b"\xff" * size + data[begin + size :]
    reader = FrameReader(Held(broken))
    with pytest.raises(DataError, match=f"^top/file-000.mp4: frame {number}, of 40: "):
        reader.frames([number])
    assert np.array_equal(rgb(reader.frames([0])[0]), whole[0][1])
    with pytest.raises(DataError, match=f"frame {number}"):
        reader.frames([0, number])
    good = [n for n in range(40) if track.starts[n] > sample or track.order[n] < sample]
    assert len(good) > 5
    for n in good:
        assert np.array_equal(rgb(reader.frames([n])[0]), whole[n][1])


def test_a_guess_of_the_decoder_is_no_frame() -> None:
    """FFmpeg hides damage of H.264: it paints over it, and goes on."""
    data = movie(g="12", bf="0", size=(128, 96))
    track, said = read_track(Held(data)), []
    for sample in range(1, 11):
        at = int(track.offsets[sample] + track.sizes[sample] // 2)
        broken = data[:at] + bytes(byte ^ 0x55 for byte in data[at : at + 20]) + data[at + 20 :]
        try:
            if len(plain(broken)) < 40:
                continue
        except av.FFmpegError:
            continue
        try:
            FrameReader(Held(broken)).frames([11])
        except DataError as error:
            said.append((sample, str(error)))
    assert sum("a guess" in text for _, text in said) > 3
    assert all(f"frame {sample} (on the way to frame 11), of 40" in text for sample, text in said)


def test_a_sample_of_no_bytes_has_no_picture() -> None:
    def empty(body: bytes) -> bytes:
        return body[:-4] + bytes(4)

    reader = FrameReader(Held(changed(movie(g="4", bf="0"), b"stsz", empty)))
    assert len(reader.frames(range(39))) == 39
    with pytest.raises(DataError, match="frame 39, of 40: the decoder gives no picture"):
        reader.frames([39])
    assert len(reader.frames([38])) == 1


def test_numbers_are_those_of_frames() -> None:
    reader = FrameReader(Held(movie(g="2")))
    for number in (40, -1, 10**12):
        with pytest.raises(DataError, match=f"top/file-000.mp4: frame {number} is not in it: it has 40 frames"):
            reader.frames([0, number])
    for wrong in (1.5, "1", None):
        with pytest.raises(SpecError, match="whole numbers"):
            reader.frames([wrong])  # type: ignore[list-item]
    assert len(reader.frames(np.array([3, 4]))) == 2  # type: ignore[arg-type]


def test_a_closed_reader_says_so_and_its_frames_live_on() -> None:
    data = movie(g="2")
    reader = FrameReader(Held(data))
    frames = reader.frames([8, 9])
    reader.close()
    reader.close()
    assert all(np.array_equal(rgb(frame), plain(data)[n][1]) for n, frame in zip((8, 9), frames, strict=True))
    with pytest.raises(StateError, match="closed"):
        reader.frames([1])


def test_what_decoding_takes_is_bounded() -> None:
    data = movie(g="30", bf="0")
    with pytest.raises(Refused, match="^top/file-000.mp4: on the way to frame 29: the time it takes .* timeout"):
        FrameReader(Held(data), budget=Budget(timeout=1e-6)).frames([29])
    with pytest.raises(Refused, match="max_pixels"):
        FrameReader(Held(data), budget=Budget(max_pixels=64 * 48 - 1)).frames([0])
    track = read_track(Held(data))
    with pytest.raises(Refused, match="size in bytes of a frame .* max_bytes=100"):
        FrameReader(Held(data), track, Budget(max_bytes=100)).frames([0])


def test_a_frame_that_is_larger_than_the_index_says_is_refused() -> None:
    data = changed(movie(size=(256, 192)), b"stsd", lambda body: body[:40] + struct.pack(">HH", 64, 48) + body[44:])
    with pytest.raises(DataError):
        FrameReader(Held(data), budget=Budget(max_pixels=64 * 48)).frames([0])


def test_bytes_that_do_not_come_are_no_frame() -> None:
    class Short(Held):
        def read(self, start: int, stop: int) -> bytes:
            return super().read(start, stop)[: None if start == 0 else 5]

    with pytest.raises(DataError, match="5 of bytes"):
        FrameReader(Short(movie(g="2"))).frames([0])


def test_an_error_of_the_source_comes_out_as_it_is_and_the_reader_goes_on() -> None:
    class Failing(Held):
        fails = False

        def read(self, start: int, stop: int) -> bytes:
            if self.fails:
                raise ConnectionError("gone")
            return super().read(start, stop)

    held = Failing(movie(g="30", bf="0"))
    reader = FrameReader(held)
    reader.frames([3])
    held.fails = True
    with pytest.raises(ConnectionError, match="gone"):
        reader.frames([5])
    held.fails = False
    assert np.array_equal(rgb(reader.frames([5])[0]), plain(held.data)[5][1])


def test_only_decoders_of_the_list_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    assert set(DECODERS.values()) <= VIDEO_DECODERS
    monkeypatch.setitem(DECODERS, "h264", "libnothing")
    with pytest.raises(SpecError, match="top/file-000.mp4: the video is h264.*no decoder libnothing"):
        FrameReader(Held(movie(g="2"))).frames([0])


@pytest.mark.parametrize("name", ["h264, out of order", "av1", "hevc", "vp9"])
def test_damaged_files_give_frames_or_errors_of_the_family(name: str) -> None:
    bad = 0
    for data in mutants(movie(**FORMS[name]), 60, seed=4):
        try:
            reader = FrameReader(Held(data), budget=Budget(timeout=5))
            for number in (0, reader.track.num_frames - 1, reader.track.num_frames // 2):
                rgb(reader.frames([number])[0])
        except DataError:
            bad += 1
    assert bad > 5

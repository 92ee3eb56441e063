"""The frame table of an MP4 is what the file says, in a few small reads; what cannot be believed is refused."""

from __future__ import annotations

import io
import random
import struct
import time
from typing import Any

import av
import numpy as np
import pytest
from media_files import clip
from movies import QUIET, Held, box, boxes, changed, joined, movie, plain, table, with_box, without

from headrace.fetch.media.boxes import HEAD
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.mp4 import Color, Track, read_track

FORMS: dict[str, dict[str, Any]] = {
    "h264, two to a key": {"g": "2"},
    "h264, thirty to a key": {"g": "30", "bf": "0"},
    "h264, out of order": {"g": "12", "bf": "3"},
    "h264, open groups": {"g": "12", "x264-params": "open-gop=1:bframes=3"},
    "h264, index first": {"g": "2", "movflags": "faststart"},
    "av1": {"codec": "libsvtav1", "g": "2", "preset": "12"},
    "hevc": {"codec": "libx265", "g": "12", "x265-params": QUIET},
    "vp9": {"codec": "libvpx-vp9", "g": "12", "deadline": "realtime", "cpu-used": "8"},
    "depth": {"codec": "libx265", "form": "gray12le", "g": "2", "x265-params": f"lossless=1:{QUIET}"},
    "uneven times": {"g": "2", "frames": 6, "times": (0, 10, 500, 510, 4000, 4001)},
}
EVEN: dict[str, Any] = {"g": "12", "bf": "0"}
UNEVEN: dict[str, Any] = {"g": "12", "bf": "3"}


@pytest.fixture(scope="module", autouse=True)
def quiet_encoder() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SVT_LOG", "1")
        yield


def of(data: bytes, name: str = "top/file-000.mp4", **limits: Any) -> Track:
    return read_track(Held(data, name), Budget(**limits))


def columns(track: Track) -> list[tuple[int, int, int, bool]]:
    """Of samples: where, how many bytes, when, whether a key."""
    columns = (track.offsets, track.sizes, track.times, track.keys)
    return list(zip(*(column.tolist() for column in columns), strict=True))


def as_demuxed(data: bytes) -> list[tuple[Any, ...]]:
    """The same, as FFmpeg says."""
    with av.open(io.BytesIO(data), "r") as container:
        packets = [packet for packet in container.demux(container.streams.video[0]) if packet.size]
        return [(packet.pos, packet.size, packet.pts, packet.is_keyframe) for packet in packets]


@pytest.mark.parametrize("name", FORMS)
def test_the_table_is_the_one_that_ffmpeg_reads(name: str) -> None:
    data = movie(**FORMS[name])
    track = of(data)
    assert columns(track) == as_demuxed(data)
    assert [track.times[i] for i in track.order] == [pts for pts, _ in plain(data)]
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.video[0]
        assert track.extradata == (stream.codec_context.extradata or b"")
        assert (track.width, track.height) == (stream.width, stream.height)
        assert stream.time_base is not None
        assert track.timescale == 1 / stream.time_base
        assert track.codec == stream.codec_context.codec.canonical_name
    assert all(column.dtype == np.int64 for column in (track.offsets, track.sizes, track.times, track.order))
    assert track.keys.dtype == bool
    assert track.end <= len(data)


def test_episodes_that_were_put_together_are_one_table() -> None:
    data = joined(movie(frames=11, seed=1, **EVEN), movie(frames=9, seed=2, **EVEN), movie(frames=12, seed=3, **EVEN))
    track = of(data)
    assert data.index(b"moov") < data.index(b"mdat")
    assert columns(track) == as_demuxed(data)
    assert track.num_frames == 32
    assert np.flatnonzero(track.keys).tolist() == [0, 11, 20]
    assert track.starts.tolist() == [0] * 11 + [11] * 9 + [20] * 12


@pytest.mark.parametrize("name", FORMS)
def test_decoding_begins_at_a_key_frame_that_is_shown_no_later(name: str) -> None:
    track = of(movie(**FORMS[name]))
    for number, start in enumerate(track.starts):
        sample = track.order[number]
        assert track.keys[start]
        assert start <= sample
        assert track.times[start] <= track.times[sample]
        later = [i for i in range(start + 1, sample + 1) if track.keys[i]]
        assert all(track.times[i] > track.times[sample] for i in later)


def test_the_index_is_found_in_few_and_small_reads() -> None:
    data = movie(g="2", frames=60)
    begin = data.index(b"moov") - 4
    far = data[:begin] + box(b"free", bytes(3 << 20)) + data[begin:]
    for many, index in ((data, 1), (far, 3)):
        held = Held(many)
        track = read_track(held)
        assert track.num_frames == 60
        assert len(held.reads) <= index
        assert sum(stop - start for start, stop in held.reads) <= 3 * HEAD
    held = Held(movie(g="2", frames=60, movflags="faststart") + bytes(3 << 20))
    read_track(held)
    assert held.reads == [(0, HEAD)]


def test_a_large_index_is_read_in_two_pieces() -> None:
    data = with_box(movie(g="2", movflags="faststart"), b"moov", b"udta", bytes(200_000))
    held = Held(data)
    assert read_track(held).num_frames == 40
    assert held.reads[0] == (0, HEAD)
    assert held.reads[1][0] == HEAD
    assert len(held.reads) == 2


def test_lengths_and_places_of_64_bits() -> None:
    data = movie(**EVEN)
    track = of(data)
    places = [(0, int(at) + 8) for at in track.offsets]  # the header of mdat is to be longer by 8 bytes
    wide = with_box(without(data, b"stco"), b"stbl", b"co64", table(*places))
    wide = changed(wide, b"stsc", lambda body: table((1, 1, 1)))
    mdat = wide.index(b"mdat") - 4
    (size,) = struct.unpack_from(">I", wide, mdat)
    wide = wide[:mdat] + struct.pack(">I4sQ", 1, b"mdat", size + 8) + wide[mdat + 8 :]
    assert columns(of(wide)) == [(at + 8, *rest) for at, *rest in columns(track)]
    assert columns(of(wide)) == as_demuxed(wide)


def test_a_header_that_lies_across_the_first_read_is_read_whole() -> None:
    data = movie(**EVEN)
    head, index = boxes(data)[0], boxes(data)[-1]
    before = box(*head)
    before += box(b"free", bytes(HEAD - len(before) - 8 - 8))
    data = before + struct.pack(">I4sQ", 1, b"mdat", 16 + 100) + bytes(100) + box(*index)
    assert len(before) == HEAD - 8
    assert of(data).num_frames == 40


def test_a_box_without_a_length_goes_to_the_end() -> None:
    data = movie(movflags="faststart", **EVEN)
    mdat = data.index(b"mdat") - 4
    assert columns(of(data[:mdat] + bytes(4) + data[mdat + 4 :])) == as_demuxed(data)


@pytest.mark.parametrize("bits", [4, 8, 16])
def test_sizes_in_few_bits(bits: int) -> None:
    sizes = [(7 * i + 1) % (1 << bits) for i in range(40)]
    if bits == 4:
        body = bytes(sizes[i] << 4 | sizes[i + 1] for i in range(0, 40, 2))
    else:
        body = b"".join(size.to_bytes(bits // 8, "big") for size in sizes)
    data = with_box(without(movie(**EVEN), b"stsz"), b"stbl", b"stz2", struct.pack(">III", 0, bits, 40) + body)
    assert of(data).sizes.tolist() == sizes


def test_sizes_that_are_all_alike() -> None:
    data = changed(movie(**EVEN), b"stsz", lambda body: struct.pack(">III", 0, 77, 40))
    track = of(data)
    assert track.sizes.tolist() == [77] * 40
    assert np.diff(track.offsets).tolist() == [77] * 39


def test_chunks_may_hold_several_samples_with_others_between() -> None:
    data = clip(list(range(60)), options={"g": "12"}, audio=True)
    track = of(data)
    assert columns(track) == as_demuxed(data)
    assert data.count(b"stsc") == 2


def test_runs_of_chunks_that_are_not_there_do_not_matter() -> None:
    data = movie(**EVEN)
    assert columns(of(changed(data, b"stsc", lambda body: table((1, 40, 1), (5, 7, 1))))) == as_demuxed(data)


def test_samples_of_one_time_stay_in_their_order() -> None:
    track = of(without(changed(movie(**EVEN), b"stts", lambda body: table((40, 0))), b"edts"))
    assert track.order.tolist() == list(range(40))


def test_key_frames_may_be_shown_in_any_order() -> None:
    rng = random.Random(1)
    for _ in range(20):
        shifts = [(1, rng.randrange(-9, 9) * 512) for _ in range(40)]
        data = with_box(without(movie(**EVEN), b"edts"), b"stbl", b"ctts", table(*shifts))
        track = of(changed(data, b"stss", lambda body: table(*((n,) for n in sorted(rng.sample(range(2, 41), 9))))))
        for number, start in enumerate(track.starts):
            sample = track.order[number]
            assert not start or track.keys[start]
            assert start <= sample
            assert not start or track.times[start] <= track.times[sample]


@pytest.mark.parametrize("version", [0, 1])
def test_shifts_of_times_are_signed(version: int) -> None:
    shifts = [(1, 0), (1, 1024), (1, -512), (1, -512), (36, 0)]
    data = with_box(without(movie(**EVEN), b"edts"), b"stbl", b"ctts", table(*shifts, version=version))
    track = of(data)
    assert track.times[:5].tolist() == [0, 1536, 512, 1024, 2048]
    assert track.order[:5].tolist() == [0, 2, 3, 1, 4]


def test_times_that_need_64_bits() -> None:
    def widen(body: bytes) -> bytes:
        _, begun, changed_at, scale, length = struct.unpack_from(">IIIII", body)
        return struct.pack(">IQQIQ", 1 << 24, begun, changed_at, scale, length) + body[20:]

    data = changed(changed(movie(**EVEN), b"mdhd", widen), b"elst", lambda body: wide_edits((10_000, 1536)))
    assert columns(of(data))[3:] == as_demuxed(data)[3:]
    assert of(data).num_frames == 37


def wide_edits(*edits: tuple[int, int]) -> bytes:
    return struct.pack(">II", 1 << 24, len(edits)) + b"".join(struct.pack(">QqI", *edit, 1 << 16) for edit in edits)


EDITS: dict[str, list[tuple[int, int]]] = {
    "none": [],
    "from frame 3 on": [(2000, 1536)],
    "from between two frames": [(2000, 1700)],
    "from a key frame": [(2000, 12 * 512)],
    "a part": [(500, 1536)],
    "of a length that is rounded up": [(33, 1030)],
    "after a while of nothing": [(500, -1), (2000, 1024)],
    "after two whiles of nothing": [(500, -1), (250, -1), (2000, 0)],
}


@pytest.mark.parametrize("form", [EVEN, UNEVEN], ids=["in order", "out of order"])
@pytest.mark.parametrize("name", EDITS)
def test_an_edit_list_is_followed_as_ffmpeg_does(name: str, form: dict[str, Any]) -> None:
    edits = [(*edit, 1 << 16) for edit in EDITS[name]]
    data = changed(movie(**form), b"elst", lambda body: table(*edits))
    track = of(data)
    assert [track.times[i] for i in track.order] == [pts for pts, _ in plain(data)]


def test_without_an_edit_list_times_are_as_they_are() -> None:
    data = without(movie(**UNEVEN), b"edts")
    track = of(data)
    assert [track.times[i] for i in track.order] == [pts for pts, _ in plain(data)]
    assert track.times.min() == 1024


def test_the_bytes_of_some_frames_are_one_range() -> None:
    track = of(movie(g="2"))
    begins, ends = track.offsets, track.offsets + track.sizes
    assert track.span(0, 2) == (begins[0], ends[1])
    assert track.span(1, 2) == (begins[0], ends[1])
    assert track.span(7, 12) == (begins[6], ends[11])
    assert track.span(38, 99) == (begins[38], ends[39])
    assert track.span(5, 5) == track.span(99, 100) == track.span(3, 2) == (0, 0)
    short = of(movie(g="2", movflags="faststart")[:6000])
    assert short.span(0, 40)[1] == 6000


def test_colors_are_what_the_file_says() -> None:
    assert of(movie(g="2")).color is None
    assert of(with_colors(movie(g="2"), (1, 2, 9, 0x80))).color == Color(1, 2, 9, True)
    assert of(movie(**FORMS["vp9"])).color == Color(2, 2, 2, False)


def with_colors(data: bytes, colors: tuple[int, int, int, int]) -> bytes:
    """The MP4 with a box colr in its sample description."""
    more = box(b"colr", b"nclx" + struct.pack(">HHHB", *colors))

    def change(body: bytes) -> bytes:
        (size,) = struct.unpack_from(">I", body, 8)
        return body[:8] + struct.pack(">I", size + len(more)) + body[12:] + more

    return changed(data, b"stsd", change)


def test_a_million_samples_are_read_in_a_moment() -> None:
    count, sizes = 1 << 20, np.random.default_rng(0).integers(1, 9999, 1 << 20)
    lengths = struct.pack(">III", 0, 0, count) + sizes.astype(">u4").tobytes()
    keys = struct.pack(">II", 0, count // 2) + np.arange(1, count, 2).astype(">u4").tobytes()
    data = changed(movie(**EVEN), b"stsz", lambda body: lengths)
    data = changed(data, b"stts", lambda body: table((count, 512)))
    data = changed(data, b"stsc", lambda body: table((1, count, 1)))
    data = without(changed(data, b"stss", lambda body: keys), b"edts")
    begun = time.thread_time()
    track = of(data)
    assert time.thread_time() - begun < 2
    assert track.num_frames == count
    assert track.offsets[-1] - track.offsets[0] == sizes[:-1].sum()
    assert track.starts[-1] == count - 2

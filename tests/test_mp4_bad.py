"""An MP4 that cannot be believed is refused, by the name of the file and of what is wrong, before it costs anything."""

from __future__ import annotations

import io
import random
import struct
import time
import tracemalloc
from typing import Any

import av
import numpy as np
import pytest
from media_files import clip, mutants
from movies import Held, box, changed, movie, table, with_box, without

from headrace.errors import DataError, Refused
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.mp4 import Track, read_track

EVEN: dict[str, Any] = {"g": "12", "bf": "0"}


def of(data: bytes, name: str = "top/file-000.mp4", **limits: Any) -> Track:
    return read_track(Held(data, name), Budget(**limits))


def described(data: bytes, kind: bytes) -> bytes:
    """The MP4 whose codec has another name."""
    return changed(data, b"stsd", lambda body: body[:12] + kind + body[16:])


def twice(data: bytes, other: bytes) -> bytes:
    """The MP4 with a second sample description."""
    second = find(other, b"stsd")[8:]
    return changed(data, b"stsd", lambda body: struct.pack(">II", 0, 2) + body[8:] + second)


def find(data: bytes, kind: bytes) -> bytes:
    found: list[bytes] = []
    changed(data, kind, lambda body: found.append(body) or body)  # type: ignore[func-returns-value]
    return found[0]


def outside(data: bytes) -> bytes:
    return changed(
        data, b"dref", lambda body: struct.pack(">II", 0, 1) + box(b"url ", bytes(4) + b"file:///etc/passwd\0")
    )


def only_sound() -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("aac", rate=16_000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 4096), np.float32), format="fltp", layout="mono")
        frame.sample_rate = 16_000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def cut_in_the_index() -> bytes:
    data = movie(movflags="faststart", **EVEN)
    return data[: data.index(b"moov") + 300]


def box_head(kind: bytes) -> bytes:
    at = BASE.index(kind)
    return BASE[at - 4 : at + 4]


BASE = movie(**EVEN)
MDAT = BASE.index(b"mdat") - 4
BAD: dict[str, tuple[Any, type[DataError], str]] = {
    "empty": (lambda: b"", DataError, "empty: 0 bytes"),
    "an HLS playlist": (lambda: b"#EXTM3U\n#EXTINF:1\nfile:///etc/passwd\n", Refused, "HLS"),
    "a DASH manifest": (lambda: b"<MPD><Period/></MPD>", Refused, "DASH"),
    "an XML manifest": (lambda: b"<?xml version='1.0'?><MPD/>", Refused, "XML"),
    "a concat script": (lambda: b"ffconcat version 1.0\nfile '/etc/passwd'\n", Refused, "ffconcat"),
    "an address": (lambda: b"concat:/etc/passwd|/etc/group", Refused, "FFmpeg address"),
    "an SDP session": (lambda: b"v=0\no=- 0 0 IN IP4 127.0.0.1\n", Refused, "SDP"),
    "matroska": (lambda: clip([1, 2], form="matroska"), Refused, "Matroska"),
    "avi": (lambda: clip([1, 2], form="avi"), Refused, "AVI"),
    "cut before the index": (
        lambda: BASE[: MDAT + 900],
        DataError,
        r"no index \(moov\).* it has 9\d\d of [\d,]+ bytes",
    ),
    "no index": (lambda: BASE[: BASE.index(b"moov") - 4], DataError, r"no index \(moov\)"),
    "cut in the index": (cut_in_the_index, DataError, r"cut short within its index \(moov\): it has 3\d\d of [\d,]+"),
    "only sound": (only_sound, DataError, "no video in it; its tracks are: soun"),
    "in pieces": (
        lambda: clip([1, 2, 3], movflags="frag_keyframe+empty_moov"),
        Refused,
        "fragmented: moof",
    ),
    "a piece": (lambda: box(b"ftyp", b"iso5" + bytes(4)) + box(b"moof", bytes(50)), DataError, "fragment"),
    "samples in another file": (lambda: outside(BASE), Refused, "dref"),
    "a packed index": (lambda: with_box(BASE, b"moov", b"cmov", bytes(20)), Refused, "cmov"),
    "encrypted": (lambda: described(BASE, b"encv"), Refused, "encrypted"),
    "mpeg4": (lambda: movie("mpeg4"), Refused, "codec is mp4v.*av1, h264, hevc, vp9"),
    "an unknown codec": (lambda: described(BASE, b"\x1b[2J"), Refused, r"codec is \\x1b\[2J"),
    "descriptions that differ": (lambda: twice(BASE, movie(size=(32, 32))), Refused, "2 different sample descriptions"),
    "no frames": (lambda: changed(BASE, b"stsz", lambda body: bytes(12)), DataError, "no frames"),
    "no frame that is shown": (
        lambda: changed(BASE, b"elst", lambda body: table((0, 0, 1 << 16))),
        DataError,
        "no frames: its edit list takes out all 40",
    ),
    "nothing but nothing": (
        lambda: changed(BASE, b"elst", lambda body: table((500, -1, 1 << 16))),
        DataError,
        "no frames",
    ),
    "an edit list of parts": (
        lambda: changed(BASE, b"elst", lambda body: table((500, 0, 1 << 16), (500, 10240, 1 << 16))),
        Refused,
        "edit list of 2 parts",
    ),
    "a billion edits": (lambda: changed(BASE, b"elst", lambda body: struct.pack(">II", 0, 10**9)), Refused, "edits"),
    "no decoder's data": (lambda: BASE.replace(b"avcC", b"xxxx"), DataError, "no avcC"),
    "no table": (lambda: without(BASE, b"stbl"), DataError, "no box stbl"),
    "no sizes": (lambda: without(BASE, b"stsz"), DataError, "no box stz2"),
    "sizes of 5 bits": (
        lambda: with_box(without(BASE, b"stsz"), b"stbl", b"stz2", struct.pack(">III", 0, 5, 40) + bytes(40)),
        DataError,
        "5 bits",
    ),
    "fewer places than samples": (
        lambda: changed(BASE, b"stco", lambda body: table()),
        DataError,
        "0 of 40 samples lie",
    ),
    "fewer times than samples": (lambda: changed(BASE, b"stts", lambda body: table((39, 512))), DataError, "39 of 40"),
    "chunks out of order": (
        lambda: changed(BASE, b"stsc", lambda body: table((2, 40, 1), (1, 40, 1))),
        DataError,
        "stsc is not in order",
    ),
    "key frames beyond the last": (lambda: changed(BASE, b"stss", lambda body: table((41,))), DataError, "stss"),
    "key frame 0": (lambda: changed(BASE, b"stss", lambda body: table((0,))), DataError, "stss"),
    "places that no file has": (
        lambda: with_box(without(BASE, b"stco"), b"stbl", b"co64", table((1 << 31, 0))),
        DataError,
        "co64",
    ),
    "a time scale that no clock has": (
        lambda: changed(BASE, b"mdhd", lambda body: body[:12] + b"\xff" * 4 + body[16:]),
        DataError,
        "scale of 4294967295",
    ),
    "a time scale of 0": (lambda: changed(BASE, b"mdhd", lambda body: body[:12] + bytes(4)), DataError, "scale of 0"),
    "a box of 3 bytes": (
        lambda: BASE[: BASE.index(b"mdia") - 4] + b"\0\0\0\3" + BASE[BASE.index(b"mdia") :],
        DataError,
        "mdia of 3",
    ),
    "a box longer than the one it is in": (
        lambda: BASE.replace(box_head(b"mdia"), b"\0\xff\0\0mdia"),
        DataError,
        "mdia that ends after",
    ),
    "a thousand and one boxes": (
        lambda: changed(BASE, b"moov", lambda body: box(b"free", b"") * 1001 + body),
        Refused,
        "1,000",
    ),
    "pixels over the limit": (
        lambda: changed(BASE, b"stsd", lambda body: body[:40] + b"\xff\xff\xff\xff" + body[44:]),
        Refused,
        "max_pixels",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_wrong_is_named_with_the_file(name: str) -> None:
    make, kind, why = BAD[name]
    with pytest.raises(DataError, match=why) as caught:
        of(make(), "top/file-007.mp4")
    assert type(caught.value) is kind
    assert str(caught.value).startswith("top/file-007.mp4: ")


def test_descriptions_that_are_alike_are_one() -> None:
    assert of(twice(BASE, BASE)).sizes.tolist() == of(BASE).sizes.tolist()


@pytest.mark.parametrize("kind", ["stsz", "stz2", "stco", "co64", "stsc", "stts", "ctts", "stss", "stsz of one size"])
def test_a_billion_samples_cost_nothing(kind: str) -> None:
    count = 10**9
    body = struct.pack(">II", 0, count)
    data = BASE
    if kind.startswith("stsz"):
        data = changed(data, b"stsz", lambda _: struct.pack(">III", 0, 0 if kind == "stsz" else 9, count))
    elif kind == "stz2":
        data = with_box(without(data, b"stsz"), b"stbl", b"stz2", struct.pack(">III", 0, 16, count))
    else:
        data = without(data, *([b"stco"] if kind == "co64" else []), kind.encode())
        data = with_box(data, b"stbl", kind.encode(), body)
    tracemalloc.start()
    try:
        with pytest.raises(Refused, match="max_frames"):
            of(data)
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("kind", ["stsz", "stco", "stsc", "stts", "stss"])
def test_a_table_with_fewer_bytes_than_it_says(kind: str) -> None:
    place = 8 if kind == "stsz" else 4
    data = changed(BASE, kind.encode(), lambda body: body[:place] + struct.pack(">I", 1000) + body[place + 4 :])
    with pytest.raises(DataError, match=f"its table {kind} has .* for 1,000 entries"):
        of(data)


def test_counts_that_lie_make_no_large_tables() -> None:
    data = changed(BASE, b"stts", lambda body: table((0xFFFFFFFF, 512)))
    data = changed(data, b"stsc", lambda body: table((1, 0xFFFFFFFF, 1)))
    tracemalloc.start()
    try:
        assert of(data).num_frames == 40
        assert tracemalloc.get_traced_memory()[1] < 5 << 20
    finally:
        tracemalloc.stop()


def test_the_limits_are_the_budget_s() -> None:
    assert of(BASE, max_frames=40).num_frames == 40
    with pytest.raises(Refused, match="max_frames=39"):
        of(BASE, max_frames=39)
    with pytest.raises(Refused, match="index .moov. in bytes .* max_bytes=500"):
        of(BASE, max_bytes=500)


def test_a_name_from_outside_is_shown_as_text() -> None:
    with pytest.raises(DataError) as caught:
        of(b"", "a\x1b[31m\n.mp4")
    assert "\x1b" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_damaged_indices_are_read_or_refused_in_time() -> None:
    begin = BASE.index(b"moov") - 4
    rng, refused = random.Random(3), 0
    begun = time.thread_time()
    for index in mutants(BASE[begin:], 600, seed=rng.randrange(1000)):
        try:
            track = of(BASE[:begin] + index)
        except DataError:
            refused += 1
            continue
        assert len(track.offsets) == len(track.sizes) == len(track.times) == len(track.keys)
        assert 0 < track.num_frames == len(track.starts)
    assert 50 < refused < 550
    assert time.thread_time() - begun < 20

"""Videos: the right frames, evenly chosen and upright, or an error that says what is wrong."""

from __future__ import annotations

import io
import struct
import sys
import time
from itertools import pairwise
from typing import Any

import av
import numpy as np
import pytest
from media_files import clip, index_first, mutants, numbers_of, turned
from PIL import Image

from headrace.errors import DataError, Refused, SpecError
from headrace.fetch.media import video
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.video import decode_video, spread

FORMS: dict[str, dict[str, Any]] = {
    "h264": {},
    "h264, key frames every 12": {"options": {"g": "12", "x264-params": "bframes=3"}},
    "h264, key frames only": {"options": {"g": "1"}},
    "h264 in matroska": {"form": "matroska", "options": {"g": "12"}},
    "h264 in avi": {"form": "avi", "options": {"g": "12"}},
    "h264 in pieces": {"options": {"g": "12"}, "movflags": "frag_keyframe+empty_moov"},
    "av1": {"codec": "libsvtav1", "options": {"svtav1-params": "keyint=16", "preset": "12"}},
    "vp9 in webm": {"codec": "libvpx-vp9", "form": "webm", "options": {"deadline": "realtime", "cpu-used": "8"}},
    "mjpeg in avi": {"codec": "mjpeg", "form": "avi", "options": {"qmin": "1", "qmax": "2"}},
    "mjpeg in mov": {"codec": "mjpeg", "form": "mov", "options": {"qmin": "1", "qmax": "2"}},
    "mpeg4": {"codec": "mpeg4", "options": {"qmin": "1", "qmax": "2"}},
    "with sound": {"audio": True},
}


@pytest.fixture(scope="module", autouse=True)
def quiet_encoder() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SVT_LOG", "1")
        yield


@pytest.mark.parametrize("name", FORMS)
def test_the_frames_are_the_ones_that_were_chosen(name: str) -> None:
    data = clip(list(range(60)), **FORMS[name])
    for most in (1, 2, 7, 16):
        found = decode_video(data, most, 16)
        assert found.shape == (most, 16, 16, 3)
        assert found.dtype == np.uint8
        assert numbers_of(found) == spread(60, most)


@pytest.mark.parametrize("name", FORMS)
def test_a_short_video_gives_all_it_has(name: str) -> None:
    data = clip(list(range(10, 15)), **FORMS[name])
    found = decode_video(data, 32)
    assert found.shape == (5, 48, 64, 3)
    assert numbers_of(found) == [10, 11, 12, 13, 14]


def test_frames_are_spread_from_first_to_last() -> None:
    assert spread(10, 4) == [0, 3, 6, 9]
    assert spread(10, 1) == [4]
    assert spread(3, 5) == [0, 1, 2]
    assert spread(0, 5) == []
    for count in range(1, 60):
        for most in range(2, 20):
            found = spread(count, most)
            steps = {b - a for a, b in pairwise(found)}
            assert len(found) == min(count, most)
            assert found[0] == 0
            assert found[-1] == count - 1
            assert not steps or (min(steps) >= 1 and max(steps) - min(steps) <= 1)
    assert spread(10**15, 3) == [0, (10**15 - 1) // 2, 10**15 - 1]


def test_frames_of_uneven_length_count_once_each() -> None:
    times = [0, 10, 20, 30, 5000, 5010, 9000, 9001]
    data = clip(list(range(8)), times=times, form="matroska", options={"g": "2"})
    assert numbers_of(decode_video(data, 3)) == [0, 3, 7]
    assert numbers_of(decode_video(data, 100)) == list(range(8))


@pytest.mark.parametrize("size", [None, 20, (20, 30)], ids=str)
def test_rotation_is_applied(size: Any) -> None:
    found = decode_video(turned(half_bright()), 2, size)
    height, width = (size, size) if isinstance(size, int) else size or (64, 48)
    assert found.shape == (2, height, width, 3)
    # The upper half was bright; after a quarter turn, clockwise, the right one is.
    assert found[0, :, -width // 3 :].mean() > 190
    assert found[0, :, : width // 3].mean() < 10


def half_bright(width: int = 64, height: int = 48) -> bytes:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=30, options={"crf": "1"})
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        pixels = np.zeros((height, width, 3), np.uint8)
        pixels[: height // 2] = 200
        for _ in range(2):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


def test_resizing_while_decoding_is_like_resizing_after_it() -> None:
    data = half_bright(160, 120)
    whole = decode_video(data, 1)[0]
    after = np.asarray(Image.fromarray(whole).resize((40, 30), Image.Resampling.BILINEAR)).astype(int)
    assert np.abs(decode_video(data, 1, (30, 40))[0] - after).max() <= 3


class Watched:
    """A container that says which frames it decodes, and may seek too far."""

    def __init__(self, container: Any, further: int = 0) -> None:
        self._container, self._further = container, further
        self.seen: list[int] = []
        self.seeks = 0

    def decode(self, stream: Any) -> Any:
        for frame in self._container.decode(stream):
            self.seen.append(frame.pts)
            yield frame

    def seek(self, offset: int, *, stream: Any) -> None:
        self.seeks += 1
        self._container.seek(offset + self._further, stream=stream)


def watch(monkeypatch: pytest.MonkeyPatch, further: int = 0) -> list[Watched]:
    made: list[Watched] = []
    by_time = video._by_time

    def watched(container: Any, *rest: Any) -> Any:
        made.append(Watched(container, further))
        return by_time(made[-1], *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(video, "_by_time", watched)
    return made


def test_nothing_is_decoded_that_no_frame_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    made = watch(monkeypatch)
    data = clip(list(range(64)), options={"g": "10", "x264-params": "bframes=0"})
    assert numbers_of(decode_video(data, 3)) == [0, 31, 63]
    assert len(made) == 1
    assert made[0].seeks == 2
    assert len(made[0].seen) <= 1 + 10 + 10


def test_a_seek_that_leads_astray_is_made_good(monkeypatch: pytest.MonkeyPatch) -> None:
    data = clip(list(range(60)), options={"g": "10"})
    made = watch(monkeypatch, further=10_000)
    assert numbers_of(decode_video(data, 7)) == spread(60, 7)
    assert made[0].seeks == 1


def edited(data: bytes, kind: bytes, at: int, value: int) -> bytes:
    """An MP4 with one 32-bit number of a box changed."""
    place = data.index(kind) + 4 + at
    return data[:place] + struct.pack(">I", value) + data[place + 4 :]


LATE = clip(list(range(30)))
CLIP = index_first(LATE)


BAD: dict[str, tuple[Any, str]] = {
    "empty": (b"", "0 bytes"),
    "a text": (b"hello, this is no video at all", "nothing known"),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(100), "nothing known"),
    "no frames": (clip([]), "no video"),
    "no frames in pieces": (clip([], movflags="frag_keyframe+empty_moov"), "no frames"),
    "no frames in matroska": (clip([], form="matroska"), "End of file|no frames"),
    "sound only": (clip([1], audio=True).replace(b"vide", b"xxxx").replace(b"avc1", b"xxxx"), "no video|cannot|codec"),
    "a head alone": (CLIP[:32], "cannot be decoded|no video|no frames"),
    "cut in the middle": (CLIP[: len(CLIP) * 2 // 3], "cut short"),
    "cut at the end": (CLIP[:-1], "cut short"),
    "without its index": (LATE[: LATE.index(b"moov") - 4], "cannot be decoded|no video"),
    "a matroska cut in the middle": (clip(list(range(30)), form="matroska")[:1200], "cut short"),
    "an avi cut in the middle": (clip(list(range(30)), codec="mjpeg", form="avi")[:9000], "cut short"),
    "10^9 declared frames": (
        edited(edited(CLIP, b"stsz", 8, 10**9), b"stsz", 4, 1),
        "1,000,000,000 samples.*max_frames",
    ),
    "10^9 declared frames in a fragment": (
        edited(clip(list(range(30)), movflags="frag_keyframe+empty_moov"), b"trun", 4, 10**9),
        "1,000,000,000 samples.*max_frames",
    ),
    "10^9 edits": (edited(CLIP, b"elst", 4, 10**9), "1,000,000,000 edits"),
    "a packed index": (CLIP.replace(b"moov", b"cmov"), "packed index"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_video_is_a_data_error(name: str) -> None:
    data, said = BAD[name]
    with pytest.raises(DataError, match=said) as caught:
        decode_video(data, 8, 16)
    assert len(str(caught.value)) < 500


ANNOUNCED = {"avi": (b"avih", 16), "stream of avi": (b"strh", 32)}
"""Where an AVI says how many frames it has, and so does each of its streams."""


@pytest.mark.parametrize("place", ["duration", "avi", "stream of avi"])
def test_frames_that_are_only_announced_are_not_waited_for(place: str) -> None:
    if place in ANNOUNCED:
        data = clip(list(range(20)), codec="mjpeg", form="avi", options={"qmin": "1", "qmax": "2"})
        box, behind = ANNOUNCED[place]
        at = data.index(box) + 8 + behind
        data = data[:at] + struct.pack("<I", 10**9) + data[at + 4 :]
        count = 20
    else:
        data, count = edited(CLIP, b"mvhd", 16, 0x7FFFFFFF), 30
    begin = time.monotonic()
    assert numbers_of(decode_video(data, 5)) == spread(count, 5)
    assert time.monotonic() - begin < 5


class TestBudget:
    def test_frames_are_counted(self) -> None:
        with pytest.raises(Refused, match="30.*max_frames=29"):
            decode_video(CLIP, 2, budget=Budget(max_frames=29))
        assert len(decode_video(CLIP, 2, budget=Budget(max_frames=30))) == 2
        avi = clip(list(range(300)), codec="mjpeg", form="avi")
        with pytest.raises(Refused, match="max_frames=29"):
            decode_video(avi, 2, budget=Budget(max_frames=29))

    def test_seconds_are_counted(self) -> None:
        with pytest.raises(Refused, match="length in seconds of the video.*max_seconds=0.9"):
            decode_video(CLIP, 2, budget=Budget(max_seconds=0.9))
        assert len(decode_video(CLIP, 2, budget=Budget(max_seconds=1.1))) == 2

    def test_pixels_are_counted_before_a_frame_is_decoded(self) -> None:
        with pytest.raises(DataError, match="max_pixels|cannot be decoded"):
            decode_video(CLIP, 2, budget=Budget(max_pixels=64 * 48 - 1))
        assert len(decode_video(CLIP, 2, budget=Budget(max_pixels=64 * 48))) == 2

    def test_time_is_counted(self) -> None:
        data = clip(list(range(60)), size=(320, 240))
        with pytest.raises(Refused, match="timeout=0.001"):
            decode_video(data, 60, budget=Budget(timeout=0.001))

    def test_bytes_are_counted_first(self) -> None:
        with pytest.raises(Refused, match="max_bytes=100"):
            decode_video(CLIP, 2, budget=Budget(max_bytes=100))


@pytest.mark.parametrize(("codec", "form"), [("png", "mov"), ("ffv1", "matroska"), ("rawvideo", "avi")])
def test_a_codec_that_is_not_listed_is_refused(codec: str, form: str) -> None:
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=30)
        stream.width, stream.height = 16, 16
        stream.pix_fmt = "rgb24" if codec == "png" else "yuv420p"
        container.mux(stream.encode(av.VideoFrame(16, 16, stream.pix_fmt)))
        container.mux(stream.encode())
    with pytest.raises(Refused, match=f"codec is {codec}"):
        decode_video(file.getvalue(), 1)


@pytest.mark.parametrize("max_frames", [0, -1, True, 1.5, None])
def test_a_number_of_frames_is_above_zero(max_frames: Any) -> None:
    with pytest.raises(SpecError, match="max_frames"):
        decode_video(CLIP, max_frames)


@pytest.mark.parametrize("name", ["h264", "h264 in matroska", "mjpeg in avi", "h264 in pieces"])
def test_mutated_files_give_frames_or_a_data_error(name: str) -> None:
    data = clip(list(range(6)), **FORMS[name] | {"size": (32, 32)})
    right = decode_video(data, 6, 8).astype(int)
    outcomes = set()
    for mutant in mutants(data, 60, seed=1):
        try:
            found = decode_video(mutant, 3, 8, Budget(max_pixels=1 << 16, max_frames=1000, timeout=5))
        except DataError:
            outcomes.add("error")
        else:
            outcomes.add("frames")
            assert found.shape[1:] == (8, 8, 3)
            assert all(np.abs(right - frame).max((1, 2, 3)).min() <= 2 for frame in found)
    assert outcomes == {"error", "frames"}


class TestTorchcodec:
    def test_it_gives_the_same_frames(self) -> None:
        try:
            import torchcodec
        except (ImportError, OSError, RuntimeError) as error:
            pytest.skip(f"torchcodec does not load: {' '.join(str(error).split())[:80]}")
        assert torchcodec.__version__
        for data in (CLIP, turned(half_bright()), clip(list(range(20)), form="matroska")):
            ours, theirs = decode_video(data, 5, 24), decode_video(data, 5, 24, backend="torchcodec")
            assert ours.shape == theirs.shape
            assert np.abs(ours.astype(int) - theirs).max() <= 3

    def test_it_gets_nothing_that_is_refused(self) -> None:
        with pytest.raises((Refused, SpecError)):
            decode_video(b"#EXTM3U\n/etc/passwd\n", 5, backend="torchcodec")

    def test_without_it_the_error_says_what_to_do(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "torchcodec", None)
        with pytest.raises(SpecError, match="pip install torchcodec"):
            decode_video(CLIP, 5, backend="torchcodec")

    def test_another_backend_is_refused(self) -> None:
        with pytest.raises(SpecError, match="'pyav' or 'torchcodec'"):
            decode_video(CLIP, 5, backend="opencv")  # type: ignore[arg-type]

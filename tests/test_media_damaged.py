"""Media that are damaged inside: what is given is right, or it is an error; and whole files are never refused."""

from __future__ import annotations

import io
import random
import struct
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import pytest
from media_files import U8, clip, numbers_of, sound
from movies import movie

from headrace.errors import DataError
from headrace.fetch.media.audio import decode_audio
from headrace.fetch.media.clip import Clip
from headrace.fetch.media.video import decode_video, spread

OPEN = {"g": "12", "x264-params": "open-gop=1:bframes=3:b-adapt=0:scenecut=0"}


def flipped(data: bytes, count: int, seed: int = 0) -> Iterator[bytes]:
    """An MP4 with five bits of its frames turned over."""
    rng, begin = random.Random(seed), data.index(b"mdat")
    stop = data.index(b"moov")
    for _ in range(count):
        body = bytearray(data)
        for _ in range(5):
            body[rng.randrange(begin + (stop - begin) // 10, stop - 4)] ^= 1 << rng.randrange(8)
        yield bytes(body)


def from_key(data: bytes, number: int, form: str) -> bytes:
    """A video from one of its key frames on, its packets as they are."""
    file, seen = io.BytesIO(), 0
    with av.open(io.BytesIO(data), "r") as source, av.open(file, "w", format=form) as container:
        stream: Any = container.add_stream_from_template(source.streams.video[0])
        for packet in source.demux(source.streams.video[0]):
            seen += packet.is_keyframe
            if packet.dts is not None and seen > number:
                packet.stream = stream
                container.mux(packet)
    return file.getvalue()


def noise_film() -> bytes:
    """Of what cannot be foretold, so that bits are missed where they are wrong."""
    file = io.BytesIO()
    pixels: U8 = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    with av.open(file, "w", format="mp4") as container:
        stream: Any = container.add_stream("libx264", rate=10, options={"crf": "18", "g": "10"})
        stream.width, stream.height, stream.pix_fmt = 64, 64, "yuv420p"
        for i in range(30):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.roll(pixels, i, 0), format="rgb24")))
        container.mux(stream.encode())
    return file.getvalue()


class TestVideos:
    def test_what_a_decoder_makes_up_is_an_error(self) -> None:
        data = noise_film()
        right, wrong, said = decode_video(data, 8).astype(int), 0, []
        for mutant in flipped(data, 40):
            try:
                wrong += bool(np.abs(decode_video(mutant, 8) - right).mean((1, 2, 3)).max() > 1)
            except DataError as error:
                said.append(str(error))
        assert not wrong
        assert any("the video is damaged at frame" in one for one in said)

    @pytest.mark.parametrize("form", ["mp4", "matroska"])
    @pytest.mark.parametrize("codec", ["libx264", "libx265"])
    def test_a_video_cut_at_an_open_group_is_whole(self, form: str, codec: str) -> None:
        options = OPEN
        if codec == "libx265":
            options = {"x265-params": "open-gop=1:keyint=12:bframes=3:b-adapt=0:scenecut=0:log-level=none"}
        data = from_key(clip(list(range(60)), codec=codec, options=options), 1, form)
        assert numbers_of(decode_video(data, 60, 16)) == list(range(12, 60))
        begin = 12 if form == "mp4" else 9  # the three that lean on what is cut off are not in the time of an MP4
        assert numbers_of(decode_video(data, 60, 16, clip=Clip(1.0, None))) == list(range(begin + 30, 60))

    def test_leaps_into_open_groups_are_no_damage(self) -> None:
        options: dict[str, Any] = dict(OPEN)
        data = movie(frames=60, **options)
        every = decode_video(data, 60)
        for most in (2, 5, 9):
            assert np.array_equal(decode_video(data, most), every[spread(60, most)])

    def test_a_leap_to_what_is_no_key_frame_is_made_good(self) -> None:
        data = clip(list(range(30)), options={"g": "30", "x264-params": "bframes=0"})
        said = data.replace(b"stss", b"free")  # without a list of key frames each one is said to be one
        assert said != data
        assert numbers_of(decode_video(said, 3, 16)) == [0, 14, 29]


NOISE = np.random.default_rng(0).normal(0, 0.1, (48_000, 2))
MP3 = sound(NOISE, 16_000, "MP3")
ID3 = b"ID3\4\0\0\0\0\2\0" + bytes(256)  # of 256 bytes, by sevens
TAGS = b"APETAGEX" + struct.pack("<IIII8x", 2000, 32, 0, 0) + b"TAG" + bytes(125)


def said(data: bytes, frames: int = 0, size: int = 0) -> bytes:
    """An MP3 that announces so many frames and bytes more than it has."""
    at = data.index(b"Xing") + 8
    numbers = struct.unpack_from(">II", data, at)
    return data[:at] + struct.pack(">II", numbers[0] + frames, numbers[1] + size) + data[at + 8 :]


def by_lame(**options: str) -> bytes:
    """An MP3 with tags around it, by FFmpeg's writer."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp3", options=options) as container:
        stream: Any = container.add_stream("libmp3lame", rate=44_100, layout="stereo")
        frame = av.AudioFrame.from_ndarray(NOISE.T.astype(np.float32).copy(), format="fltp", layout="stereo")
        frame.sample_rate = 44_100
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


WHOLE = {
    "as it is": MP3,
    "of other rates": sound(NOISE, 44_100, "MP3"),
    "of one channel": sound(NOISE[:, 0], 24_000, "MP3"),
    "tags before": ID3 + ID3 + MP3,
    "zeros after the tags before": ID3 + bytes(1000) + MP3,
    "tags after": MP3 + TAGS,
    "tags around": ID3 + MP3 + TAGS,
    "by another writer": by_lame(write_id3v1="1"),
    "without a word on its length": by_lame(write_xing="0"),
    "the tags before are counted": ID3 + said(MP3, size=len(ID3)),
    "tags are counted that are gone": said(MP3, size=128),
    "the first frame is counted": said(MP3, frames=1, size=300),
    "no numbers": said(MP3, *(-n for n in struct.unpack_from(">II", MP3, MP3.index(b"Xing") + 8))),
    "two in one": MP3 + MP3,
    "fewer than there are": said(MP3, frames=-3, size=-800),
}


class TestMp3:
    @pytest.mark.parametrize("name", WHOLE)
    def test_a_whole_one_is_decoded(self, name: str) -> None:
        assert len(decode_audio(WHOLE[name], 16_000)) > 10_000

    @pytest.mark.parametrize("name", ["as it is", "of other rates", "tags before", "by another writer"])
    @pytest.mark.parametrize("percent", [10, 25, 50, 90, 99])
    def test_one_that_is_cut_short_is_refused(self, name: str, percent: int) -> None:
        data = WHOLE[name].removesuffix(WHOLE[name][-128:] if WHOLE[name][-128:].startswith(b"TAG") else b"")
        with pytest.raises(DataError, match="the MP3 audio is cut short or damaged: it has [0-9,]+ of [0-9,]+ frames"):
            decode_audio(data[: len(data) * percent // 100], 16_000)

    def test_each_byte_of_its_last_frame_counts(self) -> None:
        for lost in (1, 2, 3, 100, 143):
            with pytest.raises(DataError, match="cut short"):
                decode_audio(MP3[:-lost], 16_000)

    def test_what_announces_much_costs_nothing(self) -> None:
        with pytest.raises(DataError, match="cut short"):
            decode_audio(said(MP3, frames=1 << 30, size=1 << 30), 16_000)

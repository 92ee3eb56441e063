"""Media that are damaged inside: what is given is right, or it is an error; and whole files are never refused."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator
from typing import Any

import av
import numpy as np
import pytest
from media_files import U8, clip, numbers_of
from movies import movie

from headrace.errors import DataError
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
    with av.open(io.BytesIO(data)) as source, av.open(file, "w", format=form) as container:
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
        data = movie(frames=60, g="12", **{"x264-params": OPEN["x264-params"]})
        every = decode_video(data, 60)
        for most in (2, 5, 9):
            assert np.array_equal(decode_video(data, most), every[spread(60, most)])

    def test_a_leap_to_what_is_no_key_frame_is_made_good(self) -> None:
        data = clip(list(range(30)), options={"g": "30", "x264-params": "bframes=0"})
        said = data.replace(b"stss", b"free")  # without a list of key frames each one is said to be one
        assert said != data
        assert numbers_of(decode_video(said, 3, 16)) == [0, 14, 29]

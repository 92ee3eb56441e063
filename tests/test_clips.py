"""Clips: what a row is about is a part of a video or a sound, from one second to another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soxr
import torch
from media_files import clip, numbers_of, sound, tone
from numpy.typing import NDArray
from streaming import RATE, World, write_table

from headrace import Faults
from headrace.catalog.known import all_known, known
from headrace.errors import DataError, Refused
from headrace.fetch.media.audio import BLOCK, decode_audio
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.clip import Clip, clip_of, frames_in
from headrace.fetch.media.video import decode_video, spread
from headrace.make.formatters import FORMATTERS

FORMS: dict[str, dict[str, Any]] = {
    "mp4": {},
    "mp4 with few key frames": {"options": {"g": "250"}},
    "mp4 with many": {"options": {"g": "5"}},
    "matroska": {"form": "matroska"},
    "avi": {"form": "avi", "codec": "mjpeg"},
    "in pieces": {"movflags": "frag_keyframe+empty_moov"},
}


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


# --- times


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        (None, None),
        ([None, None], None),
        ([1.5, 4], Clip(1.5, 4.0)),
        ((0, 1), Clip(0.0, 1.0)),
        (["1.5", "4"], Clip(1.5, 4.0)),
        (["0:00:35.302", "0:00:45.045"], Clip(35.302, 45.045)),
        (["1:00:00", "1:02:03"], Clip(3600.0, 3723.0)),
        ([" 2:30 ", "3:00"], Clip(150.0, 180.0)),
        (np.array([1.0, 2.0]), Clip(1.0, 2.0)),
        ([np.float32(0.5), np.int64(2)], Clip(0.5, 2.0)),
        ([None, 3], Clip(0.0, 3.0)),
        ([3, None], Clip(3.0, None)),
    ],
)
def test_times_are_seconds_in_many_forms(value: Any, wanted: Clip | None) -> None:
    assert clip_of(value) == wanted


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ([4.0, 1.5], "ends before it begins"),
        ([2, 2], "or where it begins"),
        ([None, 0], "ends before it begins"),
        ([float("nan"), 3], "has nan in it, which is no time"),
        ([0, float("nan")], "no time in seconds"),
        ([0, float("inf")], "no time in seconds"),
        ([-1, 3], "no time in seconds from 0 on"),
        (["x", "3"], "has text of 1 character in it, which is no time"),
        (["1:2:3:4", "9"], "no time"),
        ([True, 3], "no time"),
        ([[1], 3], "no time"),
        ([10**400, 10**401], "no time"),
        ([1, 2, 3], "a pair of times"),
        ([1], "a pair of times"),
        ("1-2", "a pair of times"),
        (7, "a pair of times"),
        ({"start": 1}, "a pair of times"),
    ],
)
def test_what_is_no_pair_of_times_is_an_error(value: Any, said: str) -> None:
    with pytest.raises(DataError, match=said):
        clip_of(value)


def test_on_even_times_frames_are_chosen_as_of_a_whole_video() -> None:
    times = [i / 30 for i in range(90)]
    for most in (1, 2, 3, 7, 29, 30, 31):
        inside = frames_in(times, Clip(1.0, 2.0), most)
        assert inside == [30 + i for i in spread(30, most)]
    assert frames_in(times, Clip(0.0, None), 5) == spread(90, 5)


def test_a_frame_that_is_shown_for_long_counts_for_as_long() -> None:
    times = [0.0, 9.0, 9.2, 9.4, 9.6, 9.8, 10.0]
    assert frames_in(times, Clip(0.0, 11.0), 4) == [0, 0, 0, 6]
    assert frames_in(times, Clip(0.0, 11.0), 7) == list(range(7))
    assert frames_in(times, Clip(4.0, 8.0), 3) == [0]
    assert frames_in(times, Clip(4.0, 9.1), 3) == [1]


# --- video


@pytest.mark.parametrize("name", FORMS)
def test_frames_of_a_clip_are_those_that_are_shown_in_it(name: str) -> None:
    data = clip(list(range(60)), **FORMS[name])
    for span, most, wanted in [
        ((0.5, 1.0), 32, list(range(15, 30))),
        ((0.5, 1.0), 4, [15, 19, 24, 29]),
        ((1.5, 2.0), 3, [45, 52, 59]),
        ((0.0, 2.0), 5, spread(60, 5)),
        ((1.0, 1.01), 8, [30]),
        ((1.01, 1.02), 8, [30]),
        ((1.9, None), 8, [57, 58, 59]),
        ((1.9, 2.09), 8, [57, 58, 59]),
    ]:
        found = numbers_of(decode_video(data, most, 16, clip=Clip(*span)))
        assert found == wanted, span


def test_uneven_frames_are_chosen_by_the_time_they_are_shown() -> None:
    times = [0, 100, 200, 1000, 1100, 1200, 2000, 2100]
    data = clip(list(range(8)), times=times, form="matroska", options={"g": "2"})
    assert numbers_of(decode_video(data, 8, 16, clip=Clip(0.95, 2.05))) == [3, 4, 5, 6]
    assert numbers_of(decode_video(data, 3, 16, clip=Clip(0.0, 2.05))) == [0, 3, 6]
    assert numbers_of(decode_video(data, 3, 16, clip=Clip(0.0, 2.1))) == [0, 3, 6]
    assert numbers_of(decode_video(data, 5, 16, clip=Clip(1.0, 2.15))) == [3, 4, 5, 6, 7]
    assert numbers_of(decode_video(data, 4, 16, clip=Clip(1.0, 2.15))) == [3, 5, 5, 7]


@pytest.mark.parametrize("span", [(2.0, 3.0), (5.0, 6.0), (0.5, 2.2), (2.04, None), (1e6, 1e7)])
@pytest.mark.parametrize("name", ["mp4", "avi"])
def test_a_clip_that_goes_beyond_the_end_of_a_video_is_an_error(name: str, span: tuple[float, float | None]) -> None:
    data = clip(list(range(60)), **FORMS[name])
    with pytest.raises(DataError, match=r"goes beyond the end of the video, which is 2\.000 s long"):
        decode_video(data, 4, 16, clip=Clip(*span))


# --- sound


def noise(seconds: float, rate: int = RATE) -> NDArray[np.float32]:
    return np.random.default_rng(0).uniform(-0.9, 0.9, int(seconds * rate)).astype(np.float32)


SOUNDS: dict[str, Any] = {
    "wav": lambda: sound(noise(40), RATE),
    "flac": lambda: sound(noise(40), RATE, "FLAC"),
    "ogg": lambda: sound(noise(3), RATE, "OGG"),
    "mp3": lambda: sound(noise(3, 16_000), 16_000, "MP3"),
    "two channels": lambda: sound(np.stack([noise(3), tone(RATE, 3)], 1), RATE),
    "the sound of a video": lambda: clip([1, 2, 3], audio=True),
    "an array": lambda: {"array": noise(3), "sampling_rate": RATE},
}


@pytest.mark.parametrize("name", SOUNDS)
def test_samples_of_a_clip_are_exactly_those_of_the_whole(name: str) -> None:
    data = SOUNDS[name]()
    rate = 16_000 if name in ("mp3", "the sound of a video") else RATE
    whole = decode_audio(data, rate)
    assert name not in ("wav", "flac") or len(whole) > BLOCK
    seconds = len(whole) / rate
    for start, end in [(0.0, 0.1), (0.25, 0.5), (0.33333, 0.77777), (seconds - 0.2, seconds), (0.1, None)]:
        found = decode_audio(data, rate, clip=Clip(start, end))
        stop = None if end is None else round(end * rate)
        assert np.array_equal(found, whole[round(start * rate) : stop])
    if len(whole) > BLOCK:  # over the edge of what is read at once
        middle = BLOCK / rate
        found = decode_audio(data, rate, clip=Clip(middle - 0.01, middle + 0.01))
        assert np.array_equal(found, whole[BLOCK - 80 : BLOCK + 80])


def test_a_clip_is_cut_before_it_is_resampled() -> None:
    wave = noise(2)
    found = decode_audio(sound(wave, RATE, subtype="FLOAT"), 16_000, clip=Clip(0.5, 1.25))
    assert np.array_equal(found, soxr.resample(wave[RATE // 2 : RATE * 5 // 4], RATE, 16_000))
    assert len(found) == 12_000


def test_what_comes_after_a_clip_is_not_decoded() -> None:
    """A part of what would be too long as a whole."""
    data = sound(noise(40), RATE)
    brief = Budget(max_seconds=35.0)
    assert len(decode_audio(data, RATE, brief, Clip(0.1, 0.2))) == 800
    with pytest.raises(Refused, match="max_seconds=35"):
        decode_audio(data, RATE, brief)
    with pytest.raises(DataError, match=r"beyond the end of the audio, which is 40\.000 s long"):
        decode_audio(data, RATE, clip=Clip(1.0, 41.0))


@pytest.mark.parametrize("span", [(3.0, 4.0), (2.0, 3.2), (1e5, 1e6), (3.0, None)])
@pytest.mark.parametrize("name", ["two channels", "ogg", "an array"])
def test_a_clip_that_goes_beyond_the_end_of_a_sound_is_an_error(name: str, span: tuple[float, float | None]) -> None:
    with pytest.raises(DataError, match="goes beyond the end of the audio"):
        decode_audio(SOUNDS[name](), RATE, clip=Clip(*span))


def test_a_clip_that_is_rounded_up_a_little_is_all_there_is() -> None:
    assert len(decode_audio({"array": noise(3), "sampling_rate": RATE}, RATE, clip=Clip(2.0, 3.05))) == RATE


# --- from the row to the batch


def samples(world: World, entry: dict[str, Any], rows: list[dict[str, Any]], **options: Any) -> list[dict[str, Any]]:
    path = write_table(world.folder / f"{entry['name']}.parquet", rows)
    configs = {entry.pop("category", "video"): [{**entry, "path": str(path)}]}
    options = {"functions": FORMATTERS, "max_per_epoch": len(rows), "sample_repeat": 1, "max_length": 300, **options}
    return list(world.make(configs, **options))


def known_entry(name: str) -> dict[str, Any]:
    entry = known(name)
    return {"name": name, "format": entry.formatter, "field_map": dict(entry.field_map), "category": entry.category}


def shades(video: torch.Tensor) -> list[int]:
    """Which frames of a `clip` these are, after they were normalised to -1 .. 1."""
    return [round(float((frame.mean() + 1) / 2 * 255 / 4)) for frame in video]


def test_a_catalog_of_clips() -> None:
    found = {entry.name: entry.field_map["clip"] for entry in all_known() if "clip" in entry.field_map}
    assert found == {
        "YouCook2": "segment",
        "MVBench": "start,end",
        "Panda-70M": "timestamp",
        "MusicCaps": "start_s,end_s",
    }


def test_segments_of_a_video_go_all_the_way(world: World) -> None:
    """YouCook2: two captions of one file, each with its own part of it."""
    (world.folder / "cook.mp4").write_bytes(clip(list(range(60))))
    about = {"id": 1, "video_type": "1", "youtube_id": "x", "video_url": "u", "video_path": "cook.mp4"}
    rows = [
        {**about, "segment": [0.5, 1.0], "sentence": "cut the bread"},
        {**about, "segment": [1.0, 2.0], "sentence": "eat it"},
    ]
    one, two = samples(world, known_entry("YouCook2"), rows, max_video_frames=4)
    assert shades(one["videos"]) == [15, 19, 24, 29]
    assert shades(two["videos"]) == [30, 39, 49, 59]
    assert "cut the bread" in world.text(one)


def test_two_columns_may_hold_the_times(world: World) -> None:
    """MVBench: some tasks have them, some have not."""
    (world.folder / "bench.mp4").write_bytes(clip(list(range(30))))
    about: dict[str, Any] = {"video": "bench.mp4", "question": "what?", "candidates": ["a", "b"], "answer": "a"}
    rows = [{**about, "start": 0.5, "end": 1.0}, {**about, "start": None, "end": None}]
    cut, whole = samples(world, known_entry("MVBench"), rows, max_video_frames=3)
    assert shades(cut["videos"]) == [15, 22, 29]
    assert shades(whole["videos"]) == [0, 14, 29]


def test_ten_seconds_of_a_recording_go_all_the_way(world: World) -> None:
    """MusicCaps: the name of a recording, and a part of it that is told about."""
    wave = noise(50)
    (world.folder / "abc").write_bytes(sound(wave, RATE, subtype="FLOAT"))
    row = {"ytid": "abc", "start_s": 30, "end_s": 40, "aspect_list": "[]", "caption": "a tune", "author_id": 1}
    (sample,) = samples(world, known_entry("MusicCaps"), [row])
    assert torch.equal(sample["audio"], torch.from_numpy(wave[30 * RATE : 40 * RATE]))
    assert "a tune" in world.text(sample, "labels")


def test_each_clip_of_a_video_is_made_of_its_own_frames(world: World) -> None:
    """Panda-70M: lists in strings, the times as on a clock."""
    (world.folder / "panda.mp4").write_bytes(clip(list(range(60))))
    row = {
        "url": "panda.mp4",
        "caption": str(["A cat runs.", "It sleeps."]),
        "timestamp": str([["0:00:00.000", "0:00:00.500"], ["0:00:01.500", "0:00:02.000"]]),
    }
    fields = {"prompt": "caption", "video_path": "url", "clip": "timestamp"}
    entry = {"name": "panda", "format": "format_generation", "field_map": fields, "category": "generation"}
    one, two = samples(world, entry, [row], max_video_frames=3, max_per_epoch=2)
    assert (one["gen_prompts"], shades(one["gen_videos"])) == ("A cat runs.", [0, 7, 14])
    assert (two["gen_prompts"], shades(two["gen_videos"])) == ("It sleeps.", [45, 52, 59])
    with pytest.raises(DataError, match="2 clips and 1 prompts"):
        samples(world, {**entry, "name": "odd"}, [{**row, "caption": "['one']"}])
    single = {**row, "caption": "one", "timestamp": [0.0, 0.5]}
    (sample,) = samples(world, {**entry, "name": "single"}, [single], max_video_frames=3)
    assert shades(sample["gen_videos"]) == [0, 7, 14]


@pytest.mark.parametrize(
    ("segment", "said"),
    [
        ([1.0, 0.5], "ends before it begins"),
        ([float("nan"), 1.0], "no time in seconds"),
        ([3.0, 4.0], "beyond the end of the video"),
        ([0.5], "a pair of times"),
    ],
)
def test_a_bad_clip_is_an_error_with_its_row_or_is_skipped(world: World, segment: list[float], said: str) -> None:
    (world.folder / "short.mp4").write_bytes(clip(list(range(30))))
    good = {"video_path": "short.mp4", "segment": [0.0, 0.5], "sentence": "fine"}
    rows = [good, {**good, "segment": segment, "sentence": "bad"}]
    entry = {**known_entry("YouCook2"), "name": f"bad{len(segment)}{said[:4]}"}
    with pytest.raises(DataError, match=said) as caught:
        samples(world, dict(entry), rows)
    assert any(".parquet:1" in note for note in caught.value.__notes__)
    kept = samples(world, dict(entry), rows, faults=Faults(policy="skip", budget=1), max_per_epoch=1)
    assert ["fine" in world.text(one) for one in kept] == [True]


def test_frames_without_times_have_no_clips(world: World) -> None:
    def listed(sample: Any, tokens: Any) -> Any:
        return {"text": "x", "video": [np.zeros((4, 4, 3), np.uint8)] * 3, "clip": [0, 1]}

    memory = world.memory({"a": lambda i: {"n": i}})
    with pytest.raises(DataError, match="a list of frames, which have no times"):
        next(iter(memory.make(functions={"code": listed})))


def test_a_clip_is_of_what_is_heard_or_to_be_said_not_of_whose_voice_it_is(world: World, tmp_path: Path) -> None:
    wave = noise(2)
    row = {"audio": sound(wave, RATE, subtype="FLOAT"), "ref": sound(wave, RATE, subtype="FLOAT"), "text": "hello"}
    fields = {"audio": "audio", "text": "text", "speaker_ref": "ref", "clip": "from,to"}
    entry = {"name": "tts", "format": "format_voice_tts", "field_map": fields, "category": "voice_tts"}
    (sample,) = samples(world, entry, [{**row, "from": 0.5, "to": 1.0}])
    assert torch.equal(sample["target_audio"], torch.from_numpy(wave[RATE // 2 : RATE]))
    assert torch.equal(sample["speaker_ref"], torch.from_numpy(wave))

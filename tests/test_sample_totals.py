"""Many small media in one sample: what they take together is limited, and the next is refused before it is decoded."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from media_files import clip, sound, tone
from streaming import RATE, World, picture, vision_row, write_table

from headrace import Faults
from headrace.address import Address
from headrace.errors import DataError, Refused, SpecError
from headrace.fetch.media.policy import MediaPolicy
from headrace.make.sample import Sample
from headrace.sequence.finish import Finish
from headrace.sequence.processors import features, pixels

SIZE = 8
PICTURE = 4 * 3 * SIZE * SIZE
"""Bytes of one, as a tensor."""
BROKEN = b"no media at all"
ADDRESS = Address("source", 0, "shard", 7)
SECOND = sound(tone(RATE, 1.0), RATE)


def finished(finish: Finish, policy: MediaPolicy | None = None, **media: Any) -> dict[str, Any]:
    return finish.beside(Sample(np.zeros(1, np.int32), extras=media), ADDRESS, policy or MediaPolicy())


def small(limit: int, **options: Any) -> Finish:
    """`limit`: in pictures."""
    return Finish(image_size=SIZE, video_size=SIZE, max_sample_bytes=limit * PICTURE, **options)


def heard(**options: Any) -> Finish:
    return Finish(audio_sample_rate=RATE, **options)


# --- sounds


def test_sounds_of_a_sample_may_have_what_one_may() -> None:
    policy = MediaPolicy(max_samples=3 * RATE)
    assert len(finished(heard(), policy, audios=[SECOND] * 3)["audio"]) == 3
    with pytest.raises(Refused, match="sounds of the sample .* or more together, 24,000 .* max_samples=24,000; raise"):
        finished(heard(), policy, audios=[SECOND] * 3 + [BROKEN])
    with pytest.raises(Refused, match="take 24,000 samples or more together, 16,000 .* max_samples=23,999; raise it"):
        finished(heard(), replace(policy, max_samples=3 * RATE - 1), audios=[SECOND] * 3)


def test_sounds_of_all_fields_count_together() -> None:
    policy = MediaPolicy(max_samples=2 * RATE)
    assert {"audio", "target_audio"} <= finished(heard(), policy, audio=SECOND, target_audio=SECOND).keys()
    with pytest.raises(Refused, match="sounds of the sample"):
        finished(heard(), policy, audio=SECOND, target_audio=SECOND, speaker_ref=SECOND)


def test_a_refused_sample_says_where_it_is() -> None:
    with pytest.raises(Refused) as caught:
        finished(heard(), MediaPolicy(max_samples=RATE), audios=[SECOND] * 2)
    assert any(str(ADDRESS) in note for note in caught.value.__notes__)


def test_a_sound_that_is_too_large_by_itself_is_told_of_as_before() -> None:
    with pytest.raises(Refused, match="the number of samples in all channels of the audio of 8,000 is over"):
        finished(heard(), MediaPolicy(max_samples=RATE - 1), audios=[SECOND] * 2)
    with pytest.raises(Refused, match="seconds of the audio of 1.0 is over the limit max_seconds=0.5"):
        finished(heard(), MediaPolicy(max_seconds=0.5), audios=[tone(RATE, 0.1), SECOND])


def test_spectrograms_count_as_what_they_take() -> None:
    """Of a long sound little is left, so that many of them may be in a sample."""
    finish = heard(use_raw_waveform=False, audio_max_length=10)
    policy = MediaPolicy(max_samples=RATE + 20 * 800)
    assert len(finished(finish, policy, audios=[SECOND] * 20)["audio"]) == 20
    with pytest.raises(Refused, match="sounds of the sample take 24,800 samples or more together, 16,800 of them"):
        finished(finish, policy, audios=[SECOND] * 22)


def extractor(wave: Any, sampling_rate: int, return_tensors: str) -> dict[str, Any]:
    """Gives ten times what it gets."""
    return {"input_values": torch.zeros(1, 10 * len(wave))}


def test_what_an_extractor_makes_counts() -> None:
    finish = heard(use_raw_waveform=False, voice_processor=extractor)
    policy = MediaPolicy(max_samples=20 * RATE)
    assert len(finished(finish, policy, audios=[SECOND])["audio"]) == 10 * RATE  # one is what it was asked for
    assert len(finished(finish, replace(policy, max_samples=21 * RATE), audios=[SECOND] * 2)["audio"]) == 2
    with pytest.raises(Refused, match="take 240,000 samples or more together, 160,000 of them before"):
        finished(finish, replace(policy, max_samples=29 * RATE), audios=[SECOND] * 3)


def test_what_is_cut_off_of_features_is_not_kept() -> None:
    made = torch.zeros(1, 80, 3000)
    found = features(lambda wave, **_: {"input_features": made}, np.zeros(9, np.float32), RATE, 10)
    assert found.shape == (80, 10)
    assert found.untyped_storage().nbytes() == 4 * 80 * 10
    patches = torch.zeros(500, 3, SIZE, SIZE)
    assert pixels(lambda *_, **__: {"pixel_values": patches}, None, SIZE).untyped_storage().nbytes() == PICTURE  # type: ignore[arg-type]


# --- pictures and frames


def test_pictures_of_a_sample_are_limited_together() -> None:
    assert len(finished(small(3), images=[picture(i) for i in range(3)])["images"]) == 3
    with pytest.raises(Refused, match="pictures and frames .* 3,072 bytes or more together, 2,304 .*=2,304; raise it"):
        finished(small(3), images=[*(picture(i) for i in range(3)), BROKEN])


def test_a_picture_or_a_video_that_is_alone_is_as_large_as_it_was_asked_for() -> None:
    finish = Finish(image_size=SIZE, video_size=SIZE, max_sample_bytes=1)
    assert finished(finish, image=picture(0))["images"].shape == (3, SIZE, SIZE)
    assert len(finished(finish, video=clip([0, 1, 2], size=(16, 16)))["videos"]) == 3
    assert len(finished(finish, image=picture(0), audio=tone(16_000, 0.1))["audio"]) == 1600


@pytest.mark.parametrize("fields", [("images", "gen_images"), ("images", "videos"), ("gen_images", "gen_videos")])
def test_pictures_and_frames_of_all_fields_count_together(fields: tuple[str, str]) -> None:
    media = {"images": [picture(0)] * 2, "gen_images": [picture(0)] * 2}
    frames = {"videos": [[picture(0)] * 2], "gen_videos": [[picture(0)] * 2]}
    given: dict[str, Any] = {name: {**media, **frames}[name] for name in fields}
    assert set(fields) <= finished(small(4), **given).keys()
    with pytest.raises(Refused, match="max_sample_bytes=2,304"):
        finished(small(3), **given)


def test_frames_in_a_list_are_counted_before_they_are_decoded() -> None:
    with pytest.raises(Refused, match="take 7,680 bytes or more together, 768 of them"):
        finished(small(9), image=picture(0), videos=[[BROKEN] * 9])
    with pytest.raises(DataError, match="image"):
        finished(small(9, max_video_frames=8), image=picture(0), videos=[[BROKEN] * 9])


@pytest.mark.parametrize("value", [np.array(5), torch.tensor(5.0)], ids=["numpy", "torch"])
def test_an_array_without_axes_is_no_video(value: Any) -> None:
    with pytest.raises(DataError, match="video"):
        finished(small(2), videos=[value])


def test_a_video_that_does_not_fit_ends_the_sample() -> None:
    film = clip([0, 1, 2], size=(16, 16))
    assert len(finished(small(6), videos=[film] * 2)["videos"]) == 2
    with pytest.raises(Refused, match="take 4,608 bytes or more together, 2,304 of them"):
        finished(small(5), videos=[film] * 2)
    with pytest.raises(Refused, match="take 3,072 bytes or more together, 2,304 of them"):
        finished(small(3), videos=[film, BROKEN])


def test_what_an_image_processor_makes_counts() -> None:
    def large(image: Any, return_tensors: str, size: Any) -> dict[str, Any]:
        return {"pixel_values": torch.zeros(1, 3, 2 * SIZE, 2 * SIZE)}

    finish = small(8, image_processor=large)
    assert len(finished(finish, images=[picture(0)] * 2)["images"]) == 2
    with pytest.raises(Refused, match="take 6,145 bytes or more together, 6,144 of them"):
        finished(finish, images=[picture(0), picture(0), BROKEN])


# --- in a run


def test_a_row_with_too_many_pictures_stops_a_run_or_is_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    rows = [{**vision_row(i), "image": None, "images": [picture(i)] * (9 if i == 1 else 2)} for i in range(4)]
    configs = {"vision": [{"name": "v", "path": str(write_table(world.folder / "v.parquet", rows))}]}
    options: dict[str, Any] = {"max_per_epoch": 3, "sample_repeat": 1, "max_length": 900}
    assert [len(sample["images"]) for sample in world.make(configs, **options)] == [2, 9, 2]
    with pytest.raises(Refused, match="max_sample_bytes=6,144; raise it by configure") as caught:
        list(world.make(configs, max_sample_bytes=8 * PICTURE, **options))
    assert "v.parquet" in "".join(caught.value.__notes__)
    skipping = world.make(configs, max_sample_bytes=8 * PICTURE, faults=Faults(policy="skip", budget=1), **options)
    assert world.names(skipping) == ["vision 0", "vision 2", "vision 3"]
    with pytest.raises(SpecError, match="max_sample_bytes"):
        world.make(configs, max_sample_bytes=0)


LIMITED = """
import io, json, pickle, resource, sys
import numpy as np
from headrace.address import Address
from headrace.errors import HeadraceError
from headrace.fetch.media.policy import MediaPolicy
from headrace.make.sample import Sample
from headrace.sequence.finish import Finish

def run(audios):
    sample = Sample(np.zeros(1, np.int32), extras={"audios": audios})
    try:
        made = Finish().beside(sample, Address("source", 0, "shard", 0), MediaPolicy(max_samples=samples))["audio"]
        return sum(map(len, made))
    except HeadraceError as error:
        return f"{type(error).__name__}: {error}"

small, cases, samples = pickle.load(sys.stdin.buffer)
assert type(run(small)) is int, run(small)  # what the libraries need for themselves
taken = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (taken + 2 * 4 * samples,) * 2)
print(json.dumps([run(audios) for audios in cases]))
"""


def test_many_sounds_in_a_sample_take_no_more_than_twice_the_limit() -> None:
    """20 times the same 93 kB of FLAC in one row took 2.4 GB."""
    samples = 8_000_000
    silence = sound(np.zeros(samples * 3 // 4, np.float32), 16_000, "FLAC")
    quarter = sound(np.zeros(samples // 4, np.float32), 16_000, "FLAC")
    given = pickle.dumps(([SECOND] * 2, [[silence] * 20, [quarter] * 4, [quarter] * 5], samples))
    env = {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    env["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)  # as in `test_media_sound_limits.py`
    done = subprocess.run([sys.executable, "-c", LIMITED], input=given, env=env, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr.decode()
    many, four, five = json.loads(done.stdout)
    assert many.startswith("Refused: the sounds of the sample take 12,000,000 samples or more together, 6,000,000 of")
    assert four == samples
    assert five.startswith("Refused: the sounds of the sample take 8,000,001 samples or more together, 8,000,000 of")

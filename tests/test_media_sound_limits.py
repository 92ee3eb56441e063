"""Sounds that cost more than they look: samples are limited as they are announced, decoded and resampled, and what is
delivered is made of numbers."""

from __future__ import annotations

import io
import json
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from media_files import sound, tone

from headrace.address import Address
from headrace.errors import DataError, Refused
from headrace.fetch.media import audio
from headrace.fetch.media.audio import decode_audio
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.clip import Clip
from headrace.fetch.media.mel import log_mel
from headrace.fetch.media.policy import MediaPolicy
from headrace.make.sample import Sample
from headrace.sequence.finish import Finish

SAMPLES = 8_000_000
"""The limit of these tests: 32 MB as they are decoded."""
FLAC_MAX_RATE = 655_350
COUNT_AT = (1 << 36) - 1


def silence(count: int, rate: int, form: str, channels: int = 1) -> bytes:
    file = io.BytesIO()
    subtype = {"OGG": "VORBIS", "MP3": None}.get(form, "PCM_16")
    with soundfile.SoundFile(file, "w", rate, channels, format=form, subtype=subtype) as out:
        for done in range(0, count, 1 << 16):  # of much at once, libsndfile makes no Vorbis
            out.write(np.zeros((min(1 << 16, count - done), channels), np.int16))
    return file.getvalue()


def flac(count: int, channels: int = 1, announced: int | None = None) -> bytes:
    """A FLAC at the highest rate there is; where `announced` is given, it says that it has that many samples."""
    data = bytearray(silence(count, FLAC_MAX_RATE, "FLAC", channels))
    if announced is not None:
        (packed,) = struct.unpack_from(">Q", data, 18)
        struct.pack_into(">Q", data, 18, packed & ~COUNT_AT | announced)
    return bytes(data)


def matroska(count: int, rate: int) -> bytes:
    """Plain samples in a container that only FFmpeg reads."""
    file = io.BytesIO()
    with av.open(file, "w", format="matroska") as container:
        stream: Any = container.add_stream("pcm_s16le", rate=rate, layout="mono")
        for _ in range(0, count, 1 << 15):
            frame = av.AudioFrame.from_ndarray(np.zeros((1, 1 << 15), np.int16), format="s16", layout="mono")
            frame.sample_rate = rate
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


def in_array(count: int, channels: int, dtype: Any) -> dict[str, Any]:
    return {"array": np.broadcast_to(dtype(1), (channels, count)), "sampling_rate": 16_000}


LIMITED = """
import json, pickle, resource, sys
from headrace.errors import HeadraceError
from headrace.fetch.media.audio import decode_audio
from headrace.fetch.media.budget import Budget

def run(value, samples):
    try:
        return len(decode_audio(value, 16_000, Budget(max_samples=samples)))
    except HeadraceError as error:
        return f"{type(error).__name__}: {error}"

values, small, samples = pickle.load(sys.stdin.buffer)
for value in small:  # what the libraries need for themselves
    assert type(run(value, samples)) is int, run(value, samples)
taken = 4096 * int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (taken + 2 * 4 * samples,) * 2)
print(json.dumps({name: run(value, samples) for name, value in values.items()}))
"""


def limited(values: Mapping[str, Any], samples: int = SAMPLES) -> dict[str, Any]:
    """What becomes of each sound in a process that has no more than twice the memory that the limit allows."""
    small = [flac(999), matroska(999, 16_000), silence(999, 48_000, "WAV", 2), in_array(999, 2, np.int16)]
    env = {"PYTHONPATH": str(Path(__file__).parents[1]), "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    # Large arrays grow in place, as those of real limits do: glibc copies those below its own threshold, which rises up
    # to 32 MiB as memory is given back.
    env["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)
    given = pickle.dumps((dict(values), small, samples))
    done = subprocess.run([sys.executable, "-c", LIMITED], input=given, env=env, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr.decode()
    return dict(json.loads(done.stdout))


BOMBS: dict[str, Callable[[], Any]] = {
    "many samples a second": lambda: flac(5 * SAMPLES // 4),
    "more than it says": lambda: flac(5 * SAMPLES // 4, announced=0),
    "many channels": lambda: flac(SAMPLES // 6, channels=8),
    "many channels, and it does not say": lambda: flac(SAMPLES // 6, channels=8, announced=0),
    "by FFmpeg": lambda: matroska(5 * SAMPLES // 4, FLAC_MAX_RATE),
    "few samples that become many": lambda: silence(SAMPLES // 100, 100, "WAV"),
    "an array": lambda: in_array(SAMPLES + 1, 1, np.float32),
    "an array of channels": lambda: in_array(SAMPLES // 16, 32, np.float64),
}


def test_a_sound_of_too_many_samples_is_refused_within_twice_its_memory() -> None:
    found = limited({name: make() for name, make in BOMBS.items()})
    assert found.keys() == BOMBS.keys()
    for name, said in found.items():
        assert isinstance(said, str), name
        assert said.startswith("Refused: "), (name, said)
        assert "max_samples=8,000,000" in said, (name, said)


def test_a_sound_at_the_limit_is_decoded_within_twice_its_memory() -> None:
    values = {
        "flac": flac(SAMPLES - SAMPLES // 32),
        "unknown length": flac(SAMPLES - SAMPLES // 32, announced=0),
        "channels": flac(SAMPLES // 8, channels=8),
        "by FFmpeg": matroska(SAMPLES - SAMPLES // 16, FLAC_MAX_RATE),
        "no resampling": silence(SAMPLES, 16_000, "FLAC"),
        "array": in_array(SAMPLES // 2, 2, np.int16),
        "one channel": in_array(SAMPLES, 1, np.int16),
    }
    found = limited(values)
    assert all(isinstance(size, int) and size > 0 for size in found.values()), found
    assert found["no resampling"] == SAMPLES
    assert found["array"] == SAMPLES // 2


class Counted:
    """How many samples a decoder was asked for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.samples = 0
        read = soundfile.SoundFile.buffer_read_into

        def counting(file: Any, block: Any, dtype: str) -> int:
            self.samples += block.size
            return int(read(file, block, dtype))

        monkeypatch.setattr(soundfile.SoundFile, "buffer_read_into", counting)


@pytest.mark.parametrize("form", ["WAV", "FLAC", "AIFF"])
def test_what_a_header_announces_is_refused_before_anything_is_decoded(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted = Counted(monkeypatch)
    data = silence(1_000_000, 16_000, form, 2)
    with pytest.raises(Refused, match="number of samples .* of 2,000,000 is over the limit max_samples=1,999,999"):
        decode_audio(data, 16_000, Budget(max_samples=1_999_999))
    with pytest.raises(Refused, match="seconds of the audio of 62.5 is over the limit max_seconds=62"):
        decode_audio(data, 16_000, Budget(max_seconds=62))
    assert counted.samples == 0
    assert len(decode_audio(data, 16_000, Budget(max_samples=2_000_000))) == 1_000_000
    assert counted.samples == 2_000_000


BLOCK = 1 << 14
LONG: dict[str, Callable[[], bytes]] = {
    "FLAC": lambda: flac(20 * BLOCK, announced=0),
    "OGG": lambda: silence(20 * BLOCK, 48_000, "OGG"),
    "MP3": lambda: silence(20 * BLOCK, 48_000, "MP3"),
}


@pytest.mark.parametrize("form", LONG)
@pytest.mark.parametrize("limit", ["max_seconds", "max_samples"])
def test_decoding_stops_soon_after_a_limit_is_passed(form: str, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, counted = LONG[form](), Counted(monkeypatch)
    monkeypatch.setattr(audio, "BLOCK", BLOCK)
    seconds = BLOCK / (FLAC_MAX_RATE if form == "FLAC" else 48_000)
    budget = Budget(max_seconds=seconds) if limit == "max_seconds" else Budget(max_samples=BLOCK)
    with pytest.raises(Refused, match=f"over the limit {limit}="):
        decode_audio(data, 16_000, budget)
    assert 0 < counted.samples <= 3 * BLOCK


@pytest.mark.parametrize("limit", ["max_seconds", "max_samples"])
def test_ffmpeg_stops_soon_after_a_limit_is_passed(limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    data, mono, sizes = matroska(20 << 15, 96_000), audio._mono, list[int]()

    def counting(channels: Any) -> Any:
        sizes.append(channels.size)
        return mono(channels)

    monkeypatch.setattr(audio, "_mono", counting)
    budget = Budget(max_seconds=0.7) if limit == "max_seconds" else Budget(max_samples=1 << 16)
    with pytest.raises(Refused, match=f"over the limit {limit}="):
        decode_audio(data, 16_000, budget)
    assert 0 < sum(sizes) < 4 << 16


def test_a_clip_of_a_long_sound_counts_up_to_its_end() -> None:
    data = silence(3_000_000, 16_000, "FLAC")
    budget = Budget(max_samples=2_000_000)
    assert len(decode_audio(data, 16_000, budget, Clip(1.0, 2.0))) == 16_000
    with pytest.raises(Refused, match="max_samples"):
        decode_audio(data, 16_000, budget, Clip(150.0, 151.0))


def test_an_hour_of_stereo_is_within_the_default() -> None:
    assert Budget().max_samples == 3600 * 48_000 * 2


# --- what is delivered


HUGE = np.tile(np.array([3.3e38, -3.3e38], np.float32), 50_000)
LOUD = np.tile(np.array([1e25, -1e25], np.float32), 50_000)


def given(wave: Any, rate: int, form: str) -> Any:
    return {"array": wave, "sampling_rate": rate} if form == "array" else sound(wave, rate, form, "FLOAT")


@pytest.mark.parametrize("form", ["array", "WAV", "AIFF"])
def test_samples_that_resampling_makes_no_numbers_are_a_data_error(form: str) -> None:
    assert np.isfinite(HUGE).all()
    for rate in (8_000, 44_100, 48_000):
        with pytest.raises(DataError, match="are not numbers .*after resampling from"):
            decode_audio(given(HUGE, rate, form), 16_000)
    assert np.isfinite(decode_audio(given(LOUD, 48_000, form), 16_000)).all()


@pytest.mark.parametrize("form", ["array", "WAV"])
def test_channels_whose_mean_is_no_number_are_a_data_error(form: str) -> None:
    with pytest.raises(DataError, match="not numbers"):
        decode_audio(given(np.stack([np.abs(HUGE)] * 4, 1), 16_000, form), 16_000)


def test_a_spectrogram_that_is_no_numbers_is_a_data_error() -> None:
    with pytest.raises(DataError, match="spectrogram .*not numbers.*3.3e\\+38"):
        log_mel(HUGE)
    assert np.isfinite(log_mel(np.clip(LOUD, -1e15, 1e15))).all()


def finished(finish: Finish, wave: Any, policy: MediaPolicy | None = None) -> Any:
    extras = {"audio": {"array": wave, "sampling_rate": 16_000}}
    return finish(Sample(np.ones(3, np.int32), None, extras), Address("s", 0, "f", 7), policy or MediaPolicy())["audio"]


def test_a_sample_with_sound_is_made_of_numbers_or_is_an_error() -> None:
    wave = tone(16_000)
    for finish in (Finish(), Finish(use_raw_waveform=False), Finish(use_raw_waveform=False, voice_processor=scaled)):
        assert finished(finish, wave).isfinite().all()
    for finish in (Finish(use_raw_waveform=False), Finish(use_raw_waveform=False, voice_processor=scaled)):
        with pytest.raises(DataError, match="not numbers") as caught:
            finished(finish, HUGE)
        assert "f" in caught.value.__notes__[0]


def scaled(wave: Any, sampling_rate: int, return_tensors: str) -> dict[str, Any]:
    """As extractors do it: to a mean of 0 and a variance of 1."""
    with np.errstate(all="ignore"):
        return {"input_values": [(wave - wave.mean()) / np.sqrt(wave.var() + 1e-7)]}


def test_a_spectrogram_counts_as_samples() -> None:
    long = np.zeros(1_000_000, np.float32)
    assert log_mel(long, 80, None, budget=Budget(max_samples=80 * 6250)).shape == (80, 6250)
    with pytest.raises(Refused, match="spectrogram.* of 500,000 is over the limit max_samples=499,999"):
        log_mel(long, 80, None, budget=Budget(max_samples=499_999))
    few = MediaPolicy(max_samples=1_000_000)
    mels = Finish(use_raw_waveform=False, audio_n_mels=400, audio_max_length=100)
    assert finished(mels, long[:900_000], few).shape == (400, 100)
    with pytest.raises(Refused, match="spectrogram"):
        finished(replace(mels, audio_max_length=10**9), long[:900_000], few)

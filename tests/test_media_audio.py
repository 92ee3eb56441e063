"""Sound: the right samples, or an error that says what is wrong; log-mel against two other ways to compute it."""

from __future__ import annotations

import io
import math
import struct
from typing import Any

import av
import numpy as np
import pytest
import soundfile
from media_files import F32, clip, mutants, sound, tone
from numpy.typing import NDArray

from headrace.errors import DataError, Refused, SpecError
from headrace.fetch.media.audio import decode_audio
from headrace.fetch.media.budget import Budget
from headrace.fetch.media.mel import log_mel

TONE = tone()
NOISE = np.random.default_rng(0).normal(0, 0.1, 9999)


def by_av(wave: F32, rate: int, codec: str, form: str) -> bytes:
    """What soundfile does not write."""
    file = io.BytesIO()
    with av.open(file, "w", format=form) as container:
        stream: Any = container.add_stream(codec, rate=rate, layout="mono")
        frame = av.AudioFrame.from_ndarray(wave[None], format="fltp", layout="mono")
        frame.sample_rate = rate
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return file.getvalue()


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE", "PCM_U8"])
def test_wav_gives_the_samples_that_were_written(subtype: str) -> None:
    found = decode_audio(sound(TONE, 16_000, "WAV", subtype), 16_000)
    assert found.dtype == np.float32
    assert found.shape == TONE.shape
    assert np.abs(found - TONE).max() <= {"PCM_U8": 1 / 128, "PCM_16": 1 / 32768}.get(subtype, 1e-6)


@pytest.mark.parametrize("form", ["FLAC", "AIFF", "RF64"])
def test_other_lossless_forms_give_the_samples_that_were_written(form: str) -> None:
    assert np.abs(decode_audio(sound(TONE, 16_000, form), 16_000) - TONE).max() <= 1 / 32768


def in_step(found: F32, expected: F32) -> float:
    """How alike two waves are, whatever the delay of a codec: 1 is the same."""
    size = len(found) + len(expected)
    product = np.fft.irfft(np.fft.rfft(found, size) * np.conj(np.fft.rfft(expected, size)))
    return float(product.max() / math.sqrt(float(found @ found) * float(expected @ expected)))


LOSSY = {
    "mp3": lambda: sound(TONE, 16_000, "MP3"),
    "ogg vorbis": lambda: sound(TONE, 16_000, "OGG", "VORBIS"),
    "ogg opus": lambda: sound(TONE, 16_000, "OGG", "OPUS"),
    "m4a": lambda: by_av(TONE, 16_000, "aac", "mp4"),
    "adts aac": lambda: by_av(TONE, 16_000, "aac", "adts"),
    "webm opus": lambda: by_av(tone(48_000), 48_000, "libopus", "webm"),
    "the sound of a video": lambda: clip([1, 2, 3], audio=True),
}


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_forms_come_close(name: str) -> None:
    found = decode_audio(LOSSY[name](), 16_000)
    assert abs(len(found) - len(TONE)) < 3000
    assert in_step(found, TONE) > 0.97


def test_channels_are_mixed_down() -> None:
    left, right = tone(hertz=300), tone(hertz=1000)
    mixed = (left + right) / 2
    for form in ("WAV", "FLAC"):
        found = decode_audio(sound(np.stack([left, right], 1), 16_000, form), 16_000)
        assert np.abs(found - mixed).max() < 1e-4
    for array in (np.stack([left, right]), np.stack([left, right], 1)):
        assert np.abs(decode_audio({"array": array, "sampling_rate": 16_000}, 16_000) - mixed).max() < 1e-6


@pytest.mark.parametrize("rate", [8_000, 11_025, 22_050, 44_100, 48_000])
def test_resampling_keeps_the_tone(rate: int) -> None:
    found = decode_audio(sound(tone(rate), rate), 16_000)
    assert abs(len(found) - 16_000) <= 1
    middle = slice(1000, 15_000)
    assert np.abs(found[middle] - TONE[: len(found)][middle]).max() < 2e-3


def test_resampling_lets_nothing_fold_back() -> None:
    found = decode_audio({"array": tone(48_000, hertz=11_000), "sampling_rate": 48_000}, 16_000)
    assert np.abs(found[1000:15_000]).max() < 1e-3


ARRAYS: dict[str, Any] = {
    "float32": TONE,
    "float64": TONE.astype(np.float64),
    "a list": TONE.tolist(),
    "int16": np.rint(TONE * 32768).astype(np.int16),
    "int32": np.rint(TONE.astype(np.float64) * 2**31).astype(np.int32),
    "uint8": np.rint(TONE * 128 + 128).astype(np.uint8),
    "one channel of two dimensions": TONE[None],
    "a list of whole numbers": np.rint(TONE * 32768).astype(int).tolist(),
    "channels of whole numbers": [np.rint(TONE * 32768).astype(int).tolist()] * 2,
    "int64": np.rint(TONE * 32768).astype(np.int64),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_any_type_give_the_same(name: str) -> None:
    found = decode_audio({"array": ARRAYS[name], "sampling_rate": 16_000, "path": "a.wav"}, 16_000)
    assert found.dtype == np.float32
    assert np.abs(found - TONE).max() < (1 / 100 if name == "uint8" else 1e-4)


def test_loud_samples_are_left_as_they_are() -> None:
    loud = np.array([1e25, -3.0, 0.0], np.float32)
    assert np.array_equal(decode_audio({"array": loud, "sampling_rate": 16_000}, 16_000), loud)


def test_an_array_wins_over_bytes_and_bytes_over_a_path() -> None:
    data = sound(TONE, 16_000)
    assert np.array_equal(decode_audio({"bytes": data, "path": "/etc/passwd"}, 16_000), decode_audio(data, 16_000))
    both = {"array": np.ones(10), "sampling_rate": 16_000, "bytes": data}
    assert len(decode_audio(both, 16_000)) == 10


def wav(channels: int, rate: int, samples: bytes, bits: int = 16, size: int | None = None) -> bytes:
    block = channels * bits // 8
    form = struct.pack("<HHIIHH", 1, channels & 0xFFFF, rate, rate * block & 0xFFFFFFFF, block & 0xFFFF, bits)
    size = len(samples) if size is None else size
    body = b"WAVEfmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", size) + samples
    return b"RIFF" + struct.pack("<I", len(body) - len(samples) + size & 0xFFFFFFFF) + body


def with_nan() -> bytes:
    wave = TONE.copy()
    wave[100] = np.nan
    return sound(wave, 16_000, "WAV", "FLOAT")


def flac_with(samples: int) -> bytes:
    """A FLAC that announces so many samples."""
    data = bytearray(sound(TONE, 16_000, "FLAC"))
    (packed,) = struct.unpack_from(">Q", data, 18)
    struct.pack_into(">Q", data, 18, packed & ~((1 << 36) - 1) | samples)
    return bytes(data)


BAD: dict[str, tuple[Any, str]] = {
    "empty": (b"", "0 bytes"),
    "none": (None, "NoneType"),
    "a text": ("a.wav", "str"),
    "a struct with neither": ({"bytes": None, "path": "a.wav"}, "NoneType"),
    "no rate": ({"array": TONE}, "sampling rate of null"),
    "a rate in words": ({"array": TONE, "sampling_rate": "16k"}, "sampling rate of text of 3 characters"),
    "0 Hz": ({"array": TONE, "sampling_rate": 0}, "sampling rate of 0"),
    "1 Hz": ({"array": TONE[:10], "sampling_rate": 1}, "sampling rate of 1"),
    "1 Hz in a file": (wav(1, 1, b"\0\0" * 100), "sampling rate of 1"),
    "0 Hz in a file": (wav(1, 0, b"\0\0" * 100), "cannot be decoded|sampling rate of 0"),
    "2^31 Hz in a file": (wav(1, 2**31 - 1, b"\0\0" * 100), "sampling rate|cannot be decoded"),
    "no samples": (sound(TONE[:0], 16_000), "no samples"),
    "no samples in an array": ({"array": [], "sampling_rate": 16_000}, "no samples"),
    "0 channels": (wav(0, 16_000, b"\0\0" * 100), "cannot be decoded|channels"),
    "10^6 channels": (
        {"array": np.broadcast_to(np.float32(0), (1_000_000, 1_000_001)), "sampling_rate": 16_000},
        "channels",
    ),
    "65535 channels in a file": (wav(65_535, 16_000, b"\0" * 131_070 * 2), "cannot be decoded|channels"),
    "1000 channels in a file": (wav(1000, 16_000, b"\0" * 2000 * 4), "channels"),
    "NaN": ({"array": np.array([0.0, np.nan]), "sampling_rate": 16_000}, "NaN"),
    "NaN in a file": (with_nan(), "NaN"),
    "infinite": ({"array": np.array([0.0, np.inf]), "sampling_rate": 16_000}, "NaN"),
    "too large for float32": ({"array": np.array([0.0, 1e300]), "sampling_rate": 16_000}, "NaN"),
    "objects": ({"array": np.array([{}], dtype=object), "sampling_rate": 16_000}, "samples are expected"),
    "three dimensions": ({"array": np.zeros((2, 2, 2)), "sampling_rate": 16_000}, "samples are expected"),
    "ragged channels": ({"array": [[1.0], [1.0, 2.0]], "sampling_rate": 16_000}, "not of one length"),
    "whole numbers above 16 bits": ({"array": [1, 32_768], "sampling_rate": 16_000}, "from 1 to 32,768.*16 bits"),
    "int64 below 16 bits": ({"array": np.array([1, -32_769]), "sampling_rate": 16_000}, "from -32,769 to 1.*16 bits"),
    "uint16": ({"array": np.ones(9, np.uint16), "sampling_rate": 16_000}, "uint16"),
    "less than a sample": (sound(TONE[:1], 96_000), "no samples at the rate that is asked for: it has 1 at 96,000"),
    "less than a sample in an array": ({"array": [0.1], "sampling_rate": 96_000}, "no samples at the rate"),
    "a wav cut short": (sound(TONE, 16_000)[:5000], "cut short"),
    "an aiff cut short": (sound(TONE, 16_000, "AIFF")[:5000], "cut short"),
    "a flac cut short": (sound(NOISE, 16_000, "FLAC")[:9000], "cut short|cannot"),
    "a flac that promises more": (flac_with(32_000), "16,000 of 32,000"),
    "a wav without data": (wav(1, 16_000, b"")[:36], "cannot be decoded|cut short"),
    "a chain of ogg": (sound(TONE, 16_000, "OGG", "VORBIS") * 2, "is a chain: another recording begins at byte"),
    "a chain of opus": (sound(TONE, 16_000, "OGG", "OPUS") * 3, "is a chain: another recording begins at byte"),
    "an image": (b"\x89PNG\r\n\x1a\n" + bytes(100), "nothing known"),
    "an mp4 without sound": (clip([1, 2, 3]), "no audio"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_sound_is_a_data_error(name: str) -> None:
    value, said = BAD[name]
    with pytest.raises(DataError, match=said) as caught:
        decode_audio(value, 16_000)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF - 36, 0x7FFFFFFF - 36])
def test_a_wav_that_was_streamed_may_not_know_its_size(size: int) -> None:
    samples = np.rint(TONE * 32767).astype("<i2").tobytes()
    data = bytearray(wav(1, 16_000, samples))
    struct.pack_into("<I", data, 4, {0: 0}.get(size, size + 36))
    struct.pack_into("<I", data, 40, 0xFFFFFFFF)
    assert np.abs(decode_audio(bytes(data), 16_000)[:16_000] - TONE).max() < 1e-3


class TestBudget:
    def test_seconds_are_counted(self) -> None:
        assert len(decode_audio(sound(TONE, 16_000), 16_000, Budget(max_seconds=1))) == 16_000
        for value in (sound(TONE, 16_000), sound(TONE, 16_000, "MP3"), {"array": TONE, "sampling_rate": 16_000}):
            with pytest.raises(Refused, match="length in seconds of the audio of .* is over the limit max_seconds=0.9"):
                decode_audio(value, 16_000, Budget(max_seconds=0.9))
        with pytest.raises(Refused, match="max_seconds"):
            decode_audio(LOSSY["m4a"](), 16_000, Budget(max_seconds=0.5))

    def test_what_a_header_announces_takes_no_room(self) -> None:
        import resource

        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(Refused, match="length in seconds .* max_seconds"):
            decode_audio(flac_with((1 << 36) - 1), 16_000)
        most = Budget(max_seconds=1e12, max_samples=1 << 60)
        with pytest.raises(DataError, match="of 68,719,476,735 samples|cannot be decoded|cut short"):
            decode_audio(flac_with((1 << 36) - 1), 16_000, most)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000

    def test_bytes_are_counted_first(self) -> None:
        with pytest.raises(Refused, match="max_bytes=100"):
            decode_audio(sound(TONE, 16_000), 16_000, Budget(max_bytes=100))

    def test_a_view_of_too_many_samples_is_refused_before_it_is_copied(self) -> None:
        long = np.broadcast_to(np.float32(0), (1 << 40,))
        with pytest.raises(Refused, match="max_seconds"):
            decode_audio({"array": long, "sampling_rate": 16_000}, 16_000)


@pytest.mark.parametrize("name", ["WAV", "FLAC", "OGG", "MP3", "AIFF"])
def test_mutated_files_give_samples_or_a_data_error(name: str) -> None:
    data = sound(tone(seconds=0.1), 16_000, name)
    outcomes = set()
    for mutant in mutants(data, 100):
        try:
            found = decode_audio(mutant, 16_000, Budget(max_seconds=60))
        except DataError:
            outcomes.add("error")
        else:
            outcomes.add("samples")
            assert np.isfinite(found).all()
    assert "error" in outcomes


def test_a_file_that_soundfile_cannot_read_goes_to_ffmpeg(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise soundfile.LibsndfileError(1)

    data = sound(TONE, 16_000, "FLAC")
    expected = decode_audio(data, 16_000)
    monkeypatch.setattr(soundfile, "SoundFile", fails)
    assert np.array_equal(decode_audio(data, 16_000), expected)


def reference_log_mel(wave: NDArray[np.float64], n_mels: int) -> NDArray[np.float64]:
    """The textbook, one number at a time: window by window a Fourier sum, band by band a triangle."""
    size, hop, rate = 400, 160, 16_000

    def to_mel(f: float) -> float:
        return f / (200 / 3) if f < 1000 else 15 + 27 * math.log(f / 1000) / math.log(6.4)

    def to_hertz(m: float) -> float:
        return m * 200 / 3 if m < 15 else 1000 * 6.4 ** ((m - 15) / 27)

    points = [to_hertz(to_mel(8000) * i / (n_mels + 1)) for i in range(n_mels + 2)]
    angles = -2j * np.pi * np.outer(np.arange(size // 2 + 1), np.arange(size)) / size
    fourier = np.exp(angles)
    left, right = wave[1 : size // 2 + 1][::-1], wave[-size // 2 - 1 : -1][::-1]
    padded = np.concatenate([left, wave, right])
    window = np.array([math.sin(math.pi * i / size) ** 2 for i in range(size)])
    columns = []
    for at in range(0, len(wave) // hop * hop, hop):
        power = np.abs(fourier @ (padded[at : at + size] * window)) ** 2
        column = []
        for low, peak, high in zip(points, points[1:], points[2:], strict=False):
            total = 0.0
            for k in range(size // 2 + 1):
                f = k * rate / size
                if low < f < high:
                    height = (f - low) / (peak - low) if f <= peak else (high - f) / (high - peak)
                    total += power[k] * height * 2 / (high - low)
            column.append(math.log10(max(total, 1e-10)))
        columns.append(column)
    logs: NDArray[np.float64] = np.array(columns).T
    found: NDArray[np.float64] = (np.maximum(logs, logs.max() - 8) + 4) / 4
    return found


class TestLogMel:
    @pytest.mark.parametrize("n_mels", [40, 80, 128])
    def test_it_agrees_with_the_textbook(self, n_mels: int) -> None:
        noise = np.random.default_rng(0).normal(0, 0.05, 8000)
        wave = noise + tone(seconds=0.5, hertz=700)
        found = log_mel(wave, n_mels)
        assert found.dtype == np.float32
        assert found.shape == (n_mels, 50)
        assert np.abs(found - reference_log_mel(wave, n_mels)).max() < 1e-4

    @pytest.mark.parametrize("n_mels", [80, 128])
    def test_it_agrees_with_whisper(self, n_mels: int) -> None:
        transformers = pytest.importorskip("transformers")
        extractor = transformers.WhisperFeatureExtractor(feature_size=n_mels)
        wave = np.random.default_rng(1).normal(0, 0.1, 16_000 * 3).astype(np.float32)
        plain = extractor(wave, sampling_rate=16_000, padding="do_not_pad", return_tensors="np").input_features[0]
        assert np.abs(log_mel(wave, n_mels) - plain).max() < 1e-4
        padded = extractor(wave, sampling_rate=16_000, return_tensors="np").input_features[0]
        whole = np.zeros(480_000, np.float32)
        whole[: len(wave)] = wave
        assert np.abs(log_mel(whole, n_mels, 3000) - padded).max() < 1e-4

    def test_a_long_wave_is_cut_to_its_beginning(self) -> None:
        wave = np.random.default_rng(2).normal(0, 0.1, 32_000)
        assert log_mel(wave, 80, 100).shape == (80, 100)
        assert np.array_equal(log_mel(wave, 80, 100), log_mel(wave[:16_000], 80))

    def test_a_tone_is_loudest_in_its_band(self) -> None:
        low, high = (int(log_mel(tone(hertz=hertz), 80).mean(axis=1).argmax()) for hertz in (300, 3000))
        assert 5 < low < high < 60

    @pytest.mark.parametrize("samples", [1, 2, 159, 160, 200, 401])
    def test_short_waves_have_at_least_one_column(self, samples: int) -> None:
        found = log_mel(np.ones(samples), 80)
        assert found.shape == (80, max(1, samples // 160))
        assert np.isfinite(found).all()

    @pytest.mark.parametrize(("wave", "n_mels"), [(np.zeros(0), 80), (np.zeros((2, 9)), 80), (np.zeros(9), 0)])
    def test_what_is_no_wave_is_refused(self, wave: NDArray[np.float64], n_mels: int) -> None:
        with pytest.raises(SpecError):
            log_mel(wave, n_mels)

    def test_other_rates_have_windows_of_the_same_length_in_time(self) -> None:
        assert log_mel(tone(8_000), 40, sample_rate=8_000).shape == (40, 100)
        assert log_mel(tone(44_100), 40, sample_rate=44_100).shape == (40, 100)

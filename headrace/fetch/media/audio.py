"""Sound: arrays with their rate, or encoded bytes, become one channel of float32 at the rate that is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import DataError, HeadraceError, Refused, SpecError, shown
from headrace.fetch.media.budget import DEFAULT, Budget, Clock
from headrace.fetch.media.clip import Clip
from headrace.fetch.media.layout import require_all_samples, require_whole
from headrace.fetch.media.mp3 import without_tags
from headrace.fetch.media.readable import readable
from headrace.fetch.media.sniff import CONTAINERS, container_format

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]

BLOCK = 1 << 18
"""Samples of each channel that are read at once."""
MAX_CHANNELS = 32
MIN_RATE, MAX_RATE = 100, 1_536_000
INSTALL = "pip install 'headrace[audio]'"

_SOUNDFILE = ("wav", "flac", "ogg", "mp3", "aiff")
_SCALES = {"uint8": 128.0, "int16": 32768.0, "int32": 2147483648.0}


def decode_audio(value: Any, sample_rate: int, budget: Budget = DEFAULT, clip: Clip | None = None) -> F32:
    """Samples of one channel, the mean of all, of {array, sampling_rate}, of bytes, or of {bytes, path}.

    Of an array with two dimensions the shorter one is channels. Whole numbers are scaled to -1 .. 1, by the type that
    the array has; those of a list, which has none (or int64), are samples of 16 bits, and have to fit into them. A
    `clip` is cut out sample by sample at the rate that the sound has, before it is resampled.
    """
    if isinstance(value, Mapping):
        if value.get("array") is not None:
            wave, rate = _of_array(value["array"], value.get("sampling_rate"), budget)
            wave, rate = Cut(clip).of([wave], rate)
            _require_numbers(wave)
            return _resampled(wave, rate, sample_rate, budget)
        value = value.get("bytes")
    if not isinstance(value, bytes | bytearray | memoryview):
        raise DataError(f"the audio is of type {type(value).__name__}; bytes, or array and sampling_rate, are expected")
    data = without_tags(bytes(value))
    wave, rate = _of_bytes(data, budget, Cut(clip))
    is_flac = data[:4] == b"fLaC"
    if is_flac and clip is None:
        require_all_samples(data, len(wave))
    if not is_flac:  # which has whole numbers only
        _require_numbers(wave)
    return _resampled(wave, rate, sample_rate, budget)


def _require_numbers(wave: F32) -> None:
    # What is not a number is both, and these are quicker than a look at each.
    if len(wave) and not (np.isfinite(wave.min()) and np.isfinite(wave.max())):
        raise DataError("the audio has samples that are not numbers (NaN or infinite)")


def _resampled(wave: F32, rate: int, sample_rate: int, budget: Budget) -> F32:
    if not len(wave):
        raise DataError("the audio has no samples")
    budget.require("max_seconds", len(wave) / rate, "the length in seconds of the audio")
    if rate == sample_rate:
        return wave
    try:
        import soxr
    except ImportError as error:
        raise SpecError(f"resampling takes the package soxr, which is not installed; {INSTALL}") from error
    found: F32 = soxr.resample(wave, rate, sample_rate)
    if not len(found):
        raise DataError(
            f"the audio has no samples at the rate that is asked for: it has {len(wave):,} at {rate:,} a second, "
            f"which is less than one at {sample_rate:,}"
        )
    return found


def _require_form(rate: Any, channels: int) -> int:
    if isinstance(rate, float) and rate.is_integer():
        rate = int(rate)
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not MIN_RATE <= rate <= MAX_RATE:
        raise DataError(
            f"the audio has a sampling rate of {shown(rate)}; a whole number, {MIN_RATE} to {MAX_RATE:,}, is expected"
        )
    if not 1 <= channels <= MAX_CHANNELS:
        raise Refused(f"the audio has {channels:,} channels; 1 to {MAX_CHANNELS} are decoded")
    return int(rate)


def _of_array(value: Any, rate: Any, budget: Budget) -> tuple[F32, int]:
    try:
        array = np.asarray(value)
    except ValueError as error:
        raise DataError(f"the audio is a list of channels that are not of one length ({shown(error)})") from error
    if array.dtype.kind not in "uif" or array.ndim not in (1, 2):
        raise DataError(f"the audio is an array of {array.dtype} and shape {array.shape}; samples are expected")
    if array.ndim == 2 and array.shape[0] > array.shape[1]:
        array = array.T
    rate = _require_form(rate, 1 if array.ndim == 1 else array.shape[0])
    budget.require("max_seconds", array.shape[-1] / rate, "the length in seconds of the audio")
    if array.dtype.kind == "i" and array.dtype.itemsize == 8:
        array = _of_16_bits(array)
    return _mono(_floats(array) if array.ndim == 2 else _floats(array)[None]), rate


def _of_16_bits(array: NDArray[Any]) -> NDArray[Any]:
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    if low < -32768 or high > 32767:
        raise DataError(
            f"the audio has whole numbers from {low:,} to {high:,}, in a list or as int64; there they are samples of "
            f"16 bits, -32,768 to 32,767; give others as fractions from -1 to 1, or as an array of int32 or uint8"
        )
    return array.astype(np.int16)


def _floats(array: NDArray[Any]) -> NDArray[Any]:
    """Samples from -1 to 1, as float32, or float64 if they come so."""
    if array.dtype.kind == "f":
        return array if array.dtype.itemsize >= 4 else array.astype(np.float32)
    scale = _SCALES.get(array.dtype.name)
    if scale is None:
        raise DataError(f"the audio has samples of type {array.dtype}; floats, int16, int32 or uint8 are expected")
    floats = array.astype(np.float32)
    return (floats - 128.0) / scale if array.dtype == np.uint8 else floats / scale


def _mono(channels: NDArray[Any]) -> F32:
    """[channels, samples] to one channel."""
    with np.errstate(over="ignore"):  # what is too large becomes infinite, which is looked for later
        if len(channels) == 1:
            return np.ascontiguousarray(channels[0], dtype=np.float32)
        mixed: F32 = channels.mean(axis=0, dtype=np.float32)
        return mixed


class Cut:
    """What of a sound is kept."""

    def __init__(self, clip: Clip | None) -> None:
        self._clip = clip

    def of(self, parts: Iterable[F32], rate: int) -> tuple[F32, int]:
        """The samples of all parts, or of the clip. What comes after it is not asked for."""
        if self._clip is None:
            every = list(parts)
            return (every[0] if len(every) == 1 else np.concatenate(every or [np.zeros(0, np.float32)])), rate
        start = round(self._clip.start * rate)
        stop = None if self._clip.end is None else round(self._clip.end * rate)
        kept, got = [np.zeros(0, np.float32)], 0
        for part in parts:
            kept.append(part[max(0, start - got) : None if stop is None else max(0, stop - got)])
            got += len(part)
            if stop is not None and got >= stop:
                break
        else:
            self._clip.require_within(got / rate, "audio")
        return np.concatenate(kept), rate


def _of_bytes(data: bytes, budget: Budget, cut: Cut) -> tuple[F32, int]:
    budget.require("max_bytes", len(data), "the size in bytes of the audio")
    name = container_format(data, "audio")
    require_whole(data, name)
    if name not in _SOUNDFILE:
        return _by_ffmpeg(data, budget, cut)
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise SpecError(
            f"audio takes the package soundfile, which does not load ({shown(error)}); {INSTALL}"
        ) from error
    try:
        with soundfile.SoundFile(readable(data), closefd=False) as file:
            rate = _require_form(file.samplerate, file.channels)
            return cut.of(_by_soundfile(file, rate, budget), rate)
    except soundfile.LibsndfileError as error:
        # FFmpeg knows more codecs, and more ways in which these files are written.
        try:
            return _by_ffmpeg(data, budget, cut)
        except HeadraceError as other:
            if isinstance(other, Refused):
                raise
            raise DataError(f"the {CONTAINERS[name]} audio cannot be decoded: {shown(error.error_string)}") from error


def sound_seconds(data: bytes) -> float | None:
    """How long a sound is, by what its header says; None: it does not say, or cannot be read. Nothing is decoded."""
    data = without_tags(data)
    try:
        if container_format(data, "audio") not in _SOUNDFILE:
            return None
        import soundfile

        with soundfile.SoundFile(readable(data), closefd=False) as file:
            return int(file.frames) / _require_form(file.samplerate, file.channels)
    except (HeadraceError, ImportError, OSError, RuntimeError):  # whoever decodes it will say
        return None


def _by_soundfile(file: Any, rate: int, budget: Budget) -> Iterator[F32]:
    clock, got, channels = Clock(budget), 0, file.channels
    # Never as much as the header says: that is only a number, which room would be made for.
    while (most := min(BLOCK, file.frames - got)) > 0:
        block = np.empty((most, channels), np.float32)
        count = file.buffer_read_into(block, "float32")
        if not count:
            break
        clock.check()
        got += count
        budget.require("max_seconds", got / rate, "the length in seconds of the audio")
        yield _mono(block[:count].T) if channels > 1 else block[:count, 0]
        if count < most:
            break


def _by_ffmpeg(data: bytes, budget: Budget, cut: Cut) -> tuple[F32, int]:
    from headrace.fetch.media.ffmpeg import opened, prepare

    clock = Clock(budget)
    with opened(data, "audio", clock) as container:
        if not container.streams.audio:
            raise DataError("the file has no audio in it")
        stream = container.streams.audio[0]
        prepare(stream, budget)
        rate = _require_form(stream.codec_context.sample_rate, stream.codec_context.layout.nb_channels)
        return cut.of(_frames(container.decode(stream), rate, clock), rate)


def _frames(frames: Iterator[Any], rate: int, clock: Clock) -> Iterator[F32]:
    got = 0
    for frame in frames:
        clock.check()
        if frame.sample_rate != rate:
            raise DataError(f"the audio changes its rate on the way, from {rate} to {frame.sample_rate}")
        channels = frame.layout.nb_channels
        array = frame.to_ndarray()
        if not frame.format.is_planar:
            array = array.reshape(-1, channels).T
        wave = _mono(_floats(array))
        got += len(wave)
        clock.budget.require("max_seconds", got / rate, "the length in seconds of the audio")
        yield wave

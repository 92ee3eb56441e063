"""Sound: arrays with their rate, or encoded bytes, become one channel of float32 at the rate that is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import DataError, HeadraceError, Refused, SpecError, described, shown
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
_COUNTED = ("wav", "flac", "aiff")
"""Files whose headers count their samples; others estimate them."""
_UNKNOWN = (1 << 63) - 1
"""What libsndfile says of a header that counts nothing."""
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
    if not _are_numbers(wave):
        raise DataError("the audio has samples that are not numbers (NaN or infinite)")


def _are_numbers(wave: F32) -> bool:
    # What is not a number is both, and these are quicker than a look at each.
    return not len(wave) or bool(np.isfinite(wave.min()) and np.isfinite(wave.max()))


def _require_length(samples: int, channels: int, rate: int, budget: Budget) -> None:
    """Refuse a sound of more samples in each channel than the limits allow."""
    budget.require("max_seconds", samples / rate, "the length in seconds of the audio")
    budget.require("max_samples", samples * channels, "the number of samples in all channels of the audio")


def _resampled(wave: F32, rate: int, sample_rate: int, budget: Budget) -> F32:
    if not len(wave):
        raise DataError("the audio has no samples")
    _require_length(len(wave), 1, rate, budget)
    if rate == sample_rate:
        return wave
    how = f"resampling from {rate:,} to {sample_rate:,} Hz"
    both = len(wave) + len(wave) * sample_rate // rate
    budget.require("max_samples", both, f"the number of samples before and after {how}")
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
    # The sums of the filter may overflow where the samples do not.
    if not _are_numbers(found):
        raise DataError(
            f"the audio has samples that are not numbers (NaN or infinite) after {how}; before, they reach "
            f"{max(wave.max(), -wave.min()):g}"
        )
    return found


def _require_form(rate: Any, channels: int) -> int:
    if isinstance(rate, float) and rate.is_integer():
        rate = int(rate)
    if isinstance(rate, bool) or not isinstance(rate, int | np.integer) or not MIN_RATE <= rate <= MAX_RATE:
        raise DataError(
            f"the audio has a sampling rate of {described(rate)}; a whole number, {MIN_RATE} to {MAX_RATE:,}, is "
            f"expected"
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
    channels = 1 if array.ndim == 1 else array.shape[0]
    rate = _require_form(rate, channels)
    _require_length(array.shape[-1], channels, rate, budget)
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
    if array.dtype == np.uint8:
        floats -= 128.0
    floats /= scale
    return floats


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

    @property
    def is_whole(self) -> bool:
        return self._clip is None

    def of(self, parts: Iterable[F32], rate: int) -> tuple[F32, int]:
        """The samples of all parts, or of the clip. What comes after it is not asked for."""
        return _joined(parts if self._clip is None else self._within(parts, rate, self._clip)), rate

    def _within(self, parts: Iterable[F32], rate: int, clip: Clip) -> Iterator[F32]:
        start = round(clip.start * rate)
        stop = None if clip.end is None else round(clip.end * rate)
        got = 0
        for part in parts:
            yield part[max(0, start - got) : None if stop is None else max(0, stop - got)].copy()
            got += len(part)
            if stop is not None and got >= stop:
                return
        clip.require_within(got / rate, "audio")


def _joined(parts: Iterable[F32]) -> F32:
    """All parts in one array. It grows as they come: a list of them would take twice the room when it is joined."""
    whole, size = np.empty(0, np.float32), 0
    for part in parts:
        if not size:
            whole, size = part, len(part)
            continue
        need = size + len(part)
        if not whole.flags.owndata:
            whole = whole.copy()
        if need > len(whole):
            whole.resize(need + need // 8, refcheck=False)
        whole[size:need] = part
        size = need
    if size < len(whole):
        whole.resize(size, refcheck=False)
    return whole


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
            if name in _COUNTED and file.frames != _UNKNOWN and cut.is_whole:
                _require_length(file.frames, file.channels, rate, budget)
            return cut.of(_by_soundfile(file, rate, budget), rate)
    except soundfile.LibsndfileError as error:
        said = shown(error.error_string)
    # FFmpeg knows more codecs, and more ways in which these files are written. It is asked outside of the handler: the
    # error there would keep all that was decoded until then.
    try:
        return _by_ffmpeg(data, budget, cut)
    except Refused:
        raise
    except HeadraceError as error:
        raise DataError(f"the {CONTAINERS[name]} audio cannot be decoded: {said}") from error


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
        _require_length(got, channels, rate, budget)
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
    got = most = 0
    for frame in frames:
        clock.check()
        if frame.sample_rate != rate:
            raise DataError(f"the audio changes its rate on the way, from {rate} to {frame.sample_rate}")
        channels = frame.layout.nb_channels
        array = frame.to_ndarray()
        if not frame.format.is_planar:
            array = array.reshape(-1, channels).T
        wave = _mono(_floats(array))
        got, most = got + len(wave), max(most, channels)
        _require_length(got, most, rate, clock.budget)
        yield wave

"""Log-mel spectrograms, as Whisper's front end has them."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from headrace.errors import DataError, SpecError, shown
from headrace.fetch.media.budget import DEFAULT, Budget

if TYPE_CHECKING:
    from numpy.typing import NDArray

    F32 = NDArray[np.float32]

WINDOW_SECONDS, HOP_SECONDS = 0.025, 0.010
RANGE = 8.0
"""In powers of ten; what is further below the loudest is cut off."""
_AT_ONCE = 4096
_MOST_AT_ONCE = _AT_ONCE * 1200
"""Windows, and samples in them, that are transformed together; bounds the memory."""


def log_mel(
    wave: Any,
    n_mels: int = 80,
    max_length: int | None = None,
    *,
    sample_rate: int = 16_000,
    budget: Budget = DEFAULT,
) -> F32:
    """[n_mels, T]: of 25 ms every 10 ms, the power in `n_mels` bands.

    As log10, cut off at 8 below the loudest, then (x + 4) / 4. T is at most `max_length`; of a longer wave the
    beginning counts. A wave shorter than one hop gives one column.
    """
    if n_mels < 1:
        raise SpecError(f"n_mels={shown(n_mels)}: at least one band is needed")
    if sample_rate < 1000:
        raise SpecError(f"sample_rate={shown(sample_rate)}: at least 1000 a second are needed")
    size, hop = round(sample_rate * WINDOW_SECONDS), round(sample_rate * HOP_SECONDS)
    wave = np.asarray(wave, dtype=np.float32)
    if wave.ndim != 1 or not wave.size:
        raise SpecError(f"a wave of shape {wave.shape} was given; one dimension, with samples in it, is expected")
    if max_length is not None:
        wave = wave[: max_length * hop]
    columns = max(1, len(wave) // hop)
    budget.require("max_samples", n_mels * columns, "the number of values in the spectrogram of the audio")
    padded = np.pad(wave, (size // 2, size // 2 + hop), mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, size)[::hop][:columns]
    bands, shape = mel_bands(n_mels, size, sample_rate), hann(size)
    found = np.empty((n_mels, columns), np.float32)
    step = max(1, min(_AT_ONCE, _MOST_AT_ONCE // size))
    with np.errstate(over="ignore", invalid="ignore"):  # what is too large is looked for below
        for at in range(0, columns, step):
            waves = np.fft.rfft(windows[at : at + step] * shape)
            found[:, at : at + step] = bands @ (waves.real**2 + waves.imag**2).T.astype(np.float32)
    if not np.isfinite(found.max()):  # it is not, also where one value is no number
        raise DataError(
            f"the spectrogram of the audio has values that are not numbers (NaN or infinite): its samples reach "
            f"{np.abs(wave).max():g}"
        )
    # In place: of a long sound, each copy is large.
    np.log10(np.maximum(found, 1e-10, out=found), out=found)
    np.maximum(found, found.max() - RANGE, out=found)
    found += 4.0
    found /= 4.0
    return found


@cache
def hann(size: int) -> F32:
    return (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(size) / size)).astype(np.float32)


@cache
def mel_bands(n_mels: int, size: int, sample_rate: int) -> F32:
    """[n_mels, size // 2 + 1]: triangles, evenly spaced on Slaney's scale up to half the rate, each of area one."""
    edges = _hertz(np.linspace(0.0, _mels(sample_rate / 2), n_mels + 2))
    bins = np.arange(size // 2 + 1) * (sample_rate / size)
    below, peak, above = edges[:-2, None], edges[1:-1, None], edges[2:, None]
    rise, fall = (bins - below) / (peak - below), (above - bins) / (above - peak)
    return (np.maximum(0.0, np.minimum(rise, fall)) * (2.0 / (above - below))).astype(np.float32)


# Slaney's scale: linear up to 1000 Hz, which is 15 mels, then logarithmic, 27 mels for a factor of 6.4.
_BREAK, _STEP = 15.0, np.log(6.4) / 27.0


def _mels(hertz: float) -> float:
    return hertz * 3 / 200 if hertz < 1000 else _BREAK + float(np.log(hertz / 1000)) / _STEP


def _hertz(mels: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mels < _BREAK, mels * 200 / 3, 1000 * np.exp(_STEP * (mels - _BREAK)))

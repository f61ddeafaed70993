"""A sound as a person reads it: its waveform, the onsets of its low notes, and its tempo.

Beats are looked for between 30 and 200 Hz, where drums and bass are: over all frequencies the hats
between the beats are louder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from .sound import mono
from .soundtrack import Soundtrack

RATE = 22_050  # samples a second that are analysed
WINDOW = 1024  # samples of a spectrum
HOP = 256  # samples between two spectra, 11.6 ms
LOW_HZ = (30, 200)
# samples of a peak of the waveform; more for a sound of more than `MOST_PEAKS` of them
_EVERY = 220
_PART = _EVERY * HOP  # samples that are analysed at a time
MOST_PEAKS = 120_000
# Seconds by which the middle of the window with the largest flux comes before an onset: the mean of
# kicks and bass notes at known times.
EARLY = 0.01
# before and after a spectrum: those over which the usual flux is taken
_AVERAGE_SECONDS = 0.25
_LOUDEST_SECONDS = 4.0  # around an onset, whose strongest one it is compared with
_LEAST_SHARE = 0.4  # of the strongest onset around, that an onset has
_LEAST_FLUX = 5.0  # of an onset: what noise and quiet music stay below
_APART_SECONDS = 0.08  # between two onsets
_BPM = (60.0, 180.0)
_TEMPO_SECONDS = 120.0  # of the sound in which the tempo is looked for
_CLEAR = 2.0  # how much more flux than the usual lies on the beats of a tempo


@dataclass(frozen=True)
class Heard:
    """The waveform and the beats of a sound.

    Attributes:
        seconds: its length.
        peaks: the largest sample of each of equal parts, 0 to 255.
        peaks_a_second: how many of them.
        onsets: seconds at which low notes begin, in order.
        tempo: beats a minute; None where there is no clear one.
        first_beat: seconds of a beat near the beginning; None without a tempo.
    """

    seconds: float
    peaks: np.ndarray
    peaks_a_second: float
    onsets: list[float]
    tempo: float | None
    first_beat: float | None


def listen(path: Path, on_piece: Callable[[], None] = lambda: None) -> Heard:
    """Read a sound or video file in pieces; `on_piece` and errors as of `Soundtrack.of_file`."""
    sound = Soundtrack.of_file(path, on_piece).sound

    def pieces() -> Iterator[np.ndarray]:
        for piece in sound.pieces():
            on_piece()
            yield piece

    return heard(mono(pieces(), sound.rate, RATE))


def heard(pieces: Iterable[np.ndarray]) -> Heard:
    """The same of samples `[n]` in -1..1, `RATE` a second, in pieces of any length."""
    peaks = []
    flux = []
    samples = 0
    # silence before the sound, so that one at its very beginning is an onset
    before = np.zeros(WINDOW + HOP, np.float32)
    for part in _parts(pieces):
        samples += len(part)
        padded = np.pad(np.abs(part), (0, -len(part) % _EVERY))
        peaks.append(padded.reshape(-1, _EVERY).max(1))
        part = np.concatenate([before, part])
        flux.append(_flux(part))
        before = part[-WINDOW:]
    waveform = np.concatenate(peaks)
    larger = max(1, -(-len(waveform) // MOST_PEAKS))
    waveform = np.maximum.reduceat(waveform, range(0, len(waveform), larger))
    loudness = np.concatenate(flux)
    usual = _around(F.avg_pool1d, loudness, _AVERAGE_SECONDS)
    novelty = np.maximum(0, loudness - usual)
    tempo, first_beat = _tempo(novelty)
    return Heard(
        seconds=samples / RATE,
        peaks=np.clip(waveform * 255, 0, 255).round().astype(np.uint8),
        peaks_a_second=RATE / _EVERY / larger,
        onsets=_onsets(novelty),
        tempo=tempo,
        first_beat=first_beat,
    )


def _parts(pieces: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """The same samples in parts of whole peaks and whole spectra, but for the last one."""
    rest = np.zeros(0, np.float32)
    for piece in pieces:
        rest = np.concatenate([rest, piece])
        while len(rest) >= _PART:
            yield rest[:_PART]
            rest = rest[_PART:]
    yield rest


def _flux(samples: np.ndarray) -> np.ndarray:
    """By how much the low notes of each spectrum are louder than those of the one before."""
    if not samples.any():  # a file may hold hours of silence
        return np.zeros((len(samples) - WINDOW) // HOP, np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP]
    hertz = np.fft.rfftfreq(WINDOW, 1 / RATE)
    low = (hertz >= LOW_HZ[0]) & (hertz < LOW_HZ[1])
    size = np.abs(np.fft.rfft(windows * np.hanning(WINDOW).astype(np.float32), axis=1))[:, low]
    loud = np.log1p(5 * size).astype(np.float32)
    return np.maximum(0, np.diff(loud, axis=0)).sum(1)


def _around(pool: Callable[..., Tensor], values: np.ndarray, seconds: float) -> np.ndarray:
    """The mean or largest value from so many seconds before each of them to as many after it."""
    reach = int(RATE / HOP * seconds)
    return pool(torch.from_numpy(values)[None], 2 * reach + 1, stride=1, padding=reach)[0].numpy()


def _seconds(place: float) -> float:
    """The time of a spectrum; the first one is of the silence before the sound."""
    return max(0.0, round((place * HOP - WINDOW / 2) / RATE + EARLY, 4))


def _onsets(novelty: np.ndarray) -> list[float]:
    """The seconds of onsets."""
    largest = _around(F.max_pool1d, novelty, _APART_SECONDS)
    least = _LEAST_SHARE * _around(F.max_pool1d, novelty, _LOUDEST_SECONDS)
    is_onset = (novelty == largest) & (novelty >= np.maximum(_LEAST_FLUX, least))
    places = np.flatnonzero(is_onset)
    # between two spectra where both are loud: the middle of a maximum by the values next to it
    before = np.pad(novelty, 1)[places]
    after = np.pad(novelty, 1)[places + 2]
    middles = places + (after - before) / (before + novelty[places] + after)
    return [_seconds(place) for place in middles.tolist()]


def _tempo(novelty: np.ndarray) -> tuple[float | None, float | None]:
    """Beats a minute and the second of the first beat; None twice where there is no clear tempo.

    The period is the one at which the flux repeats itself, with a preference for 120 beats; then
    the grid of beats that lies on the most flux.
    """
    rate = RATE / HOP
    part = novelty[: int(rate * _TEMPO_SECONDS)]
    lags = np.arange(int(rate * 60 / _BPM[1]), int(rate * 60 / _BPM[0]) + 2)
    if len(part) < 4 * lags[-1] or part.max() < _LEAST_FLUX:
        return None, None
    repeats = np.array([float(part[:-lag] @ part[lag:]) / (len(part) - lag) for lag in lags])
    likely = np.exp(-0.5 * np.log2(60 * rate / lags / 120) ** 2)
    lag = lags[int(np.argmax(repeats * likely))]
    places = np.arange(len(part))
    grids = []
    for period in np.arange(lag - 1, lag + 1, 0.01):
        phases = ((places + 0.5) % period).astype(int)
        shares = np.bincount(phases, part) / np.bincount(phases)
        offset = int(shares[: int(period)].argmax())
        grids.append((float(shares[offset]), float(period), offset))
    share, period, offset = max(grids)
    if share < _CLEAR * part.mean() or share < _LEAST_FLUX:
        return None, None
    return round(60 * rate / period, 2), _seconds(offset)

"""Onsets and tempo of music whose beats are known, and the waveform."""

import wave

import numpy as np
import pytest
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.video import onsets
from headforcing.headforcing_core.video.onsets import RATE, heard, listen

NEAR = 0.012  # seconds by which an onset may be beside its beat


def kick() -> np.ndarray:
    at = np.arange(int(0.25 * RATE)) / RATE
    phase = 2 * np.pi * (60 * at + 4 * (1 - np.exp(-30 * at)))
    return 0.8 * np.sin(phase) * np.exp(-14 * at)


def bass(hertz: float = 80) -> np.ndarray:
    at = np.arange(int(0.3 * RATE)) / RATE
    return 0.5 * np.sin(2 * np.pi * hertz * at) * np.minimum(1, at / 0.01) * np.exp(-6 * at)


def music(note: np.ndarray, bpm: float, seconds: float, first: float) -> tuple:
    """Low notes on the beats and hats, which are louder at once, between them; the beats."""
    chance = np.random.default_rng(0)
    samples = chance.normal(0, 0.005, round(seconds * RATE) + RATE)
    beats = np.arange(first, seconds - 0.3, 60 / bpm)
    hat = np.diff(chance.normal(0, 0.3, 1502), n=2) * np.exp(-np.arange(1500) / 300)
    for beat in beats:
        place = round(beat * RATE)
        samples[place : place + len(note)] += note
        between = place + round(30 / bpm * RATE)
        samples[between : between + len(hat)] += hat
    return samples[: round(seconds * RATE)].astype(np.float32), beats


def pieces(samples: np.ndarray, length: int) -> list[np.ndarray]:
    return [samples[place : place + length] for place in range(0, len(samples), length)]


@pytest.mark.slow
@pytest.mark.parametrize("note", [kick(), bass(), bass(50)], ids=["kick", "bass", "low bass"])
@pytest.mark.parametrize(("bpm", "first"), [(120, 0.0), (97.3, 0.31), (140, 0.2), (75, 1.234)])
def test_onsets_lie_on_the_beats_and_the_tempo_is_found(note, bpm, first):
    samples, beats = music(note, bpm, 60, first)
    found = heard(pieces(samples, 40_000))
    apart = np.abs(np.array(found.onsets)[:, None] - beats)
    assert apart.min(0).max() <= NEAR, "every beat has an onset"
    assert (apart.min(1) > NEAR).sum() <= 2, "and hats have none"
    assert found.tempo == pytest.approx(bpm, rel=0.001)
    phase = (found.first_beat - first) % (60 / bpm)
    assert min(phase, 60 / bpm - phase) <= NEAR


def test_what_has_no_beat_has_no_tempo():
    at = np.arange(RATE * 40) / RATE
    swell = 0.3 * np.sin(2 * np.pi * 110 * at) * (1 + np.sin(2 * np.pi * at / 7))
    noise = 0.1 * np.random.default_rng(1).normal(size=len(at))
    found = heard([(swell + noise).astype(np.float32)])
    assert found.tempo is None and found.first_beat is None and len(found.onsets) <= 2
    silent = heard([np.zeros(RATE * 40, np.float32)])
    assert (silent.tempo, silent.onsets, silent.peaks.max()) == (None, [], 0)
    nothing = heard([])
    assert (nothing.seconds, len(nothing.peaks), nothing.onsets) == (0, 0, [])


def test_the_division_into_pieces_changes_nothing():
    samples, _ = music(kick(), 120, 20, 0.1)
    whole = heard([samples])
    for length in (97, 1024, 50_000):
        parted = heard(pieces(samples, length))
        assert (parted.onsets, parted.tempo) == (whole.onsets, whole.tempo)
        assert (parted.peaks == whole.peaks).all() and parted.seconds == whole.seconds


def test_the_waveform_is_the_loudest_sample_of_each_part_however_long_it_is(monkeypatch):
    samples = np.zeros(RATE * 10, np.float32)
    samples[RATE * 3 + 5] = -0.5
    found = heard([samples])
    assert found.seconds == 10 and found.peaks.dtype == np.uint8
    (place,) = np.flatnonzero(found.peaks)
    assert found.peaks[place] == 128 and place / found.peaks_a_second == pytest.approx(3, abs=0.02)
    monkeypatch.setattr(onsets, "MOST_PEAKS", 100)
    fewer = heard([samples])
    assert 50 < len(fewer.peaks) <= 100
    (place,) = np.flatnonzero(fewer.peaks)
    assert place / fewer.peaks_a_second == pytest.approx(3, abs=0.2)


def test_a_file_of_another_rate_is_heard_the_same(tmp_path):
    samples, beats = music(kick(), 120, 20, 0.25)
    twice = np.interp(np.arange(0, len(samples), 0.5), np.arange(len(samples)), samples)
    with wave.open(str(tmp_path / "beat.wav"), "wb") as file:
        file.setnchannels(2)
        file.setsampwidth(2)
        file.setframerate(2 * RATE)
        both = np.repeat(twice[:, None], 2, axis=1).clip(-1, 1)
        file.writeframes((both * 32767).astype("<i2").tobytes())
    found = listen(tmp_path / "beat.wav")
    assert found.seconds == pytest.approx(20, abs=0.01)
    assert found.tempo == pytest.approx(120, rel=0.001)
    assert np.abs(np.array(found.onsets)[:, None] - beats).min(0).max() <= NEAR
    (tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(HeadForcingError, match="cannot be read as sound"):
        listen(tmp_path / "text.wav")

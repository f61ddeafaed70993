"""Sound files that state what they do not hold: lengths, rates, channels, streams."""

import time
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.video.onsets import listen
from headforcing.headforcing_core.video.reader import open_video
from headforcing.headforcing_core.video.section import Footage
from headforcing.headforcing_core.video.soundtrack import Soundtrack
from sound_claims import file_with_a_gap, float_sound, riff_wave, silent_track, silent_tracks


@pytest.mark.parametrize("seconds", [40_000, 10**6, 10**8])
def test_a_sound_that_says_it_lasts_longer_than_ten_hours_is_refused_within_seconds(
    tmp_path, seconds
):
    path = file_with_a_gap(tmp_path / "long.mka", seconds)
    begun = time.process_time()
    for read in (Soundtrack.of_file, listen):
        with pytest.raises(HeadForcingError, match=r"^long.mka lasts more than 36000 s"):
            read(path)
    assert time.process_time() - begun < 10


def test_silence_of_less_than_ten_hours_is_a_sound(tmp_path):
    sound = Soundtrack.of_file(file_with_a_gap(tmp_path / "long.mka", 30_000))
    assert sound.seconds == pytest.approx(30_000, abs=1)


def test_reading_ends_where_nobody_waits_any_more(tmp_path):
    path = file_with_a_gap(tmp_path / "long.mka", 30_000)
    pieces = []

    def on_piece() -> None:
        pieces.append(1)
        if len(pieces) == 5:
            raise HeadForcingError("nobody waits")

    with pytest.raises(HeadForcingError, match="nobody waits"):
        listen(path, on_piece)
    assert len(pieces) == 5


@pytest.mark.parametrize("channels", [9, 11, 32, 64, 255, 65_535])
@pytest.mark.parametrize("rate", [48_000, 192_000])
def test_more_channels_than_can_be_mixed_are_one_sentence(tmp_path, capsys, channels, rate):
    path = riff_wave(tmp_path / "many.wav", channels, rate)
    with pytest.raises(HeadForcingError, match=r"^many.wav"):
        Soundtrack.of_file(path)
    out = str(tmp_path / "out")
    words = ["demo", "--prompts", "a red ball", "--seconds", "1", "--audio", str(path)]
    assert main([*words, "--out", out]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: many.wav") and error.count("\n") == 1


@pytest.mark.parametrize("rate", [1, 7, 999, 10**6, 2**31 - 1])
def test_a_rate_that_no_sound_has_is_one_sentence(tmp_path, rate):
    path = riff_wave(tmp_path / "rate.wav", 2, rate)
    with pytest.raises(HeadForcingError, match=rf"^rate.wav.* {rate} samples a second"):
        Soundtrack.of_file(path)
    with pytest.raises(HeadForcingError, match=f"{rate} samples a second"):
        Soundtrack.of_samples(torch.zeros(2, 100), rate)


@pytest.mark.parametrize("rate", [0, -1])
def test_a_rate_of_nothing_in_memory_is_one_sentence(rate):
    with pytest.raises(HeadForcingError, match="samples a second"):
        Soundtrack.of_samples(torch.zeros(2, 100), rate)


@pytest.mark.parametrize("channels", [3, 6, 8, 10, 12, 16, 24])
def test_channels_that_can_be_mixed_are(tmp_path, channels):
    sound = Soundtrack.of_file(riff_wave(tmp_path / "some.wav", channels, 48_000))
    assert sound.seconds == pytest.approx(0.1, abs=0.01)


def test_a_track_without_packets_is_no_sound_and_leaves_a_video_without(tmp_path):
    path = silent_track(tmp_path / "none.ts")
    with pytest.raises(HeadForcingError, match=r"none.ts holds no sound that can be decoded"):
        Soundtrack.of_file(path)
    footage = Footage.of_file(path)
    assert (footage.sound, footage.video_frames) == (None, 8)


@pytest.mark.parametrize("empty", ["first", "last"])
def test_beside_a_track_without_packets_the_other_one_is_heard(tmp_path, empty):
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=8)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        tracks = [container.add_stream("pcm_s16le", rate=8000, layout="mono") for _ in range(2)]
        container.start_encoding()
        for number in range(8):
            picture = np.full((64, 64, 3), number * 20, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode())
        heard = tracks[1 if empty == "first" else 0]
        samples = np.full((1, 8000), 9000, np.int16)
        frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = 8000, 0, Fraction(1, 8000)
        container.mux(heard.encode(frame))
        container.mux(heard.encode())
    assert Soundtrack.of_file(path).seconds == pytest.approx(1, abs=0.01)
    sound = Footage.of_file(path).sound
    assert sound is not None and sum(piece.shape[1] for piece in sound.pieces()) == 8000


def test_a_video_whose_sound_cannot_be_mixed_is_refused_before_frames_are_made(tmp_path: Path):
    path = tmp_path / "nine.mkv"
    with av.open(str(path), "w") as container:
        video = container.add_stream("libx264", rate=8)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        with av.open(str(riff_wave(tmp_path / "nine.wav", 9, 48_000))) as source:
            copied = container.add_stream_from_template(source.streams.audio[0])
            picture = np.zeros((64, 64, 3), np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
            container.mux(video.encode())
            for packet in source.demux():
                if packet.size:
                    packet.stream = copied
                    container.mux(packet)
    with pytest.raises(HeadForcingError, match="9 channels"):
        Footage.of_file(path)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    "codec", ["pcm_f32le", pytest.param("wavpack", id="floats in planes (WavPack)")]
)
def test_samples_that_are_no_numbers_are_refused_before_frames_are_made_in_a_video(
    tmp_path, bad, codec
):
    samples = np.zeros(48_000, np.float32)
    samples[30_000] = bad
    with pytest.raises(HeadForcingError, match="the sound holds NaN or infinity"):
        Footage.of_file(float_sound(tmp_path / "bad.mkv", samples, pictures=8, codec=codec))
    good = float_sound(tmp_path / "good.mkv", samples[:9000], pictures=8, codec=codec)
    assert Footage.of_file(good).sound


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_samples_that_are_no_numbers_are_refused_before_frames_are_made(tmp_path, capsys, bad):
    samples = np.zeros(48_000, np.float32)
    samples[30_000] = bad
    path = float_sound(tmp_path / "bad.wav", samples)
    with pytest.raises(HeadForcingError, match=r"^bad.wav: the sound holds NaN or infinity"):
        Soundtrack.of_file(path)
    words = ["demo", "--prompts", "a red ball", "--seconds", "1", "--audio", str(path)]
    assert main([*words, "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: bad.wav") and error.count("\n") == 1


def test_many_tracks_without_sound_are_looked_at_in_one_pass(tmp_path, monkeypatch):
    path = silent_tracks(tmp_path / "many.mkv", 60)
    passes = []
    monkeypatch.setattr(
        "headforcing.headforcing_core.video.sound.open_video",
        lambda *given: (passes.append(1), open_video(*given))[1],
    )
    assert Footage.of_file(path).sound is None
    assert len(passes) == 1
    with pytest.raises(HeadForcingError, match="holds no sound that can be decoded"):
        Soundtrack.of_file(path)


def test_a_header_of_no_channels_and_a_codec_that_nobody_knows_are_no_sound(tmp_path, capsys):
    zero = riff_wave(tmp_path / "zero.wav", 1, 48_000)
    header = bytearray(zero.read_bytes())
    header[22:24] = header[32:34] = b"\0\0"
    zero.write_bytes(header)
    unknown = silent_tracks(tmp_path / "unknown.mkv", 1, heard=(0,))
    data = unknown.read_bytes()
    assert b"A_PCM/FLOAT/IEEE" in data
    unknown.write_bytes(data.replace(b"A_PCM/FLOAT/IEEE", b"A_XXX/FLOAT/IEEE"))
    for path in (zero, unknown):
        with pytest.raises(HeadForcingError, match="no sound that can be decoded"):
            Soundtrack.of_file(path)
    assert Footage.of_file(unknown).sound is None


def test_the_last_track_that_is_heard_is_that_of_a_video(tmp_path):
    """The first is silent, the second and third have sound, the fourth has no packet."""
    path = silent_tracks(tmp_path / "some.mkv", 4, heard=(1, 2))
    assert next(Footage.of_file(path).sound.pieces()).max() == pytest.approx(0.2, abs=0.01)
    assert next(Soundtrack.of_file(path).sound.pieces()).max() == pytest.approx(0.1, abs=0.01)

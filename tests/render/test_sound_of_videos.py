"""The sound of a video that is written again: in step with its pictures, from whatever file."""

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from av.container import OutputContainer
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.video import sound as sounds
from headforcing.headforcing_core.video.section import Footage
from headforcing.headforcing_core.video.soundtrack import Soundtrack
from headforcing.headforcing_core.video.speech_features import speech_wave
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter

FPS = 16
RATE = 48_000
SECONDS = 5
SAMPLES_OF_FRAME = {"libopus": 960}
FORMATS = {"pcm_s16le": "s16", "flac": "s16", "libopus": "flt", "pcm_f32le": "flt"}
LAYOUTS = {1: "mono", 2: "stereo", 6: "5.1", 8: "7.1"}


def clicks(seconds: int = SECONDS) -> np.ndarray:
    """Samples `[1, n]` with a click of 50 ms at the beginning of each second."""
    at = np.arange(seconds * RATE) / RATE
    return (0.8 * np.sin(2 * np.pi * 1000 * at) * (at % 1 < 0.05)).astype(np.float32)[None]


def sound_frames(codec: str, samples: np.ndarray) -> list[av.AudioFrame]:
    """Frames of sound with their places, as the encoder takes them."""
    kind = FORMATS.get(codec, "fltp")
    length = SAMPLES_OF_FRAME.get(codec, 1024)
    frames = []
    for place in range(0, samples.shape[1], length):
        values = samples[:, place : place + length]
        if kind == "s16":
            values = (values * 32767).astype(np.int16)
        if not kind.endswith("p"):
            values = values.T.reshape(1, -1)
        layout = LAYOUTS[len(samples)]
        frame = av.AudioFrame.from_ndarray(np.ascontiguousarray(values), format=kind, layout=layout)
        frame.sample_rate = RATE
        frame.pts = place
        frame.time_base = Fraction(1, RATE)
        frames.append(frame)
    return frames


def sound_stream(container: OutputContainer, codec: str, channels: int) -> av.AudioStream:
    if codec == "vorbis":  # its encoder is experimental, and has two channels
        return container.add_stream(codec, rate=RATE, layout="stereo", options={"strict": "-2"})
    return container.add_stream(codec, rate=RATE, layout=LAYOUTS[channels])


def sound_file(path: Path, codec: str) -> Path:
    """A file of nothing but the clicks."""
    with av.open(str(path), "w") as container:
        stream = sound_stream(container, codec, 1)
        for frame in sound_frames(codec, clicks()):
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def video_file(
    path: Path,
    codec: str,
    silent: tuple[float, float] = (0.0, 0.0),
    samples: np.ndarray | None = None,
) -> Path:
    """A video with a white frame where each second begins, and a click; between the times `silent`
    the file holds no sound.
    """
    samples = clicks() if samples is None else samples
    packets = []
    with av.open(str(path), "w") as container:
        picture = container.add_stream("libx264", rate=FPS)
        picture.width = 64
        picture.height = 64
        picture.pix_fmt = "yuv420p"
        sound = sound_stream(container, codec, len(samples))
        for number in range(SECONDS * FPS):
            grey = 255 * (number % FPS == 0)
            pixels = np.full((64, 64, 3), grey, np.uint8)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = number
            frame.time_base = Fraction(1, FPS)
            packets += picture.encode(frame)
        packets += picture.encode()
        for frame in sound_frames(codec, samples):
            if not silent[0] <= frame.time < silent[1]:
                packets += sound.encode(frame)
        packets += sound.encode()
        packets.sort(key=lambda packet: packet.dts * packet.time_base)
        for packet in packets:
            container.mux(packet)
    return path


def finished(source: Path, window: tuple[float, float] = (0.0, 0.0)) -> Path:
    """The file that Finish Video would write of the same pictures."""
    footage = Footage.of_file(source, window)
    path = source.with_name("finished.mp4")
    with VideoWriter(VideoSettings(path, footage.fps), 64, 64, sound=footage.sound) as writer:
        for frame in footage.read(0):
            writer.write(frame[None])
    return path


def times_of(path: Path, kind: str) -> list[float]:
    """The seconds at which clicks are heard or white frames are shown."""
    times: list[float] = []
    last = -1.0
    with av.open(str(path)) as container:
        for frame in container.decode(**{kind: 0}):
            if kind == "video":
                if frame.to_ndarray(format="gray").mean() > 120:
                    times.append(frame.time)
                continue
            for place in np.flatnonzero(np.abs(frame.to_ndarray()).max(0) > 0.3):
                time = frame.time + place / frame.sample_rate
                if time - last > 0.5:
                    times.append(time)
                last = time
    return times


def test_aac_of_mpeg_ts_is_in_step(tmp_path):
    path = finished(video_file(tmp_path / "v.ts", "aac"))
    assert np.allclose(times_of(path, "audio"), times_of(path, "video"), atol=0.02)
    assert len(times_of(path, "video")) == SECONDS


def test_a_damaged_packet_of_sound_that_is_encoded_is_silence_and_does_not_lose_the_video(tmp_path):
    """As at the beginning of many recordings of broadcasts."""
    source = video_file(tmp_path / "v.ts", "aac")
    packets = packets_of(source)
    content = bytearray(source.read_bytes())
    # after two seconds, one whose beginning lies within one packet of MPEG-TS
    damaged = next(packet[:60] for packet in packets[95:] if content.count(packet[:60]) == 1)
    place = content.index(damaged) + 7
    content[place : place + 50] = bytes([255]) * 50
    source.write_bytes(content)
    with av.open(str(source)) as container, pytest.raises(av.error.FFmpegError):
        list(container.decode(audio=0))
    heard = times_of(finished(source), "audio")
    assert np.allclose([heard[0], heard[-1]], [0, 4], atol=0.02)


def test_an_error_in_the_sound_is_one_sentence_though_the_file_cannot_be_closed(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(sounds, "_AAC_RATES", {RATE + 1})
    sound = sounds.sound_of_samples(torch.zeros(1, RATE), RATE + 1)
    with (
        pytest.raises(HeadForcingError, match=r"finished\.mp4 cannot be written"),
        VideoWriter(VideoSettings(tmp_path / "finished.mp4"), 64, 64, sound=sound),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("window", [(0.0, 0.0), (1.4, 2.0)])
@pytest.mark.parametrize(
    ("name", "codec", "silent"),
    [
        ("v.mov", "pcm_s16le", (0.0, 0.0)),
        ("v.mov", "pcm_s16le", (0.0, 1.9)),
        ("v.mkv", "pcm_s16le", (0.0, 1.9)),
        ("v.mkv", "pcm_s16le", (1.5, 2.7)),
        ("v.mkv", "vorbis", (0.0, 0.0)),
        ("v.mov", "pcm_s16le", (2.2, 9.0)),
    ],
)
def test_sound_that_is_encoded_begins_late_has_its_gaps_and_is_cut_where_the_section_begins(
    tmp_path, name, codec, silent, window
):
    source = video_file(tmp_path / name, codec, silent)
    path = finished(source, window)
    begin, duration = window
    wanted = [
        second - begin
        for second in range(SECONDS)
        if not silent[0] <= second < silent[1] and 0 <= second - begin < (duration or SECONDS)
    ]
    assert np.allclose(times_of(path, "audio"), wanted, atol=0.004)
    with av.open(str(path)) as container:
        lengths = [stream.duration * stream.time_base for stream in container.streams]
    assert lengths[1] <= lengths[0] + Fraction(1024, RATE), "to a packet of sound"


def test_a_section_in_which_the_file_holds_no_sound_is_written_without(tmp_path):
    path = finished(video_file(tmp_path / "v.mov", "pcm_s16le", (1.2, 9.0)), (1.4, 2.0))
    with av.open(str(path)) as container:
        assert [stream.type for stream in container.streams] == ["video"]
    mute = sounds.sound_of_samples(torch.zeros(2, 0), RATE)
    with VideoWriter(VideoSettings(path), 64, 64, sound=mute) as writer:
        writer.write(torch.zeros(3, 64, 64, 3))
    with av.open(str(path)) as container:
        assert [stream.type for stream in container.streams] == ["video"]


@pytest.mark.parametrize(
    ("name", "codec", "added"),
    [
        ("s.wav", "pcm_s16le", 0),
        ("s.mkv", "pcm_s16le", 0),
        ("s.mka", "flac", 0),
        ("s.mp3", "libmp3lame", 0),
        ("s.ogg", "libopus", 0),
        # the end of the last packet, which not every FFmpeg leaves out
        ("s.webm", "vorbis", 1024),
        ("s.mka", "aac", 1024),
    ],
)
def test_the_length_of_a_sound_is_that_of_its_samples(tmp_path, name, codec, added):
    soundtrack = Soundtrack.of_file(sound_file(tmp_path / name, codec))
    samples = sum(piece.shape[1] for piece in soundtrack.sound.pieces())
    assert soundtrack.seconds == pytest.approx(samples / RATE, abs=1e-6)
    assert 0 <= samples - SECONDS * RATE <= added


@pytest.mark.parametrize(
    ("jump", "stated", "seconds"),
    [(36_000, 4, 4), (36_000, None, 4), (90, 94, 94), (90, None, 4), (30, None, 34)],
)
def test_a_gap_that_is_longer_than_the_file_is_an_error_of_its_times(
    tmp_path, jump, stated, seconds
):
    """A file of 4 s of sound, whose times jump after 2 s."""
    path = tmp_path / "s.mka"
    options = {"live": "1"} if stated is None else {}  # Matroska then states no length
    with av.open(str(path), "w", options=options) as container:
        stream = sound_stream(container, "pcm_s16le", 1)
        for frame in sound_frames("pcm_s16le", clicks(4)):
            for packet in stream.encode(frame):
                if packet.pts * packet.time_base >= 2:
                    packet.pts += round(jump / packet.time_base)
                    packet.dts = packet.pts
                container.mux(packet)
    if stated is not None:
        length = struct.pack(">d", (jump + 4) * 1000)
        content = path.read_bytes()
        assert content.count(length) == 1
        path.write_bytes(content.replace(length, struct.pack(">d", stated * 1000)))
    soundtrack = Soundtrack.of_file(path)
    assert soundtrack.seconds == pytest.approx(seconds, abs=0.03)
    samples = np.concatenate(list(soundtrack.sound.pieces()), axis=1)
    assert np.abs(samples[:, -RATE : -RATE // 2]).max() > 0.5, "the last click"


def ramp(channels: int) -> torch.Tensor:
    """Samples `[channels, n]` of several pieces, each channel with a value of its own."""
    return (torch.arange(1, channels + 1) / 40)[:, None].expand(-1, 150_000)


def test_surround_sound_is_mixed_to_two_channels_with_the_voice_of_the_centre():
    root = 0.5**0.5
    left, right, centre, _, behind_left, behind_right = (ramp(6)[:, 0]).tolist()
    soundtrack = Soundtrack.of_samples(ramp(6), RATE)
    mixed = np.concatenate(list(soundtrack.sound.pieces()), axis=1)
    assert soundtrack.sound.layout == "stereo" and mixed.shape == (2, 150_000)
    for channel, front, behind in ((0, left, behind_left), (1, right, behind_right)):
        wanted = front + root * (centre + behind)
        assert np.allclose(mixed[channel], wanted, atol=1e-6)
    voice = torch.zeros(6, RATE)
    voice[2] = torch.from_numpy(clicks(1)[0])
    assert speech_wave(Soundtrack.of_samples(voice, RATE)).abs().max() > 0.5
    other = Soundtrack.of_samples(voice.roll(1, dims=0), RATE)
    assert other.key != Soundtrack.of_samples(voice, RATE).key


@pytest.mark.parametrize("channels", range(1, 11))
def test_every_channel_but_the_one_for_bass_is_heard(channels):
    bass = {6: 3, 7: 3, 8: 3}.get(channels)
    for number in range(channels):
        samples = torch.zeros(channels, 4000)
        samples[number] = 0.5
        heard = np.concatenate(list(Soundtrack.of_samples(samples, RATE).sound.pieces()), axis=1)
        assert (heard.max() > 0.04) == (number != bass)


def test_one_channel_and_two_stay_as_they_are():
    for channels in (1, 2):
        pieces = list(Soundtrack.of_samples(ramp(channels), RATE).sound.pieces())
        assert np.array_equal(np.concatenate(pieces, axis=1), ramp(channels).numpy())


def test_the_sound_of_a_video_in_memory_is_mixed_too(tmp_path):
    samples = torch.zeros(6, RATE)
    samples[2] = torch.from_numpy(clicks(1)[0])
    path = tmp_path / "v.mp4"
    sound = sounds.sound_of_samples(samples, RATE)
    with VideoWriter(VideoSettings(path), 64, 64, sound=sound) as writer:
        writer.write(torch.zeros(FPS, 64, 64, 3))
    assert np.allclose(times_of(path, "audio"), [0], atol=0.004)


@pytest.mark.parametrize("channels", [2, 6, 8])
def test_up_to_six_channels_of_a_video_file_stay_and_more_are_mixed_to_six(tmp_path, channels):
    samples = clicks().repeat(channels, axis=0) * 0.9
    path = finished(video_file(tmp_path / "v.mov", "pcm_s16le", samples=samples))
    with av.open(str(path)) as container:
        # readers crash on AAC of eight
        assert container.streams.audio[0].layout.nb_channels == min(channels, 6)
        resampler = av.AudioResampler(format="flt", layout="mono", rate=RATE)
        loudest = 0.0
        for frame in container.decode(audio=0):
            for mixed in resampler.resample(frame):
                loudest = max(loudest, float(np.abs(mixed.to_ndarray()).max()))
    assert loudest > 0.5


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_samples_that_are_no_numbers_are_refused_before_anything_is_written(value):
    samples = torch.zeros(2, 150_000)
    samples[1, 140_000] = value
    for made in (Soundtrack.of_samples, sounds.sound_of_samples):
        with pytest.raises(HeadForcingError, match="the sound holds NaN or infinity; give another"):
            made(samples, RATE)


def test_a_file_with_nan_and_infinity_is_refused_and_one_that_is_too_loud_loses_no_video(tmp_path):
    samples = clicks()
    samples[0, 30_000:30_003] = [np.nan, np.inf, -np.inf]
    broken = video_file(tmp_path / "broken.mov", "pcm_f32le", samples=samples)
    with pytest.raises(HeadForcingError, match="the sound holds NaN or infinity"):
        finished(broken)
    samples = clicks()
    samples[0, 40_000:40_010] = 1e30
    source = video_file(tmp_path / "v.mov", "pcm_f32le", samples=samples)
    soundtrack = Soundtrack.of_file(source)
    settings = VideoSettings(tmp_path / "story.mp4")
    with VideoWriter(settings, 64, 64, sound=soundtrack.from_second(0)) as writer:
        writer.write(torch.zeros(SECONDS * FPS, 64, 64, 3))
    for path in (settings.path, finished(source)):
        assert np.allclose(times_of(path, "audio")[-3:], [2, 3, 4], atol=0.004)
        with av.open(str(path)) as container:
            for frame in container.decode(audio=0):
                assert np.abs(frame.to_ndarray()).max() < 2


def packets_of(path: Path) -> list[bytes]:
    with av.open(str(path)) as container:
        return [bytes(packet) for packet in container.demux(audio=0) if packet.size]


@pytest.mark.parametrize(
    ("name", "codec"),
    [
        ("v.mp4", "aac"),
        ("v.mkv", "aac"),
        ("v.mp4", "libmp3lame"),
        ("v.mkv", "libmp3lame"),
        ("v.mkv", "libopus"),
        ("v.mkv", "flac"),
        ("v.mkv", "ac3"),
    ],
)
def test_sound_of_every_codec_is_in_step(tmp_path, name, codec):
    path = finished(video_file(tmp_path / name, codec))
    assert np.allclose(times_of(path, "audio"), range(SECONDS), atol=0.004)
    with av.open(str(path)) as container:
        assert container.streams.audio[0].codec_context.name == "aac"


def test_mp3_with_a_low_rate_is_in_step(tmp_path, monkeypatch):
    monkeypatch.setattr(f"{__name__}.RATE", 11_025)
    path = finished(video_file(tmp_path / "v.mkv", "libmp3lame"))
    assert np.allclose(times_of(path, "audio"), range(SECONDS), atol=0.02)

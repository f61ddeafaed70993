"""Sound files for the tests whose headers and times say what no sound has."""

import struct
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

_PACKET = 188  # bytes of MPEG-TS


def file_with_a_gap(path: Path, seconds: int) -> Path:
    """A Matroska file with 0.4 s of noise and a packet more at this second."""
    noise = np.random.default_rng(1).integers(-9000, 9000, (21, 1, 2048)).astype(np.int16)
    with av.open(str(path), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=48_000, layout="stereo")
        for number, samples in enumerate(noise):
            frame = av.AudioFrame.from_ndarray(samples, format="s16", layout="stereo")
            frame.sample_rate = 48_000
            frame.time_base = Fraction(1, 48_000)
            frame.pts = 1024 * number if number < 20 else seconds * 48_000
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    return path


def riff_wave(path: Path, channels: int, rate: int) -> Path:
    """A WAV file with 0.1 s of noise, at most 1 MB, whose header says this."""
    block = 2 * channels
    length = min(1 << 20, block * max(64, min(rate, 192_000) // 10)) // block * block
    samples = np.random.default_rng(2).integers(-9000, 9000, length // 2).astype("<i2").tobytes()
    header = struct.pack(
        "<HHIIHH", 1, channels, rate, min(rate * block, 2**32 - 1), block & 0xFFFF, 16
    )
    path.write_bytes(
        b"RIFF"
        + struct.pack("<I", 36 + len(samples))
        + b"WAVEfmt "
        + struct.pack("<I", len(header))
        + header
        + b"data"
        + struct.pack("<I", len(samples))
        + samples
    )
    return path


def silent_track(path: Path) -> Path:
    """An MPEG-TS file of 8 pictures, which announces a sound and holds no packet of it."""
    with av.open(str(path), "w", format="mpegts") as container:
        video = container.add_stream("libx264", rate=8)
        video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        sound = container.add_stream("aac", rate=48_000, layout="stereo")
        for number in range(8):
            picture = np.full((64, 64, 3), number * 20, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        container.mux(video.encode())
        frame = av.AudioFrame.from_ndarray(
            np.zeros((2, 1024), np.float32), format="fltp", layout="stereo"
        )
        frame.sample_rate, frame.pts, frame.time_base = 48_000, 0, Fraction(1, 48_000)
        container.mux(sound.encode(frame))
        container.mux(sound.encode())
    data = path.read_bytes()
    packets = [data[place : place + _PACKET] for place in range(0, len(data), _PACKET)]
    # 0x101 is the second stream
    kept = [each for each in packets if (each[1] & 31) << 8 | each[2] != 0x101]
    path.write_bytes(b"".join(kept))
    return path


def float_sound(
    path: Path, samples: np.ndarray, pictures: int = 0, codec: str = "pcm_f32le"
) -> Path:
    """Samples `[n]` at 48 kHz as floats that are kept as they are, with so many pictures."""
    return _with_tracks(path, [samples], pictures, codec)


def silent_tracks(path: Path, count: int, heard: tuple[int, ...] = ()) -> Path:
    """A Matroska file of 8 pictures that announces so many sounds; of these places there are
    packets, each 0.1 louder than the one before, of the others none.
    """
    loud = {place: 0.1 * (order + 1) for order, place in enumerate(heard)}
    tracks = [
        np.full(4800, loud[place], np.float32) if place in loud else None for place in range(count)
    ]
    return _with_tracks(path, tracks, pictures=8)


def _with_tracks(
    path: Path, tracks: list[np.ndarray | None], pictures: int, codec: str = "pcm_f32le"
) -> Path:
    with av.open(str(path), "w") as container:
        video = None
        if pictures:
            video = container.add_stream("libx264", rate=8)
            video.width, video.height, video.pix_fmt = 64, 64, "yuv420p"
        streams = [container.add_stream(codec, rate=48_000, layout="mono") for _ in tracks]
        kind = "flt" if codec == "pcm_f32le" else "fltp"
        for stream in streams:
            stream.codec_context.format = kind
        for number in range(pictures):
            picture = np.full((64, 64, 3), number * 20, np.uint8)
            container.mux(video.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        if video is not None:
            container.mux(video.encode())
        for stream, samples in zip(streams, tracks, strict=True):
            if samples is None:
                continue
            frame = av.AudioFrame.from_ndarray(samples[None], format=kind, layout="mono")
            frame.sample_rate = 48_000
            container.mux(stream.encode(frame))
            container.mux(stream.encode())
    return path

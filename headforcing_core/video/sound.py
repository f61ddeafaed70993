"""The sound of a video file: that of another file, its packets unchanged, or samples, encoded; and
its place in a file that grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial

import numpy as np
import torch
from av import AudioFrame, AudioResampler, AudioStream, Packet
from av.container import InputContainer, OutputContainer
from av.error import FFmpegError
from torch import Tensor

from ..errors import HeadForcingError
from .reader import VideoSource, name_of, open_video

_IN_MP4 = {"aac", "mp3", "ac3", "eac3", "alac", "flac", "opus"}  # browsers play them there
_AAC_RATES = {8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000}
_MP3_RATE = 16_000  # the lowest in an MP4
_BIT_RATE = 256_000
_JUMP = 0.01  # seconds without sound that are no rounding of the times in a file
_WARM_UP = 0.05  # seconds of packets before the first sample, from which decoders begin
# The channels of an AUDIO, which only has their number, in FFmpeg's order; of three the last may be
# the voice.
_SURROUND = {3: "3.0", 4: "4.0", 5: "5.0", 6: "5.1", 7: "6.1", 8: "7.1"}
PIECE = 1 << 16  # samples that are encoded at a time


@dataclass(frozen=True)
class Sound:
    """The sound of a file that is written.

    Attributes:
        packets: adds a stream of sound to a container and gives its packets, in order.
        ends: whether it ends by itself; else it goes on with silence, and ends with the pictures.
    """

    packets: Callable[[OutputContainer], Iterator[Packet]]
    ends: bool = True


def sound_of_file(
    source: VideoSource, start: float = 0.0, end: float = float("inf")
) -> Sound | None:
    """The sound of a video file between two of its times in seconds, counted from `start`; None if
    it has none.

    Packets are copied; a codec that MP4 files do not hold is encoded as AAC.
    """
    with open_video(source, name_of(source)) as container:
        if not decodable(container):
            return None

    def packets(target: OutputContainer) -> Iterator[Packet]:
        with open_video(source, name_of(source)) as container:
            stream = decodable(container)[-1]  # as ComfyUI takes it
            if not _copies(stream):
                rate = stream.codec_context.sample_rate
                layout = _layout(stream)
                frames = as_floats(decoded(container, stream), rate, layout)
                section = _section(frames, rate, start, end)
                yield from _encoded(target, section, rate, layout)
                return
            copied = target.add_stream_from_template(stream)
            unit = stream.time_base or Fraction(1, stream.codec_context.sample_rate)
            offset = round(start / unit)
            first = offset - round(_WARM_UP / unit)
            for packet in container.demux(stream):
                if packet.pts is None or packet.dts is None or packet.pts < first:
                    continue  # the empty one at the end, and what is before
                if packet.pts * unit >= end:
                    return
                packet.pts = packet.pts - offset
                packet.dts = packet.dts - offset
                packet.stream = copied
                yield packet

    return Sound(packets)


def sound_of_samples(samples: Tensor, rate: int) -> Sound:
    """Samples `[channels, n]` in -1..1 as AAC of one channel or two, see `sample_pieces`.

    Raises HeadForcingError for NaN and infinity.
    """
    check_finite(samples)
    pieces = partial(sample_pieces, samples, rate)
    return sound_of_pieces(pieces, rate, channels=min(2, len(samples)))


def check_finite(samples: Tensor) -> None:
    """Raise HeadForcingError for samples `[channels, n]` with NaN or infinity."""
    for piece in samples.split(PIECE, dim=1):
        if not torch.isfinite(piece).all():
            raise HeadForcingError("the sound holds NaN or infinity; give another sound")


def sample_pieces(samples: Tensor, rate: int) -> Iterator[np.ndarray]:
    """Samples `[channels, n]`, piece by piece: one channel or two as they are, up to eight mixed to
    two as FFmpeg does it, of more their mean.
    """
    channels = len(samples)
    layout = _SURROUND.get(channels)
    for part in samples.split(PIECE, dim=1):
        piece = part.float().cpu()
        if layout is not None:
            frames = [audio_frame(piece.numpy(), rate, layout)]
            for frame in as_floats(frames, rate, "stereo"):
                yield samples_of(frame)
        elif channels > 2:
            yield piece.mean(dim=0).expand(2, -1).numpy()
        else:
            yield piece.numpy()


def sound_of_pieces(
    pieces: Callable[[], Iterable[np.ndarray]], rate: int, channels: int, ends: bool = True
) -> Sound:
    """Samples that are read piece by piece, `[channels, n]` in -1..1, of one channel or two, as
    AAC.
    """
    layout = "mono" if channels == 1 else "stereo"

    def packets(target: OutputContainer) -> Iterator[Packet]:
        return _encoded(target, pieces(), rate, layout)

    return Sound(packets, ends)


def audio_frame(values: np.ndarray, rate: int, layout: str) -> AudioFrame:
    """Samples `[channels, n]` in -1..1 as a frame of sound."""
    # not in planes, of which PyAV reads one too many if there are eight
    joined = np.ascontiguousarray(values.T, np.float32).reshape(1, -1)
    frame = AudioFrame.from_ndarray(joined, format="flt", layout=layout)
    frame.sample_rate = rate
    return frame


def samples_of(frame: AudioFrame) -> np.ndarray:
    """The samples `[channels, n]` of a frame of `as_floats`."""
    return frame.to_ndarray().reshape(-1, frame.layout.nb_channels).T


def as_floats(frames: Iterable[AudioFrame], rate: int, layout: str) -> Iterator[AudioFrame]:
    """Decoded sound as 32 bit floats, at this rate and with these channels."""
    new_resampler = partial(AudioResampler, format="flt", layout=layout, rate=rate)
    resampler = new_resampler()
    for frame in frames:
        try:
            yield from resampler.resample(frame)
        except ValueError:  # some files change their rate or channels on the way
            resampler = new_resampler()
            yield from resampler.resample(frame)
    yield from resampler.resample(None)  # what it held back


def _section(
    frames: Iterable[AudioFrame], rate: int, start: float, end: float
) -> Iterator[np.ndarray]:
    """The samples between two times, `[channels, n]`, in pieces, with silence where the file holds
    no sound.
    """
    length = (end - start) * rate
    place = 0  # of the next sample, counted from `start`
    begun = False
    for frame in frames:
        heard = max(0, place)
        if frame.time is not None:
            told = round((frame.time - start) * rate)
            # times are rounded: sound follows the one before, but for a jump
            if not begun or told - place > _JUMP * rate:
                place = told
        begun = True
        values = samples_of(frame)
        end_of_silence = round(min(place, length))
        for silence in range(heard, end_of_silence, PIECE):
            yield np.zeros((len(values), min(PIECE, end_of_silence - silence)), np.float32)
        if place >= length:
            return
        values = values[:, max(0, -place) : round(min(frame.samples, length - place))]
        place += frame.samples
        if values.shape[1]:
            yield values


class SoundStream:
    """The sound in a file that is written: added to the container before its first packet, then
    muxed as far as there are pictures.
    """

    def __init__(self, container: OutputContainer, sound: Sound | None):
        sound = sound or Sound(lambda container: iter(()))
        self._container = container
        self._packets = sound.packets(container)
        self._ends = sound.ends
        self._next = next(self._packets, None)

    def write(self, seconds: float) -> None:
        """Mux what is heard before this time of the file."""
        while self._next is not None and (self._next.pts or 0) * self._next.time_base < seconds:
            self._container.mux(self._next)
            self._next = next(self._packets, None)

    def finish(self, seconds: float) -> None:
        """Mux the rest, of sound that does not end what is heard before this time."""
        self.write(math.inf if self._ends else seconds)


def decodable(container: InputContainer) -> list[AudioStream]:
    """The streams of sound that can be decoded."""
    # a stream without a decoder has no codec context, and its packets crash FFmpeg
    return [stream for stream in container.streams.audio if stream.codec_context is not None]


def decoded(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """The frames of a stream; damaged packets are left out."""
    with suppress(FFmpegError):
        for packet in container.demux(stream):
            with suppress(FFmpegError):
                yield from packet.decode()


def _copies(stream: AudioStream) -> bool:
    """Whether an MP4 file holds the packets of a stream as they are."""
    context = stream.codec_context
    name = context.codec.canonical_name  # not that of the decoder, which is `mp3float`
    if name == "aac":  # with a configuration in each packet, as in MPEG-TS, it is not held
        return context.extradata is not None
    if name == "mp3":
        return context.sample_rate >= _MP3_RATE
    return name in _IN_MP4


def _layout(stream: AudioStream) -> str:
    """The channels of a stream by a name; some files only have their number, which an encoder does
    not take.
    """
    layout = stream.codec_context.layout
    return {1: "mono", 2: "stereo"}.get(layout.nb_channels, layout.name)


def _encoded(
    target: OutputContainer, pieces: Iterable[np.ndarray], rate: int, layout: str
) -> Iterator[Packet]:
    stream = target.add_stream("aac", rate=rate if rate in _AAC_RATES else 48000, layout=layout)
    stream.bit_rate = _BIT_RATE
    samples = 0
    for values in pieces:
        if not values.size:
            continue
        # the encoder refuses NaN and infinity, which files of floats may hold
        frame = audio_frame(np.clip(np.nan_to_num(values), -1, 1), rate, layout)
        frame.pts = samples
        frame.time_base = Fraction(1, rate)
        samples += frame.samples
        yield from stream.encode(frame)
    yield from stream.encode()

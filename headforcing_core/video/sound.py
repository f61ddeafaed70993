"""The sound of a file that is written: of another file or of samples, encoded as AAC, and its place
in a file that grows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Any

import numpy as np
from av import AudioFrame, AudioResampler, AudioStream, Packet, time_base
from av.container import InputContainer, OutputContainer
from av.error import FFmpegError
from torch import Tensor

from ..errors import HeadForcingError
from ..timeline.clock import MAX_SECONDS
from .reader import VideoSource, name_of, open_video

_AAC_RATES = {8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000, 64000, 88200, 96000}
_BIT_RATE = 256_000
_JUMP = 0.01  # seconds without sound that are no rounding of the times in a file
# Channels by their number, in FFmpeg's order, as AAC has them; an AUDIO and some files have no more
# than their number. Of three the last may be the voice.
LAYOUTS = {
    1: "mono",
    2: "stereo",
    3: "3.0",
    4: "4.0",
    5: "5.0",
    6: "5.1",
    7: "6.1",
    8: "7.1",
}
_FLOATS = ("flt", "fltp", "dbl", "dblp")  # of a lossless codec, they may be NaN
PIECE = 1 << 16  # samples that are encoded at a time
# Samples a second: a header may state any number, and a piece of sound at a low rate is long.
RATES = (1_000, 768_000)


@dataclass(frozen=True)
class Sound:
    """The sound of a file that is written; it ends with the pictures at the latest.

    Attributes:
        pieces: reads all samples, `[channels, n]` in -1..1, in order.
        rate: samples a second.
        layout: FFmpeg's name of the channels.
    """

    pieces: Callable[[], Iterator[np.ndarray]]
    rate: int
    layout: str


def sound_of_file(source: VideoSource, start: float, end: float) -> Sound | None:
    """The sound of a video file between two of its times in seconds, counted from `start`; None if
    it has none.
    """
    opened = partial(open_video, source, name_of(source))
    # the stream that ComfyUI takes; some players crash on AAC of more than six channels
    return sound_of_stream(opened, -1, most_channels=6, section=(start, end))


def sound_of_stream(
    opened: Callable[[], InputContainer],
    number: int,
    most_channels: int,
    section: tuple[float, float] | None = None,
) -> Sound | None:
    """The sound of the first (0) or last (-1) stream that can be heard, between the two times of a
    section of its file, or all of it, up to a second more than `MAX_SECONDS`; None if there is no
    such stream.

    Raises HeadForcingError for a rate or a number of channels that cannot be converted, and for
    NaN in a section; whoever reads the whole sound calls `check_finite`.
    """
    found = _heard_stream(opened, number)
    if found is None:
        return None
    place, first_frame = found
    rate = first_frame.sample_rate
    check_rate(rate)
    layout = LAYOUTS[min(most_channels, first_frame.layout.nb_channels)]
    for _ in as_floats([first_frame], rate, layout):
        pass  # raises where it cannot be converted
    is_whole = section is None
    with opened() as container:
        codec = container.streams.audio[place].codec_context.codec
        any_floats = first_frame.format.name in _FLOATS and codec.lossless
        longest_gap = math.inf
        if section is None:
            begin = max(0, container.start_time or 0) / time_base
            section = (begin, begin + MAX_SECONDS + 1)
            # else an error in the times of a file becomes hours of silence. A file may state no
            # duration; FFmpeg then guesses one without gaps
            longest_gap = max(60.0, (container.duration or 0) / time_base)

    def pieces() -> Iterator[np.ndarray]:
        start, end = section
        with opened() as container:
            frames = _decoded(container, container.streams.audio[place])
            yield from _section(as_floats(frames, rate, layout), rate, start, end, longest_gap)

    if not is_whole and any_floats:
        for piece in pieces():
            check_finite(piece)
    return Sound(pieces, rate, layout)


def sound_of_samples(samples: Tensor, rate: int) -> Sound:
    """Samples `[channels, n]` in -1..1 as AAC of one channel or two, see `sample_pieces`.

    Raises HeadForcingError for NaN and infinity, and for a rate that is none of sound.
    """
    check_rate(rate)
    for piece in samples.split(PIECE, dim=1):
        check_finite(piece.float().cpu().numpy())
    layout = LAYOUTS[min(2, len(samples))]
    return Sound(partial(sample_pieces, samples, rate), rate, layout)


def sample_pieces(samples: Tensor, rate: int) -> Iterator[np.ndarray]:
    """Samples `[channels, n]`, piece by piece: one channel or two as they are, up to eight mixed to
    two as FFmpeg does it, of more their mean.
    """
    channels = len(samples)
    for part in samples.split(PIECE, dim=1):
        piece = part.float().cpu()
        if 2 < channels <= 8:
            frames = [audio_frame(piece.numpy(), rate, LAYOUTS[channels])]
            for frame in as_floats(frames, rate, "stereo"):
                yield samples_of(frame)
        elif channels > 2:
            yield piece.mean(dim=0).expand(2, -1).numpy()
        else:
            yield piece.numpy()


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
    """Decoded sound as 32 bit floats, at this rate and with these channels.

    Raises HeadForcingError for sound that FFmpeg cannot convert.
    """
    new_resampler = partial(AudioResampler, format="flt", layout=layout, rate=rate)
    resampler = new_resampler()
    for frame in frames:
        try:
            yield from resampler.resample(frame)
        except ValueError:  # some files change their rate or channels on the way
            resampler = new_resampler()
            yield from _resampled(resampler, frame)
    yield from resampler.resample(None)  # what it held back


def _resampled(resampler: AudioResampler, frame: AudioFrame) -> list[AudioFrame]:
    try:
        return resampler.resample(frame)
    except (ValueError, MemoryError, FFmpegError) as error:
        raise HeadForcingError(
            f"the sound has {frame.layout.nb_channels} channels at {frame.sample_rate} samples a "
            "second, which FFmpeg cannot convert: give a sound of one to eight channels"
        ) from error


def check_finite(samples: np.ndarray) -> None:
    """Raise HeadForcingError for samples with NaN or infinity, which a file of floats may hold."""
    if not np.isfinite(samples).all():
        raise HeadForcingError("the sound holds NaN or infinity; give another sound")


def check_rate(rate: int) -> None:
    """Raise HeadForcingError for a number of samples a second that no sound has."""
    if not RATES[0] <= rate <= RATES[1]:
        raise HeadForcingError(
            f"the sound states {rate} samples a second, expected from {RATES[0]} to {RATES[1]}; "
            "give a sound that plays elsewhere"
        )


def mono(pieces: Iterable[np.ndarray], rate: int, wanted: int) -> Iterator[np.ndarray]:
    """The mean of all channels of pieces `[channels, n]`, at another rate, in pieces `[n]`."""
    frames = (audio_frame(piece.mean(axis=0, keepdims=True), rate, "mono") for piece in pieces)
    for frame in as_floats(frames, wanted, "mono"):
        yield samples_of(frame)[0]


def _section(
    frames: Iterable[AudioFrame], rate: int, start: float, end: float, longest_gap: float
) -> Iterator[np.ndarray]:
    """The samples between two times, `[channels, n]`, in pieces, with silence where there is no
    sound. A gap of more than `longest_gap` seconds is an error in the file and left out.
    """
    length = (end - start) * rate
    yielded = 0  # samples
    position = -math.inf  # of the frame's first sample, counted from `start`
    for frame in frames:
        values = samples_of(frame)
        stated = round(((frame.time or 0.0) - start) * rate)
        if stated - yielded > longest_gap * rate:
            stated = yielded
        # stated times are rounded: a frame follows the one before, but for a jump
        if stated - position > _JUMP * rate:
            position = stated
        end_of_silence = round(min(position, length))
        for silence in range(yielded, end_of_silence, PIECE):
            yield np.zeros((len(values), min(PIECE, end_of_silence - silence)), np.float32)
        yielded = max(yielded, end_of_silence)
        if yielded >= length:
            return
        early = round(yielded - position)  # samples before the section, or that overlap
        position += frame.samples
        values = values[:, early : early + round(min(frame.samples, length - yielded))]
        yielded += values.shape[1]
        yield values


class SoundStream:
    """The sound in a file that is written: added to the container before its first packet, then
    muxed as far as there are pictures.
    """

    def __init__(self, container: OutputContainer, sound: Sound | None):
        self._container = container
        self._packets: Iterator[Packet] = iter(())
        if sound is not None:
            self._packets = _encoded(container, sound)
        self._next = next(self._packets, None)

    def write(self, seconds: float) -> None:
        """Mux what is heard before this time of the file."""
        while self._next is not None and (self._next.pts or 0) * self._next.time_base < seconds:
            self._container.mux(self._next)
            self._next = next(self._packets, None)


def _heard_stream(
    opened: Callable[[], InputContainer], number: int
) -> tuple[int, AudioFrame] | None:
    """The place of the first (0) or last (-1) stream of sound that gives a frame with channels, and
    that frame: a header may announce a stream of which the file holds nothing.
    """
    with opened() as container:
        # a stream without a decoder has no codec context, and its packets crash FFmpeg
        places = {
            stream.index: place
            for place, stream in enumerate(container.streams.audio)
            if stream.codec_context is not None
        }
        if not places:
            return None
        wanted = min(places.values()) if number == 0 else max(places.values())
        heard: dict[int, AudioFrame] = {}  # one pass for all streams, of which there may be many
        streams = [container.streams.audio[place] for place in places.values()]
        with suppress(FFmpegError):
            for packet in container.demux(*streams):
                place = places[packet.stream.index]
                if place not in heard:
                    _note_frame(heard, place, packet)
                if wanted in heard:
                    break
    if not heard:
        return None
    place = min(heard) if number == 0 else max(heard)
    return place, heard[place]


def _note_frame(heard: dict[int, AudioFrame], place: int, packet: Any) -> None:
    """Keep the first frame of a packet that can be heard."""
    with suppress(FFmpegError):
        for frame in packet.decode():
            if frame.samples and frame.layout.nb_channels:
                heard[place] = frame
                return


def _decoded(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """The frames of a stream; damaged packets are left out."""
    with suppress(FFmpegError):
        for packet in container.demux(stream):
            with suppress(FFmpegError):
                yield from packet.decode()


def _encoded(target: OutputContainer, sound: Sound) -> Iterator[Packet]:
    rate = sound.rate if sound.rate in _AAC_RATES else 48000
    stream = target.add_stream("aac", rate=rate, layout=sound.layout)
    stream.bit_rate = _BIT_RATE
    samples = 0
    for values in sound.pieces():
        if not values.size:
            continue
        # the encoder refuses NaN and infinity, which files of floats may hold
        finite = np.clip(np.nan_to_num(values), -1, 1)
        frame = audio_frame(finite, sound.rate, sound.layout)
        frame.pts = samples
        frame.time_base = Fraction(1, sound.rate)
        samples += frame.samples
        yield from stream.encode(frame)
    yield from stream.encode()

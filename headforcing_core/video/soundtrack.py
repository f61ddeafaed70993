"""The sound of a story: a file or samples, with its place in the story and its loudness."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from av.container import InputContainer
from av.error import FFmpegError
from torch import Tensor

from ..errors import HeadForcingError
from ..files import check_regular
from ..hashing import digest, file_hash
from ..timeline.clock import MAX_SECONDS
from .reader import VIDEO_FORMATS, address, open_container
from .sound import PIECE, Sound, check_finite, sound_of_samples, sound_of_stream

SOUND_FORMATS = f"{VIDEO_FORMATS},mp3,wav,w64,flac,aac,aiff,caf,oga,ac3,eac3,amr,au,ape,wv,tta"
MAX_GAIN_DB = 40.0
_GIVE = "give a sound or video file that plays elsewhere"


@dataclass(frozen=True)
class Soundtrack:
    """The sound of a story; checks its place and loudness.

    Attributes:
        name: for reports.
        sound: itself, of one channel or two.
        seconds: length of the sound.
        key: hash of the sound, without place and loudness.
        offset_seconds: time of the story at which the sound begins; below 0 its beginning is left
            out.
        gain_db: by which it is louder.
    """

    name: str
    sound: Sound
    seconds: float
    key: str
    offset_seconds: float = 0.0
    gain_db: float = 0.0

    def __post_init__(self) -> None:
        if not abs(self.offset_seconds) <= MAX_SECONDS:  # NaN is not, either
            raise HeadForcingError(
                f"the offset of the sound must be from -{MAX_SECONDS:.0f} to {MAX_SECONDS:.0f} "
                f"seconds, got {self.offset_seconds:g}"
            )
        if not abs(self.gain_db) <= MAX_GAIN_DB:
            raise HeadForcingError(
                f"the gain of the sound must be from -{MAX_GAIN_DB:g} to {MAX_GAIN_DB:g} dB, got "
                f"{self.gain_db:g}"
            )

    @classmethod
    def of_file(cls, path: Path, on_piece: Callable[[], None] = lambda: None) -> Soundtrack:
        """A sound or video file, which is read again whenever it is heard.

        `on_piece` is called for each piece that is read, and may raise to stop. Raises
        HeadForcingError for a file that cannot be read, has no sound, or too much of it.
        """
        check_regular(path)
        opened = partial(_open, path)
        try:
            sound = sound_of_stream(opened, 0, most_channels=2)
        except HeadForcingError as error:
            raise HeadForcingError(f"{path.name}: {error}") from error
        if sound is None:
            with opened() as container:
                announced = len(container.streams.audio)
            found = "holds no sound that can be decoded" if announced else "has no sound"
            raise HeadForcingError(f"{path.name} {found}: {_GIVE}")
        # decoded, as packets of many formats state neither their exact length nor what encoders add
        samples = 0
        for piece in sound.pieces():
            on_piece()
            try:
                check_finite(piece)
            except HeadForcingError as error:
                raise HeadForcingError(f"{path.name}: {error}") from error
            samples += piece.shape[1]
            if samples > MAX_SECONDS * sound.rate:
                raise HeadForcingError(
                    f"{path.name} lasts more than {MAX_SECONDS:.0f} s, or its times say so: give "
                    "a shorter sound"
                )
        if not samples:
            raise HeadForcingError(f"{path.name} holds no sound that can be decoded: {_GIVE}")
        return cls(path.name, sound, samples / sound.rate, file_hash(path))

    @classmethod
    def of_samples(cls, samples: Tensor, rate: int) -> Soundtrack:
        """Samples of an AUDIO, `[channels, n]` in -1..1; more than two channels are mixed.

        Raises HeadForcingError if there are none, and for NaN and infinity.
        """
        if samples.numel() == 0:
            raise HeadForcingError(f"audio: the sound is empty; {_GIVE}")
        sound = sound_of_samples(samples, rate)
        return cls("audio", sound, samples.shape[1] / rate, digest(rate, samples))

    def placed(self, offset_seconds: float, gain_db: float) -> Soundtrack:
        """The same sound at another time of the story, and so much louder."""
        return replace(self, offset_seconds=offset_seconds, gain_db=gain_db)

    @property
    def identity(self) -> str:
        """A hash of what is heard in the story."""
        return digest(self.key, self.offset_seconds, self.gain_db)

    def story_length(self) -> float:
        """Length of a story that ends with the sound; raises HeadForcingError where it is no length
        of a story.
        """
        seconds = max(0.0, self.offset_seconds + self.seconds)
        if not 0 < seconds <= MAX_SECONDS:
            raise HeadForcingError(
                f"the story would end with the sound at {seconds:g} s, expected above 0 and at "
                f"most {MAX_SECONDS:.0f}; give the seconds of the story, or another offset"
            )
        return seconds

    def from_second(self, second: float) -> Sound:
        """The sound of a file that begins at this second of the story; below 0 it begins
        earlier.
        """
        skipped = round((second - self.offset_seconds) * self.sound.rate)
        # a page plays a growing file as far as it has both pictures and sound: silence follows
        return replace(self.sound, pieces=partial(self._placed, skipped))

    def _placed(self, skipped: int) -> Iterator[np.ndarray]:
        """The samples without the first `skipped` ones; below 0 silence comes before them. Silence
        follows, without an end.
        """
        channels = 1 if self.sound.layout == "mono" else 2
        for place in range(skipped, 0, PIECE):
            yield np.zeros((channels, min(PIECE, -place)), np.float32)
        left = max(0, skipped)
        factor = 10 ** (self.gain_db / 20)
        for piece in self.sound.pieces():
            heard = piece[:, left:]
            left = max(0, left - piece.shape[1])
            if heard.shape[1]:
                yield heard * factor
        while True:
            yield np.zeros((channels, PIECE), np.float32)


def _open(path: Path) -> InputContainer:
    try:
        return open_container(address(path), SOUND_FORMATS)
    except (OSError, ValueError, FFmpegError) as error:
        raise HeadForcingError(f"{path.name} cannot be read as sound ({error}): {_GIVE}") from error

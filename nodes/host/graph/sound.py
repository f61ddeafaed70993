"""The sound of an AUDIO, for a story or a video file."""

from __future__ import annotations

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.video.soundtrack import Soundtrack


def soundtrack_of(audio: Fields | None) -> Soundtrack | None:
    """The first of AUDIO's tracks; None where none is connected.

    Raises HeadForcingError for one that is empty, or is no sound.
    """
    if audio is None:
        return None
    samples = audio.get("waveform")
    rate = audio.get("sample_rate")
    if samples is None or samples.ndim != 3 or not len(samples) or not rate:
        raise HeadForcingError(
            "audio: expected a waveform [tracks, channels, samples] with its sample rate; connect "
            "Load Audio"
        )
    return Soundtrack.of_samples(samples[0], int(rate))

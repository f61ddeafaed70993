"""Speech between *Speech* and the nodes that render it."""

from __future__ import annotations

from dataclasses import dataclass

from comfy_api.latest import io

from ....headforcing_core.rollout.speech import Speech
from ....headforcing_core.video.soundtrack import Soundtrack

SpeechType = io.Custom("HEAD_FORCING_SPEECH")


@dataclass(frozen=True)
class HeardSpeech:
    """What drives the picture, the sound of the file, and their length in whole blocks."""

    speech: Speech
    soundtrack: Soundtrack
    seconds: float

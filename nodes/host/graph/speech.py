"""Speech between *Speech* and the nodes that render it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from comfy_api.latest import io

from ....headforcing_core.plan.options import RenderOptions
from ....headforcing_core.plan.speech import Speech
from ....headforcing_core.video.soundtrack import Soundtrack
from .conditioning import Conditioning, node_of

SpeechType = io.Custom("HEAD_FORCING_SPEECH")


@dataclass(frozen=True)
class HeardSpeech:
    """Features that drive a picture, the sound of the file, and their length in whole blocks."""

    speech: Speech
    soundtrack: Soundtrack
    seconds: float


def with_length_of(
    speech: HeardSpeech | None, options: RenderOptions, positive: Conditioning
) -> RenderOptions:
    """The options of a render, as long as its speech if neither they nor *Prompt Timeline* give a
    length.
    """
    if speech is None or options.seconds or node_of(positive) is not None:
        return options
    return replace(options, seconds=speech.seconds)

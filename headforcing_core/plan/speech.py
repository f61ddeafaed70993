"""Checks of a render that speech drives."""

from __future__ import annotations

from ..errors import HeadForcingError
from ..rollout.speech import Speech
from ..timeline.clock import video_frames_of
from .plan import RenderPlan


def check_speech(plan: RenderPlan, speech: Speech | None) -> None:
    """Refuse speech for a model that takes none; and for one that takes it, a plan without portrait
    or speech, too little speech, and what such a model cannot do.
    """
    config = plan.config
    if not config.speaks:
        raise HeadForcingError(
            "speech: this model is not driven by speech; remove the speech, or load LiveTalk"
        )
    if speech is None:
        raise HeadForcingError(
            "speech: this model makes a portrait speak and got no speech; connect a Speech node to "
            "the sampler (generate and batch: --speech)"
        )
    if not plan.held_frames:
        raise HeadForcingError(
            "start image: this model makes a portrait speak and got none; give one picture to "
            "start with (generate and batch: --start-image)"
        )
    if plan.timeline.references:
        raise HeadForcingError(
            "references: a model that speech drives holds no pictures but its portrait; remove them"
        )
    if plan.auto is not None:
        raise HeadForcingError(
            "head roles: they cannot be measured on a model that speech drives; choose the method "
            "livetalk, which is its authors' window, or give a head profile"
        )
    width = speech.features.shape[-1]
    if width != config.audio_width:
        raise HeadForcingError(
            f"speech: the model reads {config.audio_width} features for each video frame, got "
            f"{width}; encode the sound with wav2vec2-base-960h"
        )
    if speech.latent_frames < plan.frames:
        fps = plan.timeline.clock.fps
        needed = video_frames_of(plan.frames)
        raise HeadForcingError(
            f"speech: it lasts {len(speech.features) / fps:.2f} s, the blocks of this video "
            f"{needed / fps:.2f} s ({needed} video frames); add silence at its end, or make the "
            "video shorter"
        )

"""Speech: sound and an audio encoder as the features that drive a talking portrait."""

from typing import Any

import torch
from comfy_api.latest import io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields
from ..headforcing_core.plan.speech import Speech
from ..headforcing_core.rollout.schedule import LIVETALK
from ..headforcing_core.video.speech_features import (
    MAX_SECONDS,
    RATE,
    encode_speech,
    speech_keys,
    speech_wave,
)
from .host.graph import schema
from .host.graph.sound import soundtrack_of
from .host.graph.speech import HeardSpeech, SpeechType
from .host.model.audio_encoder import HostEncoder


class SpeechNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingSpeech",
            "Speech",
            "prompts",
            aliases="LiveTalk, talking head, portrait, avatar, lip sync, audio, wav2vec2, s2v",
            inputs=[
                io.AudioEncoder.Input("audio_encoder"),
                io.Audio.Input("audio"),
                io.Float.Input("audio_scale", default=1.0, min=0.0, max=10.0, step=0.05),
                io.Float.Input("pad_seconds", default=0.0, min=0.0, max=MAX_SECONDS, step=0.25),
                io.Float.Input("segment_seconds", default=0.0, min=0.0, max=300.0, step=1.0),
            ],
            advanced="audio_scale pad_seconds segment_seconds",
            outputs={
                "speech": SpeechType,
                "seconds": io.Float,
            },
        )

    @classmethod
    @schema.shows_errors
    def execute(
        cls,
        audio_encoder: Any,
        audio: Fields,
        audio_scale: float = 1.0,
        pad_seconds: float = 0.0,
        segment_seconds: float = 0.0,
    ) -> io.NodeOutput:
        encoder = HostEncoder(audio_encoder)
        soundtrack = soundtrack_of(audio)
        if soundtrack is None:  # what a loader gives for a video without sound
            raise HeadForcingError("audio: there is no sound; connect Load Audio")
        wave = speech_wave(soundtrack, pad_seconds)
        clock = LIVETALK.clock
        video_frames = clock.video_frames(clock.blocks_for(len(wave) / RATE))
        seconds = video_frames / clock.fps
        about = (wave, video_frames, encoder, segment_seconds)
        keys = speech_keys(*about)
        encoder.load(segment_seconds or seconds)
        with torch.inference_mode():
            features = encode_speech(*about)
        speech = Speech(features, scale=audio_scale, keys=keys)
        return io.NodeOutput(HeardSpeech(speech, soundtrack, seconds), seconds)

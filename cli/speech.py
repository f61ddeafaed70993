"""The speech of `--speech`: features that are stored, or a sound and an audio encoder."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

import torch

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.plan.options import RenderOptions
from ..headforcing_core.plan.speech import Speech
from ..headforcing_core.timeline.timeline import Timeline
from ..headforcing_core.video.soundtrack import Soundtrack
from ..headforcing_core.video.speech_features import (
    encode_speech,
    load_encoder,
    speech_keys,
    speech_wave,
)
from ..headforcing_core.weights.containers import read_weights
from .values import changed

STORED = ".safetensors"


def heard(args: Namespace) -> Namespace:
    """The arguments with the sound of `--speech` as that of the video, where no other is given."""
    if args.speech.suffix == STORED or args.audio is not None:
        return args
    if args.audio_offset:
        raise HeadForcingError(
            "--audio-offset would move the sound of --speech away from the lips; leave it out, or "
            "give another sound for the file with --audio"
        )
    return changed(args, audio=args.speech)


def chosen_speech(
    args: Namespace, options: RenderOptions, timeline: Timeline, device: torch.device
) -> Speech:
    """The speech as long as the blocks of the story; encoded on `device` if it is a sound."""
    clock = options.schedule.clock
    blocks = clock.blocks_for(options.seconds or timeline.seconds)
    frames = clock.video_frames(blocks)
    scale = args.speech_scale
    if args.speech.suffix == STORED:
        if args.speech_encoder is not None:
            raise HeadForcingError("--speech-encoder is for sound, --speech names features")
        return Speech(_stored_features(args.speech), scale)
    if args.speech_encoder is None:
        raise HeadForcingError(
            "--speech names a sound: give --speech-encoder, a folder with wav2vec2-base-960h, or "
            "a safetensors file with the tensor `features`"
        )
    wave = speech_wave(Soundtrack.of_file(args.speech))
    encoder = load_encoder(args.speech_encoder, device)
    stretch = args.speech_segment
    keys = speech_keys(wave, frames, encoder, stretch)
    return Speech(encode_speech(wave, frames, encoder, stretch), scale, keys)


def _stored_features(file: Path) -> torch.Tensor:
    """The tensor `features` of a file, `[video frames, width]`."""
    features = read_weights(file)[0].get("features")
    if not isinstance(features, torch.Tensor) or features.ndim != 2:
        raise HeadForcingError(
            f"{file.name} has no tensor `features` [video frames, width]; give a sound, or "
            "features of wav2vec2-base-960h"
        )
    return features.float()

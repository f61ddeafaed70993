"""The embedded toy world: its words, its autoencoder, its files."""

from __future__ import annotations

import pytest
import torch
from counted_memory import CountsMemory
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.demo.picture_decoder import decoding_bytes
from headforcing.headforcing_core.demo.rooms_autoencoder import (
    PREVIEW_BIAS,
    PREVIEW_FACTORS,
    RoomsStreamingDecoder,
)
from headforcing.headforcing_core.demo.words import Look
from headforcing.headforcing_core.head_profiles.profile import default_profile
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.names import DEMO_AUTOENCODER
from headforcing.research.rooms.judge import STORIES, RoomsJudge
from headforcing.research.rooms.scenes import render


def test_a_prompt_unlike_the_training_set_gets_one_helpful_sentence_and_those_of_the_demo_none():
    for prompt, says in (
        (
            "a purple dinosaur",
            "does not know dinosaur, so what it shows is left to chance: try 'a purple ball",
        ),
        ("red star, navy", "try 'a red star bouncing in the navy checkerboard room'"),
        ("A red dragon, flying in the teal Dragon room", "does not know dragon, flying, so"),
    ):
        assert (
            says in word_hash.advice(prompt) and word_hash.advice(word_hash.nearest(prompt)) is None
        )
    prompts = [line.split(" ", 1)[1] for line in assets.DEMO_STORY.splitlines()]
    assert all(
        Look.parse(prompt).prompt == prompt and word_hash.advice(prompt) is None
        for prompt in prompts
    )
    rooms = [Look.parse(prompt).room for prompt in prompts]
    assert rooms[:3] == rooms[3:] and len(set(rooms)) == 3


def test_the_autoencoder_keeps_frames_and_picture_however_they_are_cut_and_previews_have_its_colours():
    autoencoder = assets.load_autoencoder()
    look = Look.parse("a red ball gliding in the teal plain room")
    video_frames = render([look, look], seed=1).video_frames[:17]
    latents = autoencoder.encode(video_frames)
    decoded = autoencoder.decode(latents)
    assert decoded.shape == video_frames.shape and decoded.min() >= 0 and decoded.max() <= 1
    assert (decoded - video_frames).abs().mean() < 0.03
    assert torch.equal(autoencoder.encode(video_frames[:16]), latents[:4])
    decoder = RoomsStreamingDecoder(autoencoder)
    for chunks in ([5], [1, 2, 2], [1, 1, 1, 1, 1]):
        decoder.reset()
        assert torch.equal(
            torch.cat([decoder.decode(chunk) for chunk in latents.split(chunks)]), decoded
        )
    preview = torch.einsum("fchw,cd->fhwd", latents, torch.tensor(PREVIEW_FACTORS)) + torch.tensor(
        PREVIEW_BIAS
    )
    clips = decoded[1:].unflatten(0, (-1, 4)).mean(1)
    colours = clips.unflatten(1, (8, 8)).unflatten(3, (8, 8)).mean((2, 4)) * 2 - 1
    assert (preview[1:] - colours).square().mean().sqrt() < 0.1


@pytest.mark.slow
def test_the_model_shows_what_its_prompts_say():
    """A minute of the demo is too long to judge here: nine seconds with two other rooms between."""
    judge = RoomsJudge(assets.model_path(), DEMO_AUTOENCODER, default_profile(8, 6))
    found = judge.measure_story(
        PRESETS["head_forcing"], "profile", STORIES["twelve_blocks"](90_000), 90_000
    )
    assert found["background"] > 0.9 and found["single"] > 0.9


def test_the_memory_of_the_decoder_of_pictures_is_counted_for_any_number_of_frames():
    """The processor's kernels take a quarter more than tensors do."""
    decoder = assets.load_picture_decoder()
    for frames in (3, 20):
        latents = torch.randn(frames, 16, 8, 8, generator=torch.Generator().manual_seed(0))
        known = (*decoder.parameters(), *decoder.buffers(), latents)
        with torch.no_grad(), CountsMemory(known, "cpu") as memory:
            decoder.decode(latents)
        assert memory.peak < decoding_bytes(frames, 8, 8) < 1.6 * memory.peak, frames

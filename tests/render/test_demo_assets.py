"""The embedded toy world: its words, its autoencoder, its files."""

from __future__ import annotations

import pytest
import torch
from headforcing.headforcing_core.cache.policy import preset
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.demo.rooms_autoencoder import PREVIEW_BIAS, PREVIEW_FACTORS, RoomsStreamingDecoder
from headforcing.headforcing_core.demo.words import Look
from headforcing.headforcing_core.head_profiles.profile import default_profile
from headforcing.headforcing_core.names import DEMO_AUTOENCODER
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint
from headforcing.research.rooms.judge import STORIES, RoomsJudge
from headforcing.research.rooms.scenes import render


def test_word_vectors_are_the_ones_the_model_was_trained_with():
    rows = word_hash.encode("a red ball bouncing in the teal plain room")
    assert rows.shape == (12, 64) == (assets.TOY_CONFIG.text_len, assets.TOY_CONFIG.text_dim)
    trained = {(0, 0): 0.7363859415054321, (1, 5): 0.5339436531066895, (2, 63): 0.8426765203475952}
    trained |= {(8, 31): -1.6494196653366089, (11, 0): 0.0}
    assert rows.dtype == torch.float32 and {index: rows[index].item() for index in trained} == trained
    assert rows.double().abs().sum().item() == pytest.approx(552.9761838205159, abs=1e-9)
    assert torch.equal(word_hash.encode("A  Red ball, bouncing in the teal plain room!"), rows)
    assert not torch.equal(word_hash.encode("a red star")[1], rows[1]), "neighbours count"
    assert torch.equal(word_hash.encode("red " * 30), word_hash.encode("red " * 12))
    assert torch.equal(word_hash.encode(""), torch.zeros(12, 64))


def test_a_prompt_unlike_the_training_set_gets_one_helpful_sentence_and_those_of_the_demo_none():
    for prompt, says in (
        ("a purple dinosaur", "does not know dinosaur, so what it shows is left to chance: try 'a purple ball"),
        ("red star, navy", "was not trained on prompts in the form of 'red star, navy'"),
        ("red star, navy", "try 'a red star bouncing in the navy checkerboard room'"),
        ("one two three four five six seven eight", "does not know one, two, three, four, five, six ..., so"),
        ("A red dragon, flying in the teal Dragon room", "does not know dragon, flying, so"),
    ):
        sentence = word_hash.advice(prompt)
        assert says in sentence and "\n" not in sentence and "{" not in sentence
        assert word_hash.advice(word_hash.nearest(prompt)) is None
    assert word_hash.advice("A red ball bouncing in the teal plain room, panning left") is None
    lines = [line.split(" ", 1) for line in assets.DEMO_STORY.splitlines()]
    assert [start for start, _ in lines] == ["0:00", "0:10", "0:20", "0:30", "0:40", "0:50"]
    assert all(Look.parse(prompt).prompt == prompt and word_hash.advice(prompt) is None for _, prompt in lines)
    rooms = [Look.parse(prompt).room for _, prompt in lines]
    assert rooms[:3] == rooms[3:] and len(set(rooms)) == 3


def test_the_autoencoder_keeps_frames_and_picture_however_they_are_cut_and_previews_have_its_colours():
    autoencoder, look = assets.load_autoencoder(), Look.parse("a red ball gliding in the teal plain room")
    video_frames = render([look, look], seed=1).video_frames[:17]
    latents = autoencoder.encode(video_frames)
    assert latents.shape == (5, 16, 8, 8)
    decoded = autoencoder.decode(latents)
    assert decoded.shape == video_frames.shape and decoded.min() >= 0 and decoded.max() <= 1
    assert (decoded - video_frames).abs().mean() < 0.03
    assert autoencoder.encode(video_frames[:1]).shape == (1, 16, 8, 8)
    assert torch.equal(autoencoder.encode(video_frames[:16]), latents[:4])
    decoder = RoomsStreamingDecoder(autoencoder)
    for chunks in ([5], [1, 2, 2], [1, 1, 1, 1, 1], [3, 2]):
        decoder.reset()
        assert torch.equal(torch.cat([decoder.decode(chunk) for chunk in latents.split(chunks)]), decoded)
    preview = torch.einsum("fchw,cd->fhwd", latents, torch.tensor(PREVIEW_FACTORS)) + torch.tensor(PREVIEW_BIAS)
    clips = decoded[1:].unflatten(0, (-1, 4)).mean(1)
    colours = clips.unflatten(1, (8, 8)).unflatten(3, (8, 8)).mean((2, 4)) * 2 - 1
    assert (preview[1:] - colours).square().mean().sqrt() < 0.1


@pytest.mark.slow
def test_the_model_shows_what_its_prompts_say():
    """A minute of the demo is too long to judge here: nine seconds with two other rooms between."""
    judge = RoomsJudge(assets.model_path(), DEMO_AUTOENCODER, default_profile(8, 6))
    found = judge.measure_story(preset("head_forcing"), "profile", STORIES["twelve_blocks"](90_000), 90_000)
    assert found["background"] > 0.9 and found["single"] > 0.9


def test_the_files_say_what_shapes_cannot_and_load_in_the_dtype_asked_for():
    info = inspect_checkpoint(assets.model_path())
    assert info.config == assets.TOY_CONFIG
    assert (info.causal_ar, info.frames_per_block) == (True, assets.BLOCK_FRAMES)
    autoencoder = assets.load_autoencoder(dtype=torch.bfloat16)
    assert autoencoder.decode(torch.zeros(2, 16, 8, 8)).dtype == torch.bfloat16
    assert not any(parameter.requires_grad for parameter in autoencoder.parameters())

"""Training of the embedded model: the parallel forward is the engine's, and every stage moves what it should."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.cache.policy import preset
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.research.rooms.stories import random_story
from headforcing.research.training import distill
from headforcing.research.training.data import ClipPool, draw_stories, text_of
from headforcing.research.training.parallel_forward import forward, teacher_forced_flow, teacher_forcing
from headforcing.research.training.stages import flow_loss, rate_factor
from headforcing.research.training.training import Average, Optimizer, add_noise, draw_times, initialise, load, save

TINY = WanConfig(dim=32, ffn_dim=64, num_layers=2, num_heads=2, freq_dim=32, text_dim=64, text_len=12)


@pytest.fixture(autouse=True)
def eager():
    """Compiling takes a minute and changes nothing that is tested here."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def draw_texts(seed, batch, blocks=7):
    """Text embeddings of the first blocks of random stories, `[batch, blocks, 12, 64]`."""
    return draw_stories(seed, 0, 0, batch)[0][:, :blocks]


def tiny_model():
    model = WanModel(TINY)
    initialise(model)
    torch.nn.init.normal_(model.head.head.weight, std=0.1)
    return model


def engine_flows(model, clean, noisy, sigmas, texts):
    """The flow of every block from the engine: each is noised, then remembered clean."""
    timeline = parse_timeline(" | ".join(f"prompt {i}" for i in range(len(texts))), (12 * len(texts) - 3) / 16)
    plan = RenderPlan.make(model.config, preset("self_forcing"), schedule("self_forcing"), timeline, 64, 64)
    assert [row.prompt for row in plan.rows] == [segment.text for segment in plan.timeline.segments]
    video = WanVideoModel(model, torch.float32)
    cache = plan.make_cache(torch.float32, "cpu")
    flows = []
    for block in range(plan.blocks):
        video.use_prompt(texts[block])
        frames = slice(3 * block, 3 * block + 3)
        cache.begin_block()
        flows.append(video.flow(noisy[frames], sigmas[block], cache))
        video.write_clean(clean[frames], cache)
        cache.commit(video.prompt)
    return torch.cat(flows)


def test_the_parallel_forward_is_the_engine_with_its_cache():
    """Of the shipped weights: seven blocks at once against one after another, to 2e-5."""
    torch.manual_seed(0)
    model = load(assets.TOY_CONFIG, assets.model_path()).requires_grad_(False)
    text = draw_texts(1, 1)
    clean = torch.randn(1, 21, 16, 8, 8)
    times = draw_times((1, 7))
    noisy, _ = add_noise(clean, times)
    found = teacher_forced_flow(model, clean, noisy, 1000 * times, text)[0]
    expected = engine_flows(model, clean[0], noisy[0], times[0, ::3].tolist(), text[0])
    torch.testing.assert_close(found, expected, atol=2e-5 * float(expected.std()), rtol=2e-5)


def test_blocks_with_a_past_are_the_same_blocks_in_one_piece():
    model, text = tiny_model().requires_grad_(False), draw_texts(2, 2, blocks=2)
    clean, noisy = torch.randn(2, 6, 16, 8, 8), torch.randn(2, 6, 16, 8, 8)
    times = torch.full((2, 6), 0.7)
    whole = teacher_forced_flow(model, clean, noisy, 1000 * times, text)
    _, past = forward(model, clean[:, :3], torch.zeros(2, 3), text[:, :1], range(3))
    second, _ = forward(model, noisy[:, 3:], 700 * torch.ones(2, 3), text[:, 1:], range(3, 6), past=past)
    torch.testing.assert_close(second, whole[:, 3:], atol=1e-5, rtol=1e-5)


def test_teacher_forcing_lets_a_block_see_itself_and_clean_blocks_before_it():
    assert teacher_forcing(3, 10) == (
        (0, 10, ((0, 10),)),
        (10, 20, ((0, 20),)),
        (20, 30, ((0, 0), (20, 30))),
        (30, 40, ((0, 10), (30, 40))),
        (40, 50, ((0, 20), (40, 50))),
    )


def test_noise_levels_are_shared_by_the_frames_of_a_block_and_lean_to_high_ones():
    times = draw_times((500, 7))
    assert times.shape == (500, 21) and torch.equal(times[:, 0], times[:, 2])
    assert 0 < times.min() and times.max() < 1 and 0.55 < times.mean() < 0.66
    clean = torch.randn(500, 21, 1, 1, 1)
    noisy, noise = add_noise(clean, times)
    torch.testing.assert_close(noisy + times[..., None, None, None] * (clean - noise), clean)


def test_some_clips_have_no_text_and_some_words_are_left_out_of_whole_clips():
    rng = np.random.default_rng(3)
    texts = [text_of(random_story(rng, 7), rng) for _ in range(400)]
    empty = [not text.any() for text in texts]
    assert 0.10 < np.mean(empty) < 0.21
    words = [int((text[0].abs().sum(-1) > 0).sum()) for text in texts if text.any()]
    assert {9, 11} < set(words) and 0.02 < np.mean([n not in (9, 11) for n in words]) < 0.6


def test_the_pool_gives_other_clips_as_time_goes_on():
    pool = ClipPool(assets.load_autoencoder(), seed=4, rank=0, size=4, fresh=2)
    latents, cover, text = pool.draw(0, 3)
    assert latents.shape == (3, 36, 16, 8, 8) and cover.shape == (3, 36, 8, 8) and text.shape == (3, 12, 12, 64)
    assert 0 <= cover.min() and cover.max() <= 1 and 0.02 < cover.mean() < 0.4
    first = set(pool._clips)
    pool.draw(1, 4)
    assert first <= {0, 1, 2, 3} and set(pool._clips) == {2, 3, 4, 5}, "two of four are replaced at every step"


@pytest.mark.slow
def test_base_training_makes_the_flow_better():
    model, pool = tiny_model(), ClipPool(assets.load_autoencoder(), seed=5, rank=0, size=8, fresh=0)
    optimizer, average = Optimizer(model, 0.02, 2e-3), Average(model, 0.9)
    losses = []
    for step in range(25):
        loss = flow_loss(model, *pool.draw(step, 4))
        optimizer.step(loss, 1.0)
        average.update(model)
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    assert set(average.state_dict(model)) == set(model.state_dict())


def test_the_learning_rate_rises_stays_and_falls_to_nothing():
    rates = [rate_factor(step, 1000, decay=0.4) for step in (0, 49, 99, 500, 600, 800, 999)]
    assert rates == pytest.approx([0.01, 0.5, 1, 1, 1, 0.5, 0.0025])


def test_a_rollout_gives_back_what_one_step_of_every_block_was_given():
    model, text = tiny_model().requires_grad_(False), draw_texts(6, 3)
    made = distill.roll_out(model, text)
    assert made.clean.shape == made.noisy.shape == (3, 21, 16, 8, 8)
    levels = torch.tensor(distill.SIGMAS)
    assert torch.isin(made.times, levels).all() and len(made.times.unique()) == 4
    again = distill.denoised(model, made.clean, made.noisy, made.times, text)
    last = made.times == levels[-1]
    torch.testing.assert_close(again[last], made.clean[last], atol=1e-4, rtol=1e-4)
    assert (again[~last] - made.clean[~last]).abs().max() > 1e-3  # other steps are not the last


def test_a_student_as_good_as_its_teacher_is_left_alone_and_a_worse_one_is_not():
    teacher, text = tiny_model().requires_grad_(False), draw_texts(7, 2)
    made = distill.roll_out(teacher, text)
    same = distill.matching_gradient(teacher, teacher, made.clean, made, guidance=1.0)
    assert same.abs().max() == 0
    other = distill.matching_gradient(teacher, tiny_model().requires_grad_(False), made.clean, made, guidance=1.0)
    assert other.abs().mean() > 0.01


def test_weights_are_saved_and_loaded_as_they_are(tmp_path):
    model = tiny_model()
    save(model.state_dict(), tmp_path / "w.safetensors")
    again = load(TINY, tmp_path / "w.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))

"""Training of the embedded model: the parallel forward is the engine's, and every stage goes on
where it stopped.
"""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.demo.rooms_autoencoder import (
    PREVIEW_BIAS,
    PREVIEW_FACTORS,
    RoomsAutoencoder,
)
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.research.rooms.scenes import render
from headforcing.research.rooms.stories import random_story
from headforcing.research.training import data as rooms_data
from headforcing.research.training import distill, picture, training
from headforcing.research.training import gate as rooms_gate
from headforcing.research.training import stages as rooms_stages
from headforcing.research.training import train as rooms
from headforcing.research.training.data import (
    ClipPool,
    Crops,
    asked_for,
    draw_stories,
    latent_cells,
    text_of,
)
from headforcing.research.training.parallel_forward import teacher_forced_flow
from headforcing.research.training.stages import Recipe, Run, decode_clips
from headforcing.research.training.training import (
    Checkpoint,
    Workers,
    add_noise,
    draw_times,
    load,
)
from safetensors.torch import load_file
from tiny_files import SAND, TEAL

TINY = WanConfig(
    dim=32,
    ffn_dim=64,
    num_layers=2,
    num_heads=2,
    freq_dim=32,
    text_dim=64,
    text_len=12,
)


@pytest.fixture(autouse=True)
def eager():
    """Compiling takes a minute and changes nothing that is tested here."""
    torch.manual_seed(0)
    with torch.compiler.set_stance("force_eager"):
        yield


def draw_texts(seed, batch, blocks=7):
    """Text embeddings of the first blocks of random stories, `[batch, blocks, 12, 64]`."""
    return draw_stories(seed, 0, 0, batch)[0][:, :blocks]


def tiny_model():
    model = WanModel(TINY)
    training.initialise(model)
    torch.nn.init.normal_(model.head.head.weight, std=0.1)
    return model


def engine_flows(model, clean, noisy, sigmas, texts):
    """The flow of every block from the engine: each is noised, then remembered clean."""
    timeline = parse_timeline(
        " | ".join(f"a ball, {i}" for i in range(len(texts))),
        (12 * len(texts) - 3) / 16,
    )
    plan = RenderPlan.of(
        model.config, RenderOptions(method_name="self_forcing", width=64, height=64), timeline
    )
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
    model = load(assets.TOY_CONFIG, assets.model_path()).requires_grad_(False)
    text = draw_texts(1, 1)
    clean = torch.randn(1, 21, 16, 8, 8)
    times = draw_times((1, 7))
    noisy, _ = add_noise(clean, times)
    found = teacher_forced_flow(model, clean, noisy=noisy, timesteps=1000 * times, text=text)[0]
    expected = engine_flows(
        model,
        clean[0],
        noisy=noisy[0],
        sigmas=times[0, ::3].tolist(),
        texts=text[0],
    )
    torch.testing.assert_close(found, expected, atol=2e-5 * float(expected.std()), rtol=2e-5)


def test_noise_levels_are_shared_by_the_frames_of_a_block_and_lean_to_high_ones():
    times = draw_times((500, 7))
    assert times.shape == (500, 21) and torch.equal(times[:, 0], times[:, 2])
    assert 0 < times.min() and times.max() < 1 and 0.55 < times.mean() < 0.66
    clean = torch.randn(500, 21, 1, 1, 1)
    noisy, noise = add_noise(clean, times)
    torch.testing.assert_close(noisy + times[..., None, None, None] * (clean - noise), clean)
    rates = [
        rooms_stages.rate_factor(step, 1000, decay=0.4) for step in (0, 49, 99, 500, 600, 800, 999)
    ]
    assert rates == pytest.approx([0.01, 0.5, 1, 1, 1, 0.5, 0.0025]), "rises, stays and falls"


def test_clips_change_as_time_goes_on_and_some_words_are_left_out():
    pool = ClipPool(assets.load_autoencoder(), seed=4, rank=0, size=4, fresh=2)
    latents, cover, text = pool.draw(0, 3)
    assert (
        latents.shape == (3, 36, 16, 8, 8)
        and cover.shape == (3, 36, 8, 8)
        and text.shape == (3, 12, 12, 64)
    )
    assert 0 <= cover.min() and cover.max() <= 1 and 0.02 < cover.mean() < 0.4
    first = set(pool.clips)
    pool.draw(1, 4)
    assert first <= {0, 1, 2, 3} and set(pool.clips) == {2, 3, 4, 5}, (
        "two of four are replaced at every step"
    )
    rng = np.random.default_rng(3)
    texts = [text_of(random_story(rng, 7), rng) for _ in range(400)]
    assert 0.10 < np.mean([not text.any() for text in texts]) < 0.21
    words = [int((text[0].abs().sum(-1) > 0).sum()) for text in texts if text.any()]
    assert 0.02 < np.mean([n not in (9, 11) for n in words]) < 0.6, "dropped in a whole clip"


@pytest.mark.slow
def test_base_training_makes_the_flow_better_and_its_average_is_stored(tmp_path):
    model = tiny_model()
    pool = ClipPool(assets.load_autoencoder(), seed=5, rank=0, size=8, fresh=0)
    optimizer = training.Optimizer(model, 0.02, 2e-3)
    average = training.Average(model, 0.9)
    losses = []
    for step in range(25):
        loss = rooms_stages.flow_loss(model, *pool.draw(step, 4))
        optimizer.step(loss, 1.0)
        average.update(model)
        losses.append(loss.item())
    assert np.mean(losses[-5:]) < 0.9 * np.mean(losses[:5])
    training.save(average.parameters, tmp_path / "w.safetensors")
    again = dict(load(TINY, tmp_path / "w.safetensors").named_parameters())
    assert all(torch.equal(average.parameters[name], p) for name, p in again.items())
    assert 0 < max((again[name] - p).abs().max() for name, p in model.named_parameters()) < 0.5


def test_a_rollout_gives_back_what_one_step_of_every_block_was_given():
    model = tiny_model().requires_grad_(False)
    text = draw_texts(6, 3)
    made = distill.roll_out(model, text)
    assert made.clean.shape == made.noisy.shape == (3, 21, 16, 8, 8)
    levels = torch.tensor(distill.SIGMAS)
    assert torch.isin(made.times, levels).all() and len(made.times.unique()) == 4
    again = distill.denoised(model, made.clean, noisy=made.noisy, times=made.times, text=text)
    last = made.times == levels[-1]
    torch.testing.assert_close(again[last], made.clean[last], atol=1e-4, rtol=1e-4)
    assert (again[~last] - made.clean[~last]).abs().max() > 1e-3  # other steps are not the last
    same = distill.matching_gradient(model, model, made.clean, made, guidance=1.0)
    other = distill.matching_gradient(
        model, tiny_model().requires_grad_(False), made.clean, made, guidance=1.0
    )
    assert same.abs().max() == 0 and other.abs().mean() > 0.01, (
        "a student as good as its teacher is left alone"
    )


@pytest.fixture
def autoencoder():
    torch.manual_seed(0)
    model = RoomsAutoencoder(fine=8, coarse=16)
    torch.nn.init.normal_(model.time.weight, std=0.1)
    return model.eval().requires_grad_(False)


def test_training_decodes_what_inference_decodes_and_its_loss_sees_what_looks_blocky(
    autoencoder,
):
    """Of two errors with equal pixels the one whose tiles are latent cells costs more."""
    latents = torch.randn(2, 3, 16, 2, 2)
    both = decode_clips(autoencoder, autoencoder.raw(latents)).clamp(0, 1).movedim(2, -1)
    torch.testing.assert_close(
        torch.stack([*map(autoencoder.decode, latents)]), both, atol=1e-5, rtol=1e-5
    )
    truth = torch.zeros(1, 2, 3, 32, 32)
    weight = torch.ones(1, 2, 1, 32, 32)
    tiles = ((torch.arange(32) // 8 % 2)[:, None] ^ (torch.arange(32) // 8 % 2)) * 0.2 - 0.1
    cost = rooms_stages.picture_loss(truth + tiles, truth, weight)
    shifted = rooms_stages.picture_loss(truth + tiles.roll((2, 2), (0, 1)), truth, weight)
    assert cost > shifted + 0.02


def test_pictures_count_where_a_room_comes_back_and_crops_follow_from_the_step_alone():
    clip = render((TEAL, SAND, TEAL), seed=8)
    extra = asked_for(clip) - latent_cells(clip.shape)
    assert (extra[:6] == 0).all() and extra[6:].sum() > 5
    one = Crops(1, 0, size=2)
    other = Crops(1, 0, size=2)
    one.draw(0, 2)
    video_frames, weight = one.draw(5, 3)
    assert video_frames.shape == (3, 9, 3, 32, 32) and weight.min() >= 1
    assert torch.equal(video_frames, other.draw(5, 3)[0])


def test_the_gate_is_one_for_a_perfect_memory_and_zero_for_none(autoencoder, monkeypatch):
    cases = [rooms_gate.make_case(autoencoder, 2, seed) for seed in (1, 2)]
    changed = (cases[0].true != cases[0].other).flatten(1).any(1)
    assert changed[:6].all() and not changed[6:12].any() and changed[12:].all(), (
        "pasts differ in one room alone"
    )
    noise = torch.randn(2, 3, 16, 8, 8)
    monkeypatch.setattr(
        rooms_gate,
        "teacher_forced_flow",
        lambda model, past, noisy, timesteps, text: noisy - past,
    )
    torch.testing.assert_close(
        rooms_gate.recalls(None, cases, noise),
        torch.tensor([[1.0, 1.0], [0.0, 0.0]]),
    )
    monkeypatch.setattr(
        rooms_gate,
        "teacher_forced_flow",
        lambda model, past, noisy, timesteps, text: noisy,
    )
    true, other = rooms_gate.recalls(None, cases, noise)
    torch.testing.assert_close(true, other)


def workers(rank=0, count=1):
    """A worker of so many; none waits for another."""
    made = Workers()
    made.rank = rank
    made.count = count
    made.wait = lambda: None
    return made


def number(value=0):
    """A part of a training whose state is a number."""
    part = torch.nn.Module()
    part.register_buffer("value", torch.tensor(value))
    return part


def test_states_are_gone_on_from_by_as_many_workers_with_the_same_seed_after_the_same_step(
    tmp_path,
):

    def restored(rank, count, seed=1):
        part = number()
        return Checkpoint(tmp_path, "base", workers(rank, count), seed).restore(
            {"number": part}
        ), int(part.value)

    assert restored(0, 2) == (0, 0)
    for rank in (0, 1):
        for step in (5, 10):
            Checkpoint(tmp_path, "base", workers(rank, 2), 1).save(
                step, {"number": number(10 * step + rank)}
            )
    assert restored(0, 2) == (10, 100) and restored(1, 2) == (10, 101)
    stopped = workers(0, 2)
    stopped.wait = lambda: 1 / 0  # the other worker is stopped before it has stored its state
    with pytest.raises(ZeroDivisionError):
        Checkpoint(tmp_path, "base", stopped, 1).save(20, {"number": number()})
    assert restored(0, 2) == (10, 100)
    for rank, count, seed in ((0, 1, 1), (0, 2, 3), (0, 3, 1)):
        with pytest.raises(HeadForcingError, match=f"are not of {count} workers with seed {seed}"):
            restored(rank, count, seed)
    Checkpoint(tmp_path, "base", workers(0, 2), 1).save(20, {"number": number()})
    with pytest.raises(HeadForcingError, match="after the same step"):
        restored(1, 2)


def test_the_gate_measures_again_what_has_changed_and_stops_what_remembers_too_little(
    tmp_path, monkeypatch
):
    small = recipe(tmp_path)
    made = []
    monkeypatch.setattr(rooms, "load", lambda config, path: torch.nn.Identity())
    monkeypatch.setattr(
        rooms_gate,
        "measure",
        lambda *given: made.append(1) or {"0": [1.0], "1": [0.5]},
    )
    run = Run(small, Workers())
    run.__dict__["autoencoder"] = None
    for name, content, measured in (
        ("base", b"a", 1),
        ("base", b"a", 1),
        ("base", b"b", 2),
        ("autoencoder", b"b", 3),
    ):
        small.file("autoencoder").touch()
        small.file(name).write_bytes(content)
        assert rooms.pass_gate(run, "base") == 0.5 and len(made) == measured
    with pytest.raises(
        HeadForcingError,
        match=r"the base remembers 0.500, at least 0.6 is asked for",
    ):
        rooms.train(run)  # such a base is not distilled


def test_preview_factors_of_the_shipped_autoencoder_are_fitted_again():
    """On a few of the clips: near those of the pack, which are of 60."""
    shipped = assets.load_autoencoder()
    clips = [shipped.encode(rooms_data.training_clip(number).video_frames) for number in range(6)]
    factors, bias = rooms.fit_preview_factors(shipped, clips)
    torch.testing.assert_close(factors, torch.tensor(PREVIEW_FACTORS), atol=0.05, rtol=0)
    torch.testing.assert_close(bias, torch.tensor(PREVIEW_BIAS), atol=0.05, rtol=0)


def recipe(folder):
    stages = {}
    for stage in rooms.STAGES:
        stages |= {f"{stage}_steps": 2, f"{stage}_batch": 1, f"{stage}_keep": 1}
    return Recipe(folder, **stages, student_warm_up=1, config=TINY)


@pytest.mark.slow
def test_a_training_stopped_after_every_step_ends_as_one_that_was_not(tmp_path, monkeypatch):
    """Autoencoder, base, gates, distillation and picture decoder, bit for bit; clips of three
    blocks."""
    monkeypatch.setattr(rooms_data, "BLOCKS", 3)
    monkeypatch.setattr(picture, "CLIP_BLOCKS", 3)
    monkeypatch.setattr(picture, "UNSEEN", 1)
    monkeypatch.setattr(rooms_data, "random_story", lambda rng, blocks=3: random_story(rng, 3))
    monkeypatch.setattr(rooms, "GATE_STORIES", 2)
    monkeypatch.setattr(rooms_stages, "STATISTICS_CLIPS", 1)
    for name, value in (
        ("AWAY", (0, 1)),
        ("BASE_LEAST", -9.0),
        ("STUDENT_LEAST", -9.0),
    ):
        monkeypatch.setattr(rooms_gate, name, value)
    whole = recipe(tmp_path / "whole")
    parts = recipe(tmp_path / "parts")
    for folder in (whole.out, parts.out):
        folder.mkdir()
    rooms.train(Run(whole, Workers()))
    # the first distillation of a process can round differently from all later ones
    for name in ("student", "picture"):
        whole.file(name).unlink()
    rooms.train(Run(whole, Workers()))
    keep = Checkpoint.save
    stops = 0
    kept = {}

    def stop(checkpoint, step, state):
        kept[checkpoint.stage] = set(state)
        keep(checkpoint, step, state)
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", stop)
    for _ in range(20):
        try:
            rooms.train(Run(parts, Workers()))
            break
        except KeyboardInterrupt:
            stops += 1
    assert stops == 8 and not list(parts.out.glob("*.pt"))
    assert kept["student"] == {
        "student",
        "optimizer",
        "average",
        "recent",
        "fake",
        "fake_optimizer",
    }
    for name in rooms.STAGES:
        one = load_file(whole.file(name))
        other = load_file(parts.file(name))
        assert one.keys() == other.keys() and all(
            torch.equal(one[key], other[key]) for key in one
        ), name
        if name in ("student", "picture"):
            assert {tensor.dtype for tensor in one.values()} == {torch.bfloat16}, (
                "it is measured as it is released"
            )
    gates = [
        json.loads((parts.out / f"{name}.gate.json").read_text()) for name in ("base", "student")
    ]
    assert all(np.isfinite(found["memory"]) for found in gates)
    journal = [json.loads(line) for line in (parts.out / "journal.jsonl").read_text().splitlines()]
    assert {entry["stage"] for entry in journal} == {"autoencoder", "student", "picture"}, (
        "the base writes after 20 steps"
    )

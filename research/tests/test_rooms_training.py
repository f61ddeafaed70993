"""Training of the model of the world of rooms: what it asks for, its gate, and that it goes on where it was stopped."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from headforcing.headforcing_core.demo.rooms_autoencoder import RoomsAutoencoder, RoomsStreamingDecoder
from headforcing.headforcing_core.demo.words import Look
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.research.rooms.scenes import render
from headforcing.research.rooms.stories import random_story
from headforcing.research.training import data as rooms_data
from headforcing.research.training import gate as rooms_gate
from headforcing.research.training import stages as rooms_stages
from headforcing.research.training import train as rooms
from headforcing.research.training.data import Crops, asked_for, latent_cells
from headforcing.research.training.resumable import Checkpoints, Deadline, Stopped
from headforcing.research.training.stages import Recipe, Run, picture_loss
from headforcing.research.training.training import Workers
from safetensors.torch import load_file

TINY = WanConfig(dim=32, ffn_dim=64, num_layers=2, num_heads=2, freq_dim=32, text_dim=64, text_len=12)
TEAL = Look("red", "ball", "gliding", "teal", "striped")
SAND = replace(TEAL, background="sand")


@pytest.fixture(autouse=True)
def eager():
    """Compiling takes a minute and changes nothing that is tested here."""
    with torch.compiler.set_stance("force_eager"):
        yield


@pytest.fixture
def autoencoder():
    torch.manual_seed(0)
    model = RoomsAutoencoder(fine=8, coarse=16)
    torch.nn.init.normal_(model.time.weight, std=0.1)
    return model.eval().requires_grad_(False)


def test_chunks_decode_to_the_whole_video_and_the_frame_before_matters(autoencoder):
    latents = torch.randn(5, 16, 2, 3)
    whole, stream = autoencoder.decode(latents), RoomsStreamingDecoder(autoencoder)
    assert whole.shape == (17, 16, 24, 3)
    torch.testing.assert_close(torch.cat([stream.decode(part) for part in latents.split((2, 1, 2))]), whole)
    other = autoencoder.decode(torch.cat((latents[:2] + 1, latents[2:])))
    assert not torch.equal(other[5:9], whole[5:9]), "the third latent frame has to depend on the second"
    assert torch.equal(other[9:], whole[9:])


def test_training_decodes_what_inference_decodes(autoencoder):
    latents = torch.randn(2, 3, 16, 2, 2)
    both = autoencoder.decode_raw(autoencoder.raw(latents)).clamp(0, 1).movedim(2, -1)
    for clip, decoded in zip(latents, both, strict=True):
        torch.testing.assert_close(autoencoder.decode(clip), decoded, atol=1e-5, rtol=1e-5)


def test_the_loss_of_pictures_sees_what_looks_blocky():
    """Of two errors with equal pixels the one whose tiles are latent cells costs more."""
    truth, weight = torch.zeros(1, 2, 3, 32, 32), torch.ones(1, 2, 1, 32, 32)
    tiles = ((torch.arange(32) // 8 % 2)[:, None] ^ (torch.arange(32) // 8 % 2)) * 0.2 - 0.1
    shifted = tiles.roll((2, 2), (0, 1))

    def cost(error):
        return picture_loss(truth + error, truth, weight).item()

    assert cost(tiles) > cost(shifted) + 0.02


def test_pictures_count_where_a_room_comes_back_and_nowhere_else():
    clip = render((TEAL, SAND, TEAL), seed=8)
    extra = asked_for(clip) - latent_cells(clip.shape)
    assert (extra[:6] == 0).all() and extra[6:].sum() > 5


def test_crops_follow_from_the_step_alone():
    one, other = Crops(1, 0, clips=2), Crops(1, 0, clips=2)
    one.draw(0, 2)
    video_frames, weight = one.draw(5, 3)
    again, _ = other.draw(5, 3)
    assert video_frames.shape == (3, 9, 3, 32, 32) and weight.min() >= 1 and torch.equal(video_frames, again)


def test_the_gate_is_one_for_a_perfect_memory_and_zero_for_none(autoencoder, monkeypatch):
    cases = [rooms_gate.make_case(autoencoder, 2, seed) for seed in (1, 2)]
    noise = torch.randn(2, 3, 16, 8, 8)

    def perfect(model, past, noisy, times, text):
        return noisy - past

    def forgetful(model, past, noisy, times, text):
        return noisy - past.mean((1, 2, 3, 4), keepdim=True) * 0

    monkeypatch.setattr(rooms_gate, "teacher_forced_flow", perfect)
    torch.testing.assert_close(rooms_gate.recalls(None, cases, noise), torch.tensor([[1.0, 1.0], [0.0, 0.0]]))
    monkeypatch.setattr(rooms_gate, "teacher_forced_flow", forgetful)
    true, other = rooms_gate.recalls(None, cases, noise)
    torch.testing.assert_close(true, other)


def test_both_pasts_of_a_case_differ_in_one_room_alone(autoencoder):
    case = rooms_gate.make_case(autoencoder, 2, 1)
    changed = (case.true != case.other).flatten(1).any(1)
    assert changed[:6].all() and not changed[6:12].any() and changed[12:].all() and case.differs.any()


def test_only_a_state_that_every_worker_has_is_gone_on_from(tmp_path):
    workers = [Checkpoints(tmp_path, "base", rank, 2) for rank in (0, 1)]
    assert workers[0].load() is None
    for step in (10, 20, 30):
        workers[0].save(step, {"step": step})
        if step < 30:  # the second worker is stopped before it has stored its third state
            workers[1].save(step, {"step": step})
    assert [checkpoints.load() for checkpoints in workers] == [(20, {"step": 20})] * 2
    assert not list(tmp_path.glob("*000030*")) and not list(tmp_path.glob("*000010.rank0*"))


def test_states_of_another_training_are_refused(tmp_path):
    """Neither mixed nor begun anew: another number of workers, another seed, no common step."""
    for rank in (0, 1):
        Checkpoints(tmp_path, "base", rank, 2, seed=1).save(10, {"step": 10})
    assert Checkpoints(tmp_path, "base", 1, 2, seed=1).load() == (10, {"step": 10})
    with pytest.raises(Stopped, match=r"by 2 workers with seed 1, and these are 1 with seed 1"):
        Checkpoints(tmp_path, "base", 0, 1, seed=1).load()
    with pytest.raises(Stopped, match=r"these are 2 with seed 3"):
        Checkpoints(tmp_path, "base", 0, 2, seed=3).load()
    with pytest.raises(Stopped, match=r"no step after which all 3 workers"):
        Checkpoints(tmp_path, "base", 0, 3, seed=1).load()
    assert len(list(tmp_path.glob("*.pt"))) == 2


def test_saving_removes_only_what_is_older(tmp_path):
    checkpoints = Checkpoints(tmp_path, "base")
    for step in (50, 60, 10, 20, 30):
        checkpoints.save(step, {})
    assert [int(path.name[5:11]) for path in sorted(tmp_path.glob("*.pt"))] == [20, 30, 50, 60]


@pytest.mark.parametrize(
    ("effects", "chosen"), [((0.7, 0.5, 0.39), "student-2"), ((0.1, 0.2, 0.4), "student-3"), ((0.3, 0.2, 0.1), None)]
)
def test_the_latest_student_that_remembers_enough_is_chosen(effects, chosen, tmp_path, monkeypatch):
    small = replace(recipe(tmp_path), student_steps=3, student_warm_up=0)
    found = dict(zip((path.name for path in small.students()), effects, strict=True))
    monkeypatch.setattr(rooms, "gate", lambda run, weights, target: found[weights.name])
    rooms.choose(Run(small, Workers(), Deadline(None)))
    stored = json.loads((tmp_path / "chosen.json").read_text())
    assert stored["chosen"] == (chosen and f"{chosen}.safetensors") and stored["passes"] is (chosen is not None)
    asked = list(found)[::-1][: 3 if chosen is None else 4 - int(chosen[-1])]
    assert stored["students"] == {name: found[name] for name in asked}
    assert stored["memory"] == found.get(stored["chosen"])


def test_the_gate_measures_again_what_has_changed(tmp_path, monkeypatch):
    small, made = recipe(tmp_path), []
    monkeypatch.setattr(rooms, "load", lambda config, path: torch.nn.Identity())
    monkeypatch.setattr(rooms_gate, "measure", lambda *given: made.append(1) or {"0": [1.0], "1": [0.5]})
    run = Run(small, Workers(), Deadline(None))
    run.__dict__["autoencoder"] = None
    for weights, autoencoder, measured in ((b"a", b"a", 1), (b"a", b"a", 1), (b"b", b"a", 2), (b"b", b"b", 3)):
        small.base.write_bytes(weights)
        small.autoencoder.write_bytes(autoencoder)
        assert rooms.gate(run, small.base, tmp_path / "base.gate.json") == 0.5
        assert len(made) == measured


def recipe(folder):
    return Recipe(
        folder,
        autoencoder_steps=2, autoencoder_batch=1, autoencoder_keep=1,
        base_steps=2, base_batch=1, base_keep=1,
        student_steps=2, student_batch=1, student_warm_up=1, students_every=1, student_keep=1,
        config=TINY,
    )  # fmt: skip


@pytest.mark.slow
def test_a_training_stopped_after_every_step_ends_as_one_that_was_not(tmp_path, monkeypatch):
    """Autoencoder, base, gate, distillation and choice, bit for bit; clips of three blocks."""
    monkeypatch.setattr(rooms_data, "BLOCKS", 3)
    monkeypatch.setattr(rooms_data, "random_story", lambda rng, blocks=3: random_story(rng, 3))
    monkeypatch.setattr(rooms, "GATE_STORIES", 2)
    monkeypatch.setattr(rooms_stages, "STATISTICS_CLIPS", 1)
    monkeypatch.setattr(rooms_gate, "AWAY", (0, 1))
    whole, parts = recipe(tmp_path / "whole"), recipe(tmp_path / "parts")
    rooms.train(Run(whole, Workers(), Deadline(None)), below_gate=True)
    # the first distillation of a process can round differently from all later ones
    whole.student(2).unlink()
    rooms_stages.distill(Run(whole, Workers(), Deadline(None)))
    stops = 0
    for _ in range(20):
        try:
            rooms.train(Run(parts, Workers(), Deadline(0)), below_gate=True)
            break
        except Stopped:
            stops += 1
    assert stops == 6
    for name in ("autoencoder", "base", "student-2"):
        one, other = (load_file(run.out / f"{name}.safetensors") for run in (whole, parts))
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one), name
    assert {tensor.dtype for tensor in one.values()} == {torch.bfloat16}, "a student is measured as it is released"
    chosen = json.loads((parts.out / "chosen.json").read_text())
    assert chosen["chosen"] is None and chosen["passes"] is False
    assert all(map(np.isfinite, chosen["students"].values()))
    assert not list(parts.out.glob("student-*.pt"))


@pytest.mark.slow
def test_a_base_that_remembers_too_little_is_not_distilled(tmp_path, monkeypatch):
    monkeypatch.setattr(rooms, "gate", lambda run, weights, target: 0.2)
    small = recipe(tmp_path)
    for path in (small.autoencoder, small.base):
        path.touch()
    with pytest.raises(Stopped, match=r"0.200, at least 0.6"):
        rooms.train(Run(small, Workers(), Deadline(None)))

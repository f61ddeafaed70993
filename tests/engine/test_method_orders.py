"""Rolling Forcing and CausVid, which make blocks in an order of their own: in a window, and in overlapping rollouts."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.cache.method import Overlap, RolloutInputs, VideoFacts
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import method_policy, method_schedule
from headforcing.headforcing_core.methods.rolling_forcing import SCHEDULE, RollingForcing
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.render.describe import describe
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.render import begin_render, make_blocks
from headforcing.headforcing_core.render.settings import RenderSettings
from headforcing.headforcing_core.rollout.rows import SeededNoise
from headforcing.headforcing_core.rollout.schedule import Schedule, schedule
from headforcing.headforcing_core.timeline.switch import Blend
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from method_renders import (
    CONFIG,
    ONE,
    TWO,
    causvid_plan,
    job_of,
    keys_of,
    latents_of,
    plan,
    random_backbone,
    rolled,
    rolling_plan,
    video_of,
    watched,
)
from torch import Tensor


@pytest.fixture(scope="module")
def backbone() -> WanModel:
    return random_backbone()


ROLLING, CAUSVID = rolling_plan(TWO, seconds=7.0), causvid_plan(8.0, TWO)


@pytest.mark.parametrize(
    ("made", "stop_after"), [(ROLLING, 1), (ROLLING, 7), (ROLLING, 10), (CAUSVID, 3), (CAUSVID, 7)],
    ids=["rolling-1", "rolling-7", "rolling-10", "causvid-3", "causvid-7"],
)  # fmt: skip
def test_a_render_in_another_order_goes_on_to_the_same_bytes_and_makes_no_step_twice(
    backbone, tmp_path, made, stop_after
):
    rolled(tmp_path, made, backbone, stop_after)
    steps: list = []
    run, blocks = rolled(tmp_path, made, backbone, on_step=watched(steps))
    assert len(run.stored) == stop_after and torch.equal(torch.cat(blocks), latents_of(made, backbone))
    assert run.stored_steps + len(steps) == made.steps and len(set(steps)) == len(steps)


def test_the_key_of_a_rolled_block_depends_on_the_prompts_and_the_number_of_the_blocks_made_with_it(backbone, tmp_path):
    def same(other: RenderPlan) -> int:
        equal = [a == b for a, b in zip(keys_of(ROLLING), keys_of(other), strict=False)]
        assert equal == sorted(equal, reverse=True)
        return sum(equal)

    assert ROLLING.blocks == same(rolling_plan(TWO, seconds=7.0)) == 10
    assert same(rolling_plan(TWO.replace("yellow", "green"), seconds=7.0)) == 2  # block 6 comes in with block 2
    longer = rolling_plan(TWO, seconds=8.0)
    assert longer.blocks == 11 and same(longer) == 10 - 4 and len(set(keys_of(longer))) == 11
    rolled(tmp_path, ROLLING, backbone)
    run, latents = rolled(tmp_path, longer, backbone)
    assert len(run.stored) == 6 and torch.equal(torch.cat(latents), latents_of(longer, backbone))


@pytest.mark.parametrize(("made", "at", "kept"), [(ROLLING, 31, 2), (CAUSVID, 21, 6)], ids=["rolling", "causvid"])
def test_a_render_in_another_order_stops_within_one_model_call_and_loses_no_finished_block(
    backbone, tmp_path, made, at, kept
):
    _, model = video_of(made, backbone, runs=tmp_path)
    reports, calls, flow = [], [], model.flow
    model.flow = lambda *args, **options: calls.append(len(reports)) or flow(*args, **options)

    def on_step(block, step, latents):
        reports.append(block)
        if len(reports) == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rolled(tmp_path, made, backbone, on_step=on_step, model=model)
    assert len(reports) == at and max(calls) < at, "no call after the stop"
    assert len(set(calls)) == len(calls), "a report between two calls"
    again, _ = rolled(tmp_path, made, backbone, stop_after=1)
    assert len(again.stored) == kept


def test_a_long_rolling_video_holds_no_more_than_a_short_one(backbone):
    job, model = video_of(rolling_plan(seconds=11.0), backbone)
    held = []
    with begin_render(job, model) as render:
        for block in render.blocks():
            past, size = render.run.cache.past[-1], sum(len(x) for x in block.unfinished)
            held.append((len(past), size))
            assert min(past) == 0 and render.run.cache.block == block.index + 1
            own = (block.latents, *block.unfinished, *past.values())
            assert all(x.untyped_storage().nbytes() == x.nbytes for x in own), "no view keeps more in memory"
    assert held[7:-4] == [(8, 4 * 3)] * (len(held) - 11)


def test_rolling_forcing_goes_on_with_its_unfinished_blocks_alone_and_refuses_what_fits_no_window(backbone):
    job, model = video_of(rolling_plan(TWO), backbone)
    given = list(torch.zeros(3, 3, 16, 8, 12))
    inputs = RolloutInputs(job.script, SeededNoise((3, 16, 8, 12)), given=given)
    with pytest.raises(HeadForcingError, match="after 3 of 13 blocks needs the 4 unfinished ones"):
        next(RollingForcing().rollout(model, None, inputs))
    for noise, blocks, words in (
        (SCHEDULE, 4, "5 steps needs a video of at least 5 blocks .* got 4"),
        (Schedule.warped([1000, 850, 700, 550, 400, 250, 100]), 10, "at most 6 steps fit, got 7"),
        (Schedule.warped([1000, 500], first=[1000]), 10, "same noise levels"),
    ):
        with pytest.raises(HeadForcingError, match=words):
            RollingForcing().for_video(VideoFacts(noise, blocks))


def test_a_method_has_steps_of_its_own_unless_sigmas_are_given_and_causvid_tells_the_model_whole_timesteps(backbone):
    rolling, causvid = map(method_policy, ("rolling_forcing", "causvid"))
    own = method_schedule(rolling, "self_forcing")
    assert own == SCHEDULE and len(own.sigmas) == 5
    assert method_schedule(rolling, "causal_forcing_framewise_1_step") == replace(own, frames_per_block=1)
    assert method_schedule(rolling, "self_forcing", "1, 0.5").sigmas == (1.0, 0.5)
    assert method_schedule(method_policy("longlive"), "self_forcing") == schedule("self_forcing")
    steps = method_schedule(causvid, "self_forcing")
    settings = RenderSettings(width=96, height=64, seconds=1.0)
    whole = RenderPlan.make(CONFIG, causvid, steps, parse_timeline(ONE), settings)
    for made, timesteps in ((whole, [1000, 757, 522, 0]), (causvid_plan(1.0), [1000, 600, 0])):
        video, model = video_of(made, backbone)
        told, flow = [], model.flow
        model.flow = lambda x, sigma, *more, told=told, flow=flow, **options: (
            told.append(1000 * sigma) or flow(x, sigma, *more, **options)
        )
        list(make_blocks(video, model))
        assert told == pytest.approx(timesteps * 2, abs=1e-9)


def test_a_plan_says_where_rollouts_restart_and_that_a_video_of_one_needs_no_vae(backbone):
    assert causvid_plan(5.0).restart_frames == () and plan("longlive").restart_frames == ()
    assert causvid_plan(60.0).restart_frames == tuple(range(18, 243 - 3, 18))
    assert "3 rollouts of 21 latent frames" in describe(causvid_plan(12.0), torch.float32)
    assert latents_of(causvid_plan(5.0), backbone, codec=None).isfinite().all()
    with pytest.raises(HeadForcingError, match=r"vae: this method encodes .* got no VAE .*, or make at most 5\.06 s"):
        latents_of(causvid_plan(5.25), backbone, codec=None)


def test_each_rollout_begins_with_the_end_of_the_one_before_encoded_anew(backbone):
    asked = []

    def reencode(latents: Tensor) -> Tensor:
        asked.append(latents)
        return latents[-1:] + 1

    made = causvid_plan(12.0)
    video = latents_of(made, backbone, codec=SimpleNamespace(reencode=reencode, fingerprint=lambda: ""))
    assert len(video) == made.frames == 51
    assert torch.equal(asked[0], video[:19])
    assert torch.equal(asked[1], torch.cat([video[18:19] + 1, video[19:37]])) and len(asked) == 2
    other = latents_of(made, backbone)
    assert torch.equal(video[:21], other[:21]) and (video[21:] - other[21:]).abs().max() > 1e-3


def test_the_keys_of_later_rollouts_depend_on_the_vae_and_never_on_the_length():
    def keys(seconds: float, autoencoder: str, text: str = TWO) -> list[str]:
        return job_of(causvid_plan(seconds, text), codec=SimpleNamespace(fingerprint=lambda: autoencoder)).keys

    one, other = keys(12.0, "one"), keys(12.0, "other")
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * 7 + [False] * 10
    assert keys(20.0, "one")[:17] == one and keys(5.25, "")[:7] == one[:7]


def test_overlapping_rollouts_are_counted_and_an_overlap_of_no_whole_blocks_is_refused():
    assert Overlap(overlap=6).finished_frames == 16 and Overlap().restart_frames(20) == (18, 36, 54)
    for layout in (Overlap(), Overlap(overlap=6), Overlap(12, 3), Overlap(8, 2, 1)):
        for rollouts in (1, 2, 5):
            blocks = layout.blocks + (rollouts - 1) * layout.stride
            assert (layout.rollouts(blocks), layout.rollouts(blocks + 1)) == (rollouts, rollouts + 1)
            assert len(layout.restart_frames(blocks)) == rollouts - 1
    for frames, overlap, words in (
        *((21, overlap, "overlap must be whole blocks of 3 latent frames") for overlap in (0, 4, 21)),
        (20, 3, "frames must be whole blocks of 3, got 20"),
    ):
        with pytest.raises(HeadForcingError, match=words):
            Overlap(frames, overlap)


@pytest.mark.parametrize("make", [rolling_plan, causvid_plan])
def test_a_blend_goes_over_where_the_switch_is_a_reset(make):
    rows = make(text=TWO.replace("0:04.5 ", "0:04.5 [blend 2] ")).rows
    assert [isinstance(row.prompt, Blend) for row in rows[5:9]] == [False, True, True, False]

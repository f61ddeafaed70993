"""Every method of the table renders, resumes, takes over prompts in its own way, and refuses
clearly.

Rolling Forcing and CausVid make blocks in an order of their own: in a window, and in overlapping
rollouts.
"""

import copy
from dataclasses import replace
from itertools import islice, product
from types import SimpleNamespace

import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.cache.roles import EpisodicPolicy
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.base import BaseMethod
from headforcing.headforcing_core.methods.causvid import Overlap
from headforcing.headforcing_core.methods.dummy_forcing import LAST
from headforcing.headforcing_core.methods.longlive import LongLiveCache
from headforcing.headforcing_core.methods.method import VideoFacts
from headforcing.headforcing_core.methods.registry import METHODS, method_named, method_schedule
from headforcing.headforcing_core.methods.rolling_forcing import SCHEDULE, RollingForcing
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.plan.describe import describe
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.plan.resources import needs_of
from headforcing.headforcing_core.render.render import begin_render, make_blocks
from headforcing.headforcing_core.rollout.loop import RolloutInputs, WanVideoModel
from headforcing.headforcing_core.rollout.schedule import Schedule, schedule
from headforcing.headforcing_core.timeline.switch import Blend
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from method_renders import (
    CONFIG,
    ONE,
    STATIC,
    TWO,
    causvid_plan,
    job_of,
    keys_of,
    latents_of,
    plan,
    profile_of,
    random_backbone,
    rolled,
    rolling_plan,
    video_of,
    watched,
)
from toy_renders import rendered

pytestmark = pytest.mark.usefixtures("shots")

# aliases are these, too
OWN_CACHE = [name for name in METHODS if isinstance(method_named(name), BaseMethod)]


@pytest.fixture(scope="module")
def backbone() -> WanModel:
    return random_backbone()


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_CACHE)
def test_a_method_renders_in_bfloat16_one_frame_at_a_time_and_after_start_frames(backbone, name):
    made = plan(name, TWO, 6.0)
    model = WanVideoModel(copy.deepcopy(backbone).to(torch.bfloat16), torch.bfloat16)
    model.backbone.patch_embedding.float()
    assert all(
        block.isfinite().all()
        for block in rendered(job_of(made, dtype=torch.bfloat16), model).blocks
    )
    if name not in ("forcing_kv", "echo_forcing"):
        framewise = plan(name, TWO, 5.5, family="causal_forcing_framewise_2_steps")
        assert latents_of(framewise, backbone).isfinite().all()
    if name not in ("rolling_forcing", "causvid"):
        start = torch.randn(9, 16, 8, 12, generator=torch.Generator().manual_seed(2))
        assert (
            latents_of(plan(name, TWO, 6.0, start_frames=9), backbone, start_latents=start)
            .isfinite()
            .all()
        )


def test_the_first_block_that_is_made_gets_the_first_blocks_steps_also_after_start_frames(backbone):
    start = torch.randn(2, 16, 8, 12, generator=torch.Generator().manual_seed(2))
    family = {"family": "causal_forcing_framewise_1_step", "steps": "", "profile": None}
    made = plan("causal_forcing", ONE, 1.0, start_frames=2, **family)
    video, model = video_of(made, backbone, start_latents=start)
    steps = []
    for block in range(2, made.blocks):
        numbers = range(1, len(made.rows[block].sigmas) + 1)
        steps += [(block, step) for step in numbers]
    seen: list = []
    rendered(video, model, on_step=watched(seen))
    assert seen == steps and len(seen) == made.steps
    assert [len(made.rows[block].sigmas) for block in (2, 3)] == [4, 1]


COMMITTED = {
    f"{name}, clean_reads": replace(method_named(name), clean_reads="recent", **sizes)
    for name, sizes in (
        ("longlive", {"window_frames": 7, "sink_frames": 2}),
        ("longlive_infinite", {"window_frames": 7, "sink_frames": 2}),
        ("self_gradient_forcing", {"window_frames": 9, "sink_frames": 2}),
    )
}


VARIANTS = COMMITTED | {
    f"swift, {what}": replace(method_named("swift"), **limits)
    for what, limits in (
        ("tokens alone", {"partial_recache_from": 2.0, "recache_from": 2.0}),
        ("partial recache", {"partial_recache_from": 0.0, "recache_from": 2.0}),
        ("whole recache", {"recache_from": 0.0, "keeps_sinks": False}),
    )
}


@pytest.mark.slow
@pytest.mark.parametrize("name", [*OWN_CACHE, *VARIANTS])
def test_an_interrupted_render_ends_with_the_same_bytes(backbone, tmp_path, name):
    made = plan(VARIANTS.get(name, name), TWO, 7.0)
    reused = []
    for stop_after in (8, None, None):
        video, model = video_of(made, backbone, runs=tmp_path, state_seconds=1e-9)
        latents, run = rendered(video, model, stop_after=stop_after)
        reused.append(len(run.stored))
    assert torch.equal(torch.cat(latents), latents_of(made, backbone))
    assert reused == [0, 8, made.new_blocks]
    sentence = "goes on where the cache was last stored, or starts from the beginning"
    resumes_from = made.shape.method.resumes_from
    assert (sentence in describe(made, torch.float32)) == ("blocks" not in resumes_from)
    # only the latest
    assert len(list(tmp_path.rglob("state-*"))) == int("state" in resumes_from)


@pytest.mark.parametrize(
    ("name", "clean", "slots"), [("longlive", 7, 9), ("self_gradient_forcing", 5, 7)]
)
def test_clean_passes_read_recent_frames_and_no_sink_where_the_option_says_so(
    backbone, monkeypatch, name, clean, slots
):
    """Numbers that were drawn as marks: the value of every key and value is its frame's number."""
    read = []
    context = LongLiveCache.context

    def note(self, layer, q):
        marks = self.read(layer)[1, 0, :, 0, 0]
        read.append((self.start, self.recaching, self.clean, [round(float(m)) for m in marks]))
        return context(self, layer, q)

    def mark(self, layer, k, v):
        numbers = torch.arange(self.start, self.end).view(1, -1, 1, 1)
        take(self, layer, k, numbers.expand_as(v).to(v))

    take = LongLiveCache.take
    monkeypatch.setattr(LongLiveCache, "context", note)
    monkeypatch.setattr(LongLiveCache, "take", mark)
    method = replace(method_named(name), window_frames=7, sink_frames=2)
    for reads in ("all", "recent"):
        made = plan(replace(method, clean_reads=reads), TWO, 9.0)
        assert made.shape.frame_slots == 9 * (slots if reads == "recent" else 7)
        read.clear()
        latents_of(made, backbone)
        assert {is_clean for _, _, is_clean, _ in read} == {True, False}
        assert any(again for _, again, _, _ in read) == (name == "longlive")
        for start, again, is_clean, frames in read:
            end = start + (min(7, start + 7) if again else 3)
            newest = list(range(max(0, end - clean), end))
            window = [*range(2), *range(max(2, end - 5), end)]
            assert frames == (newest if reads == "recent" and is_clean else window)


@pytest.mark.slow
@pytest.mark.parametrize("state_seconds", [0.0, 1e-9])
def test_a_cache_that_cannot_be_rebuilt_goes_on_from_its_last_state(
    backbone, tmp_path, state_seconds
):
    made = plan("deep_forcing", TWO, 7.0)
    for last in (5, 8, made.new_blocks):
        video, model = video_of(made, backbone, runs=tmp_path, state_seconds=state_seconds)
        with begin_render(video, model) as render:
            latents = []
            for block in islice(render.blocks(), last):
                latents.append(block.latents)
                if len(latents) == 5:
                    # blocks after this one are stored without the cache
                    render.run.state_seconds = 1e9
            assert len(render.run.stored) == (0 if last == 5 or not state_seconds else 5)
    assert torch.equal(torch.cat(latents), latents_of(made, backbone))


@pytest.mark.parametrize("name", ["rolling_forcing", "causvid"])
def test_a_seed_before_a_prompt_is_that_of_all_noise_from_its_first_block_on(backbone, name):
    """A window has the noise of its newest block in all of them."""
    straight = plan(name, TWO, 7.0, seed=3)
    take = plan(name, TWO.replace("0:04.5 ", "0:04.5 [seed 7] "), 7.0, seed=3)
    kept = straight.timeline.segments[1].start_block - straight.blocks_ahead
    before = latents_of(straight, backbone).split(3)
    after = latents_of(take, backbone).split(3)
    same = [torch.equal(old, new) for old, new in zip(before, after, strict=True)]
    assert same == [block < kept for block in range(straight.blocks)]
    assert same == [old == new for old, new in zip(keys_of(straight), keys_of(take), strict=True)]
    from_the_beginning = plan(name, TWO.replace("0:00 ", "0:00 [seed 7] "), seed=3)
    assert {row.seed for row in from_the_beginning.rows} == {7}


def test_what_a_method_cannot_do_is_refused_in_one_sentence():
    framewise = VideoFacts(schedule("causal_forcing_framewise_2_steps"), 12)
    for make, words in (
        (lambda: rolling_plan(start_frames=3), "does not support start frames, got 3"),
        (
            lambda: rolling_plan(TWO.replace(" a y", " [recache, blend 2] a y")),
            "reset.*got .recache, blend 2",
        ),
        (lambda: causvid_plan(start_frames=3), "does not support start frames, got 3; remove them"),
        (lambda: method_named("causvid").for_video(framewise), "same noise levels"),
        (
            lambda: plan("forcing_kv", family="causal_forcing_framewise"),
            "blocks of at least 3 latent frames",
        ),
        (lambda: plan("forcing_kv", profile=STATIC), "memory head"),
        (lambda: plan("longlive", roles="shuffled"), "roles = 'shuffled'.*uses none"),
    ):
        with pytest.raises(HeadForcingError, match=words):
            make()


@pytest.mark.parametrize("name", OWN_CACHE)
def test_a_new_prompt_takes_over_in_the_methods_own_way_and_any_other_is_refused(name):
    method = method_named(name)
    plain = {block: switch.kind for block, switch in plan(name, TWO).switches.items()}
    assert plain == ({} if method.switch == "reset" else {6: method.switch})
    for tag in ("recache", "flush", "re-anchor"):
        text = TWO.replace("0:04.5 ", f"0:04.5 [{tag}] ")
        if tag == method.switch or (tag == "re-anchor" and method.cuts):
            switch = plan(name, text).switches[6]
            assert (switch.kind, switch.re_anchor) == (method.switch, tag == "re-anchor")
        else:
            with pytest.raises(
                HeadForcingError, match=f"prompt switch is always {method.switch}.*got .{tag}"
            ):
                plan(name, text)


def test_a_plan_counts_the_frames_of_one_pass_and_a_recache_reads_its_window_in_one(backbone):
    plans = plan("longlive"), plan("longlive", TWO, 6.0), rolling_plan()
    counted = [(made.blocks_ahead, made.largest_pass) for made in plans]
    assert counted == [(0, 3), (0, 12), (4, 15)]
    needs = [needs_of(made, torch.float32, 0, kept=True) for made in plans]
    assert [taken.activations / needs[0].activations for taken in needs] == [1, 4, 5]
    assert needs[2].run_folder == 5 * needs[0].run_folder
    video, model = video_of(plans[1], backbone)
    passes = []
    flow = model.flow
    model.flow = lambda latents, *args, **options: (
        passes.append(len(latents)) or flow(latents, *args, **options)
    )
    list(make_blocks(video, model))
    assert passes.count(12) == 1 and set(passes) == {3, 12}


def test_forcing_kv_keeps_chunks_in_the_dynamic_heads_of_a_profile_alone():
    dynamic = plan("forcing_kv", profile=profile_of(*[("memory",) * 3] * 3)).shape.frame_slots
    static = plan(
        replace(method_named("forcing_kv"), kept_share=0.0), profile=STATIC
    ).shape.frame_slots
    assert dynamic == 3 * 5 + 6 * 6 and static == 9 * 5
    assert plan("forcing_kv", roles="anchor_to_memory").shape.roles[0] == [
        "memory",
        "memory",
        "local",
    ]


def test_memflow_fills_its_bank_by_the_number_of_prompts_as_its_authors_two_scripts_do():
    def stores(text: str) -> list[bool]:
        names = ("memflow", "memflow_sma", "memflow_interactive")
        return [plan(name, text).shape.method.stores_last_block for name in names]

    assert stores(ONE) == [True, True, False] and stores(TWO) == [False] * 3


def test_dummy_forcing_draws_by_the_videos_seed_and_never_from_the_global_generator(backbone):
    def drawn(seed: int) -> list:
        video, model = video_of(plan("dummy_forcing", seconds=4.0, seed=seed), backbone)
        state = torch.get_rng_state()
        cache = rendered(video, model).run.cache
        assert torch.equal(torch.get_rng_state(), state)
        kinds = cache.kind_of_head.flatten().tolist()
        assert len(kinds) == 9 and kinds.count(LAST) == round(4.5)
        return [kinds, *(cache.sampled_rows(layer).tolist() for layer in range(3))]

    first = drawn(3)
    _ = torch.manual_seed(2)
    assert drawn(3) == first and drawn(4)[1:] != first[1:]


def test_the_budget_leaves_out_a_method_that_cannot_make_so_short_a_video(capsys):
    for seconds, offered in (("2", False), ("4", True)):
        assert main(["budget", "--seconds", seconds]) == 0
        assert (f"| {seconds} | rolling_forcing | 8,640 |" in capsys.readouterr().out) == offered


def test_no_seed_changes_how_roles_are_shuffled(backbone):
    """Else shuffle and video could not be told apart in a comparison over seeds."""

    def shape(text: str, seed: int, **options):
        return plan("head_forcing", text, seed=seed, roles="shuffled", **options).shape

    shuffled = shape("0:00 a", seed=3)
    assert shape("0:00 [seed 7] a", seed=3) == shuffled
    assert shape("0:00 a", seed=7) == shuffled
    assert shape("0:00 a", seed=3, shuffle=1) != shuffled


def test_random_tokens_are_drawn_by_the_videos_seed():
    seeds = [plan("random_tokens", seed=seed).method.episodic.seed for seed in (3, 7)]
    assert seeds == [3, 7] and plan("head_forcing", seed=3).method.episodic.seed == 0
    drawn = [EpisodicPolicy(seed=seed).random_tokens(40, block=6, layer=1) for seed in (3, 7, 3)]
    assert torch.equal(drawn[0], drawn[2]) and not torch.equal(drawn[0], drawn[1])
    assert len(set(drawn[0].tolist())) == 20 and drawn[0].tolist() == sorted(drawn[0].tolist())


# ------------------------------------------------------------------------- in an order of their own

ROLLING = rolling_plan(TWO, seconds=7.0)
CAUSVID = causvid_plan(8.0, TWO)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "stop_after"), [("rolling", 1), ("rolling", 10), ("causvid", 3), ("causvid", 7)]
)
def test_a_render_in_another_order_goes_on_and_makes_no_step_twice(
    backbone, tmp_path, name, stop_after
):
    made = ROLLING if name == "rolling" else CAUSVID
    rolled(tmp_path, made, backbone, stop_after)
    steps: list = []
    run, blocks = rolled(tmp_path, made, backbone, on_step=watched(steps))
    assert len(run.stored) == stop_after and torch.equal(
        torch.cat(blocks), latents_of(made, backbone)
    )
    assert run.stored_steps + len(steps) == made.steps and len(set(steps)) == len(steps)


def test_the_key_of_a_rolled_block_depends_on_the_prompts_and_the_number_of_the_blocks_made_with_it(
    backbone, tmp_path
):
    def same(other: RenderPlan) -> int:
        equal = [a == b for a, b in zip(keys_of(ROLLING), keys_of(other), strict=False)]
        assert equal == sorted(equal, reverse=True)
        return sum(equal)

    assert ROLLING.blocks == same(rolling_plan(TWO, seconds=7.0)) == 10
    # block 6 comes in with block 2
    assert same(rolling_plan(TWO.replace("yellow", "green"), seconds=7.0)) == 2
    longer = rolling_plan(TWO, seconds=8.0)
    assert longer.blocks == 11 and same(longer) == 10 - 4 and len(set(keys_of(longer))) == 11
    rolled(tmp_path, ROLLING, backbone)
    run, latents = rolled(tmp_path, longer, backbone)
    assert len(run.stored) == 6 and torch.equal(torch.cat(latents), latents_of(longer, backbone))


@pytest.mark.parametrize(
    ("made", "at", "kept"), [(ROLLING, 31, 2), (CAUSVID, 21, 6)], ids=["rolling", "causvid"]
)
def test_a_render_in_another_order_stops_at_once_and_loses_no_block(
    backbone, tmp_path, made, at, kept
):
    reports = []
    calls = []
    _, model = video_of(made, backbone)
    flow = model.flow
    model.flow = lambda *args, **options: calls.append(len(reports)) or flow(*args, **options)

    def on_step(block, step, latents):
        reports.append(block)
        if len(reports) == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        rolled(tmp_path, made, backbone, on_step=on_step, model=model)
    assert len(reports) == at and max(calls) < at, "no call after the stop"
    assert len(set(calls)) == len(calls), "a report between two calls"
    assert len(rolled(tmp_path, made, backbone, stop_after=1)[0].stored) == kept


def test_rolling_forcing_goes_on_with_its_unfinished_blocks_alone_and_refuses_what_fits_no_window():
    inputs = RolloutInputs(
        job_of(rolling_plan(TWO)).script, None, given=list(torch.zeros(3, 3, 16, 8, 12))
    )
    with pytest.raises(HeadForcingError, match="after 3 of 13 blocks needs the 4 unfinished ones"):
        next(RollingForcing().rollout(SimpleNamespace(), None, inputs))
    for noise, blocks, words in (
        (SCHEDULE, 4, "5 steps needs a video of at least 5 blocks .* got 4"),
        (Schedule.warped([1000, 850, 700, 550, 400, 250, 100]), 10, "at most 6 steps fit, got 7"),
        (replace(SCHEDULE, first_block_sigmas=(1.0,)), 10, "same noise levels"),
    ):
        with pytest.raises(HeadForcingError, match=words):
            RollingForcing().for_video(VideoFacts(noise, blocks))


def test_a_method_has_steps_of_its_own_unless_sigmas_are_given_and_causvid_tells_the_model_whole_timesteps(
    backbone,
):
    rolling, causvid = map(method_named, ("rolling_forcing", "causvid"))
    own = method_schedule(rolling, "self_forcing")
    assert own == SCHEDULE and len(own.sigmas) == 5
    assert method_schedule(rolling, "causal_forcing_framewise_1_step") == replace(
        own, frames_per_block=1
    )
    assert method_schedule(rolling, "self_forcing", "1, 0.5").sigmas == (1.0, 0.5)
    options = RenderOptions(given_method=causvid, width=96, height=64, seconds=1.0)
    whole = RenderPlan.of(CONFIG, options, parse_timeline(ONE))
    for made, timesteps in ((whole, [1000, 757, 522, 0]), (causvid_plan(1.0), [1000, 600, 0])):
        video, model = video_of(made, backbone)
        asked = []
        flow = model.flow

        def note_timestep(x, sigma, *more, asked=asked, flow=flow, **options):
            asked.append(1000 * sigma)
            return flow(x, sigma, *more, **options)

        model.flow = note_timestep
        list(make_blocks(video, model))
        assert asked == pytest.approx(timesteps * 2, abs=1e-9)


def test_a_plan_says_where_rollouts_restart_and_that_a_video_of_one_needs_no_vae(backbone):
    assert causvid_plan(5.0).vae_use is None and plan("longlive").vae_use is None
    assert causvid_plan(60.0).vae_notes == {"restart_frames": list(range(18, 243 - 3, 18))}
    assert "3 rollouts of 21 latent frames" in describe(causvid_plan(12.0), torch.float32)
    assert latents_of(causvid_plan(5.0), backbone, codec=None).isfinite().all()
    with pytest.raises(
        HeadForcingError,
        match=r"vae: this method encodes .* got no VAE .*, or make at most 5\.06 s",
    ):
        latents_of(causvid_plan(5.25), backbone, codec=None)


def test_each_rollout_begins_with_the_end_of_the_one_before_encoded_anew(backbone):
    asked = []
    codec = SimpleNamespace(
        reencode=lambda x: asked.append(x) or x[-1:] + 1, fingerprint=lambda: ""
    )
    made = causvid_plan(12.0)
    video = latents_of(made, backbone, codec=codec)
    other = latents_of(made, backbone)
    assert len(video) == made.frames == 51 and len(asked) == 2
    assert torch.equal(asked[0], video[:19])
    assert torch.equal(asked[1], torch.cat([video[18:19] + 1, video[19:37]]))
    assert torch.equal(video[:21], other[:21]) and (video[21:] - other[21:]).abs().max() > 1e-3


def test_the_keys_of_later_rollouts_depend_on_the_vae_and_never_on_the_length():
    def keys(seconds: float, autoencoder: str, **fields) -> list[str]:
        codec = SimpleNamespace(fingerprint=lambda: autoencoder)
        return job_of(causvid_plan(seconds, TWO), codec=codec, **fields).keys

    one = keys(12.0, "one")
    other = keys(12.0, "other")
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * 7 + [False] * 10
    assert keys(20.0, "one")[:17] == one and keys(5.25, "")[:7] == one[:7]
    driven = SimpleNamespace(block_key=lambda first, frames: f"speech from {first} on")
    one = keys(12.0, "one", conditions=driven)
    other = keys(12.0, "other", conditions=driven)
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * 7 + [False] * 10


def test_overlapping_rollouts_are_counted_and_an_overlap_of_no_whole_blocks_is_refused():
    for layout, rollouts in product((Overlap(), Overlap(overlap=6), Overlap(8, 2, 1)), (1, 2, 5)):
        blocks = layout.blocks + (rollouts - 1) * layout.stride
        counts = [len(layout.parts(count)) for count in (blocks, blocks + 1)]
        assert counts == [rollouts, rollouts + 1]
    with pytest.raises(HeadForcingError, match="must be whole blocks of 3 latent frames"):
        Overlap(21, 4)


@pytest.mark.parametrize("make", [rolling_plan, causvid_plan])
def test_a_blend_goes_over_where_the_switch_is_a_reset(make):
    rows = make(text=TWO.replace("0:04.5 ", "0:04.5 [blend 2] ")).rows
    assert [isinstance(row.prompt, Blend) for row in rows[5:9]] == [False, True, True, False]

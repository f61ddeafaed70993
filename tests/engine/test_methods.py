"""Every method of the table renders, resumes, says what it takes and what it is meant for, and refuses clearly."""

import copy
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.cache.policy import PRESETS
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.methods.base import MethodCache, MethodPolicy
from headforcing.headforcing_core.methods.dummy_forcing import DummyForcingCache
from headforcing.headforcing_core.methods.infinity_rope import InfinityRope
from headforcing.headforcing_core.methods.longlive import LongLive
from headforcing.headforcing_core.methods.registry import (
    ALIASES,
    METHODS,
    describe_method,
    method_names,
    method_policy,
    method_schedule,
)
from headforcing.headforcing_core.methods.rolling_forcing import SCHEDULE
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.render.block_keys import setup_hash
from headforcing.headforcing_core.render.describe import describe
from headforcing.headforcing_core.render.job import RenderJob
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.resources import needs_of
from headforcing.headforcing_core.render.run import Run
from headforcing.headforcing_core.render.video import begin_render, make_blocks
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.headforcing_core.rollout.wan_video_model import WanVideoModel
from headforcing.headforcing_core.timeline.switch import Blend
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint
from torch import Tensor, nn
from toy_renders import rendered

ONE = "0:00 a red ball"
TWO = "0:00 a red ball\n0:04.5 a yellow ring"
CONFIG = WanConfig(
    dim=96,
    ffn_dim=128,
    num_layers=3,
    num_heads=3,
    freq_dim=32,
    text_dim=word_hash.TEXT_DIM,
    text_len=word_hash.TEXT_LEN,
)
NAMES = [*METHODS, *ALIASES]
OWN_CACHE = [name for name in METHODS if isinstance(method_policy(name), MethodPolicy)]  # aliases are these, too


@pytest.fixture(scope="module")
def backbone() -> WanModel:
    torch.manual_seed(5)
    model = WanModel(CONFIG)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.15)
    return model.requires_grad_(False).eval()


def profile_of(*layers: tuple[str, ...]) -> HeadProfile:
    return HeadProfile("a test", len(layers), len(layers[0]), layers)


PROFILE = profile_of(("memory", "anchor", "local"), ("anchor", "memory", "memory"), ("local", "memory", "anchor"))


def plan(method, text=ONE, seconds=9.0, size=(96, 64), family="self_forcing", profile=PROFILE, **options) -> RenderPlan:
    policy = method if isinstance(method, MethodPolicy) else method_policy(method)
    config = options.pop("config", CONFIG)
    return RenderPlan.make(
        config, policy, schedule(family, "1, 0.6"), parse_timeline(text), *size, seconds, profile, **options
    )


def repeated(latents: Tensor) -> Tensor:
    """In place of a VAE that encodes the last picture anew."""
    return latents[-1:]


def job_of(made: RenderPlan, **options) -> RenderJob:
    embeds = {text: word_hash.encode(text) for text in made.timeline.texts}
    codec = SimpleNamespace(reencode=repeated, fingerprint=lambda: "")
    return RenderJob(made, embeds, "toy", **{"codec": codec, **options})


def video_of(made: RenderPlan, backbone, **options) -> tuple[RenderJob, WanVideoModel]:
    return job_of(made, **options), WanVideoModel(backbone, torch.float32)


def latents_of(made: RenderPlan, backbone, **options) -> Tensor:
    video, model = video_of(made, backbone, **options)
    return torch.cat([block.latents for block in make_blocks(video, model)])


def tensors_in(value, seen: set[int]) -> int:
    """Bytes of all tensors that an object holds, views of one storage counted once."""
    if isinstance(value, Tensor):
        storage = value.untyped_storage()
        if storage.data_ptr() in seen or not value.is_floating_point():
            return 0
        seen.add(storage.data_ptr())
        return storage.nbytes()
    if isinstance(value, dict):
        value = list(value.values())
    if hasattr(value, "__dict__") and type(value).__module__.startswith("headforcing.headforcing_core.methods"):
        value = [held for name, held in vars(value).items() if name not in ("rope", "prompt", "shape", "policy")]
    return sum(tensors_in(part, seen) for part in value) if isinstance(value, (list, tuple)) else 0


# ------------------------------------------------------------------------------------------------------- the table


def test_every_name_is_offered_once_and_old_names_come_first():
    names = method_names()
    assert len(set(names)) == len(names) and names[: len(PRESETS)] == list(PRESETS)
    assert {"self_forcing", "self_forcing_sink", "causal_forcing", "longlive", "longlive_infinite"} < set(names)
    assert {"infinity_rope", "deep_forcing", "deep_forcing_sink_only"} < set(names)
    assert {"forcing_kv", "dummy_forcing", "memflow", "memflow_sma", "rolling_forcing", "causvid"} < set(names)
    assert {"rolling_sink", "memrope", "memrope_adaptive", "reward_forcing"} < set(names)


@pytest.mark.parametrize("name", METHODS)
def test_a_report_names_paper_and_weights_and_warns_where_they_matter(name):
    (text,) = describe_method(name)
    row = METHODS[name]
    assert row.paper in text and f"arXiv {row.arxiv}" in text and row.weights in text
    assert ("were trained for this method" in text) == row.trained
    assert row.trained == name.startswith(
        (
            "longlive",
            "memflow",
            "causal_forcing",
            "rolling_forcing",
            "reward_forcing",
            "causvid",
            "self_gradient_forcing",
        )
    )


def test_the_samplers_page_has_every_method_with_its_weights_their_licence_and_its_size(repo_root):
    page = (repo_root / "nodes" / "web" / "docs" / "HeadForcingSampler.md").read_text("utf-8")
    rows = []
    for name, row in METHODS.items():
        minute = parse_timeline("a minute", 60.0)
        made = RenderPlan.make(WanConfig(), row.policy, schedule("self_forcing"), minute, 832, 480)
        differs = row.differs or ("made from the paper alone" if name == "head_forcing" else "nothing")
        paper = f"[{row.arxiv}](https://arxiv.org/abs/{row.arxiv})"
        rows.append(f"| {name} | {paper} | {row.weights} | {made.shape.frame_slots:,} | {differs} |")
    assert [line for line in page.splitlines() if "https://arxiv.org/abs" in line] == rows, "\n".join(rows)


# ---------------------------------------------------------------------------------------------------------- renders


@pytest.mark.parametrize("name", NAMES)
def test_a_method_renders_in_no_more_memory_than_it_said(backbone, name):
    made = plan(name, TWO if name in METHODS else ONE, seconds=9.0 if name in METHODS else 4.0)
    video, model = video_of(made, backbone)
    with begin_render(video, model) as render:
        for block in render.blocks():
            assert block.latents.isfinite().all()
            cache = render.run.cache
            if isinstance(cache, MethodCache):
                assert tensors_in(cache, set()) <= cache.bytes
                assert 0 < cache.occupied <= made.shape.frame_slots
    assert made.cache_bytes(torch.float32) >= cache.bytes


@pytest.mark.parametrize(
    ("name", "frames_per_head"),
    [
        ("longlive", [3, 6, 9, 12, 12]),
        ("infinity_rope", [3, 6, 6, 6, 6]),
        ("memflow", [3 + 1, 6 + 1, 9 + 1, 12 + 2, 12 + 2]),  # a second interval begins with the fourth block
        ("deep_forcing", [3 + 2, 6 + 2, 9 + 2, 12 + 2, 15 + 2]),  # the queries of 4 frames beside no values
        ("deep_forcing_sink_only", [3, 6, 9, 12, 15]),
    ],
)
def test_a_report_counts_the_frames_that_are_there_not_those_there_is_room_for(backbone, name, frames_per_head):
    video, model = video_of(plan(name, seconds=3.5), backbone)
    assert rendered(video, model).run.meter.occupied == [9 * frames for frames in frames_per_head]


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_CACHE)
def test_a_method_renders_in_bfloat16(backbone, name):
    made = plan(name, TWO)
    model = WanVideoModel(copy.deepcopy(backbone).to(torch.bfloat16), torch.bfloat16)
    model.backbone.patch_embedding.float()
    latents, run = rendered(job_of(made, dtype=torch.bfloat16), model)
    assert all(block.isfinite().all() for block in latents)
    assert tensors_in(run.cache, set()) <= made.cache_bytes(torch.bfloat16)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OWN_CACHE if name not in ("forcing_kv", "echo_forcing")])
def test_a_method_works_one_frame_at_a_time(backbone, name):
    made = plan(name, TWO, seconds=5.5, family="causal_forcing_framewise_2_steps")
    assert latents_of(made, backbone).isfinite().all()


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in OWN_CACHE if name not in ("rolling_forcing", "causvid")])
def test_a_method_goes_on_from_start_frames(backbone, name):
    start = torch.randn(9, 16, 8, 12, generator=torch.Generator().manual_seed(2))
    made = plan(name, TWO, start_frames=9)
    assert latents_of(made, backbone, start_latents=start).isfinite().all()


def test_the_first_block_that_is_made_gets_the_first_blocks_steps_also_after_start_frames(backbone):
    start = torch.randn(2, 16, 8, 12, generator=torch.Generator().manual_seed(2))
    family = schedule("causal_forcing_framewise_1_step")
    policy, text = method_policy("causal_forcing"), parse_timeline(ONE)
    made = RenderPlan.make(CONFIG, policy, family, text, 96, 64, 1.0, start_frames=2)
    video, model = video_of(made, backbone, start_latents=start)
    steps = [(block, step) for block in range(2, made.blocks) for step in range(1, len(made.rows[block].sigmas) + 1)]
    seen = []
    watch = lambda block, step, clean: clean is not None and seen.append((block, step))  # noqa: E731
    rendered(video, model, on_step=watch)
    assert seen == steps and len(seen) == made.steps
    assert [len(made.rows[block].sigmas) for block in (2, 3)] == [4, 1]


@pytest.mark.parametrize("name", OWN_CACHE)
def test_an_interrupted_render_ends_with_the_same_bytes(backbone, tmp_path, name):
    made = plan(name, TWO)
    straight = latents_of(made, backbone)
    reused = []
    for stop_after in (8, None, None):
        video, model = video_of(made, backbone, runs=tmp_path, state_seconds=1e-9)
        latents, run = rendered(video, model, stop_after=stop_after)
        reused.append(len(run.stored))
    assert torch.equal(torch.cat(latents), straight)
    assert reused == [0, 8, made.new_blocks]
    told = "goes on where the cache was last stored, or starts from the beginning"
    assert (told in describe(made, torch.float32)) == ("blocks" not in made.shape.policy.resumes_from)
    assert len(list(tmp_path.rglob("state-*"))) == int("state" in made.shape.policy.resumes_from)  # only the latest


@pytest.mark.parametrize("name", [name for name in OWN_CACHE if "blocks" not in method_policy(name).resumes_from])
@pytest.mark.parametrize("state_seconds", [0.0, 1e-9])
def test_a_cache_that_cannot_be_rebuilt_goes_on_from_its_last_state_and_drops_the_blocks_after_it(
    backbone, tmp_path, name, state_seconds
):
    made = plan(name, TWO)
    straight = latents_of(made, backbone)
    for last in (5, 8, made.new_blocks):
        video, model = video_of(made, backbone, runs=tmp_path, state_seconds=state_seconds)
        with begin_render(video, model) as render:
            latents = []
            for block in render.blocks():
                latents.append(block.latents)
                if len(latents) == 5:
                    render.run.storing.state_seconds = 1e9  # blocks after this one are stored without the cache
                if len(latents) == last:
                    break
            assert len(render.run.stored) == (0 if last == 5 or not state_seconds else 5)
    assert torch.equal(torch.cat(latents), straight)


@pytest.mark.parametrize("name", ["rolling_forcing", "causvid", "dummy_forcing", "memflow"])
def test_a_seed_before_a_prompt_is_that_of_all_noise_from_its_first_block_on(backbone, name):
    straight, take = plan(name, TWO, seed=3), plan(name, TWO.replace("0:04.5 ", "0:04.5 [seed 7] "), seed=3)
    first = straight.timeline.segments[1].start_block
    kept = 3 * (first - (straight.blocks_per_pass - 1))  # a window has the noise of its newest block in all of them
    before, after = latents_of(straight, backbone), latents_of(take, backbone)
    assert torch.equal(before[:kept], after[:kept]) and not torch.equal(before[kept : kept + 3], after[kept : kept + 3])
    keys = [keys_of(made) for made in (straight, take)]
    assert [old == new for old, new in zip(*keys, strict=True)] == [
        3 * block < kept for block in range(straight.blocks)
    ]
    whole = plan(name, TWO.replace("0:00 ", "0:00 [seed 7] "), seed=3)
    other = replace(straight, rows=tuple(replace(row, seed=7) for row in straight.rows))
    assert torch.equal(latents_of(whole, backbone), latents_of(other, backbone))


def test_no_seed_changes_how_roles_are_shuffled(backbone):
    """Else shuffle and video could not be told apart in a comparison over seeds."""
    shuffled, take = (plan("head_forcing", f"0:00 {tag} a", seed=3, roles="shuffled") for tag in ("", "[seed 7]"))
    assert shuffled.shape == take.shape == plan("head_forcing", "0:00 a", seed=7, roles="shuffled").shape
    assert shuffled.shape != plan("head_forcing", "0:00 a", seed=3, roles="shuffled", shuffle=1).shape


def test_run_folders_of_methods_and_of_their_settings_differ():
    policies = [method_policy(name) for name in OWN_CACHE] + [LongLive(sink_frames=1), InfinityRope(window_frames=9)]
    setups = {setup_hash(plan(policy), "toy", 0, torch.float32, None) for policy in policies}
    assert len(setups) == len(policies)


# -------------------------------------------------------------------------------------------------- rolling forcing


def keys_of(made: RenderPlan) -> list[str]:
    return job_of(made).keys


def rolled(tmp_path, made: RenderPlan, backbone, stop_after: int | None = None, **options) -> tuple[Run, list[Tensor]]:
    """A render in a run folder, stopped right after a block or not at all."""
    video, model = video_of(made, backbone, runs=tmp_path)
    latents, run = rendered(video, model, stop_after=stop_after, **options)
    return run, latents


STEPS_5 = "1, 0.9, 0.8, 0.6, 0.3"


def rolling_plan(text=ONE, seconds=9.0, **options) -> RenderPlan:
    family = schedule("self_forcing", STEPS_5)
    policy = method_policy("rolling_forcing")
    return RenderPlan.make(CONFIG, policy, family, parse_timeline(text), 96, 64, seconds, **options)


def test_rolling_forcing_has_steps_of_its_own_in_the_familys_blocks_unless_sigmas_are_given():
    rolling = method_policy("rolling_forcing")
    own = method_schedule(rolling, "self_forcing")
    assert own == SCHEDULE and len(own.sigmas) == 5
    assert method_schedule(rolling, "causal_forcing_framewise_1_step") == replace(own, frames_per_block=1)
    assert method_schedule(rolling, "self_forcing", "1, 0.5").sigmas == (1.0, 0.5)
    for name in ("head_forcing", "longlive"):
        assert method_schedule(method_policy(name), "self_forcing") == schedule("self_forcing")


def test_a_plan_counts_the_whole_window_of_rolling_forcing():
    rolling, other = rolling_plan(), plan("longlive")
    assert (rolling.blocks_per_pass, rolling.frames_per_pass) == (5, 15)
    assert (other.blocks_per_pass, other.frames_per_pass) == (1, 3)
    takes = [needs_of(made, torch.float32, 0, kept=True) for made in (rolling, other)]
    assert takes[0].activations == 5 * takes[1].activations and takes[0].run_folder == 5 * takes[1].run_folder


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"start_frames": 3}, "does not support start frames, got 3"),
        ({"seconds": 2.0}, "5 steps needs a video of at least 5 blocks .* got 3; make it longer"),
        (
            {"text": TWO.replace("0:04.5 ", "0:04.5 [recache, blend 2] ")},
            "prompt switch is always reset.*got .recache, blend 2",
        ),
    ],
)
def test_what_rolling_forcing_cannot_do_is_refused_in_one_sentence(options, words):
    with pytest.raises(HeadForcingError, match=words):
        rolling_plan(**options)
    rows = rolling_plan(TWO.replace("0:04.5 ", "0:04.5 [blend 2] ")).rows
    assert sum(isinstance(row.prompt, Blend) for row in rows) == 2


@pytest.mark.parametrize("stop_after", [1, 10, 13])
def test_a_rolling_render_goes_on_to_the_same_bytes_and_makes_no_step_twice(backbone, tmp_path, stop_after):
    made = rolling_plan(TWO)
    assert made.blocks == 13
    straight, model = video_of(made, backbone)
    expected = [block.latents for block in make_blocks(straight, model)]
    rolled(tmp_path, made, backbone, stop_after)
    steps = []
    watch = lambda block, step, clean: clean is None or steps.append((block, step))  # noqa: E731
    run, blocks = rolled(tmp_path, made, backbone, on_step=watch)
    assert len(run.stored) == stop_after
    assert all(torch.equal(*pair) for pair in zip(blocks, expected, strict=True))
    assert run.stored_steps + len(steps) == made.steps and len(set(steps)) == len(steps)


def test_the_key_of_a_rolled_block_depends_on_the_prompts_and_the_number_of_the_blocks_made_with_it():
    def same(other: RenderPlan) -> int:
        pairs = list(zip(keys_of(rolling_plan(TWO)), keys_of(other), strict=False))
        equal = [a == b for a, b in pairs]
        assert equal == sorted(equal, reverse=True)
        return sum(equal)

    assert same(rolling_plan(TWO)) == 13
    assert same(rolling_plan(TWO.replace("yellow", "green"))) == 2  # its first block, 6, comes in with block 2
    longer = rolling_plan(TWO, seconds=12.0)
    assert longer.blocks == 17 and same(longer) == 13 - 4
    assert same(rolling_plan(TWO, seconds=8.0)) == 11 - 4
    assert len(set(keys_of(longer))) == 17


@pytest.mark.parametrize(("seconds", "text", "reused"), [(12.0, TWO, 9), (9.0, TWO.replace("yellow", "green"), 2)])
def test_a_longer_rolling_render_or_one_with_another_prompt_takes_what_is_the_same(
    backbone, tmp_path, seconds, text, reused
):
    rolled(tmp_path, rolling_plan(TWO), backbone)
    made = rolling_plan(text, seconds)
    run, latents = rolled(tmp_path, made, backbone)
    straight, model = video_of(made, backbone)
    assert len(run.stored) == reused
    assert all(
        torch.equal(block.latents, other) for block, other in zip(make_blocks(straight, model), latents, strict=True)
    )


def test_a_rolling_render_stops_within_one_model_call_and_loses_no_finished_block(backbone, tmp_path):
    made, seen = rolling_plan(), []

    class Cancel(Exception):
        pass

    def on_step(block, step, latents):
        seen.append(block)
        if len(seen) == 31:
            raise Cancel

    with pytest.raises(Cancel):
        rolled(tmp_path, made, backbone, on_step=on_step)
    assert len(seen) == 31
    again, _ = rolled(tmp_path, made, backbone)
    assert len(again.stored) == 2


# ----------------------------------------------------------------------------------------------------------- causvid


def causvid_plan(seconds=9.0, text=ONE, **options) -> RenderPlan:
    policy = method_policy("causvid")
    return RenderPlan.make(
        CONFIG, policy, schedule("self_forcing", "1, 0.6"), parse_timeline(text), 96, 64, seconds, **options
    )


def test_causvid_has_three_steps_of_its_own_and_tells_the_model_whole_timesteps(backbone):
    own = method_schedule(method_policy("causvid"), "self_forcing")
    made = RenderPlan.make(CONFIG, method_policy("causvid"), own, parse_timeline(ONE), 96, 64, 1.0)
    video, model = video_of(made, backbone)
    told, flow = [], model.flow
    model.flow = lambda latents, sigma, *args, **options: (
        told.append(1000 * sigma) or flow(latents, sigma, *args, **options)
    )
    list(make_blocks(video, model))
    assert told == pytest.approx([1000, 757, 522, 0] * 2, abs=1e-9)
    told.clear()
    video, model = video_of(causvid_plan(1.0), backbone)
    flow = model.flow
    model.flow = lambda latents, sigma, *args, **options: (
        told.append(1000 * sigma) or flow(latents, sigma, *args, **options)
    )
    list(make_blocks(video, model))
    assert told == pytest.approx([1000, 600, 0] * 2, abs=1e-9)


def test_a_plan_says_where_rollouts_restart_and_that_a_video_of_one_needs_no_vae(backbone):
    assert causvid_plan(5.0).restart_frames == () and plan("longlive").restart_frames == ()
    assert causvid_plan(60.0).restart_frames == tuple(range(18, 243 - 3, 18))
    assert "rollouts" not in describe(causvid_plan(5.0), torch.float32)
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


@pytest.mark.parametrize("stop_after", [3, 7, 15])
def test_a_causvid_render_goes_on_to_the_same_bytes_and_makes_no_step_twice(backbone, tmp_path, stop_after):
    made = causvid_plan(12.0, TWO)
    expected = latents_of(made, backbone)
    rolled(tmp_path, made, backbone, stop_after)
    steps = []
    watch = lambda block, step, clean: clean is None or steps.append((block, step))  # noqa: E731
    run, blocks = rolled(tmp_path, made, backbone, on_step=watch)
    assert len(run.stored) == stop_after and torch.equal(torch.cat(blocks), expected)
    assert run.stored_steps + len(steps) == made.steps and len(set(steps)) == len(steps)


def test_the_keys_of_later_rollouts_depend_on_the_vae_and_never_on_the_length():
    def keys(seconds: float, autoencoder: str, text: str = TWO) -> list[str]:
        return job_of(causvid_plan(seconds, text), codec=SimpleNamespace(fingerprint=lambda: autoencoder)).keys

    one, other = keys(12.0, "one"), keys(12.0, "other")
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * 7 + [False] * 10
    assert keys(20.0, "one")[:17] == one
    assert keys(5.25, "")[:7] == one[:7]


def test_what_causvid_cannot_do_is_refused_in_one_sentence():
    with pytest.raises(HeadForcingError, match="does not support start frames, got 3; remove them"):
        causvid_plan(start_frames=3)
    framewise = schedule("causal_forcing_framewise_2_steps")
    with pytest.raises(HeadForcingError, match="same noise levels"):
        RenderPlan.make(CONFIG, method_policy("causvid"), framewise, parse_timeline(ONE), 96, 64, 3.0)
    with pytest.raises(HeadForcingError, match="overlap must be whole blocks of 3"):
        plan(replace(method_policy("causvid"), overlap_frames=4))
    with pytest.raises(HeadForcingError, match="prompt switch is always reset.*got .flush"):
        causvid_plan(text=TWO.replace("0:04.5 ", "0:04.5 [flush] "))
    assert isinstance(causvid_plan(text=TWO.replace("0:04.5 ", "0:04.5 [blend 2] ")).rows[6].prompt, Blend)


# ------------------------------------------------------------------------------------------------- prompts and roles


def test_a_new_prompt_takes_over_in_the_methods_own_way():
    block = 6
    kinds = {name: plan(name, TWO).switches for name in OWN_CACHE}
    for name, kind in (("longlive", "recache"), ("infinity_rope", "flush"), ("memflow", "recache")):
        assert {b: switch.kind for b, switch in kinds[name].items()} == {block: kind}
    assert kinds["deep_forcing"] == {}
    cut = plan("infinity_rope", TWO.replace("0:04.5 ", "0:04.5 [re-anchor] ")).switches[block]
    assert (cut.kind, cut.re_anchor) == ("flush", True)


@pytest.mark.parametrize("name", [name for name in OWN_CACHE])
@pytest.mark.parametrize("tag", ["recache", "flush", "re-anchor"])
def test_any_other_way_is_refused_in_one_sentence(name, tag):
    policy = method_policy(name)
    text = TWO.replace("0:04.5 ", f"0:04.5 [{tag}] ")
    if tag == policy.switch or (tag == "re-anchor" and policy.cuts):
        assert plan(name, text).switches
    else:
        with pytest.raises(HeadForcingError, match=f"prompt switch is always {policy.switch}.*got .{tag}"):
            plan(name, text)


def test_a_recache_is_counted_in_activations_and_reads_the_window_in_one_pass(backbone):
    one, two = (plan("longlive", text) for text in (ONE, TWO))
    assert (one.frames_per_pass, two.frames_per_pass) == (3, 12)
    assert needs_of(two, torch.float32, 0).activations == 4 * needs_of(one, torch.float32, 0).activations
    video, model = video_of(two, backbone)
    passes, flow = [], model.flow
    model.flow = lambda latents, *args, **options: passes.append(len(latents)) or flow(latents, *args, **options)
    for _ in make_blocks(video, model):
        pass
    assert passes.count(12) == 1 and set(passes) == {3, 12}


def test_forcing_kv_needs_a_profile_whose_memory_heads_are_dynamic(backbone):
    with pytest.raises(HeadForcingError, match="load or measure a head profile"):
        plan("forcing_kv", profile=AutoProfile())
    with pytest.raises(HeadForcingError, match="blocks of at least 3 latent frames"):
        plan(
            "forcing_kv",
            family="causal_forcing_framewise",
        )
    dynamic = plan("forcing_kv", profile=profile_of(*[("memory",) * 3] * 3)).shape.frame_slots
    everywhere_static = profile_of(*[("local", "anchor", "local")] * 3)
    static = plan(replace(method_policy("forcing_kv"), kept_share=0.0), profile=everywhere_static).shape.frame_slots
    assert dynamic == 3 * 5 + 6 * 6 and static == 9 * 5
    with pytest.raises(HeadForcingError, match="memory head"):
        plan("forcing_kv", profile=everywhere_static)


def test_memflow_fills_its_bank_by_the_number_of_prompts_as_its_authors_two_scripts_do(backbone):
    def stores(text: str) -> list[bool]:
        names = ("memflow", "memflow_sma", "memflow_interactive")
        return [plan(name, text).shape.policy.stores_last_block for name in names]

    assert stores(ONE) == [True, True, False] and stores(TWO) == [False] * 3
    one, two = (latents_of(plan("memflow_interactive", text), backbone) for text in (ONE, TWO))
    assert torch.equal(two, latents_of(plan("memflow", TWO), backbone))
    assert torch.equal(one[:18], two[:18]) and not torch.equal(one[18:], two[18:])


def test_rearranged_roles_are_for_methods_with_a_profile():
    assert plan("forcing_kv", roles="anchor_to_memory").shape.roles[0] == ["memory", "memory", "local"]
    with pytest.raises(HeadForcingError, match="roles = 'shuffled'.*uses none"):
        plan("longlive", roles="shuffled")


def test_dummy_forcing_draws_by_the_videos_seed_and_never_from_the_global_generator(backbone):
    def groups(seed: int):
        video, model = video_of(plan("dummy_forcing", seconds=4.0, seed=seed), backbone)
        state = torch.get_rng_state()
        cache = rendered(video, model).run.cache
        assert torch.equal(torch.get_rng_state(), state)
        assert isinstance(cache, DummyForcingCache)
        return cache.groups, [cache._rows(layer).tolist() for layer in range(3)]

    torch.manual_seed(1)
    first = groups(3)
    torch.manual_seed(2)
    again = groups(3)
    assert first == again
    assert groups(4)[1] != first[1]
    heads = [head for layer in first[0] for kind in layer.values() for head in kind]
    assert len(heads) == 9 and sum(len(layer["last"]) for layer in first[0]) == round(4.5)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "arxiv"), [("infinity_rope", "2511.20649"), ("rolling_forcing", "2509.25161")])
def test_the_command_line_renders_with_a_method_and_names_it(tmp_path, capsys, name, arxiv):
    arguments = ["demo", "--out", str(tmp_path), "--method", name, "--seconds", "4", "--device", "cpu"]
    assert main(arguments) == 0
    assert f"arXiv {arxiv}" in capsys.readouterr().out
    assert (tmp_path / "demo.mp4").exists()


def test_the_budget_leaves_out_a_method_that_cannot_make_so_short_a_video(capsys):
    assert main(["budget", "--seconds", "2"]) == 0
    short = capsys.readouterr().out
    assert "| longlive |" in short and "rolling_forcing" not in short
    assert main(["budget", "--seconds", "4"]) == 0
    assert "| 4 | rolling_forcing | 8,640 |" in capsys.readouterr().out


def test_the_demo_model_runs_every_method():
    size = assets.SIZE
    config = inspect_checkpoint(assets.model_path()).config
    for name in METHODS:
        assert plan(name, config=config, size=size, profile=None).shape.frame_slots > 0

"""Every method of the table renders, resumes, says what it takes and what it is meant for, and refuses clearly."""

import copy
from dataclasses import replace
from itertools import islice

import pytest
import torch
from headforcing.headforcing_core.cache.policy import PRESETS
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.methods.base import MethodPolicy
from headforcing.headforcing_core.methods.registry import ALIASES, METHODS, describe_method, method_names, method_policy
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.render.describe import describe
from headforcing.headforcing_core.render.plan import RenderPlan
from headforcing.headforcing_core.render.render import begin_render, make_blocks
from headforcing.headforcing_core.render.resources import needs_of
from headforcing.headforcing_core.render.settings import RenderSettings
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.schedule import schedule
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from method_renders import (
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
    rolling_plan,
    video_of,
    watched,
)
from toy_renders import rendered

NAMES = [*METHODS, *ALIASES]
OWN_CACHE = [name for name in METHODS if isinstance(method_policy(name), MethodPolicy)]  # aliases are these, too


@pytest.fixture(scope="module")
def backbone() -> WanModel:
    return random_backbone()


def test_every_name_is_offered_once_and_the_samplers_page_has_every_method_with_its_weights_and_its_size(repo_root):
    names = method_names()
    assert len(set(names)) == len(names) and names[: len(PRESETS)] == list(PRESETS) and set(NAMES) <= set(names)
    page = (repo_root / "nodes" / "web" / "docs" / "HeadForcingSampler.md").read_text("utf-8")
    rows = []
    for name, row in METHODS.items():
        minute = parse_timeline("a minute", 60.0)
        made = RenderPlan.make(WanConfig(), row.policy, schedule("self_forcing"), minute, RenderSettings())
        differs = row.differs or ("made from the paper alone" if name == "head_forcing" else "nothing")
        paper = f"[{row.arxiv}](https://arxiv.org/abs/{row.arxiv})"
        rows.append(f"| {name} | {paper} | {row.weights} | {made.shape.frame_slots:,} | {differs} |")
        (text,) = describe_method(name)
        assert row.paper in text and f"arXiv {row.arxiv}" in text and row.weights in text
        assert ("were trained for this method" in text) == row.trained
    assert [line for line in page.splitlines() if "https://arxiv.org/abs" in line] == rows, "\n".join(rows)


def test_a_report_counts_the_frames_that_are_there_not_those_there_is_room_for(backbone):
    for name, frames_per_head in {"longlive": [3, 6, 9, 12, 12], "infinity_rope": [3, 6, 6, 6, 6]}.items():
        video, model = video_of(plan(name, seconds=3.5), backbone)
        assert rendered(video, model).run.meter.occupied == [9 * frames for frames in frames_per_head]


@pytest.mark.slow
@pytest.mark.parametrize("name", OWN_CACHE)
def test_a_method_renders_in_bfloat16_one_frame_at_a_time_and_after_start_frames(backbone, name):
    made = plan(name, TWO, 6.0)
    model = WanVideoModel(copy.deepcopy(backbone).to(torch.bfloat16), torch.bfloat16)
    model.backbone.patch_embedding.float()
    assert all(block.isfinite().all() for block in rendered(job_of(made, dtype=torch.bfloat16), model).blocks)
    if name not in ("forcing_kv", "echo_forcing"):
        framewise = plan(name, TWO, 5.5, family="causal_forcing_framewise_2_steps")
        assert latents_of(framewise, backbone).isfinite().all()
    if name not in ("rolling_forcing", "causvid"):
        start = torch.randn(9, 16, 8, 12, generator=torch.Generator().manual_seed(2))
        assert latents_of(plan(name, TWO, 6.0, start_frames=9), backbone, start_latents=start).isfinite().all()


def test_the_first_block_that_is_made_gets_the_first_blocks_steps_also_after_start_frames(backbone):
    start = torch.randn(2, 16, 8, 12, generator=torch.Generator().manual_seed(2))
    family = {"family": "causal_forcing_framewise_1_step", "steps": "", "profile": None}
    made = plan("causal_forcing", ONE, 1.0, start_frames=2, **family)
    video, model = video_of(made, backbone, start_latents=start)
    steps = [(block, step) for block in range(2, made.blocks) for step in range(1, len(made.rows[block].sigmas) + 1)]
    seen: list = []
    rendered(video, model, on_step=watched(seen))
    assert seen == steps and len(seen) == made.steps
    assert [len(made.rows[block].sigmas) for block in (2, 3)] == [4, 1]


@pytest.mark.parametrize("name", [*OWN_CACHE, "pyramid_forcing_python"])
def test_an_interrupted_render_ends_with_the_same_bytes(backbone, tmp_path, name):
    made, reused = plan(name, TWO, 7.0), []
    for stop_after in (8, None, None):
        video, model = video_of(made, backbone, runs=tmp_path, state_seconds=1e-9)
        latents, run = rendered(video, model, stop_after=stop_after)
        reused.append(len(run.stored))
    assert torch.equal(torch.cat(latents), latents_of(made, backbone))
    assert reused == [0, 8, made.new_blocks]
    told = "goes on where the cache was last stored, or starts from the beginning"
    assert (told in describe(made, torch.float32)) == ("blocks" not in made.shape.policy.resumes_from)
    assert len(list(tmp_path.rglob("state-*"))) == int("state" in made.shape.policy.resumes_from)  # only the latest


@pytest.mark.parametrize("state_seconds", [0.0, 1e-9])
def test_a_cache_that_cannot_be_rebuilt_goes_on_from_its_last_state_and_drops_the_blocks_after_it(
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
                    render.run.state_seconds = 1e9  # blocks after this one are stored without the cache
            assert len(render.run.stored) == (0 if last == 5 or not state_seconds else 5)
    assert torch.equal(torch.cat(latents), latents_of(made, backbone))


@pytest.mark.parametrize("name", ["rolling_forcing", "causvid"])
def test_a_seed_before_a_prompt_is_that_of_all_noise_from_its_first_block_on(backbone, name):
    """A window has the noise of its newest block in all of them."""
    straight, take = (plan(name, TWO.replace("0:04.5 ", f"0:04.5 {tag}"), 7.0, seed=3) for tag in ("", "[seed 7] "))
    kept = straight.timeline.segments[1].start_block - (straight.passes.blocks_per_pass - 1)
    before, after = (latents_of(made, backbone).split(3) for made in (straight, take))
    same = [torch.equal(old, new) for old, new in zip(before, after, strict=True)]
    assert same == [block < kept for block in range(straight.blocks)]
    assert same == [old == new for old, new in zip(keys_of(straight), keys_of(take), strict=True)]
    assert {row.seed for row in plan(name, TWO.replace("0:00 ", "0:00 [seed 7] "), seed=3).rows} == {7}


def test_what_a_method_cannot_do_is_refused_in_one_sentence():
    framewise = {"family": "causal_forcing_framewise_2_steps", "steps": "", "profile": None}
    for make, words in (
        (lambda: rolling_plan(start_frames=3), "does not support start frames, got 3"),
        (lambda: rolling_plan(TWO.replace(" a y", " [recache, blend 2] a y")), "reset.*got .recache, blend 2"),
        (lambda: causvid_plan(start_frames=3), "does not support start frames, got 3; remove them"),
        (lambda: plan("causvid", ONE, 3.0, **framewise), "same noise levels"),
        (lambda: plan("forcing_kv", profile=AutoProfile()), "load or measure a head profile"),
        (lambda: plan("forcing_kv", family="causal_forcing_framewise"), "blocks of at least 3 latent frames"),
        (lambda: plan("forcing_kv", profile=STATIC), "memory head"),
        (lambda: plan("longlive", roles="shuffled"), "roles = 'shuffled'.*uses none"),
    ):
        with pytest.raises(HeadForcingError, match=words):
            make()


@pytest.mark.parametrize("name", OWN_CACHE)
def test_a_new_prompt_takes_over_in_the_methods_own_way_and_any_other_is_refused(name):
    policy = method_policy(name)
    own = {"longlive": "recache", "memflow": "recache", "infinity_rope": "flush", "deep_forcing": "reset"}
    assert policy.switch == own.get(name, policy.switch)
    plain = {block: switch.kind for block, switch in plan(name, TWO).switches.items()}
    assert plain == ({} if policy.switch == "reset" else {6: policy.switch})
    for tag in ("recache", "flush", "re-anchor"):
        text = TWO.replace("0:04.5 ", f"0:04.5 [{tag}] ")
        if tag == policy.switch or (tag == "re-anchor" and policy.cuts):
            switch = plan(name, text).switches[6]
            assert (switch.kind, switch.re_anchor) == (policy.switch, tag == "re-anchor")
        else:
            with pytest.raises(HeadForcingError, match=f"prompt switch is always {policy.switch}.*got .{tag}"):
                plan(name, text)


def test_a_plan_counts_the_frames_of_one_pass_and_a_recache_reads_its_window_in_one(backbone):
    one, two, rolling = plan("longlive"), plan("longlive", TWO), rolling_plan()
    passes = [(made.passes.blocks_per_pass, made.frames_per_pass) for made in (one, two, rolling)]
    assert passes == [(1, 3), (1, 12), (5, 15)]
    needs = [needs_of(made, torch.float32, 0, kept=True) for made in (one, two, rolling)]
    assert [taken.activations / needs[0].activations for taken in needs] == [1, 4, 5]
    assert needs[2].run_folder == 5 * needs[0].run_folder
    video, model = video_of(two, backbone)
    passes, flow = [], model.flow
    model.flow = lambda latents, *args, **options: passes.append(len(latents)) or flow(latents, *args, **options)
    for _ in make_blocks(video, model):
        pass
    assert passes.count(12) == 1 and set(passes) == {3, 12}


def test_forcing_kv_keeps_chunks_in_the_dynamic_heads_of_a_profile_alone():
    dynamic = plan("forcing_kv", profile=profile_of(*[("memory",) * 3] * 3)).shape.frame_slots
    static = plan(replace(method_policy("forcing_kv"), kept_share=0.0), profile=STATIC).shape.frame_slots
    assert dynamic == 3 * 5 + 6 * 6 and static == 9 * 5
    assert plan("forcing_kv", roles="anchor_to_memory").shape.roles[0] == ["memory", "memory", "local"]


def test_memflow_fills_its_bank_by_the_number_of_prompts_as_its_authors_two_scripts_do():
    def stores(text: str) -> list[bool]:
        names = ("memflow", "memflow_sma", "memflow_interactive")
        return [plan(name, text).shape.policy.stores_last_block for name in names]

    assert stores(ONE) == [True, True, False] and stores(TWO) == [False] * 3


def test_dummy_forcing_draws_by_the_videos_seed_and_never_from_the_global_generator(backbone):
    def drawn(seed: int) -> list:
        video, model = video_of(plan("dummy_forcing", seconds=4.0, seed=seed), backbone)
        state = torch.get_rng_state()
        cache = rendered(video, model).run.cache
        assert torch.equal(torch.get_rng_state(), state)
        heads = [head for layer in cache.groups for kind in layer.values() for head in kind]
        assert len(heads) == 9 and sum(len(layer["last"]) for layer in cache.groups) == round(4.5)
        return [cache.groups, *(cache._rows(layer).tolist() for layer in range(3))]

    first, _ = drawn(3), torch.manual_seed(2)
    assert drawn(3) == first and drawn(4)[1:] != first[1:]


def test_the_budget_leaves_out_a_method_that_cannot_make_so_short_a_video(capsys):
    assert main(["budget", "--seconds", "2"]) == 0
    short = capsys.readouterr().out
    assert "| longlive |" in short and "rolling_forcing" not in short
    assert main(["budget", "--seconds", "4"]) == 0
    assert "| 4 | rolling_forcing | 8,640 |" in capsys.readouterr().out


def test_no_seed_changes_how_roles_are_shuffled(backbone):
    """Else shuffle and video could not be told apart in a comparison over seeds."""
    shuffled, take = (plan("head_forcing", f"0:00 {tag} a", seed=3, roles="shuffled") for tag in ("", "[seed 7]"))
    assert shuffled.shape == take.shape == plan("head_forcing", "0:00 a", seed=7, roles="shuffled").shape
    assert shuffled.shape != plan("head_forcing", "0:00 a", seed=3, roles="shuffled", shuffle=1).shape

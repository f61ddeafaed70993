"""Renders on a native MODEL: the numbers of the core, the memory of the estimate, and nothing left
behind.
"""

import dataclasses
import json
import math
import types
from contextlib import suppress
from unittest.mock import MagicMock, patch

import comfy.model_management as mm
import comfy.sample
import comfy.samplers
import server
import torch
from comfy_api.torch_helpers import set_torch_compile_wrapper
from parity import (
    EMBEDS,
    PROFILE,
    Watcher,
    apart,
    bridge,
    check_nothing_is_left,
    core,
    core_model,
    embeds_of,
    host_render,
    hosted,
    loaded_model,
    make_plan,
    module,
    native,
    own,
    probe,
    render_video,
    sampled,
    smoke,
)


@smoke
def a_rollout_on_the_native_model_equals_the_cores_own_and_frees_its_caches_at_once():
    model = native()
    kept = []
    plan = make_plan(model)
    check_nothing_is_left(lambda: kept.append(sampled(model, plan)))
    by_host = kept[0].latents
    host_events = kept[0].events
    by_core, core_events = own(plan)
    begun = hosted(model, make_plan(model, 1.0, text="one", seed=7))
    other_seed = hosted(model, make_plan(model, 1.0, text="one", seed=8))
    other_video = hosted(model, make_plan(model, 1.0, text="one"), video=1)
    one_prompt = hosted(model, make_plan(model, text="one"))

    def facts(events):
        return [(e.after_block, e.frame, e.admitted, e.merged, e.dropped) for e in events]

    assert (str(loaded_model.compute_dtype(model)), len(by_host)) == ("torch.float32", 33)
    assert apart(by_host, by_core) < 1e-4
    assert (
        facts(host_events) == facts(core_events) and sum(bool(e.merged) for e in host_events) >= 2
    )
    assert apart(begun, other_seed) > 0.1 and apart(begun, other_video) > 0.1
    assert apart(by_host[:15], one_prompt[:15]) == 0 and apart(by_host[15:], one_prompt[15:]) > 1e-3


@probe
def every_other_kind_of_render_on_the_native_model_equals_the_cores_own():
    """Prompt switches, an extension, and one of each way to call the host: a cache that reads
    queries, a method that compares prompts, blocks denoised together, a loop of its own."""
    model = native()
    begun = hosted(model, make_plan(model, 1.0))
    before = hosted(model, make_plan(model, 4.5))
    for tag in ("[recache, blend 2]", "[flush, re-anchor]"):
        plan = make_plan(model, 4.5, text=f"one | {tag} two")
        by_host = hosted(model, plan)
        assert apart(by_host, own(plan)[0]) < 1e-4, tag
        assert apart(by_host[:9], before[:9]) == 0 and apart(by_host[9:], before[9:]) > 1e-3, tag
    for name in ("longlive", "memflow", "swift", "deep_forcing", "rolling_forcing", "causvid"):
        plan = make_plan(model, 3.0, method=name)
        assert apart(hosted(model, plan), own(plan)[0]) <= 1e-4, name
    # its cache asks the model for prompts
    check_nothing_is_left(lambda: hosted(model, make_plan(model, 4.5, method="swift")))
    plan = make_plan(model, 1.5, start_frames=len(begun))
    by_host = hosted(model, plan, start=begun)
    other = hosted(model, plan, start=begun + 1)
    assert (len(begun), len(by_host)) == (6, 12) and apart(by_host[:6], begun) < 1e-5
    assert apart(by_host, own(plan, start=begun)[0]) < 1e-4
    assert apart(by_host[6:], other[6:]) > 1e-3, (
        "the cache was really written from the given frames"
    )


@probe
def the_model_is_unchanged_for_normal_samplers():
    model = native()

    def ksample(model):
        noise = torch.randn(1, 16, 2, 6, 10, generator=torch.Generator().manual_seed(0))
        text = [[EMBEDS[0][None], {"pooled_output": None}]]
        options = {"disable_pbar": True, "seed": 0}
        with torch.inference_mode():
            empty = torch.zeros_like(noise)
            return comfy.sample.sample(
                model, noise, 3, 1.0, "euler", "simple", text, text, empty, **options
            )

    def state():
        wrappers = {key: sorted(each) for key, each in model.wrappers.items() if each}
        return (
            sorted(model.model_options),
            wrappers,
            set(vars(model.model)),
            set(vars(model.model.diffusion_model)),
        )

    before = ksample(model)
    unused = state()
    hosted(model, make_plan(model, 1.5))
    after = ksample(model)
    clone = model.clone()
    clone.add_wrapper_with_key(
        bridge.WrappersMP.DIFFUSION_MODEL, "head_forcing", bridge._diffusion_model_wrapper
    )
    options = json.dumps(model.model_options, default=lambda x: type(x).__name__)
    assert float(before.std()) > 0.01
    assert torch.equal(before, after) and torch.equal(before, ksample(clone))
    assert state() == unused and not ("head_forcing" in options or "Hosted" in options)


@probe
def measuring_on_the_native_model_equals_the_cores_own_and_frees_its_caches():
    model = native()
    sigmas = core.schedule.schedule("self_forcing").sigmas
    setup = core.shares.ProfileSetup(
        loaded_model.name_model(model), 2, 2, ("one", "two"), 4, sigmas, 3, 80, 48, seed=7
    )
    by_host = core.shares.HeadShares(setup)
    by_core = core.shares.HeadShares(setup)
    embeds = dict(enumerate(EMBEDS))
    measure = module(".nodes.profile_heads").measure
    config = loaded_model.wan_config(model)
    with torch.inference_mode():
        check_nothing_is_left(
            lambda: measure(model, by_host, embeds, lambda *_: None, lambda _: None)
        )
        core.profiler.profile_heads(core_model(), config, by_core, embeds, dtype=torch.float32)
    means = by_host.mean(), by_core.mean()
    assert by_host.missing_prompts() == [] and apart(*means) < 1e-5 < 1e-2 < float(means[0].std())


@smoke
def cancel_stops_within_one_model_call_and_frees_the_cache():
    """Cancel is pressed during the 7th model call."""
    server.PromptServer.instance = MagicMock(client_id=None, last_node_id=None)
    progress = module(".nodes.host.browser.progress")
    model = native()
    calls = []
    hidden = types.SimpleNamespace(unique_id="3", extra_pnginfo=None)
    plan = make_plan(model, 3.0)
    forward = bridge.forward_block

    def counted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 7:
            mm.interrupt_current_processing(True)
        return forward(*args, **kwargs)

    def run():
        with suppress(mm.InterruptProcessingException):
            hosted(model, plan, on_step=progress.RenderProgress(model, [plan], hidden).step)

    with patch.object(bridge, "forward_block", counted):
        check_nothing_is_left(run)
    mm.interrupt_current_processing(False)
    assert len(calls) == 7
    assert apart(hosted(model, plan), own(plan)[0]) < 1e-4


class Stop(Exception):
    pass


def asked_for(run):
    """The memory that ComfyUI is asked for when `run` loads its model."""
    asked = []

    def record(models, memory_required=0, *args, minimum_memory_required=None, **kwargs):
        asked.append([memory_required, minimum_memory_required])
        raise Stop

    with patch.object(mm, "load_models_gpu", record), suppress(Stop):
        run()
    return asked[0]


@probe
def the_open_sampler_is_given_the_memory_of_our_own_and_leaves_no_caches():
    """The SAMPLER of Apply Head Forcing: the memory it is given and what it leaves behind."""
    rollout = module(".nodes.apply")
    model = native()
    kept = []
    said = []
    handed = []
    options = core.options.RenderOptions(profile=PROFILE, width=80, height=48)
    sample = comfy.samplers.KSAMPLER.sample

    @torch.inference_mode()
    def run(videos, seconds, model=model, changed=lambda applied: None):
        timeline = core.timeline.parse_timeline("one | two", seconds)
        request = rollout.NativeRequest(options, timeline, embeds_of(timeline))
        applied = rollout.clone_for_rollout(model, request)
        changed(applied)
        guider = comfy.samplers.CFGGuider(applied)
        guider.inner_set_conds({"positive": [[EMBEDS[0][None], {"pooled_output": None}]]})
        empty = torch.zeros(videos, 16, (request.length() + 3) // 4, 6, 10)
        sampler = rollout.RolloutSampler(request)
        sigmas = request.sigmas()
        return guider.sample(
            torch.randn_like(empty), empty, sampler, sigmas, disable_pbar=True, seed=7
        )

    @torch.inference_mode()
    def by_our_own(seconds):
        timeline = core.timeline.parse_timeline("one | two", seconds)
        render = host_render(model, dataclasses.replace(options, seed=7), timeline)
        return render_video.sample(render, render.request.plan(), 0, Watcher()).latents

    def recorded(*args, **kwargs):
        handed.append(sample(*args, **kwargs))
        return handed[-1]

    check_nothing_is_left(lambda: kept.append(run(1, 3.0)))
    with patch.object(comfy.samplers.KSAMPLER, "sample", recorded):
        assert apart(kept[0][0].transpose(0, 1), by_our_own(3.0)) == 0
    assert handed[0].shape[2] == 3, (
        "our own keeps the video in main memory: ComfyUI gets one block of zeros"
    )
    patched = model.clone()
    patched.set_model_attn2_patch(lambda *args: args)
    with patch.object(rollout.log, "warning", lambda form, line: said.append(form % line)):
        # a compiled one could not be called
        run(1, 1.5, patched, lambda applied: set_torch_compile_wrapper(applied, backend=None))
    told = "patches of attention or blocks (attn2_patch)", "torch.compile"
    assert said == [f"Apply Head Forcing: not used in a rollout: {what}" for what in told]
    memory = [
        asked_for(lambda: run(1, 120.0)),
        asked_for(lambda: run(2, 120.0)),
        asked_for(lambda: by_our_own(120.0)),
    ]
    assert memory[0] == memory[1] == memory[2], (
        "one block and its caches, whatever the length and the batch"
    )


@smoke
@torch.inference_mode()
def comfyui_is_asked_for_the_memory_of_the_estimate():
    model = native()
    again = []
    plans = {
        name: make_plan(model, 120.0, method=name) for name in ("head_forcing", "self_forcing")
    }
    asked = {name: asked_for(lambda plan=plan: hosted(model, plan)) for name, plan in plans.items()}

    class ReloadingStory(module(".nodes.host.browser.live_story").LiveStory):
        """Has the model loaded again before each block, as after its text encoder has run."""

        def __init__(self):
            self.node = None  # of a graph without a timeline

        def ask(self):
            again.append(asked_for(self.reload)[1])
            if len(again) == 2:
                raise Stop

    # what ComfyUI asks for by itself would hide smaller numbers
    with patch.object(model.model, "memory_required", lambda *_, **__: 0), suppress(Stop):
        sampled(model, plans["self_forcing"], story=ReloadingStory())
    needs = {name: core.resources.needs_of(plan, torch.float32, 0) for name, plan in plans.items()}
    # what it must keep free, exactly; what it likes to have free is not twice that, but one pass
    # more
    assert needs["self_forcing"].working > 5 * needs["head_forcing"].working
    shape = [plans["head_forcing"].largest_pass, 6, 10]
    once = model.model.memory_required([1, 16, *shape])
    twice = model.model.memory_required([2, 16, *shape])
    for method, (wished, needed) in asked.items():
        assert math.isclose(needed, max(needs[method].working, once))
        assert math.isclose(wished - needed, twice - once)
    # a model that is loaded again is not asked to make room for what is allocated
    whole = needs["self_forcing"]
    before_the_first_block = whole.temporary + whole.prompt  # which the cache has by then
    assert math.isclose(again[0], before_the_first_block) and math.isclose(
        again[1], whole.temporary
    )
    assert before_the_first_block < 0.5 * whole.working

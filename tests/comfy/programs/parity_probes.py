"""All probes of test_nodes_parity.py, in one process; prints the error of each as JSON, null where all is well."""

from inside_comfy import load_pack

# isort: split

import dataclasses
import gc
import importlib
import io
import json
import math
import pathlib
import sys
import tempfile
import traceback
import types
import weakref
from contextlib import contextmanager, suppress
from fractions import Fraction
from unittest.mock import MagicMock, patch

import comfy.latent_formats
import comfy.model_management as mm
import comfy.sample
import comfy.samplers
import comfy.sd
import comfy.supported_models
import comfy.taesd.taehv
import comfy.utils
import folder_paths
import server
import torch
from comfy_api.latest import InputImpl, Types
from comfy_api.torch_helpers import set_torch_compile_wrapper
from torchvision.models.optical_flow import raft_large

folder, repo, wanted, results = sys.argv[1], sys.argv[2], sys.argv[3:], {}


class Spy:
    """Sees which optional packages anybody tries to import, installed or not."""

    wanted, asked = ("triton", "flash_attn", "sageattention", "xformers"), []

    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in self.wanted:
            self.asked.append(name)


def importing():
    spy = Spy()
    sys.meta_path.insert(0, spy)
    before = set(sys.modules)
    pack = load_pack()
    light = sorted({name.split(".")[0] for name in set(sys.modules) - before - {pack.__name__}})

    def module(name):
        return importlib.import_module(name, pack.__name__)

    module(".nodes")
    during = list(spy.asked)
    loaded = [name for name in Spy.wanted if name in sys.modules and name not in before]
    for name in Spy.wanted:  # the spy itself works
        try:
            importlib.import_module(name)
        except ImportError:
            pass
    sys.meta_path.remove(spy)
    found = {"light": light, "during": during, "loaded": loaded, "spied": sorted(set(spy.asked))}
    found["nodes"] = importlib.import_module("nodes").__file__
    found["root_on_path"] = repo in sys.path or any(p.rstrip("/") == repo for p in sys.path)
    return found, module


imported, module = importing()
bridge, toy = module(".nodes.host.bridge"), module(".nodes.host.native_model")
loaded_model, profiling = module(".nodes.host.loaded_model"), module(".nodes.profile_heads")
render_video = module(".nodes.host.render")
vae_decoding = module(".nodes.host.vae")
CORE = """cache.head_cache cache.policy errors head_profiles.auto head_profiles.profile head_profiles.profiler
head_profiles.shares model.attention model.wan render.job render.render render.live_story render.options render.plan
render.resources render.settings rollout.loop rollout.schedule timeline.timeline video.codec video.stream
video.tiny_decoder weights.checkpoint weights.lora""".split()
core = types.SimpleNamespace(**{name.rpartition(".")[2]: module(f".headforcing_core.{name}") for name in CORE})
methods = module(".headforcing_core.methods.registry")
TINY, LORA, VAE = f"{folder}/tiny.safetensors", f"{folder}/lora.safetensors", f"{folder}/vae.safetensors"
ROLES = (("local", "anchor"), ("memory", "memory"))
HIDDEN = types.SimpleNamespace(unique_id="3", extra_pnginfo=None)
EMBEDS = [torch.randn(512, 4096, generator=torch.Generator().manual_seed(i)) for i in range(2)]
for i, rows in enumerate(EMBEDS):
    rows[5 + 3 * i :] = 0


def native():
    return toy.native_model(core.checkpoint.load_state_dict(TINY)[0], None)


def make_plan(model, seconds=7.5, start_frames=0, method="head_forcing", text="one | two", seed=7):
    # three memory entries, a candidate after every block: entries are merged within ten blocks
    policy = methods.method_policy(method)
    if isinstance(policy, core.policy.CachePolicy):
        policy = policy.with_memory(3, 3, 1.0, 1)
    profile = core.profile.HeadProfile("tiny", 2, 2, ROLES)
    timeline = core.timeline.parse_timeline(text, seconds)
    return core.plan.RenderPlan.make(
        loaded_model.wan_config(model),
        policy,
        core.schedule.schedule("self_forcing"),
        timeline,
        core.settings.RenderSettings(width=80, height=48, seconds=seconds, seed=seed),
        profile,
        start_frames,
    )


def embeds_of(timeline):
    return dict(zip(timeline.texts, EMBEDS, strict=False))


class Watcher(core.render.Listener):
    def __init__(self, on_step):
        self.step, self.growing = on_step, None

    def stopped(self):
        pass


@torch.inference_mode()
def sampled(model, plan, video=0, start=None, on_step=lambda *_: None, embeds=None):
    start = vae_decoding.Given(None if start is None else start[None])
    embeds = embeds_of(plan.timeline) if embeds is None else embeds
    job = render_video.HostRender(model, core.options.RenderOptions(seed=7), plan.timeline, embeds, start)
    return render_video.sample(job, plan, video, Watcher(on_step))


def hosted(*args, **options):
    done = sampled(*args, **options)
    return done.latents, done.events


@torch.inference_mode()
def own(state_dict, plan, video=0, start=None, model=None):
    """The same render by the core alone, `[frames, 16, h, w]` as a LATENT holds it."""
    inner = native().model
    config = core.wan.WanConfig(dim=256, ffn_dim=512, num_layers=2, num_heads=2)
    backbone = core.wan.WanModel.from_state_dict(config, state_dict, torch.float32)
    start = None if start is None else inner.process_latent_in(start.transpose(0, 1)[None])[0].transpose(0, 1)
    job = core.job.RenderJob(plan, embeds_of(plan.timeline), video=video, start_latents=start)
    blocks = list(core.render.make_blocks(job, core.loop.WanVideoModel(backbone, torch.float32)))
    latents = torch.cat([block.latents for block in blocks])
    out = inner.process_latent_out(latents.transpose(0, 1)[None])[0].transpose(0, 1)
    return out, [block.event for block in blocks if block.event is not None]


def apart(a, b):
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((a - b).abs().max())


def weights():
    return core.checkpoint.load_state_dict(TINY)[0]


def leftovers(run):
    """How many caches and cache buffers outlive `run` without the help of the garbage collector, and with it."""
    made, kind = [], core.head_cache.HeadCache
    build = kind.__init__

    def noted(self, *args, **kwargs):
        build(self, *args, **kwargs)
        buffers = [buffer for group in self.groups for buffer in (*group.k, *group.v)]
        made.extend(weakref.ref(each) for each in (self, *buffers))

    def alive():
        return sum(ref() is not None for ref in made)

    kind.__init__ = noted
    gc.collect()
    gc.disable()
    try:
        run()
        without_gc = alive()
        gc.collect()
        return {"made": len(made), "left": without_gc, "left_after_gc": alive()}
    finally:
        gc.enable()
        kind.__init__ = build


def probe(function):
    """Run a probe, if it is wanted; no names on the command line want all."""
    if wanted and function.__name__ not in wanted:
        return
    results[function.__name__] = None
    try:
        function()
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        values = {name: repr(value)[:200] for name, value in frame.f_locals.items()}
        results[function.__name__] = f"{traceback.format_exc()}\n{json.dumps(values, indent=1)}"


@probe
def importing_the_pack_pulls_in_nothing_heavy_and_comfys_own_modules_keep_their_names():
    assert imported["light"] == []  # importing the pack itself imports nothing at all
    assert imported["during"] == [] and imported["loaded"] == []
    assert imported["spied"] == sorted(Spy.wanted)
    assert pathlib.Path(imported["nodes"]).parent == pathlib.Path(comfy.__path__[0]).parent
    assert not imported["root_on_path"]


@probe
def a_rollout_on_the_native_model_equals_the_cores_own_and_frees_its_caches_at_once():
    model, kept = native(), []
    plan = make_plan(model)
    found = leftovers(lambda: kept.append(hosted(model, plan)))
    by_host, host_events = kept[0]
    by_core, core_events = own(weights(), plan)
    begun, other_seed = (hosted(model, make_plan(model, 1.0, text="one", seed=seed))[0] for seed in (7, 8))
    other_video, _ = hosted(model, make_plan(model, 1.0, text="one"), video=1)
    one_prompt, _ = hosted(model, make_plan(model, text="one"))

    def facts(events):
        return [(e.after_block, e.frame, e.admitted, e.merged, e.dropped) for e in events]

    assert (str(loaded_model.compute_dtype(model)), len(by_host)) == ("torch.float32", 33)
    assert apart(by_host, by_core) < 1e-4
    assert (facts(host_events) == facts(core_events)) and sum(bool(e.merged) for e in host_events) >= 2
    assert apart(begun, other_seed) > 0.1 and apart(begun, other_video) > 0.1
    assert apart(by_host[:15], one_prompt[:15]) == 0 and apart(by_host[15:], one_prompt[15:]) > 1e-3
    assert found["made"] > 4
    assert (found["left"], found["left_after_gc"]) == (0, 0)  # 2.5 GB at real size: must not wait for the collector


@probe
def every_other_kind_of_render_on_the_native_model_equals_the_cores_own():
    """Prompt switches, an extension, and one of each way to call the host: a cache that reads queries, blocks denoised
    together, a loop of its own."""
    model = native()
    begun, before = hosted(model, make_plan(model, 1.0))[0], hosted(model, make_plan(model, 4.5))[0]
    for tag in ("[recache, blend 2]", "[flush, re-anchor]"):
        plan = make_plan(model, 4.5, text=f"one | {tag} two")
        by_host, _ = hosted(model, plan)
        assert apart(by_host, own(weights(), plan)[0]) < 1e-4, tag
        assert apart(by_host[:9], before[:9]) == 0 and apart(by_host[9:], before[9:]) > 1e-3, tag
    for name in ("longlive", "memflow", "deep_forcing", "rolling_forcing", "causvid"):
        plan = make_plan(model, 3.0, method=name)
        assert apart(hosted(model, plan)[0], own(weights(), plan)[0]) <= 1e-4, name
    plan = make_plan(model, 1.5, start_frames=len(begun))
    by_host, _ = hosted(model, plan, start=begun)
    assert (len(begun), len(by_host)) == (6, 12) and apart(by_host[:6], begun) < 1e-5
    assert apart(by_host, own(weights(), plan, start=begun)[0]) < 1e-4
    other = hosted(model, plan, start=begun + 1)[0]
    assert apart(by_host[6:], other[6:]) > 1e-3, "the cache was really written from the given frames"


@probe
def a_model_can_be_loaded_once_more_for_another_device():
    """What Select Model Device and MultiGPU CFG Split do: load the MODEL once more from what the loader left on it."""
    load_model, load_demo = module(".nodes.load_model"), module(".nodes.load_demo")
    tiny = toy.reloadable(load_model.load_model, TINY, "auto", None)
    (demo, *_) = load_demo.LoadDemoModel.execute().result
    again = []
    for model in (tiny, demo):
        if hasattr(model, "deepclone_multigpu"):
            copy = model.clone().deepclone_multigpu(new_load_device=torch.device("cpu"))
        else:
            load, args = model.cached_patcher_init
            copy = load(*args, disable_dynamic=False)
        own = dict(model.model.diffusion_model.named_parameters())
        other = dict(copy.model.diffusion_model.named_parameters())
        shared = any(own[name] is other[name] for name in own)
        load, args = copy.cached_patcher_init if hasattr(model, "deepclone_multigpu") else model.cached_patcher_init
        again.append([loaded_model.fingerprint(model) == loaded_model.fingerprint(copy), shared, callable(load)])
    plan = make_plan(tiny, 3.0)
    assert again == [[True, False, True]] * 2 and apart(hosted(tiny, plan)[0], hosted(native(), plan)[0]) == 0


@probe
def the_sampler_works_behind_the_node_that_splits_guidance_over_gpus():
    """Core's MultiGPU CFG Split itself before our sampler; two names of the CPU stand in for two GPUs."""
    node = importlib.import_module("comfy_extras.nodes_multigpu").MultiGPUCFGSplitNode
    multigpu = importlib.import_module("comfy.multigpu")
    tiny = toy.reloadable(module(".nodes.load_model").load_model, TINY, "auto", None)
    plan, devices = make_plan(tiny, 3.0), [tiny.load_device, torch.device("cpu", 0)]
    with (
        patch.object(mm, "get_all_torch_devices", lambda *_, **__: list(devices)),
        patch.object(mm, "set_torch_device", lambda device: None),
        patch.object(multigpu, "MultiGPUThreadPool", wraps=multigpu.MultiGPUThreadPool) as pool,
    ):
        (split,) = node.execute(tiny, 2).result
        found = hosted(split, plan)[0]
    assert len(split.get_additional_models_with_key("multigpu")) == 1, "the MODEL keeps its copy for another GPU"
    pool.assert_not_called()  # and a render has none, nor loads anything there
    assert apart(found, hosted(native(), plan)[0]) == 0


@probe
def a_model_that_is_to_be_compiled_is_run_as_it_is_and_the_report_says_so():
    """A MODEL after ComfyUI's TorchCompileModel."""
    graphs = []

    def backend(graph, inputs):
        graphs.append(len(inputs))
        return graph.forward

    model = native()
    plan = make_plan(model, 1.0)
    wrapped = model.clone()
    set_torch_compile_wrapper(wrapped, backend=backend)
    found, _ = hosted(wrapped, plan)
    assert graphs == [] and apart(found, hosted(model, plan)[0]) == 0
    (told,) = loaded_model.ignored(wrapped)
    assert "torch.compile" in told


@probe
def fused_kernels_on_the_native_model_leave_alone_what_comfyui_casts():
    """What a GPU's kernels do, in plain torch: on norms that ComfyUI leaves alone, on norms whose cast changes nothing
    (as under dynamic VRAM), and on norms that it changes."""
    operation, model, called = module(".kernels.dispatch").Operation, native(), set()
    plan, parts = make_plan(model, 3.0), list(model.model.diffusion_model.modules())
    norms = [part for part in parts if isinstance(part, (torch.nn.LayerNorm, torch.nn.RMSNorm))]
    norms = [part for part in norms if part.weight is not None]
    castable = [part for part in parts if hasattr(part, "comfy_cast_weights")]
    for part in norms:  # numbers that both dtypes have
        part.weight.data = part.weight.data.bfloat16().float()
    expected, _ = hosted(model, plan)

    def kernel(self, *arguments, **options):
        if self.name in ("norm_modulate", "write_block"):  # those of every pass
            called.add((self.name, self.name == "write_block" and arguments[3] is None))
        return self.reference(*arguments, **options)

    def kernels_used():
        called.clear()
        assert apart(hosted(model, plan)[0], expected) < 1e-4
        return set(called)

    fused = {("norm_modulate", False)}
    with patch.object(operation, "usable", lambda *_: True), patch.object(operation, "kernel", kernel):
        assert kernels_used() == fused | {("write_block", False)}
        for part in castable:
            part.comfy_cast_weights = True
        for part in norms:
            part.weight.data = part.weight.data.bfloat16()
        assert kernels_used() == fused | {("write_block", False)}
        for part in castable:
            part.weight_function = [lambda weight: weight]
        assert kernels_used() == fused | {("write_block", True)}  # those with weights are ComfyUI's own layers'


@probe
def a_native_lora_equals_one_merged_by_the_core():
    model, lora = native(), comfy.utils.load_torch_file(LORA)
    patched, _ = comfy.sd.load_lora_for_models(model, None, lora, 0.7, 0)
    plan = make_plan(model, 3.0)
    by_host, _ = hosted(patched, plan)
    merged = dict(weights())
    for target, change in core.lora.read_patches(merged, lora, "the LoRA").items():
        merged[target] = change.apply(merged[target], 0.7).to(merged[target].dtype)
    by_core, _ = own(merged, plan)
    without, _ = hosted(model, plan)
    assert apart(by_host, by_core) < 1e-4 < 1e-2 < apart(by_host, without)
    assert apart(without, own(weights(), plan)[0]) < 1e-4


@probe
def comfyuis_fp8_storage_and_products_work_and_are_told_apart():
    """ComfyUI's fp8 products, which it computes on a CPU when told that the device has them."""

    def loaded(**options):
        return comfy.sd.load_diffusion_model(TINY, model_options=options)

    model, stored = native(), loaded(dtype=torch.float8_e4m3fn)
    mm.SUPPORT_FP8_OPS = True
    try:
        fast = loaded(dtype=torch.float8_e4m3fn, fp8_optimizations=True)
    finally:
        mm.SUPPORT_FP8_OPS = False
    plan = make_plan(model, 1.5)
    exact, _ = hosted(model, plan)
    for other in (stored, fast):
        latents, _ = hosted(other, plan)
        assert 1e-3 < float((latents - exact).norm() / exact.norm()) < 0.3
        assert apart(hosted(other, plan)[0], latents) == 0
    assert loaded_model.inexact(stored) == ["weights stored in 8-bit floating point (float8_e4m3fn)"]
    fast_lines = ["linear layers in 8-bit floating point (float8_e4m3fn, ComfyUI's products)"]
    assert loaded_model.inexact(fast) == fast_lines and loaded_model.inexact(model) == []
    assert len({loaded_model.fingerprint(each) for each in (model, stored, fast)}) == 3


@torch.inference_mode()
def ksample(model):
    noise = torch.randn(1, 16, 2, 6, 10, generator=torch.Generator().manual_seed(0))
    text = [[EMBEDS[0][None], {"pooled_output": None}]]
    return comfy.sample.sample(
        model, noise, 3, 1.0, "euler", "simple", text, text, torch.zeros_like(noise), disable_pbar=True, seed=0
    )


@probe
def attention_goes_through_what_nodes_put_in_its_place():
    model, calls = native(), []
    plan = make_plan(model, 1.5)
    plain, _ = hosted(model, plan)

    def replaced(function):
        patched = model.clone()
        patched.model_options.setdefault("transformer_options", {})["optimized_attention_override"] = function
        return hosted(patched, plan)[0]

    def watching(function, q, k, v, *args, **kwargs):
        calls.append([q.shape[0], q.shape[1] == k.shape[1] == args[0] if args else kwargs["heads"] == q.shape[1]])
        return function(q, k, v, *args, **kwargs)

    watched = replaced(watching)
    assert apart(plain, watched) == 0 and apart(plain, replaced(lambda function, q, *args, **kwargs: q)) > 1e-3
    assert len(calls) > 25 and all(a == 1 and b for a, b in calls)


@probe
def attention_is_what_was_fastest_unless_somebody_has_chosen_and_comfyuis_on_a_cpu():
    """What is handed to the cache: ComfyUI's kernels, PyTorch's unless another was chosen at the start."""
    arguments = [torch.randn(3, n, 16, generator=torch.Generator().manual_seed(n)) for n in (5, 9, 9)]
    attention, kernels = bridge.HostAttention({}), bridge.comfy.ldm.modules.attention
    sizes = torch.float32, "cpu", types.SimpleNamespace(head_dim=16, layer_sizes="the sizes of the render")
    expected = torch.nn.functional.scaled_dot_product_attention(*(x[None] for x in arguments))[0]
    assert torch.equal(attention(*arguments), expected) and attention.or_better(*sizes) is attention
    with (
        patch.object(bridge.command_line, "use_quad_cross_attention", True),
        patch.object(kernels, "optimized_attention", kernels.attention_sub_quad),
    ):
        assert attention.or_better(*sizes) is attention
        assert 0 < apart(attention(*arguments), expected) < 1e-5
    timed = core.attention.GroupedAttention(bridge.sdpa, "sdpa (timed)")
    with patch.object(bridge, "attention_function", return_value=timed) as choose:
        assert attention.or_better(*sizes) is timed
        overridden = bridge.HostAttention({"optimized_attention_override": print})
        assert overridden.or_better(*sizes) is overridden
    assert choose.call_args[0][-2:] == (16, "the sizes of the render"), "else the first that works, not the fastest"


@probe
def a_preview_is_made_of_a_copy_in_the_hosts_memory():
    """What a previewer is given for a finished block: the host's memory, and one frame fewer at each step."""
    player, shown, block = module(".nodes.host.player"), [], MagicMock()
    block.to.return_value = torch.zeros(3, 16, 2, 2)
    with patch.object(player, "previewer", lambda model: lambda latents: shown.append(latents) or "image"):
        preview = player.MovingPreview(None)
        assert [preview.next(given) for given in (None, block, None)] == [None, "image", "image"]
    block.to.assert_called_once_with("cpu")
    assert [list(latents.shape) for latents in shown] == [[1, 16, n, 2, 2] for n in (3, 2)]


@probe
def the_model_is_unchanged_for_normal_samplers():
    model = native()
    before = ksample(model)

    def state():
        wrappers = {key: sorted(each) for key, each in model.wrappers.items() if each}
        return sorted(model.model_options), wrappers, set(vars(model.model)), set(vars(model.model.diffusion_model))

    unused = state()
    hosted(model, make_plan(model, 1.5))
    after = ksample(model)
    clone = model.clone()
    clone.add_wrapper_with_key(bridge.WrappersMP.DIFFUSION_MODEL, "head_forcing", bridge._diffusion_model_wrapper)
    options = json.dumps(model.model_options, default=lambda x: type(x).__name__)
    assert float(before.std()) > 0.01
    assert torch.equal(before, after) and torch.equal(before, ksample(clone))
    assert state() == unused and not ("head_forcing" in options or "Hosted" in options)


@probe
def caches_are_freed_at_once_after_roles_were_found():
    model, kept = native(), []
    plan = dataclasses.replace(make_plan(model, 7.5), auto=core.auto.AutoProfile())
    found = leftovers(lambda: kept.append(sampled(model, plan)))
    roles = kept[0].found_profile.roles
    given = dataclasses.replace(plan, auto=None, shape=dataclasses.replace(plan.shape, roles=roles))
    after, _ = hosted(model, given)
    facts = [(event.after_block, event.frame) for event in kept[0].events]
    assert found["made"] > 8  # the caches of the warm-up, and those that follow
    assert (found["left"], found["left_after_gc"]) == (0, 0)
    flat = [role for layer in roles for role in layer]
    assert sorted(flat) == ["anchor", "local", "memory", "memory"]
    assert [len(kept[0].latents), len(after)] == [33, 33] and apart(
        kept[0].latents, after
    ) > 1e-3  # the warm-up sees every frame
    assert [after for after, _ in facts] == list(range(1, 11))  # those of the warm-up among them


@probe
def measuring_on_the_native_model_equals_the_cores_own_and_frees_its_caches():
    model, family = native(), core.schedule.schedule("self_forcing")
    setup = core.shares.ProfileSetup(
        loaded_model.fingerprint(model), 2, 2, ("one", "two"), 4, family.sigmas, 3, 80, 48, seed=7
    )
    by_host, by_core = core.shares.HeadShares(setup), core.shares.HeadShares(setup)
    with torch.inference_mode():
        embeds = dict(enumerate(EMBEDS))
        found = leftovers(lambda: profiling.measure(model, by_host, embeds, lambda *_: None, lambda _: None))
        config = core.wan.WanConfig(dim=256, ffn_dim=512, num_layers=2, num_heads=2)
        backbone = core.wan.WanModel.from_state_dict(config, weights(), torch.float32)
        video = core.loop.WanVideoModel(backbone, torch.float32)
        core.profiler.profile_heads(video, config, by_core, dict(enumerate(EMBEDS)), dtype=torch.float32)
    means = by_host.mean(), by_core.mean()
    assert found["made"] > 8 and (found["left"], found["left_after_gc"]) == (0, 0)
    assert by_host.missing_prompts() == [] and apart(*means) < 1e-5 < 1e-2 < float(means[0].std())


@probe
def a_fingerprint_names_weights_and_loras():
    model, lora = native(), comfy.utils.load_torch_file(LORA)
    other = {name: tensor.flip(0) if tensor.ndim else tensor for name, tensor in lora.items()}

    def patched(weights, strength):
        return comfy.sd.load_lora_for_models(model, None, weights, strength, 0)[0]

    named = {
        "plain": model,
        "again": native(),
        "clone": model.clone(),
        "lora": patched(lora, 1.0),
        "same_lora": patched(dict(lora), 1.0),
        "weaker": patched(lora, 0.5),
        "other_lora": patched(other, 1.0),
        "other_weights": native(),
    }
    with torch.no_grad():
        named["other_weights"].model.diffusion_model.blocks[1].ffn[2].weight[0, 0] += 1
    found = {name: loaded_model.fingerprint(one) for name, one in named.items()}
    mm.load_models_gpu([named["lora"]])  # merges the LoRA into the weights
    assert found["plain"] == found["again"] == found["clone"]
    assert found["lora"] == found["same_lora"] == loaded_model.fingerprint(named["lora"])
    assert bool(named["lora"].backup), "the LoRA was not merged, so loading proves nothing"
    distinct = [found[name] for name in ("plain", "lora", "weaker", "other_lora", "other_weights")]
    assert len(set(distinct)) == 5, found


@probe
def cancel_stops_within_one_model_call_and_frees_the_cache():
    """Cancel is pressed during the 7th model call."""
    server.PromptServer.instance = MagicMock(client_id=None, last_node_id=None)
    player, model, calls = module(".nodes.host.player"), native(), []
    plan, forward = make_plan(model, 3.0), bridge.forward_block

    def counted(*args, **kwargs):
        calls.append(1)
        if len(calls) == 7:
            mm.interrupt_current_processing(True)
        return forward(*args, **kwargs)

    def run():
        try:
            hosted(model, plan, on_step=player.RenderProgress(model, [plan], HIDDEN).step)
        except mm.InterruptProcessingException:
            calls.append("stopped")

    with patch.object(bridge, "forward_block", counted):
        found = leftovers(run)
    mm.interrupt_current_processing(False)
    assert calls == [1] * 7 + ["stopped"]
    assert found["made"] > 4 and (found["left"], found["left_after_gc"]) == (0, 0)
    assert apart(hosted(model, plan)[0], own(weights(), plan)[0]) < 1e-4


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
    rollout, model = module(".nodes.apply"), native()
    options = core.options.RenderOptions(profile=core.profile.HeadProfile("tiny", 2, 2, ROLES), width=80, height=48)

    @torch.inference_mode()
    def run(videos, seconds, model=model, changed=lambda applied: None):
        timeline = core.timeline.parse_timeline("one | two", seconds)
        request = rollout.Request(options, timeline, embeds_of(timeline))
        applied = rollout.applied(model, request)
        changed(applied)
        guider = comfy.samplers.CFGGuider(applied)
        guider.inner_set_conds({"positive": [[EMBEDS[0][None], {"pooled_output": None}]]})
        empty = torch.zeros(videos, 16, (request.length() + 3) // 4, 6, 10)
        sampler, sigmas = rollout.RolloutSampler(request), request.sigmas()
        return guider.sample(torch.randn_like(empty), empty, sampler, sigmas, disable_pbar=True, seed=7)

    @torch.inference_mode()
    def own(seconds):
        timeline = core.timeline.parse_timeline("one | two", seconds)
        render = render_video.HostRender(model, dataclasses.replace(options, seed=7), timeline, embeds_of(timeline))
        return render_video.sample(render, render.plan(), 0, Watcher(lambda *_: None)).latents

    kept, said, handed = [], [], []
    found = leftovers(lambda: kept.append(run(1, 3.0)))
    sample = comfy.samplers.KSAMPLER.sample

    def recorded(*args, **kwargs):
        handed.append(sample(*args, **kwargs))
        return handed[-1]

    with patch.object(comfy.samplers.KSAMPLER, "sample", recorded):
        ours = own(3.0)
    patched = model.clone()
    patched.set_model_attn2_patch(lambda *args: args)
    with patch.object(rollout.log, "warning", lambda form, line: said.append(form % line)):
        # a compiled one could not be called
        run(1, 1.5, patched, lambda applied: set_torch_compile_wrapper(applied, backend=None))
    memory = [asked_for(lambda: run(1, 120.0)), asked_for(lambda: run(2, 120.0)), asked_for(lambda: own(120.0))]
    assert memory[0] == memory[1] == memory[2], "one block and its caches, whatever the length and the batch"
    assert found["made"] > 4 and (found["left"], found["left_after_gc"]) == (0, 0)
    assert apart(kept[0][0].transpose(0, 1), ours) == 0
    (given,) = handed
    assert given.shape[2] == 3, "our own sampler keeps the video in main memory: ComfyUI gets one block of zeros"
    told = "patches of attention or blocks (attn2_patch)", "torch.compile"
    assert said == [f"Apply Head Forcing: not used in a rollout: {what}" for what in told]


@probe
@torch.inference_mode()
def comfyui_is_asked_for_the_memory_of_the_estimate():
    model = native()
    plans = {name: make_plan(model, 120.0, method=name) for name in ("head_forcing", "self_forcing")}
    asked = {name: asked_for(lambda plan=plan: hosted(model, plan)) for name, plan in plans.items()}

    class Edited(core.live_story.Story):
        """Has the model loaded again before each block, as after its text encoder has run."""

        def ask(self):
            again.append(asked_for(self.reload)[1])
            if len(again) == 2:
                raise Stop

    again, plan = [], plans["self_forcing"]
    options, embeds = core.options.RenderOptions(seed=7), embeds_of(plan.timeline)
    render = render_video.HostRender(model, options, plan.timeline, embeds, story=Edited())
    # what ComfyUI asks for by itself would hide smaller numbers
    with patch.object(model.model, "memory_required", lambda *_, **__: 0), suppress(Stop):
        render_video.sample(render, plan, 0, Watcher(lambda *_: None))
    needs = core.resources.needs_of(plan, torch.float32, 0)
    estimate = {name: core.resources.needs_of(plan, torch.float32, 0).working for name, plan in plans.items()}
    # what it must keep free, exactly; what it likes to have free is not twice that, but one pass more
    assert estimate["self_forcing"] > 5 * estimate["head_forcing"]
    shape = [plans["head_forcing"].frames_per_pass, 6, 10]
    once, twice = [model.model.memory_required([passes, 16, *shape]) for passes in (1, 2)]
    for method, (wished, needed) in asked.items():
        assert math.isclose(needed, max(estimate[method], once))
        assert math.isclose(wished - needed, twice - once)
    # a model that is loaded again is not asked to make room for what is allocated
    before_the_first_block = needs.temporary + needs.prompt  # which the cache has by then
    assert math.isclose(again[0], before_the_first_block) and math.isclose(again[1], needs.temporary)
    assert before_the_first_block < 0.5 * estimate["self_forcing"]


def decoded(streaming, latents, size):
    chunks = core.stream.Chunks()
    pictures = [streaming.decode(chunk) for block in latents.split(size) for chunk in chunks.add(block)]
    return torch.cat(pictures + [streaming.decode(chunk) for chunk in chunks.rest()])


def check_decoder_of_dynamic_vram(vae, latents):
    """Layers that cast weights of the file's dtype when they run: ComfyUI's where it is low on VRAM, else copies."""
    for part in vae.first_stage_model.modules():
        if hasattr(part, "comfy_cast_weights"):
            part.comfy_cast_weights = True
    conv = vae.first_stage_model.decoder.conv1
    conv.weight.data = conv.weight.data.half()
    assert kind_of(vae_decoding.codec_of(vae).decoder(())) == "WanStreamingDecoder"
    vae.patcher.is_dynamic = lambda: True
    own = vae_decoding.codec_of(vae).decoder(())
    assert kind_of(own) == "WanVideoDecoder"
    assert apart(decoded(own, latents, 3), decoded(vae_decoding.WanStreamingDecoder(vae), latents, 3)) < 1e-4


def check_current_devices(vae, latents):
    """ComfyUI's networks run where the VAE's device is the current one."""
    inside, seen, current = [], [], vae_decoding._current

    @contextmanager
    def here(device):
        inside.append(device)
        yield
        inside.pop()

    net = vae.first_stage_model
    hooks = [net.decoder.conv1, net.encoder.conv1]
    hooks = [part.register_forward_hook(lambda *_: seen.append(inside == [vae.device])) for part in hooks]
    vae_decoding._current = here
    try:
        vae_decoding.WanStreamingDecoder(vae).decode(latents[:1])
        vae_decoding.OverlapDecoder(vae).decode(latents[:1])
        vae_decoding.codec_of(vae).encode_video(torch.rand(1, 32, 48, 3))
    finally:
        vae_decoding._current = current
        for hook in hooks:
            hook.remove()
    assert seen == [True] * 3 and current(torch.device("cuda:1")).idx == 1


def kind_of(decoder):
    return type(decoder).__name__


@probe
def streaming_decode_equals_decoding_at_once():
    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(VAE))
    own = vae_decoding.load_decoder(vae, (4, 6))
    exact, overlap = vae_decoding.WanStreamingDecoder(vae), vae_decoding.OverlapDecoder(vae)
    assert kind_of(own) == "WanVideoDecoder"
    patches, vae.patcher.patches = vae.patcher.patches, {"decoder.conv1.weight": []}
    assert kind_of(vae_decoding.load_decoder(vae, (4, 6))) == "WanStreamingDecoder"
    vae.patcher.patches, hooked = patches, vae.first_stage_model.decoder.middle[1]
    hook = hooked.register_forward_hook(lambda *_: None)
    assert kind_of(vae_decoding.load_decoder(vae, (4, 6))) == "WanStreamingDecoder", "a changed VAE is ComfyUI's"
    hook.remove()
    with torch.inference_mode():
        for frames in (1, 10):
            latents = torch.randn(frames, 16, 4, 6, generator=torch.Generator().manual_seed(frames))
            whole = vae.decode(latents.transpose(0, 1)[None])[0]
            for size in (1, 3):
                for decoder in (exact, own):
                    decoder.reset()  # one decoder makes one video after another
                    assert apart(decoded(decoder, latents, size), whole) < 1e-4, (frames, size, kind_of(decoder))
        joined = decoded(overlap, latents, 3)
        later = (joined[9:-4] - whole[13:]).abs().mean(), (joined[13:] - whole[9:-4]).abs().mean()
        assert len(joined) == 37 and float(whole.std()) > 0.01
        assert (joined - whole).abs().mean() < 0.5 * min(map(float, later)), "every picture in its place"
        check_decoder_of_dynamic_vram(vae, latents)
        check_current_devices(vae, latents)


@probe
def the_vae_of_the_command_line_decodes_as_comfyuis_own():
    """The same file and the same normalised latents, un-normalised by ComfyUI's own constants."""
    vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(VAE))
    latents = 0.3 * torch.randn(10, 16, 3, 5, generator=torch.Generator().manual_seed(0))
    whole = vae.decode(comfy.latent_formats.Wan21().process_out(latents.transpose(0, 1)[None])).flatten(0, -4)
    decoder = core.codec.load_codec(pathlib.Path(VAE), "cpu", torch.float32, encodes=False).decoder()
    ours = torch.cat([decoder.decode(chunk) for chunk in latents.split([1, 2, 3, 3, 1])])
    assert vae.vae_dtype == torch.float32 and apart(ours, whole.float()) < 1e-3


@probe
def the_drift_report_reads_a_buffer_and_of_a_trimmed_video_what_is_shown():
    node = module(".nodes.video_drift_report").VideoDriftReport
    images = torch.rand(60, 32, 48, 3, generator=torch.Generator().manual_seed(0))
    whole = InputImpl.VideoFromComponents(Types.VideoComponents(images=images, frame_rate=Fraction(16)))
    whole.save_to(f"{folder}/whole.mp4")
    stored = InputImpl.VideoFromFile(io.BytesIO(pathlib.Path(folder, "whole.mp4").read_bytes()))
    for video, frames in ((stored, 60), (stored, 60), (stored.as_trimmed(1.0, 2.0), 32)):
        picture, text = node.execute(video).args
        assert picture.shape[0] == 1 and picture.shape[2] == 900 and picture.dtype == torch.float32
        assert f"{frames} frames of 48x32" in text.splitlines()[0]


@probe
def the_drift_report_has_the_flow_that_torchvisions_model_finds():
    """A model of random numbers under the published name in models/metrics."""
    torch.manual_seed(0)
    raft, metrics = raft_large(weights=None).eval(), tempfile.mkdtemp(dir=folder)
    torch.save(raft.state_dict(), f"{metrics}/raft_large_C_T_V1-22a6c225.pth")
    folder_paths.folder_names_and_paths["metrics"] = ([metrics], set())
    pair = (torch.rand(2, 128, 128, 3, generator=torch.Generator().manual_seed(0)) * 255).round() / 255
    small = InputImpl.VideoFromComponents(Types.VideoComponents(images=pair, frame_rate=Fraction(8)))
    report = module(".nodes.video_drift_report").VideoDriftReport.execute(small).args[1]
    first, second = (line for line in report.splitlines() if "flow, " in line)
    before, after = pair.permute(0, 3, 1, 2)[:, None] * 2 - 1
    with torch.inference_mode():
        flow = raft(before, after, num_flow_updates=20)[-1]
    expected = float(flow.square().sum(dim=1).sqrt().mean()) * 2  # as if the side had 256 pixels
    line = first if "flow, all pixels" in first else second
    assert "flow, all pixels" in line and abs(float(line.split()[-3]) - expected) < 0.006, report


@probe
def comfyuis_tiny_decoder_for_drafts_streams_exactly():
    torch.manual_seed(0)
    weights = comfy.taesd.taehv.TAEHV(16).state_dict()
    scaled = {name: torch.randn_like(value) * value[0].numel() ** -0.5 for name, value in weights.items()}
    vae = comfy.sd.VAE(sd=scaled)
    draft = vae_decoding.load_decoder(vae, (4, 6))
    with torch.inference_mode():
        latents = torch.randn(10, 16, 4, 6)
        whole = vae.decode(latents.transpose(0, 1)[None])[0]
        exact = apart(decoded(draft, latents, 3), whole)
        tiny = core.tiny_decoder.TinyDecoder()
        tiny.load_state_dict({name: t for name, t in scaled.items() if name.startswith("decoder.")})
        tiny = core.tiny_decoder.TinyVideoDecoder(tiny.prepare(), "taew2_1")  # as it is, like ComfyUI here
        ours = apart(decoded(tiny, latents, 3), whole.clamp(0, 1))
        draft.OVERLAP_FRAMES = 3
        draft.reset()
        short = apart(decoded(draft, latents, 3), whole)
    spread = float(whole.std())
    assert kind_of(draft) == "OverlapDecoder" and spread > 1e-3
    # the whole network in float32, fed in other portions
    assert exact < 3e-4 * spread < 0.1 * short
    assert ours < 3e-4 * spread, "the command line's tiny decoder is the same network"


@probe
def rollouts_are_encoded_and_decoded_as_comfyui_would():
    """What encodes a picture between rollouts and decodes them, beside ComfyUI's own encode and decode."""
    torch.manual_seed(0)
    draft = {
        name: torch.randn_like(value) * value[0].numel() ** -0.5
        for name, value in comfy.taesd.taehv.TAEHV(16).state_dict().items()
    }
    model = native()
    vaes = {
        "wan": comfy.sd.VAE(sd=comfy.utils.load_torch_file(VAE)),
        "draft": comfy.sd.VAE(sd=draft),
        "toy": toy.ToyVAE(),
    }
    assert len({vae_decoding.codec_of(vae).fingerprint() for vae in vaes.values()}) == 3
    latents = torch.randn(12, 16, 4, 6, generator=torch.Generator().manual_seed(1))
    for name, vae in vaes.items():
        vae_decoding.load_decoder(vae, (4, 6))
        with torch.inference_mode():

            def whole(part):
                return vae.decode(part.transpose(0, 1)[None])[0]

            ended = whole(latents[:7])
            first = vae.encode(ended[24:25])[0].transpose(0, 1)
            expected = torch.cat([ended[:24], whole(torch.cat([first, latents[7:]]))])
            codec = vae_decoding.codec_of(vae)
            codec_of_model = render_video.ModelCodec.of(model.model, vae)
            inside = model.model.process_latent_in(latents[:7].transpose(0, 1)[None])[0].transpose(0, 1)
            frame = codec_of_model.reencode(inside).transpose(0, 1)[None]
            frame = model.model.process_latent_out(frame)[0].transpose(0, 1)
            assert apart(decoded(codec.decoder([6]), latents, 3), expected) < 1e-3, name
            assert apart(decoded(codec.decoder(), latents, 3), expected) > 1e-3, name
            assert apart(frame, first) < 1e-3 and min(float(first.std()), float(expected.std())) > 0.01, name


@probe
@torch.inference_mode()
def a_start_image_is_that_of_the_native_node_and_the_video_that_of_the_native_sampler():
    """The node ARVideoI2V and the sampler ar_video beside our start image and the plain loop, on the same noise."""
    native_nodes = importlib.import_module("comfy_extras.nodes_ar_video")
    model, vae = native(), comfy.sd.VAE(sd=comfy.utils.load_torch_file(VAE))
    image, seed = torch.rand(1, 70, 131, 3, generator=torch.Generator().manual_seed(2)), 5
    patched, empty = native_nodes.ARVideoI2V.execute(model, vae, image, 80, 48, 17, 1).result
    first = patched.model_options["transformer_options"]["ar_config"]["initial_latent"]
    family = "causal_forcing_framewise"
    options = core.options.RenderOptions(
        method="self_forcing", width=80, height=48, seconds=1.0, seed=seed, model_family=family
    )
    start = vae_decoding.start_of(options, {"start_frames": None, "start_image": image, "start_video": None}, vae)
    noise = torch.randn(1, 16, 5, 6, 10, generator=torch.Generator().manual_seed(3))
    sigmas = torch.tensor([*options.schedule.sigmas, 0.0])
    text = [[EMBEDS[0][None], {"pooled_output": None}]]
    sampler = comfy.samplers.ksampler("ar_video", {"num_frame_per_block": 1})
    theirs = comfy.sample.sample_custom(
        patched, noise, 1.0, sampler, sigmas, text, text, empty["samples"], disable_pbar=True, seed=seed
    )

    class NativeNoise:
        def initial(self, block, _):
            return noise[0].transpose(0, 1)[block : block + 1]

        def renoise(self, block, _, step):
            torch.manual_seed(seed + 1000 * (block - 1) + step)
            return torch.randn(1, 16, 1, 6, 10)[0].transpose(0, 1)

        def ahead(self, block, _):
            pass

    plan = options.plan(
        loaded_model.wan_config(model), core.timeline.parse_timeline("one", 1.0), start.latents.shape[1]
    )
    config = core.wan.WanConfig(dim=256, ffn_dim=512, num_layers=2, num_heads=2)
    backbone = core.wan.WanModel.from_state_dict(config, weights(), torch.float32)
    video_model = core.loop.WanVideoModel(backbone, torch.float32)
    given = model.model.process_latent_in(start.latents.transpose(1, 2))[0].transpose(0, 1)
    cache = plan.make_cache(torch.float32, "cpu")
    script = plan.script(embeds_of(plan.timeline))
    blocks = core.loop.rollout(video_model, cache, script, NativeNoise(), given.split(1))
    ours = torch.cat([block.latents for block in blocks]).transpose(0, 1)[None]
    ours = model.model.process_latent_out(ours)
    assert apart(first.transpose(1, 2), start.latents) == 0 and ours.shape[2] == 5
    assert apart(theirs, ours) < 1e-3 * float(theirs.std())


HOME, ANYWHERE, HERE = "127.0.0.1", "0.0.0.0", {"Host": "127.0.0.1:8188"}
MINE, EVIL = ({"Host": name, "Origin": f"https://{name}"} for name in ("my.example", "evil.example"))
# where ComfyUI listens, its --enable-cors-header, a request's headers, and whether it is answered
REQUESTS: list[tuple[str, str | None, dict[str, str], bool]] = [
    # a server that answers pages of every site: ComfyUI then checks no origin itself
    *[
        (HOME, "*", HERE | {"Origin": name}, False)
        for name in ("http://example.com", "null", "http://[", "http://127.0.0.1:1")
    ],
    (HOME, "*", HERE | {"Sec-Fetch-Site": "cross-site"}, False),
    (HOME, "*", HERE | {"Origin": "http://127.0.0.1:8188", "Sec-Fetch-Site": "same-site"}, False),
    (HOME, "*", HERE | {"Origin": "http://127.0.0.1:8188"}, True),
    # a server in a network answers to its domain
    (ANYWHERE, None, MINE, True),
    (ANYWHERE, None, EVIL, True),
    (HOME, "https://my.example", MINE, True),
    (HOME, "https://my.example", EVIL, False),
]


@probe
def requests_are_told_apart_by_site_and_name_however_comfyui_was_started():
    pages = module(".nodes.host.pages")
    given = pages.args.listen, pages.args.enable_cors_header
    for listen, cors, headers, expected in REQUESTS:
        pages.args.listen, pages.args.enable_cors_header = listen, cors
        assert pages.from_here(types.SimpleNamespace(headers=headers)) == expected, (listen, cors, headers)
    pages.args.listen, pages.args.enable_cors_header = given


print("RESULTS" + json.dumps(results))

"""ComfyUI, the pack and tiny models for the probes of test_nodes_parity.py, and where they note
what they find.
"""

from inside_comfy import load_pack

# isort: split

import gc
import importlib
import json
import sys
import traceback
import types
import weakref

import torch

folder = sys.argv[1]
repo = sys.argv[2]
only_smoke = sys.argv[3:] == ["smoke"]
results = {}
before = set(sys.modules)
pack = load_pack()
imported_by_pack = sorted(
    {name.split(".")[0] for name in set(sys.modules) - before - {pack.__name__}}
)


def module(name):
    return importlib.import_module(name, pack.__name__)


bridge = module(".nodes.host.render.bridge")
toy = module(".nodes.host.model.native_model")
memory = module(".nodes.host.model.memory")
loaded_model = module(".nodes.host.model.loaded_model")
render_video = module(".nodes.host.render.sample")
host_module = module(".nodes.host.render.host_render")
start_inputs = module(".nodes.host.render.start")
vae_decoding = module(".nodes.host.model.vae")
CORE = """cache.head_cache demo.picture_decoder demo.rooms_autoencoder demo.word_hash head_profiles.profile
head_profiles.profiler head_profiles.shares model.attention model.wan plan.request render.render
render.live_story plan.options plan.plan plan.resources rollout.loop rollout.schedule timeline.timeline
video.stream video.writer weights.checkpoint""".split()
core = types.SimpleNamespace(
    **{name.rpartition(".")[2]: module(f".headforcing_core.{name}") for name in CORE}
)
window_cache = module(".headforcing_core.methods.longlive").WindowCache
core.codec = module(".cli.codec")
core.tiny_decoder = module(".headforcing_core.video.tiny_decoder")
TINY = f"{folder}/tiny.safetensors"
LORA = f"{folder}/lora.safetensors"
VAE = f"{folder}/vae.safetensors"
PROFILE = core.profile.HeadProfile("tiny", 2, 2, (("local", "anchor"), ("memory", "memory")))
EMBEDS = [torch.randn(512, 4096, generator=torch.Generator().manual_seed(i)) for i in range(2)]
for i, rows in enumerate(EMBEDS):
    rows[5 + 3 * i :] = 0


def weights():
    return core.checkpoint.load_state_dict(TINY)[0]


def native():
    return toy.native_model(weights(), None)


def core_model():
    """The core's own transformer with the same weights."""
    config = core.wan.WanConfig(dim=256, ffn_dim=512, num_layers=2, num_heads=2)
    backbone = core.wan.WanModel.from_state_dict(config, weights(), torch.float32)
    return core.loop.WanVideoModel(backbone, torch.float32)


def make_plan(model, seconds=7.5, start_frames=0, method="head_forcing", text="one | two", seed=7):
    # three memory entries, a candidate after every block: entries are merged within ten blocks
    memory = (
        ("memory.episodic_frames", "3"),
        ("memory.recent_frames", "3"),
        ("episodic.novelty_threshold", "1.0"),
        ("episodic.update_interval", "1"),
    )
    size = {"width": 80, "height": 48, "seconds": seconds}
    own = memory if method.startswith("head_forcing") else ()
    options = core.options.RenderOptions(
        method_name=method, seed=seed, profile=PROFILE, method_options=own, **size
    )
    config = loaded_model.wan_config(model)
    timeline = core.timeline.parse_timeline(text, seconds)
    return core.plan.RenderPlan.of(config, options, timeline, start_frames)


def embeds_of(timeline):
    return dict(zip(timeline.texts, EMBEDS, strict=False))


class Watcher(core.render.Listener):
    def __init__(self, on_step=lambda *_: None):
        self.step = on_step
        self.growing = None
        self.block = None

    def add(self, block):
        self.block = block.index

    def stopped(self):
        pass


def host_render(model, options, timeline, story=None, **request):
    request = render_video.request_of(model, options, timeline, embeds_of(timeline), **request)
    return host_module.HostRender(model, request, story=story)


@torch.inference_mode()
def sampled(model, plan, video=0, start=None, on_step=lambda *_: None, story=None):
    start = None if start is None else core.request.StartLatents(start[None])
    render = host_render(
        model, core.options.RenderOptions(seed=7), plan.timeline, story=story, start=start
    )
    return render_video.sample(render, plan, video, Watcher(on_step))


def hosted(*args, **options):
    """The latents of a render on a MODEL, `[frames, channels, h, w]` as a LATENT holds them."""
    return sampled(*args, **options).latents


@torch.inference_mode()
def own(plan, start=None):
    """The same render by the core alone, and the decisions of its memory."""
    inner = native().model
    start = None if start is None else scaled(inner.process_latent_in, start)
    start = None if start is None else core.request.StartLatents(start[None])
    options = core.options.RenderOptions()
    embeds = embeds_of(plan.timeline)
    request = core.request.RenderRequest(plan.config, options, plan.timeline, embeds, start=start)
    blocks = list(core.render.make_blocks(request.job(plan), core_model()))
    latents = scaled(inner.process_latent_out, torch.cat([block.latents for block in blocks]))
    return latents, [block.event for block in blocks if block.event is not None]


def scaled(change, latents):
    """Latents `[frames, channels, h, w]` through a function for `[1, 16, frames, h, w]`."""
    return change(latents.transpose(0, 1)[None])[0].transpose(0, 1)


def apart(a, b):
    assert a.shape == b.shape, (a.shape, b.shape)
    return float((a - b).abs().max())


def check_nothing_is_left(run, collected=False):
    """No cache and no buffer of one may outlive `run`: 2.5 GB at real size do not wait for the
    garbage collector.

    `collected`: they may wait for it, as where an error's traceback holds them.
    """
    made = []
    builds = {kind: kind.__init__ for kind in (core.head_cache.HeadCache, window_cache)}

    def noting(kind, build):
        def noted(self, *args, **kwargs):
            build(self, *args, **kwargs)
            made.append(weakref.ref(self))
            buffers = [self.slots] if kind is window_cache else []
            for group in getattr(self, "groups", ()):
                buffers += [group.k, group.v]
            for tensors in buffers:
                made.extend(map(weakref.ref, tensors))

        return noted

    for kind, build in builds.items():
        kind.__init__ = noting(kind, build)
    gc.collect()
    gc.disable()
    try:
        run()
        if collected:
            gc.collect()
        assert len(made) > 2 and not any(ref() is not None for ref in made)
    finally:
        gc.enable()
        for kind, build in builds.items():
            kind.__init__ = build


def smoke(function):
    """Run a probe in every version."""
    results[function.__name__] = None
    try:
        function()
    except Exception as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        values = {name: repr(value)[:200] for name, value in frame.f_locals.items()}
        results[function.__name__] = f"{traceback.format_exc()}\n{json.dumps(values, indent=1)}"


def probe(function):
    """Run a probe in the newest version."""
    if not only_smoke:
        smoke(function)

"""Renders that are stopped in every way at every stage, then run again; prints what was seen as JSON."""

from inside_comfy import load_pack

# isort: split

import errno
import gc
import importlib
import json
import sys
import threading
import types
import weakref

import comfy.model_management as mm
import server
import torch

pack = load_pack()


def module(name):
    return importlib.import_module(pack.__name__ + name)


said = []
server.PromptServer.instance = types.SimpleNamespace(
    client_id=None, send_progress_text=lambda text, node, client: said.append(text)
)
toy, render, player = (module(f".nodes.host.{n}") for n in ("native_model", "render", "player"))
folders, loaded_model, bridge = (module(f".nodes.host.{n}") for n in ("folders", "loaded_model", "bridge"))
core = {
    n: module(f".headforcing_core.{n}")
    for n in (
        "video.stream",
        "cache.head_cache",
        "demo.word_hash",
        "demo.rooms_autoencoder",
        "errors",
        "render.options",
        "runs.folder",
        "timeline.timeline",
        "video.writer",
    )
}

model, vae = toy.load_toy_model(), toy.ToyVAE()
timeline = core["timeline.timeline"].parse_timeline(
    "a red ball bouncing in the teal plain room | a yellow cross in the navy room", 3.0
)
plan = core["render.options"].RenderOptions(width=64, height=64, seed=3).plan(loaded_model.wan_config(model), timeline)
embeds = {segment.text: core["demo.word_hash"].encode(segment.text) for segment in timeline.segments}
options = core["render.options"].RenderOptions(seed=3, state_seconds=0.01)
caches = []
build = core["cache.head_cache"].HeadCache.__init__


def tracked(self, *args, **kwargs):
    caches.append(weakref.ref(self))
    build(self, *args, **kwargs)


core["cache.head_cache"].HeadCache.__init__ = tracked

STAGES = {  # where, and at which call there
    "before_block_0": (player.RenderProgress, "begin", 1),
    "first_step": (bridge.HostedModel, "denoise", 1),
    "mid_step": (bridge.HostedModel, "denoise", 14),
    "clean_pass": (bridge.HostedModel, "write_clean", 3),
    "cache_update": (core["cache.head_cache"].HeadCache, "commit", 4),
    "storing": (core["runs.folder"].RunFolder, "save_block", 4),
    "decode": (core["demo.rooms_autoencoder"].RoomsStreamingDecoder, "decode", 4),
    "writer": (core["video.writer"].VideoWriter, "write", 4),
    "last_of_video": (core["video.writer"].VideoWriter, "_remux", 1),
}
KINDS = {
    "cancel": lambda: mm.InterruptProcessingException(),
    "oom": lambda: mm.OOM_EXCEPTION("CUDA out of memory (test)"),
    "disk": lambda: OSError(errno.ENOSPC, "No space left on device"),
}


def run(folder, background):
    job = render.HostRender(
        model,
        options,
        timeline,
        embeds,
        runs=folder / "runs",
        vae=vae,
        filename_prefix=f"{folder.name}/v",
        decode_in_background=background,
    )
    watcher = player.RenderProgress(model, [plan], types.SimpleNamespace(unique_id="1", extra_pnginfo=None))
    watcher.next_video(0, plan)
    with torch.inference_mode():
        return render.sample(job, plan, 0, watcher)


def left(folder):
    return sorted(path.name for path in folder.rglob("*.tmp")) + [p.name for p in folder.rglob(".*.mp4")]


gc.collect()
gc.freeze()  # what is imported: half a second for each of the collections below
output = folders.output_folder()
results = {}
straight = run(output / "straight", False)
only = sys.argv[1:]  # stages of a cancel; none wants everything
OTHERS = {"oom": ("mid_step", "decode", "writer", "last_of_video"), "disk": ("storing", "writer", "last_of_video")}
for background in (False, True):
    for stage, (owner, name, at) in STAGES.items():
        for kind, error in KINDS.items():
            if stage not in OTHERS.get(kind, only or STAGES) or (only and kind != "cancel"):
                continue
            if background and stage not in ("decode", "writer"):
                continue  # the thread has no part in the others
            folder = output / f"{stage}-{kind}-{background}"
            original, calls = getattr(owner, name), []

            def broken(self, *args, **kwargs):
                calls.append(1)
                if len(calls) == at:
                    raise error()
                return original(self, *args, **kwargs)

            setattr(owner, name, broken)
            said.clear()
            raised, failure, message = None, None, ""
            try:
                failure = run(folder, background).failure
            except BaseException as problem:
                raised, message = type(problem).__name__, str(problem)
                problem.__traceback__ = None
                del problem
            setattr(owner, name, original)
            gc.collect()
            alive = sum(ref() is not None for ref in caches)
            behind = left(folder)
            threads = [t.name for t in threading.enumerate() if "head forcing" in t.name]
            last = said[-1] if said else ""
            blocks = len(list((folder / "runs").rglob("block-*")))
            again = run(folder, background)
            done = folder / "v_00001_.mp4"
            results[f"{stage} {kind} {'background' if background else 'foreground'}"] = {
                "raised": raised,
                "failure": failure,
                "message": message,
                "alive": alive,
                "made": len(caches),
                "said": last,
                "blocks": blocks,
                "same": bool(torch.equal(again.latents, straight.latents)),
                "reused": again.reused_blocks,
                "saved": again.video is not None and again.video.path.is_file(),
                "left": behind,
                "threads": threads,
                "partials": [p.name for p in folder.rglob("*.part.mp4")],
            }
            del again
oom = mm.OOM_EXCEPTION("CUDA out of memory (test)")
needs = render.HostRender(model, options, timeline, embeds, runs=output, vae=vae).check_needs(plan)
told = render.out_of_memory(oom, needs, True)
results["message"] = {"kind": type(told) is type(oom) and render.is_out_of_memory(told), "text": str(told)}
print(json.dumps({"base": issubclass(mm.InterruptProcessingException, Exception), "results": results}))

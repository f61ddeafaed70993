"""Renders that are stopped in every way at every stage, then run again; prints how many.

With arguments, stages, only cancels there.
"""

from inside_comfy import load_pack

# isort: split

import errno
import gc
import importlib
import sys
import threading
import types
import weakref
from unittest.mock import patch

import comfy.model_management as mm
import server
import torch

pack, said, caches = load_pack(), [], []


def module(name):
    return importlib.import_module(pack.__name__ + name)


server.PromptServer.instance = types.SimpleNamespace(
    client_id=None, send_progress_text=lambda text, node, client: said.append(text)
)
host = types.SimpleNamespace(
    **{n: module(f".nodes.host.{n}") for n in "bridge folders loaded_model memory native_model progress render".split()}
)
CORE = """cache.head_cache demo.rooms_autoencoder demo.word_hash render.options runs.folder timeline.timeline
video.writer""".split()
core = types.SimpleNamespace(**{n.rpartition(".")[2]: module(f".headforcing_core.{n}") for n in CORE})

model, vae = host.native_model.load_toy_model(), host.native_model.ToyVAE()
timeline = core.timeline.parse_timeline(
    "a red ball bouncing in the teal plain room | a yellow cross in the navy room", 3.0
)
plan = core.options.RenderOptions(width=64, height=64, seed=3).plan(host.loaded_model.wan_config(model), timeline)
embeds = {segment.text: core.word_hash.encode(segment.text) for segment in timeline.segments}
options = core.options.RenderOptions(seed=3, state_seconds=0.01)
build = core.head_cache.HeadCache.__init__


def tracked(self, *args, **kwargs):
    caches.append(weakref.ref(self))
    build(self, *args, **kwargs)


core.head_cache.HeadCache.__init__ = tracked

STAGES = {  # where, and at which call there
    "before_block_0": (host.progress.RenderProgress, "begin", 1),
    "first_step": (host.bridge.HostedModel, "denoise", 1),
    "mid_step": (host.bridge.HostedModel, "denoise", 14),
    "clean_pass": (host.bridge.HostedModel, "write_clean", 3),
    "cache_update": (core.head_cache.HeadCache, "commit", 4),
    "storing": (core.folder.RunFolder, "save_block", 4),
    "decode": (core.rooms_autoencoder.RoomsStreamingDecoder, "decode", 4),
    "writer": (core.writer.VideoWriter, "write", 4),
    "last_of_video": (core.writer.VideoWriter, "_remux", 1),
}
KINDS = {
    "cancel": lambda: mm.InterruptProcessingException(),
    "oom": lambda: mm.OOM_EXCEPTION("CUDA out of memory (test)"),
    "disk": lambda: OSError(errno.ENOSPC, "No space left on device"),
}


def run(folder, background):
    options_of_files = {"runs": folder / "runs", "vae": vae, "filename_prefix": f"{folder.name}/v"}
    job = host.render.HostRender(model, options, timeline, embeds, decode_in_background=background, **options_of_files)
    watcher = host.progress.RenderProgress(model, [plan], types.SimpleNamespace(unique_id="1", extra_pnginfo=None))
    watcher.next_video(0, plan)
    with torch.inference_mode():
        return host.render.sample(job, plan, 0, watcher)


FINISHED = {  # blocks that are kept, at least
    "mid_step": 3, "clean_pass": 2, "cache_update": 3, "storing": 3, "decode": 3, "writer": 3, "last_of_video": 5,
}  # fmt: skip


def check_stopped(stage, kind, background=False):
    """A render that ends so leaves nothing behind, says so, and the next run completes it."""
    sys.stderr.write(f"{stage} {kind} {background}\n")
    (owner, name, at), folder, calls = STAGES[stage], output / f"{stage}-{kind}-{background}", []
    original, raised, failure, message = getattr(owner, name), None, None, ""
    said.clear()

    def broken(self, *args, **kwargs):
        calls.append(1)
        if len(calls) == at:
            raise KINDS[kind]()
        return original(self, *args, **kwargs)

    try:
        with patch.object(owner, name, broken):
            failure = run(folder, background).failure
    except BaseException as problem:
        raised, message = type(problem).__name__, str(problem)
        problem.__traceback__ = None
        del problem
    gc.collect()
    assert caches and not any(ref() is not None for ref in caches)
    assert not [path.name for pattern in ("*.tmp", ".*.mp4") for path in folder.rglob(pattern)]
    assert not [thread.name for thread in threading.enumerate() if "head forcing" in thread.name]
    blocks = len(list((folder / "runs").rglob("block-*")))
    if kind == "cancel":
        assert raised == "InterruptProcessingException", raised
    elif kind == "oom":  # one of the video ends the video alone
        assert (raised is None) == (stage in VIDEO) == (failure is not None), (raised, failure)
    else:  # the error that is injected while storing comes through as it is
        assert raised and (stage == "storing" or message.startswith("No space left")), message
        assert stage == "storing" or blocks == 5, "all are made, so that the next run writes the video alone"
    assert raised is None or stage == "before_block_0" or "stopped in block" in said[-1], said

    again = run(folder, background)
    assert torch.equal(again.latents, straight.latents) and again.video.path.is_file()
    assert raised is None or again.reused_blocks == blocks >= FINISHED.get(stage, 0), (again.reused_blocks, blocks)
    assert not list(folder.rglob("*.part.mp4"))


gc.collect()
gc.freeze()  # what is imported: half a second for each of the collections below
output = host.folders.output_folder()
straight, only, cases = run(output / "straight", False), sys.argv[1:], []
VIDEO = ("decode", "writer", "last_of_video")
WANTED = {"cancel": only or STAGES}
if not only:
    WANTED |= {"oom": ("mid_step", *VIDEO), "disk": ("storing", "writer", "last_of_video")}
for kind, stages in WANTED.items():
    for stage in stages:
        # the thread has no part in the others
        cases += [(stage, kind, background) for background in (False, True)[: 1 + (stage in ("decode", "writer"))]]
for case in cases:
    check_stopped(*case)
needs = host.render.HostRender(model, options, timeline, embeds, runs=output, vae=vae).check_needs(plan)
try:
    with host.memory.explained(needs, kept=True):
        raise KINDS["oom"]()
except mm.OOM_EXCEPTION as told:
    assert type(told) is type(KINDS["oom"]()), "it stays such an error"
    assert "KV cache" in str(told) and "queue again to go on" in str(told)
print(len(cases), issubclass(mm.InterruptProcessingException, Exception))

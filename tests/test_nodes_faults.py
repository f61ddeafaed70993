"""Whatever stops a render, and wherever: the error comes through, nothing stays behind, the next run completes it.

One process per ComfyUI version goes through all stages and kinds of errors. The class of a cancel is an Exception in
the older version and a BaseException in the newer.
"""

import json
from typing import Any

import pytest
from comfy_harness import run_in_comfy

pytestmark = pytest.mark.comfy

PROGRAM = r"""
import errno, gc, importlib, json, sys, tempfile, threading, types, weakref
from pathlib import Path
import torch
import utils.install_util
import server
import comfy.model_management as mm
pack = load_pack()
module = lambda name: importlib.import_module(pack.__name__ + name)
said = []
server.PromptServer.instance = types.SimpleNamespace(send_progress_text=lambda text, node: said.append(text))
toy, render, progress_module = (module(f".nodes.host.{n}") for n in ("toy_world", "render", "progress"))
folders, sampler_checks, bridge = (module(f".nodes.host.{n}") for n in ("folders", "checks", "bridge"))
core = {n: module(f".headforcing_core.{n}") for n in (
    "video.background", "cache.head_cache", "demo.word_hash", "demo.autoencoder", "errors", "render.options",
    "render.plan",
    "cache.policy", "runs.folder", "rollout.schedule", "timeline.timeline", "video.writer")}

model, vae = toy.load_model(), toy.ToyVAE()
timeline = core["timeline.timeline"].parse_timeline(
    "a red ball bouncing on a teal floor | a yellow ring on a navy floor", 6.0)
plan = core["render.plan"].RenderPlan.make(
    bridge.wan_config(model), core["cache.policy"].preset("head_forcing"),
    core["rollout.schedule"].schedule("self_forcing"),
    timeline, 64, 64)
embeds = [core["demo.word_hash"].encode(segment.text) for segment in timeline.segments]
options = core["render.options"].RenderOptions(seed=3, state_seconds=0.01)
caches = []
build = core["cache.head_cache"].HeadCache.__init__
def tracked(self, *args, **kwargs):
    caches.append(weakref.ref(self))
    build(self, *args, **kwargs)
core["cache.head_cache"].HeadCache.__init__ = tracked

STAGES = {  # where, and at which call there
    "before_block_0": (progress_module.RenderProgress, "begin", 1),
    "first_step": (bridge.HostedModel, "denoise", 1),
    "mid_step": (bridge.HostedModel, "denoise", 14),
    "clean_pass": (bridge.HostedModel, "write_clean", 3),
    "cache_update": (core["cache.head_cache"].HeadCache, "commit", 4),
    "storing": (core["runs.folder"].RunFolder, "save_block", 4),
    "decode": (core["demo.autoencoder"].ToyStreamingDecoder, "decode", 4),
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
        model, options, timeline, embeds, runs=folder / "runs", vae=vae, filename_prefix=f"{folder.name}/v",
        decode_in_background=background)
    watcher = progress_module.RenderProgress(model, [plan], "1")
    watcher.next_video(0, plan)
    try:
        with torch.inference_mode():
            return render.sample(job, plan, 0, watcher)
    except BaseException:
        watcher.stopped()
        raise

def left(folder):
    return sorted(path.name for path in folder.rglob("*.tmp")) + [p.name for p in folder.rglob(".*.mp4")]

output = folders.output_folder()
results = {}
straight = run(output / "straight", False)
for background in (False, True):
    for stage, (owner, name, at) in STAGES.items():
        for kind, error in KINDS.items():
            if kind == "disk" and stage not in ("storing", "writer", "last_of_video"):
                continue
            folder = output / f"{stage}-{kind}-{background}"
            original, calls = getattr(owner, name), []
            def broken(self, *args, **kwargs):
                calls.append(1)
                if len(calls) == at:
                    raise error()
                return original(self, *args, **kwargs)
            setattr(owner, name, broken)
            said.clear()
            raised, failure = None, None
            try:
                failure = run(folder, background).failure
            except BaseException as problem:
                raised = type(problem).__name__
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
                "raised": raised, "failure": failure, "alive": alive, "made": len(caches), "said": last,
                "blocks": blocks,
                "same": bool(torch.equal(again.latents, straight.latents)), "reused": again.reused_blocks,
                "saved": again.video is not None and again.video.path.is_file(), "left": behind,
                "threads": threads,
                "partials": [p.name for p in folder.rglob("*.part.mp4")],
            }
            del again
oom = mm.OOM_EXCEPTION("CUDA out of memory (test)")
needs = render.HostRender(model, options, timeline, embeds, runs=output, vae=vae).check_needs(plan)
told = sampler_checks.out_of_memory(oom, needs, True)
results["message"] = {"kind": type(told) is type(oom) and sampler_checks.is_out_of_memory(told), "text": str(told)}
print(json.dumps({"base": issubclass(mm.InterruptProcessingException, Exception), "results": results}))
"""


@pytest.fixture(scope="module", params=["0.30.0", "0.3.75"])
def found(request: pytest.FixtureRequest) -> dict[str, Any]:
    from conftest import _install

    out = run_in_comfy(_install(request.param), PROGRAM, timeout=400)
    found = json.loads(out.strip().splitlines()[-1])
    assert found["base"] == (request.param == "0.3.75"), "both classes of a cancel are tested"
    return found["results"]


def of_kind(found: dict[str, Any], kind: str) -> dict[str, dict[str, Any]]:
    return {name: result for name, result in found.items() if f" {kind} " in name}


def test_a_cancel_at_any_stage_comes_through(found: dict[str, Any]):
    cancels = of_kind(found, "cancel")
    assert len(cancels) == 18
    for name, result in cancels.items():
        assert result["raised"] == "InterruptProcessingException", (name, result)


def test_an_error_while_sampling_comes_through_and_one_of_the_video_does_not(found: dict[str, Any]):
    for name, result in (of_kind(found, "oom") | of_kind(found, "disk")).items():
        video = name.startswith(("decode", "writer", "last_of_video"))
        assert (result["raised"] is None) == video, (name, result)
        assert (result["failure"] is not None) == video, (name, result)
        if " disk " in name and video:
            assert "No space left on device" in result["failure"]


def test_nothing_stays_behind(found: dict[str, Any]):
    for name, result in found.items():
        if name != "message":
            assert result["made"] > 0
            assert (result["alive"], result["left"], result["threads"], result["partials"]) == (0, [], [], []), (
                name,
                result,
            )


def test_what_was_finished_is_kept_and_said(found: dict[str, Any]):
    for name, result in found.items():
        if name == "message" or result["raised"] is None:
            continue
        finished = {"mid_step": 3, "clean_pass": 2, "cache_update": 3, "storing": 3, "decode": 3, "writer": 3}
        stage = name.split()[0]
        at_least = finished.get(stage, 9 if stage == "last_of_video" else 0)
        assert result["blocks"] >= at_least, (name, result)
        assert result["reused"] == result["blocks"], (name, result)
        if stage != "before_block_0":
            assert "stopped in block" in result["said"], (name, result)


def test_the_next_run_completes_the_same_video(found: dict[str, Any]):
    for name, result in found.items():
        if name != "message":
            assert result["same"] and result["saved"], (name, result)


def test_running_out_of_memory_is_explained_with_numbers_and_stays_such_an_error(found: dict[str, Any]):
    message = found["message"]
    assert message["kind"] and "KV cache" in message["text"] and "queue again to go on" in message["text"]

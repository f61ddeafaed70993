"""Renders that are stopped in every way and then run again; the core's own tests go through all
stages and faults.

In the oldest version the class of a cancel is an Exception, in the newest a BaseException.
"""

import dataclasses
import errno
import threading
import types
from unittest.mock import patch

import comfy.model_management as mm
import server
import torch
from parity import (
    bridge,
    check_nothing_is_left,
    core,
    host_module,
    loaded_model,
    module,
    render_video,
    smoke,
    toy,
)

STAGES = {  # where, at which call there, and how many blocks are kept at least
    "clean_pass": (bridge.HostedModel, "write_clean", 3, 2),
    "decode": (core.picture_decoder.PictureStreamingDecoder, "decode", 4, 3),
    "last_of_video": (core.writer.VideoWriter, "_remux", 1, 5),
}
KINDS = {
    "cancel": lambda: mm.InterruptProcessingException(),
    "oom": lambda: mm.OOM_EXCEPTION("CUDA out of memory (test)"),
    "disk": lambda: OSError(errno.ENOSPC, "No space left on device"),
}
CASES = [  # stage, kind, whether a thread decodes
    ("clean_pass", "cancel", False),
    ("clean_pass", "oom", False),
    ("decode", "cancel", False),
    ("decode", "cancel", True),
    ("decode", "oom", True),
    ("last_of_video", "disk", False),
]


@smoke
def a_render_that_is_stopped_leaves_nothing_behind_and_is_completed_by_the_next():
    said = []
    folders = module(".nodes.host.folders")
    memory = module(".nodes.host.model.memory")
    RenderProgress = module(".nodes.host.browser.progress").RenderProgress
    model = toy.load_toy_model()
    vae = toy.ToyVAE()
    output = folders.output_folder()
    text = "a red ball bouncing in the teal plain room | a yellow cross in the navy room"
    timeline = core.timeline.parse_timeline(text, 3.0)
    options = core.options.RenderOptions(seed=3, state_seconds=0.01)
    size = core.options.RenderOptions(width=64, height=64, seed=3)
    plan = core.plan.RenderPlan.of(loaded_model.wan_config(model), size, timeline)
    embeds = {segment.text: core.word_hash.encode(segment.text) for segment in timeline.segments}
    request = render_video.request_of(model, options, timeline, embeds, vae=vae)

    hidden = types.SimpleNamespace(unique_id="1", extra_pnginfo=None, prompt=None)

    @torch.inference_mode()
    def run(folder, background=False):
        own = dataclasses.replace(request, runs=folder / "runs")
        job = host_module.HostRender(
            model,
            own,
            vae=vae,
            filename_prefix=f"{folder.name}/v",
            hidden=hidden,
            decode_in_background=background,
        )
        watcher = RenderProgress(model, [plan], hidden)
        watcher.next_video(0, plan)
        return render_video.sample(job, plan, 0, watcher)

    def check_stopped(stage, kind, background):
        owner, name, at, kept = STAGES[stage]
        folder = output / f"{stage}-{kind}-{background}"
        calls = []
        original = getattr(owner, name)
        ended = []

        def broken(self, *args, **kwargs):
            calls.append(1)
            if len(calls) == at:
                raise KINDS[kind]()
            return original(self, *args, **kwargs)

        def stopped():
            try:
                ended.append(run(folder, background).failure)
            except BaseException as problem:
                ended.append(type(problem).__name__)

        with patch.object(owner, name, broken):
            check_nothing_is_left(stopped, collected=True)
        assert not [*folder.rglob("*.tmp"), *folder.rglob(".*.mp4")]
        assert not [
            thread.name for thread in threading.enumerate() if "head forcing" in thread.name
        ]
        blocks = len(list((folder / "runs").rglob("block-*")))
        expected = "HeadForcingError" if kind == "disk" else type(KINDS[kind]()).__name__
        if kind == "oom" and stage == "decode":  # one of the video ends the video alone
            assert (
                blocks == 5
                and "CUDA out of memory" in str(ended[0])
                and list(folder.rglob("*.part.mp4"))
            ), ended
        else:
            assert ended == [expected] and "stopped at 0:0" in said[-1] and blocks >= kept, (
                ended,
                said,
            )
        again = run(folder, background)
        assert torch.equal(again.latents, straight.latents) and again.video.path.is_file()
        assert again.reused_blocks == blocks and not list(folder.rglob("*.part.mp4"))

    told = types.SimpleNamespace(
        client_id=None, send_progress_text=lambda text, *_: said.append(text)
    )
    with patch.object(server.PromptServer, "instance", told, create=True):
        straight = run(output / "straight")
        for case in CASES:
            check_stopped(*case)
    stored = dataclasses.replace(request, runs=output)
    needs = host_module.HostRender(model, stored, vae=vae).check_needs(plan)
    try:
        with memory.explained(needs, kept=True):
            raise KINDS["oom"]()
    except mm.OOM_EXCEPTION as error:
        assert type(error) is type(KINDS["oom"]()), "it stays such an error"
        assert "KV cache" in str(error) and "Run goes on from them" in str(error)

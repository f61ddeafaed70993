"""Head Forcing Sampler: a minute-long video, block by block, on any Wan MODEL."""

from dataclasses import replace
from typing import Any

import torch
from comfy_api.latest import InputImpl, io
from comfy_execution.graph_utils import ExecutionBlocker

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields
from ..headforcing_core.methods.registry import describe_method
from ..headforcing_core.plan.describe import describe
from ..headforcing_core.plan.options import RenderOptions
from ..headforcing_core.plan.plan import RenderPlan
from ..headforcing_core.plan.request import RenderJob, StartLatents
from ..headforcing_core.render.result import RenderResult
from ..headforcing_core.video.soundtrack import Soundtrack
from .host import folders
from .host.browser import live_story, player
from .host.browser.performed import story_of
from .host.browser.progress import RenderProgress
from .host.graph import schema
from .host.graph.conditioning import Conditioning, read_conditioning
from .host.graph.part import Part
from .host.graph.speech import HeardSpeech, with_length_of
from .host.model.loaded_model import name_model, options_for
from .host.model.memory import check_disk_room
from .host.model.model_contents import check_contents, contents
from .host.model.native_model import size_for
from .host.model.vae import draft_decoder
from .host.render.host_render import HostRender
from .host.render.live_decoder import NONE, load_live_decoder
from .host.render.roles import with_roles
from .host.render.sample import request_of, sample
from .host.render.start import STARTS, pictures_of, portrait_of, start_of
from .sampler_inputs import sampler_inputs, sampler_options


class HeadForcingSampler(schema.FileNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingSampler",
            "Head Forcing Sampler",
            "sampling",
            aliases="long video, infinite, extend, continue, resume, autoregressive, self forcing",
            inputs=sampler_inputs(),
            advanced=(
                "method model_family sigmas episodic_frames recent_frames novelty_threshold "
                "memory_every_blocks roles batch_size checkpoint_seconds decode_in_background "
                "live_decoder"
            ),
            outputs={
                "latents": io.Latent,
                "report": io.String,
                "video": io.Video,
            },
            output_list="video",
            makes_video=True,
        )

    @classmethod
    def fingerprint_inputs(cls, **inputs: Any) -> int:
        """The number of changed stories: it changes when a running story was changed, so that
        ComfyUI does not reuse its result for the inputs that were queued.
        """
        return live_story.EDITS.count

    @classmethod
    @player.shows_errors
    def execute(
        cls, model: Any, positive: Conditioning, batch_size: int = 1, **inputs: Any
    ) -> io.NodeOutput:
        render, lines = _read_inputs(cls.hidden, model, positive, **inputs)
        return _render_batch(render, batch_size, lines)


def _read_inputs(
    hidden: Any,
    model: Any,
    positive: Conditioning,
    resume: bool = True,
    vae: Any = None,
    filename_prefix: str = "video/HeadForcing",
    decode_in_background: bool = False,
    options: Any = None,
    speech: HeardSpeech | None = None,
    live_decoder: str = NONE,
    **settings: Any,
) -> tuple[HostRender, list[str]]:
    """The render that the inputs describe, and lines for the report."""
    begins_with = {name: settings.pop(name, None) for name in STARTS}
    part = Part.of(hidden)  # of the video, or a small draft, as a button of the node asks
    chosen, lines = _options(
        model, part, settings, options=options, start_frames=begins_with["start_frames"]
    )
    chosen = with_length_of(speech, chosen, positive)
    read = read_conditioning(model, positive, chosen)
    start, about_start = start_of(chosen, begins_with, vae)
    lines += [*read.notes, *about_start]
    story = story_of(read.positive, hidden, model, chosen.seconds)
    chosen = story.options(_in_size_of(start, chosen), read.timeline)
    check_contents(model)
    named = name_model(model)
    if resume:
        lines += named.notes
    pictures = pictures_of(chosen, read.positive, vae)
    decoder, first_decoder = _decoders(part, chosen, vae, live_decoder)
    request = request_of(
        model,
        chosen,
        read.timeline,
        read.embeds,
        start=start,
        pictures=pictures,
        vae=decoder,
        named=named,
        resume=resume,
        part=part,
        about=story.about(),
        soundtrack=_soundtrack(story, speech),
        conditions=None if speech is None else speech.speech,
    )
    render = HostRender(
        model,
        request,
        vae=decoder,
        live_vae=first_decoder,
        filename_prefix=part.prefix(filename_prefix),
        hidden=hidden,
        decode_in_background=decode_in_background,
        story=story,
        part=part,
        keeps_roles=named.is_known,
        portrait=portrait_of(chosen, begins_with["start_image"]),
    )
    return render, lines


def _decoders(part: Part, options: RenderOptions, vae: Any, live_decoder: str) -> tuple[Any, Any]:
    """The decoder of the finished video, and that of the file that grows during the render, None if
    it is the same; a draft has a tiny decoder for both.
    """
    latents = options.schedule.latents
    if part.draft:
        return draft_decoder(latents, vae), None
    return vae, load_live_decoder(live_decoder, vae, latents)


def _in_size_of(start: StartLatents | None, options: RenderOptions) -> RenderOptions:
    """The options with the width and height of what the video begins with, if it does."""
    if start is None:
        return options
    width, height = options.schedule.latents.pixels(start.latents.shape)
    return replace(options, width=width, height=height)


def _soundtrack(story: live_story.LiveStory, speech: HeardSpeech | None) -> Soundtrack | None:
    """The sound of the file: that of *Prompt Timeline*, else the speech."""
    if story.node is not None and story.node.soundtrack is not None:
        return story.node.soundtrack
    return None if speech is None else speech.soundtrack


def _options(
    model: Any, part: Part, settings: Fields, *, options: Any, start_frames: Any
) -> tuple[RenderOptions, list[str]]:
    """The options that the inputs set, in the size of the part (a draft is smaller), and lines for
    the report.
    """
    if part.draft and start_frames is not None:
        raise HeadForcingError(
            "a draft is smaller than start_frames and cannot begin with them; connect the video "
            "itself to start_video"
        )
    width, height = size_for(model, settings["width"], settings["height"])
    lines = []
    if start_frames is None and 0 in (settings["width"], settings["height"]):
        lines.append(f"width and height: {width}x{height}, what the model was made for")
    settings = {**settings, "width": width, "height": height}
    chosen, about_model = options_for(model, sampler_options(settings, options))
    width, height = part.size(chosen.width, chosen.height, chosen.schedule.latents)
    return replace(chosen, width=width, height=height), [*lines, *about_model]


def _render_batch(render: HostRender, batch_size: int, lines: list[str]) -> io.NodeOutput:
    """Make the videos of a batch, while their story can be changed, and report on them; the report
    has these lines about the inputs.
    """
    request = render.request
    model = render.model
    count = batch_size if request.start is None else max(batch_size, len(request.start.latents))
    assert render.story is not None
    plan = request.plan()
    render.story.check_plan(request, plan)
    needs = render.check_needs(plan, count)
    check_disk_room([needs])
    about_model = contents(model).lines()
    # the roles of the model's heads are measured now if they are not known
    job, measured = with_roles(render)
    about_roles = [] if measured is None else [measured.line]
    plan = job.plan
    progress = RenderProgress(
        model, [plan] * count, render.hidden, part=render.part, portrait=render.portrait
    )
    with live_story.running(render.story):
        results = _sample_all(render, plan, count, progress)
    progress.completed()
    last = results[-1].job  # whose story is the one that the last video ended with
    report = [
        *_about_results(results),
        *about_roles,
        *lines,
        *about_model,
        *describe_method(request.options.method_name, request.options.method_options),
        describe(last.plan, request.dtype),
        *render.story.notes,
        "",
        needs.describe(render.model.load_device),
    ]
    files = [folders.OutputFile(made.video.path) for made in results if made.video is not None]
    return io.NodeOutput(
        _latents(results, last),
        "\n".join(report).rstrip(),
        [_video(made) for made in results],
        ui=progress.player.output(files) if files else None,
    )


def _sample_all(
    render: HostRender, plan: RenderPlan, count: int, progress: RenderProgress
) -> list[RenderResult]:
    """Make all videos of a batch. The story of a running render can be changed, which holds for the
    rest of the batch.
    """
    story = render.story
    assert story is not None
    results = []
    for number in range(count):
        progress.next_video(number, plan)
        made = sample(render, plan, number, progress)
        results.append(made)
        plan = made.plan
        render = replace(render, request=made.job.request)
        story.video_frames = plan.video_frames
    return results


def _about_results(results: list[RenderResult]) -> list[str]:
    """Lines of the report on the videos of a batch."""
    lines = []
    for number, made in enumerate(results, 1):
        if len(results) > 1:
            lines.append(f"video {number} of {len(results)}:")
        lines += [*made.lines(lambda path: folders.OutputFile(path).place), ""]
    return lines


def _latents(results: list[RenderResult], job: RenderJob) -> Any:
    """The LATENT of a batch whose last video is that of `job`, with what *Decode Latents to Video*
    needs to know; for a live video, whose latents are not kept in memory, a stand-in that raises an
    error when it is used.
    """
    kept = [made.latents.transpose(0, 1) for made in results if made.latents is not None]
    if not kept:
        return ExecutionBlocker(f"No latents of a live video: {_remedy(results[-1])}.")
    samples = torch.stack(kept)
    about_samples = {
        "video_frames": job.plan.video_frames,
        "frames": job.plan.frames,
        "about": job.about,
    }
    if job.request.soundtrack is not None:
        about_samples["soundtrack"] = job.request.soundtrack
    return {"samples": samples, "head_forcing": about_samples}


def _video(made: RenderResult) -> Any:
    """The file as a VIDEO; without one a stand-in that raises an error with the reason when it is
    used.
    """
    if made.video is not None:
        return InputImpl.VideoFromFile(str(made.video.path))
    reason = "connect a vae to Head Forcing Sampler"
    if made.failure is not None:
        reason = f"it could not be written ({made.failure})"
    return ExecutionBlocker(f"No video: {reason}. For this one, {_remedy(made)}.")


def _remedy(made: RenderResult) -> str:
    """The way to the latents and frames that a result lacks, by what is kept of the video."""
    if made.latents is not None:
        return "use Decode Latents to Video"
    if made.job.folder is not None:
        return "use Load Head Forcing Run, and Decode Latents to Video for the frames"
    return (
        "press Run to render its story again (no block was stored: resume was off, or the model "
        "has no known name)"
    )

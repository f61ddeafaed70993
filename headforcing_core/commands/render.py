"""The commands that render one video. Each takes the parsed arguments and returns its result as text and JSON."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

from ..demo import word_hash
from ..errors import HeadForcingError
from ..files import check_writable, claimed
from ..methods.registry import describe_method
from ..render.describe import describe
from ..render.resources import Needs, check_disk, room_on
from ..render.result import RenderResult
from ..video.sheets import contact_sheet
from .arguments import (
    Result,
    add_file_arguments,
    add_gpus_arguments,
    add_method_arguments,
    add_render_arguments,
)
from .follow import FollowedFile, FollowedStory
from .parser import Commands
from .paths import DEMO_FILES, FOLLOWED, READ, TEXT, VIDEO, WRITTEN, folder_written, story_path
from .source import Source
from .start import add_start_arguments

FOLLOW_HELP = (
    "like --prompts @FILE, and reads FILE again when it changes: prompts that have not begun take the new text; the "
    "story that was rendered is written beside the video, with the ending .story.txt"
)


def add_parsers(command: Commands) -> None:
    """Add `demo` and `generate` to the command line."""
    sub = command("demo", demo)
    sub.add_argument(
        "--out",
        type=folder_written(*DEMO_FILES),
        default=Path("output"),
        help="folder for demo.mp4 and demo.png (output)",
    )
    prompts = sub.add_mutually_exclusive_group()
    prompts.add_argument(
        "--prompts", type=TEXT, help="a timeline in the toy world's words, or @FILE; " + word_hash.HELP
    )
    prompts.add_argument("--follow", type=FOLLOWED, metavar="FILE", help=FOLLOW_HELP)
    sub.add_argument("--seconds", type=float, default=0.0, help="length; default: the story's 60")
    sub.add_argument("--scale", type=int, default=6, help="every pixel becomes a square of this side (6: 384x384)")
    add_start_arguments(sub)
    sub.add_argument("--latents", type=WRITTEN, help="latents to write, too (.safetensors)")
    add_render_arguments(sub)
    add_method_arguments(sub)
    add_gpus_arguments(sub)

    sub = command("generate", generate)
    sub.add_argument("--weights", type=READ, required=True, help="checkpoint, .safetensors or .pt")
    prompts = sub.add_mutually_exclusive_group(required=True)
    prompts.add_argument("--prompts", type=TEXT, help="a timeline or one prompt, or @FILE")
    prompts.add_argument("--follow", type=FOLLOWED, metavar="FILE", help=FOLLOW_HELP)
    sub.add_argument("--seconds", type=float, default=0.0, help="length; default: the timeline's")
    add_file_arguments(sub)
    sub.add_argument("--out", type=VIDEO, help="MP4 to write")
    sub.add_argument("--latents", type=WRITTEN, help="latents to write (.safetensors)")
    add_start_arguments(sub).add_argument("--start-latents", type=READ, help="latents of a video to continue")
    add_render_arguments(sub)
    add_method_arguments(sub)
    add_gpus_arguments(sub)


def demo(args: argparse.Namespace) -> Result:
    video, sheet = args.out / "demo.mp4", args.out / "demo.png"
    check_outputs(args)
    follow = None if args.follow is None else FollowedFile(args.follow)
    with claimed(video, sheet, args.latents, None if follow is None else story_path(video)):
        source = Source.of(args, follow)
        needs, result = _render(source, video, args.latents)
        plan, timeline = result.plan, result.plan.timeline
        clock = timeline.clock
        starts = [(clock.start_seconds(segment.start_block), segment.text) for segment in timeline.segments]
        drawn = result.failure is None
        if drawn:
            contact_sheet(video, sheet, labels=[start for start in starts if start[0] * clock.fps < plan.video_frames])
    return {
        "text": "\n".join([_describe(source, needs, result), *([f"sheet    {sheet}"] if drawn else [])]),
        "json": {**_json(source, needs, result), "contact_sheet": str(sheet) if drawn else None},
        "code": _code(result),
    }


def generate(args: argparse.Namespace) -> Result:
    check_outputs(args)
    follow = None if args.follow is None else FollowedFile(args.follow)
    with claimed(args.out, args.latents, None if follow is None else story_path(args.out or args.latents)):
        source = Source.of(args, follow)
        unasked = args.device == "auto" and source.machine.device.type == "cpu"
        note = f"note: PyTorch {torch.__version__} finds no GPU, so the video is made on the CPU.\n" if unasked else ""
        needs, result = _render(source, args.out, args.latents, note)
    return {
        "text": "\n".join([source.info.summary(), _describe(source, needs, result)]),
        "json": _json(source, needs, result),
        "code": _code(result),
    }


def check_outputs(args: argparse.Namespace) -> None:
    """Refuse files that `demo` or `generate` could not write."""
    if "weights" in args:
        if args.out is None and args.latents is None:
            raise HeadForcingError("nothing to write: give --out VIDEO.mp4, --latents FILE.safetensors or both")
        if args.out is not None and args.vae is None:
            raise HeadForcingError("--out needs --vae, the Wan 2.1 VAE; or write --latents, for `headforcing decode`")
    check_writable(args.out if "weights" in args else args.out / "demo.mp4")
    check_writable(args.latents)


def follow(args: argparse.Namespace) -> Result:
    """`demo` or `generate` as a rank that writes no files: everything they do up to the latents."""
    _render(Source.of(args), None)
    return {"text": "", "json": {}}


def _render(
    source: Source, video: Path | None, latents: Path | None = None, note: str = ""
) -> tuple[Needs, RenderResult]:
    """Render a source to files; all checks are done before weights are loaded, the note is told after the first."""
    plan, peers = source.plan(), source.machine.peers
    if peers is not None:  # first, since it takes no time
        from ..distributed.division import check_division

        check_division(plan.shape, peers.world, peers.speeds)
    source.check_encoders(plan)
    if plan.auto is None:  # else roles that were found earlier may need less
        source.check_needs(plan, video)
    sys.stderr.write(note)
    source = source.with_start()
    embeds = source.encode()
    job = source.job(plan, embeds)
    if (known := job.take_found_roles(source.plan)) is not plan:
        job = source.job(known, embeds)
    plan = job.plan
    if peers is not None:
        from ..distributed.ranks import check_ranks

        check_ranks(job, peers)
    needs = source.check_needs(plan, video)
    check_disk(needs, source.machine.runs, video and video.parent)
    loaded = source.load(decodes=video is not None, encodes=bool(plan.restart_frames))
    if source.follow is None:
        return needs, loaded.render(job, video, latents)
    seconds = source.options.seconds
    story = FollowedStory(source.follow, source.parse, source.encode, lambda: room_on(source.machine.device), seconds)
    result = loaded.render(replace(job, about={**job.about, **story.about()}), video, latents, story)
    for target in filter(None, [video or latents]):
        story.save(story_path(target))
    return needs, result


def _code(result: RenderResult) -> int:
    """The exit code: 1 where only the latents could be written."""
    return int(result.failure is not None)


def _describe(source: Source, needs: Needs, result: RenderResult) -> str:
    about = [
        *describe_method(source.options.method, source.options.method_options),
        describe(result.plan, source.machine.dtype),
    ]
    about += [source.family] if source.family else []
    about += [f"starts with {source.start.about}"] if source.start is not None else []
    return "\n".join([*about, "", needs.describe(), "", result.describe()])


def _json(source: Source, needs: Needs, result: RenderResult) -> dict[str, Any]:
    more = {"model_family": source.options.model_family}
    more |= {} if source.follow is None else {"story": source.follow.text}
    if source.start is not None:
        more["start"] = source.start.about
    return {**result.to_dict(), "needs": asdict(needs), **more}

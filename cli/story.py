"""The commands of stories: a text in any form as the one that is rendered."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import replace

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import claimed, replacing
from ..headforcing_core.plan.options import RenderOptions
from ..headforcing_core.runs.exported_story import ExportedStory
from ..headforcing_core.runs.exports import exported
from ..headforcing_core.runs.stored import find_stored
from .arguments import Result
from .texts import read_text, translated


def story(args: Namespace) -> Result:
    """Print a story in the written form."""
    options = RenderOptions(model_family=args.model_family, seconds=args.seconds)
    arguments = options.timeline_arguments
    value = f"@{args.file}"
    pasted = translated(read_text(value), value, arguments["clock"], arguments["seconds"])
    timeline = pasted.timeline(**arguments)  # raises for a story that cannot be rendered
    found = {
        "story": pasted.text,
        "form": pasted.form or "written",
        "prompts": [segment.text for segment in timeline.segments],
        "starts_seconds": list(timeline.requested),
        "seconds": timeline.seconds,
    }
    return Result(pasted.text.split("\n"), found)


def export(args: Namespace) -> Result:
    """Write the story of stored videos for another program."""
    stored = [find_stored(place) for place in args.latents]
    videos = args.video or [None] * len(stored)
    if len(videos) != len(stored):
        raise HeadForcingError(
            f"--video names a file for each RUN in the same order: expected {len(stored)}, found "
            f"{len(videos)}"
        )
    takes = [ExportedStory.of(*each) for each in zip(stored, videos, strict=True)]
    story = replace(takes[0], sound=args.audio, takes=takes[1:])
    text = exported(story, args.out.suffix)
    with claimed(args.out), replacing(args.out) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")
    found = {"out": str(args.out), "prompts": [scene.text for scene in story.scenes]}
    return Result([f"{len(story.scenes)} prompts of {story.name} in {args.out}"], found)

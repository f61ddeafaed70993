"""The commands of stories: a text in any form as the one that is rendered."""

from __future__ import annotations

from argparse import Namespace

from ..headforcing_core.plan.options import RenderOptions
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

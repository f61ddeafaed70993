"""Scripts of numbered prompts, for tests whose prompts have no text, and timelines of lettered and
placed ones.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from headforcing.headforcing_core.rollout.rows import Picture, Script, lay_out_rows
from headforcing.headforcing_core.rollout.schedule import Schedule
from headforcing.headforcing_core.timeline.editor import PlacedPrompt
from headforcing.headforcing_core.timeline.paste.paste import paste
from headforcing.headforcing_core.timeline.switch import Switch
from headforcing.headforcing_core.timeline.timeline import Timeline
from torch import Tensor


def script_of(
    prompts: Sequence[int],
    schedule: Schedule,
    embeds: Sequence[Tensor],
    *,
    seed: int = 0,
    switches: Mapping[int, Switch] | None = None,
    start_blocks: int = 0,
    pictures: Mapping[int, Sequence[Tensor]] | None = None,
) -> Script:
    """A script from the number of every block's prompt in `embeds`; as `rows.lay_out_rows`.

    `pictures` are the latents of those that are held from a block on.
    """
    rows = lay_out_rows(list(map(str, prompts)), schedule, seed, switches or {}, start_blocks)
    held = {}
    for block, shown in (pictures or {}).items():
        names = tuple(f"picture{block}_{number}" for number in range(len(shown)))
        held |= {name: Picture(latents, name) for name, latents in zip(names, shown, strict=True)}
        rows[block] = replace(rows[block], pictures=names)
    return Script(
        rows, {str(number): embedding for number, embedding in enumerate(embeds)}, pictures=held
    )


def switches(*frames: object) -> str:
    """LongLive's file of prompts a, b and so on, which begin with these latent frames."""
    return json.dumps({"prompts": list("abcd")[: len(frames) + 1], "switch_frame_indices": frames})


def place_prompts(text: str, timeline: Timeline) -> list[PlacedPrompt]:
    """The prompts of a text with the blocks of the timeline that was parsed from it."""
    prompts = paste(text, timeline.clock, timeline.seconds).story.prompts
    pairs = zip(prompts, timeline.segments, strict=True)
    return [PlacedPrompt(p.text, s.start_block, p.switch, p.seed, p.start) for p, s in pairs]

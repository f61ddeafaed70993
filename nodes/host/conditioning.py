"""Read the prompt timeline from a CONDITIONING."""

from __future__ import annotations

from typing import Any

import torch

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.timeline.timeline import Timeline, parse_timeline

_KEY = "head_forcing_timeline"


def timeline_of(positive: list[Any], seconds: float) -> tuple[Timeline, list[torch.Tensor]]:
    """The timeline inside a CONDITIONING and one `[tokens, text_dim]` embedding per segment.

    A plain CONDITIONING is a timeline of one prompt that lasts `seconds`, 10 when that is 0.
    """
    if not positive:
        raise HeadForcingError("positive is empty; connect Prompt Timeline or CLIP Text Encode")
    if len(positive) > 1:
        raise HeadForcingError(f"positive holds {len(positive)} combined prompts; connect one, or Prompt Timeline")
    tensor, options = positive[0]
    carried = options.get(_KEY)
    if carried is not None:
        if not torch.equal(tensor, carried["embeds"][0]):
            raise HeadForcingError(
                "positive was changed after Prompt Timeline by a node that knows only one prompt; connect it directly"
            )
        return carried["timeline"], [embeds[0] for embeds in carried["embeds"]]
    return parse_timeline("the connected prompt", seconds or None), [tensor[0]]

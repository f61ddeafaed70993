"""The prompt timeline in a CONDITIONING, and what reads and encodes another text as its node did."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.timeline.switch import Switch
from ...headforcing_core.timeline.timeline import Timeline, parse_timeline

_KEY = "head_forcing_timeline"


@dataclass(frozen=True)
class TimelineNode:
    """A *Prompt Timeline* node with the values it ran with; makes its output, and encodes prompts that come later.

    Attributes:
        node_id: in the graph that was queued.
        clip: returns the text encoder, None when it is gone: a CONDITIONING in a cache must not keep it in memory.
    """

    node_id: str
    seconds: float
    shared_prompt: str
    switch: Switch
    clip: Callable[[], Any]

    @classmethod
    def of(cls, clip: Any, node_id: str, seconds: float, shared_prompt: str, switch: Switch) -> TimelineNode:
        """The node of a CLIP."""
        try:
            found: Callable[[], Any] = weakref.ref(clip)
        except TypeError:  # a class without weak references
            found = lambda: clip  # noqa: E731
        return cls(node_id, seconds, shared_prompt, switch, found)

    def parse(self, text: str) -> Timeline:
        """The timeline of a text; raises as `parse_timeline`."""
        return parse_timeline(text, self.seconds or None, shared_prompt=self.shared_prompt, switch=self.switch)

    def encode(self, texts: list[str]) -> list[list[Any]]:
        """`[tensor, options]` of each prompt, as entries of a CONDITIONING."""
        clip = self.clip()
        if clip is None:
            raise HeadForcingError("the text encoder is no longer in memory; queue the new story as a render")
        encoded = {text: clip.encode_from_tokens_scheduled(clip.tokenize(text))[0] for text in dict.fromkeys(texts)}
        return [encoded[text] for text in texts]

    def conditioning(self, text: str) -> tuple[list[Any], Timeline]:
        """The node's output for a text: the first prompt as a CONDITIONING that carries all of them."""
        timeline = self.parse(text)
        entries = self.encode(timeline.texts)
        carried = {"timeline": timeline, "embeds": [tensor for tensor, _ in entries], "node": self}
        tensor, options = entries[0]
        return [[tensor, {**options, _KEY: carried}]], timeline

    def __reduce__(self) -> Any:
        # for nodes that write a CONDITIONING to a file: neither a CLIP nor a reference to one can be written
        return TimelineNode, (self.node_id, self.seconds, self.shared_prompt, self.switch, _no_clip)

    def __deepcopy__(self, memo: Any) -> TimelineNode:
        return self


def _no_clip() -> None:
    """What stands for a text encoder that is gone."""


def timeline_of(positive: list[Any], seconds: float) -> tuple[Timeline, list[torch.Tensor]]:
    """The timeline inside a CONDITIONING and the embeddings of its texts, `[tokens, text_dim]` each.

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


def node_of(positive: list[Any]) -> TimelineNode | None:
    """The node that a CONDITIONING comes from; None for one of another node."""
    return positive[0][1].get(_KEY, {}).get("node")

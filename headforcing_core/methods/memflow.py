"""MemFlow: LongLive's window, and a bank of earlier latent frames, selected by their similarity to
the prompt's keys.

When the bank is filled and compressed, and that it may hold a frame twice, is as in the authors'
code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..cache.memory import MemoryEvent
from ..model.wan import PromptKV
from ..timeline.switch import Switch
from .base import MethodShape, Requirements
from .longlive import WindowCache, WindowMethod
from .method import VideoFacts
from .options import NO_OPTION

ROUTED_FRAMES = 3  # frames of sinks and bank together that a head attends to with routing


@dataclass(frozen=True)
class MemFlow(WindowMethod):
    """MemFlow's settings (arXiv 2512.14699).

    Attributes:
        bank_frames: number of slots of the bank.
        interval: number of blocks after which the bank takes another frame.
        keeps_sinks: the window is not zeroed before a prompt switch writes its frames again
            (`global_sink`).
        stores_every_block: the slot gets the last block of its interval instead of the first. None:
            True for videos with one prompt, as in the authors' two scripts.
        routed: each head attends only to the three frames of sinks and bank with the highest scores
            for its queries (the paper's SMA).
    """

    # not annotated, so that it is no option
    switch = "recache"
    bank_frames: int = 3
    interval: int = 3
    keeps_sinks: bool = True
    stores_every_block: bool | None = None
    routed: bool = False
    several_prompts: bool = field(default=True, metadata=NO_OPTION)

    def for_video(self, video: VideoFacts) -> MemFlow:
        return replace(self, several_prompts=video.prompts > 1)

    @property
    def stores_last_block(self) -> bool:
        """`stores_every_block`, by the number of prompts where it is None."""
        if self.stores_every_block is None:
            return not self.several_prompts
        return self.stores_every_block

    @property
    def key(self) -> dict[str, Any]:
        return super().key | {"stores_every_block": self.stores_last_block}

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        return self.window_frames + self.bank_frames + 1  # and the frame that waits for its slot

    def requirements(self, shape: MethodShape) -> Requirements:
        return super().requirements(shape) | {
            "bank_frames of at least 2 and interval of at least 1 block": (
                self.bank_frames >= 2 and self.interval >= 1
            )
        }


class MemFlowCache(WindowCache, of=MemFlow):
    method: MemFlow

    def begin_video(self) -> None:
        super().begin_video()
        self.bank = self.zeros(self.method.bank_frames)
        self.waiting = self.zeros(1)
        self.stored = 0  # frames the bank has taken so far; never falls
        self.counted = 0  # intervals that were counted
        self.used = 0  # bank slots that the current call attends to
        self.prompt: PromptKV | None = None

    def open(self) -> None:
        super().open()
        if self.stored:
            for layer in range(self.shape.layers):
                self._pull(layer)
        due = self.stored + self._intervals() - self.counted
        if self._begins_interval and not self.recaching:
            due -= 1
        self.used = max(0, min(due, self.method.bank_frames))

    @property
    def _begins_interval(self) -> bool:
        return self.start // self.shape.frames_per_block % self.method.interval == 0

    def _intervals(self) -> int:
        """Number of intervals that have begun by the end of the current call."""
        return (self.end // self.shape.frames_per_block - 1) // self.method.interval + 1

    def _pull(self, layer: int) -> None:
        """Move the waiting frame to its slot. A full bank drops a frame in every block, even for
        one it already has.
        """
        bank = self.bank[layer]
        waiting = self.waiting[layer]
        if self.stored <= self.method.bank_frames:
            bank[:, :, self.stored - 1] = waiting[:, :, 0]
        else:
            self.bank[layer] = torch.cat((bank[:, :, self.choose(layer)], waiting), dim=2)

    def choose(self, layer: int) -> Tensor:
        """All slots but the worst, best first, by the mean score of a slot's keys with the prompt's
        keys as queries.
        """
        keys = self.bank[layer][0].float().mean(dim=2)  # [heads, slots, d]
        # after a prompt switch the new prompt's keys do not exist yet; zeros give equal scores and
        # keep the first slots
        text = (
            torch.zeros_like(keys[:, 0])
            if self.prompt is None
            else self.prompt.layers[layer][0][0].float().mean(1)
        )
        scores = torch.einsum("hsd,hd->s", keys, text)
        return scores.sort(descending=True, stable=True).indices[: self.method.bank_frames - 1]

    def protected(self, layer: int) -> int:
        return self.sinks if self.recaching and self.start else 0

    def context(self, layer: int, q: Tensor) -> Tensor:
        q = self.at_own_index(q)
        slots = self.slots[layer]
        kept = torch.cat((slots[:, :, : self.sinks], self.bank[layer][:, :, : self.used]), dim=2)
        if self.method.routed and kept.shape[2] > ROUTED_FRAMES:
            scores = torch.einsum(
                "hd,hfd->hf", q.float().mean(dim=(1, 2)), kept[0].float().mean(dim=2)
            )
            heads = torch.arange(len(scores), device=self.device)[:, None]
            kept = kept[:, heads, scores.topk(ROUTED_FRAMES).indices]
        window = slots[:, :, self.sinks : max(self.sinks, self.filled)]
        k, v = torch.cat((kept, window), dim=2)
        return self.attention_over(q, k, v)

    def finish(self) -> None:
        if not self.recaching and (self.method.stores_last_block or self._begins_interval):
            first = self.filled - self.frames
            for slots, waiting in zip(self.slots, self.waiting, strict=True):
                waiting.copy_(slots[:, :, first : first + 1])
            self.stored += self._intervals() - self.counted
            self.counted = self._intervals()

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        self.prompt = prompt
        return super().commit(prompt)

    def switch_prompt(self, switch: Switch) -> None:
        # unlike LongLive's, sinks that are not written again stay zero
        if not self.method.keeps_sinks:
            for kv in self.slots:
                kv.zero_()
        self.prompt = None

"""MemFlow: LongLive's window, and a bank of earlier latent frames, selected by their similarity to the prompt's keys.

When the bank is filled and compressed, and that it may hold a frame twice, is as in the authors' code.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from ..cache.method import VideoFacts
from ..cache.options import NO_OPTION
from ..errors import HeadForcingError
from ..model.wan import PromptKV
from ..timeline.switch import Switch
from .base import MethodShape, WriteClean
from .longlive import WindowCache, WindowPolicy

ROUTED_FRAMES = 3  # frames of sinks and bank together that a head attends to with routing


@dataclass(frozen=True)
class MemFlow(WindowPolicy):
    """MemFlow's settings.

    Attributes:
        bank_frames: number of slots of the bank.
        interval: number of blocks after which the bank takes another frame.
        keeps_sinks: the window is not zeroed before a prompt switch writes its frames again (`global_sink`).
        stores_every_block: the frame that waits for its slot is replaced in every block, so that the slot gets the
            last block of its interval instead of the first. None: True for videos with one prompt, as in the authors'
            two scripts.
        routed: each head attends only to the three frames of sinks and bank with the highest scores for its queries
            (the paper's SMA).
    """

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
        return not self.several_prompts if self.stores_every_block is None else self.stores_every_block

    @property
    def key(self) -> dict[str, Any]:
        return super().key | {"stores_every_block": self.stores_last_block}

    def frames_per_head(self, layer: int, role: str, frames_per_block: int) -> float:
        return self.window_frames + self.bank_frames + 1  # and the frame that waits for its slot

    def check(self, shape: MethodShape) -> None:
        super().check(shape)
        if self.bank_frames < 2 or self.interval < 1:
            raise HeadForcingError(
                f"MemFlow needs a bank of at least 2 frames and an interval of at least 1 block, got "
                f"{self.bank_frames} and {self.interval}"
            )


class MemFlowCache(WindowCache, of=MemFlow):
    policy: MemFlow

    def begin_video(self) -> None:
        super().begin_video()
        self.bank_k, self.bank_v = self.zeros(self.policy.bank_frames), self.zeros(self.policy.bank_frames)
        self.waiting_k, self.waiting_v = self.zeros(1), self.zeros(1)
        self.stored = 0  # frames the bank has taken so far; never falls
        self.counted = 0  # intervals that were counted
        self.used = 0  # bank slots that the current call attends to
        self.prompt: PromptKV | None = None

    def open(self) -> None:
        super().open()
        if self.stored:
            self._pull()
        b = self.stored + self._intervals() - self.counted
        begins_interval = self.start // self.shape.frames_per_block % self.policy.interval == 0
        if begins_interval and not self.recaching:
            b -= 1
        self.used = max(0, min(b, self.policy.bank_frames))

    @property
    def occupied(self) -> int:
        banked = min(self.stored, self.policy.bank_frames + 1)  # the waiting frame included
        return super().occupied + banked * self.shape.layers * self.shape.heads

    def _intervals(self) -> int:
        """Number of intervals that have begun by the end of the current call."""
        return (self.end // self.shape.frames_per_block - 1) // self.policy.interval + 1

    def _pull(self) -> None:
        """Move the waiting frame to its slot. A full bank drops a frame in every block, even for one it already has."""
        size = self.policy.bank_frames
        for layer in range(self.shape.layers):
            if self.stored <= size:
                self.bank_k[layer][:, self.stored - 1] = self.waiting_k[layer][:, 0]
                self.bank_v[layer][:, self.stored - 1] = self.waiting_v[layer][:, 0]
            else:
                kept = self.choose(layer)
                for bank, waiting in ((self.bank_k, self.waiting_k), (self.bank_v, self.waiting_v)):
                    bank[layer] = torch.cat((bank[layer][:, kept], waiting[layer]), dim=1)

    def choose(self, layer: int) -> Tensor:
        """All slots but the worst, best first, by the mean score of a slot's keys with the prompt's keys as queries."""
        keys = self.bank_k[layer].float().mean(dim=2)  # [heads, slots, d]
        # after a prompt switch the new prompt's keys do not exist yet; zeros give equal scores and keep the first slots
        text = torch.zeros_like(keys[:, 0]) if self.prompt is None else self.prompt.layers[layer][0][0].float().mean(1)
        scores = torch.einsum("hsd,hd->s", keys, text)
        return scores.sort(descending=True, stable=True).indices[: self.policy.bank_frames - 1]

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        self.store(layer, k, v, self.sinks if self.recaching and self.start else 0)

    def context(self, layer: int, q: Tensor) -> Tensor:
        q = self.at_own_index(q)
        k, v = (
            torch.cat((slots[:, : self.sinks], bank[:, : self.used]), dim=1)
            for slots, bank in ((self.k[layer], self.bank_k[layer]), (self.v[layer], self.bank_v[layer]))
        )
        if self.policy.routed and k.shape[1] > ROUTED_FRAMES:
            scores = torch.einsum("hd,hfd->hf", q.float().mean(dim=(1, 2)), k.float().mean(dim=2))
            best = scores.topk(ROUTED_FRAMES).indices[:, :, None, None].expand(-1, -1, *k.shape[2:])
            k, v = k.gather(1, best), v.gather(1, best)
        window = slice(self.sinks, max(self.sinks, self.filled))
        return self.attention_over(
            q, torch.cat((k, self.k[layer][:, window]), dim=1), torch.cat((v, self.v[layer][:, window]), dim=1)
        )

    def finish(self, prompt: PromptKV | None) -> None:
        self.prompt = prompt
        if self.recaching:
            return
        if self.policy.stores_last_block or self.start // self.shape.frames_per_block % self.policy.interval == 0:
            first = self.filled - self.frames
            for layer in range(self.shape.layers):
                self.waiting_k[layer].copy_(self.k[layer][:, first : first + 1])
                self.waiting_v[layer].copy_(self.v[layer][:, first : first + 1])
            self.stored += self._intervals() - self.counted
            self.counted = self._intervals()

    def switch_prompt(self, switch: Switch, write_clean: WriteClean, latest: Tensor) -> None:
        if not self.policy.keeps_sinks:  # unlike LongLive's, sinks that are not written again stay zero
            for slots in (*self.k, *self.v):
                slots.zero_()
        self.prompt = None
        self.recache(write_clean, latest)

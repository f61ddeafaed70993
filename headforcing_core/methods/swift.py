"""SWIFT: LongLive's window, wide only near prompt switches; the strength of a switch decides how
much of it is written again, and tokens of its own carry the change of the prompt and the finished
segments (arXiv 2605.09442; details as in the authors' code).
"""

from __future__ import annotations

import math
import weakref
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from ..cache.base import WriteClean
from ..cache.scenes import prompt_starts
from ..model.wan import PromptKV
from ..rollout.loop import Block, MemoryEvent, RolloutInputs, VideoModel
from ..rollout.rows import BlockRow, Script
from ..timeline.switch import Switch
from .base import MethodShape, Requirements
from .longlive import WindowCache, WindowMethod

LEAST_NORM = 1e-6
LEAST_SCALE = 1e-3  # with less the injected tokens are dropped
INJECTED_TOKENS = 2  # of the sinks, and of the recent frames


@dataclass(frozen=True)
class Swift(WindowMethod):
    """SWIFT's settings. A segment is the blocks of one prompt; the strength of a switch is 1 minus
    the cosine of both prompts' `PromptKV.mean_text`, from 0 to 1.

    Attributes:
        keeps_sinks: at a whole recache (`global_sink` in the authors' code).
        shortest_window_frames: that blocks far from any switch read; `window_frames` at least makes
            all windows equal.
        after_switch_frames, before_switch_frames: decay constants: `d` frames after a switch, or
            before the next one, the surplus of a window over the shortest is `exp(-d / constant)`
            of the largest; 0: there is none on that side. With `before_switch_frames` 0 no block
            depends on a later switch.
        segment_tokens: finished segments of which a token is kept; its value is the mean of the
            last `segment_frames`, with `segment_text_share` of the prompt.
        injection: a switch below `recache_from` injects two tokens, which are multiplied by
            `injection_decay` after each block. They lie between the mean values of the sinks and of
            the last `injection_frames`, and the change of the text without its part along the
            change of the last frame's value. The share of the change is the strength times its
            cosine with the mean, 0 where that is negative. If False, every switch writes the whole
            window again.
        segment_scale, injection_scale: of these tokens, as keys and as values.
        partial_recache_from, recache_from: strengths from which `partial_recache_frames` or the
            whole window are written again.
    """

    # not annotated, so that it is no option
    switch = "recache"
    keeps_sinks: bool = True
    shortest_window_frames: int = 7
    after_switch_frames: float = 18.0
    before_switch_frames: float = 9.0
    segment_tokens: int = 4
    segment_frames: int = 6
    segment_text_share: float = 0.35
    segment_scale: float = 0.8
    injection: bool = True
    injection_frames: int = 2
    injection_scale: float = 1.0
    injection_decay: float = 0.85
    partial_recache_from: float = 0.7
    partial_recache_frames: int = 3
    recache_from: float = 0.8

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        return self.window_frames + (self.segment_tokens + INJECTED_TOKENS) / shape.frame_tokens

    def requirements(self, shape: MethodShape) -> Requirements:
        block = shape.frames_per_block
        return super().requirements(shape) | {
            f"shortest_window_frames of at least sink_frames and a block of {block} frames": (
                self.shortest_window_frames >= self.sink_frames + block
            ),
            "after_switch_frames and before_switch_frames of at least 0": (
                self.after_switch_frames >= 0 and self.before_switch_frames >= 0
            ),
            "segment_frames and injection_frames of at least 1": (
                self.segment_frames >= 1 and self.injection_frames >= 1
            ),
            "segment_text_share and injection_decay from 0 to 1": (
                0 <= self.segment_text_share <= 1 and 0 <= self.injection_decay <= 1
            ),
            "partial_recache_frames of at most window_frames": (
                self.partial_recache_frames <= self.window_frames
            ),
        }

    def window_at(self, since_switch: int, to_switch: int | None) -> int:
        """Frames that a block reads at most, `since_switch` frames after its prompt began and
        `to_switch` before the next one begins, None without a next one.
        """
        surplus = surplus_at(since_switch, self.after_switch_frames)
        if to_switch is not None:
            surplus = max(surplus, surplus_at(to_switch, self.before_switch_frames))
        shortest = min(self.shortest_window_frames, self.window_frames)
        return round(shortest + surplus * (self.window_frames - shortest))

    def own_rows(self, rows: Sequence[BlockRow], frames_per_block: int) -> list[BlockRow]:
        starts = [block * frames_per_block for block in prompt_starts(rows)]
        own = []
        for block, row in enumerate(rows):
            frame = block * frames_per_block
            number = bisect_right(starts, frame)  # of the next prompt
            to_switch = starts[number] - frame if number < len(starts) else None
            own.append(
                replace(row, window_frames=self.window_at(frame - starts[number - 1], to_switch))
            )
        return own

    def rollout(  # type: ignore[override]  # its own cache
        self, model: VideoModel, cache: SwiftCache, video: RolloutInputs
    ) -> Iterator[Block]:
        cache.script = video.script
        cache.model = weakref.proxy(model)  # which may refer to the cache
        return super().rollout(model, cache, video)


class SwiftCache(WindowCache, of=Swift):
    """LongLive's window and, besides, tokens that are key and value at once, without rotation:
    `[layers, heads, tokens, head_dim]`. They take the places of the oldest tokens that a pass
    reads.
    """

    method: Swift
    # of the rollout
    script: Script
    model: VideoModel
    text: Tensor  # of the last block's prompt, see `text_of`

    def begin_video(self) -> None:
        super().begin_video()
        shape = self.shape
        none = torch.zeros(
            (shape.layers, shape.heads, 0, shape.head_dim), dtype=self.dtype, device=self.device
        )
        self.segments = none  # of finished segments, oldest first
        self.injected = none  # of the last prompt switch, before `injected_scale`
        self.injected_scale = 0.0
        self.recache_keeps_sinks = True  # the current one
        self.read_frames = self.window  # at most, in the current call

    def open(self) -> None:
        super().open()
        row = self.script.rows[self.block]
        self.read_frames = self.window if self.recaching else row.window_frames or self.window

    def protected(self, layer: int) -> int:
        # a recache from the first frame on writes the sinks under the new prompt, too
        kept = self.recaching and self.start > 0 and self.recache_keeps_sinks
        return self.sinks if kept else 0

    def context(self, layer: int, q: Tensor) -> Tensor:
        own = self.own_tokens(layer)
        window = self.slots[layer].flatten(2, 3)
        sinks = self.sinks * self.shape.frame_tokens
        end = self.filled * self.shape.frame_tokens
        first = max(sinks, end - self.recent_tokens(own.shape[2]))
        k, v = torch.cat((window[:, :, :sinks], own, window[:, :, first:end]), dim=2)
        return self.attention(self.at_own_index(q).flatten(1, 2), k, v)

    def own_tokens(self, layer: int) -> Tensor:
        """Keys and values of the tokens besides the window, `[2, heads, tokens, head_dim]`."""
        segments = self.segments[layer] * self.method.segment_scale
        own = torch.cat((segments, self.injected[layer] * self.injected_scale), dim=1)
        return torch.stack((own, own))

    def recent_tokens(self, own: int) -> int:
        """Number of tokens after the sinks that the current pass reads, besides `own` ones."""
        return (self.read_frames - self.sinks) * self.shape.frame_tokens - own

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        event = super().commit(prompt)
        self.text = self.text_of(prompt)
        self.injected_scale *= self.method.injection_decay
        if self.injected_scale < LEAST_SCALE:
            self.injected = self.injected[:, :, :0]
        return event

    def text_of(self, prompt: PromptKV) -> Tensor:
        """`PromptKV.mean_text` of a prompt, cut into heads as values are, `[heads, head_dim]`
        float32.
        """
        return prompt.mean_text.unflatten(0, (self.shape.heads, self.shape.head_dim))

    def apply_switch(
        self, switch: Switch, write_clean: WriteClean, latest: Sequence[Tensor]
    ) -> None:
        if not self.filled:  # before the first block, as a recording of the authors' code has it
            return
        method = self.method
        values = self._mean_values()
        segment = self.segment_token(values, self.text)
        text = self.text_of(self.model.prompt)
        strength = self.strength(self.text, text)
        injects = method.injection and strength < method.recache_from
        self.recache_keeps_sinks = injects or method.keeps_sinks
        if injects:
            self.injected = self.injected_tokens(values, text - self.text, strength)
            self.injected_scale = method.injection_scale
            again = strength >= method.partial_recache_from
            self.recache(method.partial_recache_frames if again else 0, write_clean, latest)
        else:
            self.injected = self.injected[:, :, :0]
            if not self.recache_keeps_sinks:
                for kv in self.slots:
                    kv.zero_()
            self.recache(method.window_frames, write_clean, latest)
        segments = torch.cat((self.segments, segment), dim=2)
        self.segments = segments[:, :, max(0, segments.shape[2] - method.segment_tokens) :]

    def strength(self, old: Tensor, new: Tensor) -> float:
        """The strength of a prompt switch, from 0 to 1."""
        likeness = F.cosine_similarity(old.flatten(), new.flatten(), dim=0, eps=LEAST_NORM)
        return float((1 - likeness).clamp(0, 1))

    def _mean_values(self) -> Tensor:
        """The mean value of every frame of the window, `[layers, heads, frames, head_dim]`
        float32.
        """
        return torch.stack(
            [v[:, : self.filled].mean(2, dtype=torch.float32) for _, v in self.slots]
        )

    def segment_token(self, values: Tensor, text: Tensor) -> Tensor:
        """The token of a finished segment, `[layers, heads, 1, head_dim]`, from the mean values of
        frames and the prompt that it had.
        """
        mean = values[:, :, -self.method.segment_frames :].mean(2, keepdim=True)
        share = self.method.segment_text_share
        return torch.lerp(mean, text[:, None].expand_as(mean), share).to(self.dtype)

    def injected_tokens(self, values: Tensor, change: Tensor, strength: float) -> Tensor:
        """The tokens that a switch injects, `[layers, heads, 2, head_dim]`, from the mean values of
        frames and the change of the text.
        """
        change = change.expand_as(values[:, :, 0])
        if values.shape[2] > 1:
            change = without(change, values[:, :, -1] - values[:, :, -2])
        recent = values[:, :, -self.method.injection_frames :].mean(2)
        sinks = values[:, :, : self.sinks].mean(2) if self.sinks else recent
        means = torch.stack((sinks, recent), dim=2)
        change = change[:, :, None].expand_as(means)
        return torch.lerp(means, change, self.gate(means, change, strength)).to(self.dtype)

    def gate(self, means: Tensor, change: Tensor, strength: float) -> Tensor:
        """The share of the change in each token, `[layers, heads, tokens, 1]`: heads whose values
        point away from it take none.
        """
        likeness = F.cosine_similarity(means, change, dim=-1, eps=LEAST_NORM)
        return strength * likeness.clamp(0, 1)[..., None]


def surplus_at(frames: int, constant: float) -> float:
    """The surplus of a window so many frames from a switch, from 0 to 1; at `constant` it is
    1/e.
    """
    return math.exp(-frames / constant) if constant > 0 else 0.0


def without(change: Tensor, motion: Tensor) -> Tensor:
    """The change without its part along the motion, both `[layers, heads, head_dim]`; all of it
    where nothing moves.
    """
    squared = motion.square().sum(-1, keepdim=True)  # its norm
    along = (change * motion).sum(-1, keepdim=True) / (squared + LEAST_NORM) * motion
    return torch.where(squared > LEAST_NORM, change - along, change)

"""Base classes for the methods of other papers: settings, cache shape, and a cache that is written
call by call. The interfaces are `method.Method` and `cache.base.Cache`.

A method that only keeps frames by head role needs neither: it is a row of `PRESETS` in
`head_forcing.py`. Keys and values of some frames lie in one tensor `kv [2, heads, frames, s,
head_dim]`, oldest frame first.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..cache.base import Cache, WriteClean
from ..cache.shape import Shape
from ..cache.state import MISFIT, Saved, State, check_fields, pack, unpack
from ..errors import HeadForcingError
from ..files import explained
from ..model.attention import AttentionFunction, sdpa
from ..model.rope import RotaryEmbedding, by_head
from ..model.wan import Backbone, KeyValueCache, Norms, PromptKV
from ..rollout.conditions import VideoConditions
from ..rollout.loop import MemoryEvent, VideoModel
from ..timeline.switch import Switch
from .method import Method, VideoFacts, refuse_recall
from .options import option_texts

# by what a method needs of its options and sizes: whether they have it
Requirements = dict[str, bool]


@dataclass(frozen=True)
class MethodShape(Shape):
    """The shape of a method's cache, from the frame-slots of each head."""

    method: BaseMethod

    def __post_init__(self) -> None:
        for need, met in self.method.requirements(self).items():
            if not met:
                words = re.findall(r"\w+", need)
                texts = option_texts(self.method)
                named = [text for text in texts if text.partition("=")[0] in words]
                raise HeadForcingError(f"this method needs {need}, got {', '.join(named)}")

    @property
    def slots_of_heads(self) -> list[float]:
        """The frame-slots of each head of the model."""
        heads = ((layer, role) for layer, of_layer in enumerate(self.roles) for role in of_layer)
        return [self.method.frames_per_head(layer, str(role), self) for layer, role in heads]

    @property
    def frame_slots(self) -> int:
        return math.ceil(sum(self.slots_of_heads))

    def peak_bytes(self, dtype: torch.dtype, switches: bool) -> int:
        recached = self.method.recached_frames * self.layers * self.heads if switches else 0
        return self.bytes_of(max(self.frame_slots, recached), dtype)


@dataclass(frozen=True)
class BaseMethod(Method):
    """The settings of a method with a `MethodCache`, defined with `of=` this class; subclasses add
    and check fields.
    """

    shape_class: ClassVar[type[Shape]] = MethodShape
    # the kind of `timeline.switch.Switch` that every new prompt causes
    switch: ClassVar[str] = "reset"
    # whether a prompt switch may be combined with a scene cut (`re_anchor`)
    cuts: ClassVar[bool] = False
    recalls: ClassVar[bool] = False  # whether it may bring an earlier scene back (`recall`)

    def frames_per_head(self, layer: int, role: str, shape: MethodShape) -> float:
        """Frame-slots of one head, the current block included."""
        raise NotImplementedError

    def requirements(self, shape: MethodShape) -> Requirements:
        """Requirements of a cache of this shape."""
        return {}

    def own_switch(self, switch: Switch) -> Switch | None:
        if switch.recall is not None and not self.recalls:
            refuse_recall(switch)
        if switch.kind not in ("reset", self.switch) or (switch.re_anchor and not self.cuts):
            cut = ", with or without re-anchor" if self.cuts else ""
            raise HeadForcingError(
                f"this method's prompt switch is always {self.switch}{cut}; remove the tag, got "
                f"[{switch}]"
            )
        own = replace(switch, kind=self.switch)
        return own if own.changes_cache else None


class MethodCache(Cache):
    """A cache that is written call by call. Subclasses store keys and values per layer and compute
    attention.

    A *call* is a sequence of passes over the latent frames `start` to `end`: every denoising step
    of one block and its clean pass, or the single clean pass in which a prompt switch writes the
    last frames again (KV recache).
    """

    method: BaseMethod  # subclasses declare their own
    rotates_spatially: bool = True  # the keys and queries that `take` and `context` get
    # of methods that resume from their state, which `saved` is between two blocks: the dataclasses
    # in it
    state_classes: tuple[type, ...] = ()

    def __init_subclass__(cls, of: type[BaseMethod] | None = None):
        """`of`: the settings of the method whose cache it is."""
        if of is not None:
            of.cache_class = cls

    def __init__(
        self,
        shape: MethodShape,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        attention: AttentionFunction = sdpa,
    ):
        self.shape = shape
        self.dtype = dtype
        self.device = torch.device(device)
        self.attention = attention
        self.rope = RotaryEmbedding(
            shape.head_dim, shape.rows, shape.columns, device, shape.rope_axes
        )
        self.block = 0  # blocks committed so far
        self.start = self.end = 0  # first frame of the current call, and the frame after its last
        self.clean = False  # whether the current pass is a clean one
        self.recaching = False  # whether the current call writes frames again after a prompt switch
        self.method = shape.method
        self.begin_video()

    # --- to be defined by a method

    def begin_video(self) -> None:
        """Allocate the state of each layer."""
        raise NotImplementedError

    def open(self) -> None:
        """Called at the beginning of a call; `start`, `end` and `recaching` are set."""

    def take(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store keys and values `[heads, frames, s, head_dim]`; a later pass of the same call
        replaces them.
        """
        raise NotImplementedError

    def context(self, layer: int, q: Tensor) -> Tensor:
        """Attention of `q [heads, frames, s, head_dim]`, as `[heads, queries, head_dim]`."""
        raise NotImplementedError

    def finish(self) -> None:
        """Called at the end of a call, after its clean pass."""

    def switch_prompt(self, switch: Switch) -> None:
        """Apply a new prompt, before the last `recached_frames` are written again."""

    # --- cache.base.Cache

    @property
    def first_frame(self) -> int:
        return self.start

    def begin_block(self) -> None:
        self._open(
            self.frames_seen, self.frames_seen + self.shape.frames_per_block, recaching=False
        )

    def write_and_rotate(
        self, layer: int, k: Tensor, v: Tensor, q: Tensor | None = None, norms: Norms | None = None
    ) -> Tensor | None:
        self.take(layer, self._by_head(k), by_head(v, self.shape.frame_tokens))
        return None if q is None else self._by_head(q)

    def attend(self, layer: int, queries: Tensor) -> Tensor:
        return self.context(layer, queries).transpose(0, 1)

    def _by_head(self, x: Tensor) -> Tensor:
        x = by_head(x, self.shape.frame_tokens)
        return self.rope.rotate_spatial(x) if self.rotates_spatially else x

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        self.finish()
        self.block += 1
        return None

    def switch_blocks(self, switch: Switch) -> int:
        return -(-self.method.recached_frames // self.shape.frames_per_block)

    def apply_switch(
        self, switch: Switch, write_clean: WriteClean, latest: Sequence[Tensor]
    ) -> None:
        self.switch_prompt(switch)
        self.recache(self.method.recached_frames, write_clean, latest)

    @property
    def saved(self) -> Saved:
        """The state between two blocks, of methods that resume from it."""
        return {}

    @saved.setter
    def saved(self, saved: Saved) -> None:
        check_fields(saved, self.saved)

    def state(self) -> State:
        return pack({"block": self.block, "cache": self.saved})

    def restore(self, state: State) -> None:
        with explained("the saved state does not fit this render", MISFIT):
            stored = unpack(state, self.device, *self.state_classes)
            check_fields(stored, ("block", "cache"))
            self.saved = stored["cache"]
            self.block = stored["block"]

    @property
    def bytes(self) -> int:
        """Peak size of all keys and values."""
        return self.shape.bytes(self.dtype)

    @property
    def occupied(self) -> int:
        """Frame-slots in use by all heads together, estimated from the number of frames so far."""
        return math.ceil(sum(min(frames, self.frames_seen) for frames in self.shape.slots_of_heads))

    # --- helpers for methods

    def first_pass(self, layer: int) -> bool:
        """Whether this is the first pass of the current call in a layer; asked once in each."""
        first = layer not in self._entered
        self._entered.add(layer)
        return first

    @property
    def frames_seen(self) -> int:
        """Number of latent frames of all committed blocks."""
        return self.block * self.shape.frames_per_block

    @property
    def frames(self) -> int:
        """Number of latent frames of the current call."""
        return self.end - self.start

    def at_own_index(self, x: Tensor) -> Tensor:
        """Queries or keys of the current call, rotated to their frames' indices in the video."""
        return self.rope.rotate_temporal(x, range(self.start, self.end))

    def attention_over(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Full attention of `q` to `k, v`, each `[heads, frames, s, head_dim]`; `[heads, queries,
        head_dim]`.
        """
        return self.attention(q.flatten(1, 2), k.flatten(1, 2), v.flatten(1, 2))

    def empty_attention(self, q: Tensor) -> Tensor:
        """Room for the attention of `q`, `[heads, queries, head_dim]`, which kinds of heads fill in
        turn.
        """
        return q.new_empty(len(q), self.frames * self.rope.frame_tokens, q.shape[-1])

    def zeros(self, frames: int) -> list[Tensor]:
        """Per layer zero keys and values `[2, heads, frames, s, head_dim]`."""
        size = (2, self.shape.heads, frames, self.shape.frame_tokens, self.shape.head_dim)
        return [torch.zeros(size, dtype=self.dtype, device=self.device) for _ in self.shape.roles]

    def recache(self, count: int, write_clean: WriteClean, latest: Sequence[Tensor]) -> None:
        """Write the last `count` frames of `latest` again in one clean pass, in which all of them
        attend to each other.
        """
        if count:
            frames = torch.cat([latents.to(self.device) for latents in latest])[-count:]
            self._open(self.frames_seen - len(frames), self.frames_seen, recaching=True)
            write_clean(frames)
            self.finish()

    def _open(self, start: int, end: int, recaching: bool) -> None:
        self.start = start
        self.end = end
        self.recaching = recaching
        self._entered: set[int] = set()  # layers
        self.open()


def last_frames(kv: Tensor, count: int) -> Tensor:
    """A copy of the last frames of `kv [2, heads, frames, s, head_dim]`, so that the others can be
    freed.
    """
    return kv[:, :, max(0, kv.shape[2] - count) :].clone()


def played(places: Iterable[int], period: int) -> list[int]:
    """Index of the frame at each place: `period` frames are played forwards and backwards in turn,
    both ends twice.
    """
    turns = (divmod(place, period) for place in places)
    return [period - 1 - rest if turn % 2 else rest for turn, rest in turns]


def check_beginning(video: VideoFacts) -> None:
    """Raise HeadForcingError for a video whose first blocks a loop of its own cannot make as the
    others.
    """
    if video.start_frames:
        raise HeadForcingError(
            f"this method does not support start frames, got {video.start_frames}; remove them or "
            "choose another method"
        )
    if video.schedule.first_block_sigmas is not None:
        raise HeadForcingError(
            "this method needs the same noise levels for every block; choose a model family "
            "without separate ones for the first block"
        )


@dataclass
class WrappedModel:
    """A model for `rollout.loop.rollout` that does what another one does; subclasses change a part
    of it.
    """

    model: VideoModel

    @property
    def backbone(self) -> Backbone:
        return self.model.backbone

    @property
    def prompt(self) -> PromptKV:
        return self.model.prompt

    def use_prompt(self, embedding: Tensor) -> None:
        self.model.use_prompt(embedding)

    def use_conditions(self, conditions: VideoConditions) -> None:
        self.model.use_conditions(conditions)

    def denoise(self, latents: Tensor, sigma: float | Tensor, cache: KeyValueCache) -> Tensor:
        return self.model.denoise(latents, sigma, cache)

    def write_clean(self, latents: Tensor, cache: KeyValueCache) -> None:
        self.model.write_clean(latents, cache)

"""The interface of every KV cache: what the transformer, the block loop and a render ask of it,
with its defaults.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..model.wan import PromptKV
from ..rollout.loop import MemoryEvent
from ..timeline.switch import Switch
from .scenes import Recall
from .state import State

WriteClean = Callable[[Tensor], None]  # one clean pass over latents [frames, channels, h, w]


class Cache(ABC):
    """Keys and values of all heads of a model for one video.

    Per block: `begin_block()`, passes that `write` and `attend` layer by layer, each in place of
    the one before, then, after the clean pass, `commit(prompt)`. Tensors `k, v, q` are `[tokens,
    heads, head_dim]`, before rotary embedding. A method with a loop of its own may have other
    members for `begin_block`, `commit` and prompt switches.

    Attributes:
        block: number of blocks that were committed.
        reads_queries: whether the clean pass must compute the last layer's queries, too.
        clean: set before a clean pass, over finished latents; caches that ask clear it when a block
            begins.
        fused: whether `write_projections` and `attend_rotated` may be called in place of `write`
            and `attend`.
    """

    device: torch.device
    block: int
    reads_queries: bool = False
    clean: bool = False
    fused: bool = False

    # --- in a pass

    @abstractmethod
    def write(self, layer: int, k: Tensor, v: Tensor) -> None:
        """Store the current block's keys and values, replacing those of the previous pass."""

    @abstractmethod
    def attend(self, layer: int, q: Tensor) -> Tensor:
        """Attention of the current block's queries to each head's cached context and to the block
        itself.
        """

    def write_projections(
        self,
        layer: int,
        q: Tensor | None,
        k: Tensor,
        v: Tensor,
        weights: tuple[Tensor, Tensor] | None,
        eps: float,
    ) -> Tensor | None:
        """RMS norm (`weights` of queries and keys; None: normalised already), rotary embedding and
        `write` of projections `[tokens, heads * head_dim]` in one kernel; returns the rotated
        queries for `attend_rotated`."""
        raise NotImplementedError

    def attend_rotated(self, layer: int, queries: Tensor) -> Tensor:
        """`attend` for the rotated queries that `write_projections` returned."""
        raise NotImplementedError

    # --- between passes

    def begin_block(self) -> None:
        """Begin the next block."""
        raise NotImplementedError

    def commit(self, prompt: PromptKV) -> MemoryEvent | None:
        """Take the keys and values of the clean pass into the history; returns the decision of
        episodic memory.
        """
        raise NotImplementedError

    def switch_blocks(self, switch: Switch) -> int:
        """Number of last blocks that `apply_switch` writes again."""
        return 0

    def apply_switch(
        self, switch: Switch, write_clean: WriteClean, latest: Sequence[Tensor]
    ) -> None:
        """Change the cached history between two blocks; the model's new prompt is already active.

        `latest` holds the clean latents of the last blocks, oldest first; `write_clean(latents)` is
        one clean pass.
        """
        raise NotImplementedError

    def hold_pictures(self, pictures: Sequence[Tensor], write_clean: WriteClean) -> None:
        """Write the pictures of the prompt that begins, `[frames, channels, h, w]` each, before its
        `apply_switch` or the first block."""
        raise NotImplementedError

    # --- stored between two blocks

    def state(self) -> State | None:
        """The state between two blocks, to store it; None for none."""
        return None

    def restore(self, state: State) -> None:
        """Set a new cache of the same shape to a stored state; raises HeadForcingError if the state
        does not fit.
        """
        raise HeadForcingError("this cache does not store its state")

    # --- in reports

    @property
    def bytes(self) -> int:
        """Size of all keys and values, or an upper bound of it."""
        raise NotImplementedError

    @property
    def occupied(self) -> int:
        """Frame-slots in use by all heads together, or an upper bound of it."""
        raise NotImplementedError

    @property
    def recalls(self) -> Sequence[Recall]:
        """The scenes that were brought back so far."""
        return ()

    @property
    def scene_starts(self) -> list[int] | None:
        """Per prompt so far, the first latent frame of its visit to a scene; None where no scenes
        are kept.
        """
        return None

"""The interface of every KV cache: what the transformer, the block loop and a render ask of it,
with its defaults.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import HeadForcingError
from ..rollout.loop import BlockCache
from ..rollout.loop import WriteClean as WriteClean  # part of what this module gives
from .scenes import Recall
from .state import State


class Cache(BlockCache):
    """Keys and values of all heads of a model for one video.

    A method with a loop of its own may have other members for `begin_block`, `commit` and prompt
    switches.
    """

    # --- stored between two blocks

    def state(self) -> State | None:
        """The state between two blocks, to store it; None for none. Not asked where the method does
        not resume from states."""
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

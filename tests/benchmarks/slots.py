"""Which frame lies in which slot of a head's cache, for the paper's implementations. No tensors here."""

from __future__ import annotations

from collections.abc import Sequence

from headforcing.headforcing_core.cache.head_cache import CacheShape
from headforcing.headforcing_core.cache.policy import RolePolicy

Orders = dict[RolePolicy, list[int]]  # the slots that stay in the heads of a policy, in this order


class Slots:
    """Heads of one policy hold the same frames: `[episodic | sink | recent | current block]`, without gaps.

    Changes are two-sided: a method says in which order the slots are to lie, and `arrange` notes that they do.

    Attributes:
        sources: per policy and used slot, the frames it was made of.
        entries: how many of the memory heads' first slots are episodic.
    """

    def __init__(self, shape: CacheShape):
        self.shape = shape
        self.capacity = {p: p.capacity(shape.frames_per_block, shape.total_frames) for p in shape.groups}
        self.sources: dict[RolePolicy, list[list[int]]] = {policy: [] for policy in self.capacity}
        self.memory_policy = next((policy for policy in self.sources if policy.episodic_frames), None)
        self.entries = 0

    def frames(self, policy: RolePolicy) -> int:
        """Slots in use, the current block included."""
        return len(self.sources[policy])

    def open_block(self, block: int) -> None:
        """Take the block's frames in, behind all others."""
        count = self.shape.frames_per_block
        for sources in self.sources.values():
            sources += [[frame] for frame in range(block * count, (block + 1) * count)]

    def history(self, blocks: int) -> Orders:
        """What the roles keep after so many blocks. What episodic memory holds is not kept a second time."""
        orders = {}
        for policy, sources in self.sources.items():
            entries = self.entries if policy is self.memory_policy else 0
            slot_of = {frames[0]: slot for slot, frames in enumerate(sources) if slot >= entries}
            remembered = {frame for frames in sources[:entries] for frame in frames}
            frames = policy.history(blocks * self.shape.frames_per_block)
            orders[policy] = [*range(entries), *(slot_of[frame] for frame in frames if frame not in remembered)]
        return orders

    def slot_of(self, frame: int) -> int:
        """Where memory heads hold a frame that is not in episodic memory."""
        return self._memory.index([frame], self.entries)

    def merge(self, i: int, j: int) -> None:
        """Entry `i` has become the summary of both."""
        self._memory[i] = self._memory[i] + self._memory[j]

    def with_entries(self, order: Sequence[int]) -> Orders:
        """Only these entries, in this order, then everything else."""
        assert self.memory_policy is not None
        rest = range(self.entries, self.frames(self.memory_policy))
        self.entries = len(order)
        return {self.memory_policy: [*order, *rest]}

    def with_entry(self, frame: int) -> Orders:
        """The frame as the last entry, and everything else."""
        assert self.memory_policy is not None
        slot = self.slot_of(frame)
        rest = [other for other in range(self.entries, self.frames(self.memory_policy)) if other != slot]
        self.entries += 1
        return {self.memory_policy: [*range(self.entries - 1), slot, *rest]}

    def arrange(self, orders: Orders) -> None:
        """The slots lie in this order now."""
        for policy, order in orders.items():
            self.sources[policy] = [self.sources[policy][slot] for slot in order]

    @property
    def _memory(self) -> list[list[int]]:
        assert self.memory_policy is not None
        return self.sources[self.memory_policy]

"""The specification of what a prompt switch may do to head-wise caches; none of it is the paper's."""

from headforcing.headforcing_core.cache.head_cache import FLUSHED_TO_FRAMES, HeadCache
from headforcing.headforcing_core.cache.reference import ReferenceCache


class SwitchingReferenceCache(ReferenceCache):
    """Drop-in for `HeadCache`.

    Attributes:
        origin: the frame that counts as the first; sinks begin there.
        oldest: recent frames reach back to this one at most.
    """

    switch_blocks, apply_switch = HeadCache.switch_blocks, HeadCache.apply_switch  # in the order of a `HeadCache`

    def candidate(self) -> int | None:
        frame = super().candidate()
        return None if frame is None or frame < self.oldest else frame

    def flush(self) -> None:
        self.memory.forget(self)
        self.oldest = max(self.oldest, len(self.past[0]) - FLUSHED_TO_FRAMES)

    def re_anchor(self) -> None:
        self.origin, self.sinks = len(self.past[0]), {}

    def rewind(self, blocks: int) -> None:
        self.block -= blocks
        first = self.block * self.shape.frames_per_block
        self.past = [past[:first] for past in self.past]
        self.oldest = max(self.oldest, first)
        self.sinks = {policy: {n: kept for n, kept in back.items() if n < first} for policy, back in self.sinks.items()}
        # frames that are written again are recent ones again, but for entries
        self.recalled = {frame for frame in self.recalled if frame < first or self.memory.holds(frame)}

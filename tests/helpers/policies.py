"""Cache policies with other numbers for episodic memory."""

from dataclasses import replace

from headforcing.headforcing_core.methods.head_forcing import CachePolicy


def with_memory(
    policy: CachePolicy, entries: int, recent: int, novelty: float, interval: int
) -> CachePolicy:
    """The policy with these numbers, if it has episodic memory; one for all heads keeps its numbers
    of frames.
    """
    if not policy.memory.episodic_frames:
        return policy
    memory = policy.memory
    if policy.heads_by:
        memory = replace(memory, recent_frames=recent, episodic_frames=entries)
    episodic = replace(policy.episodic, novelty_threshold=novelty, update_interval=interval)
    return replace(policy, memory=memory, episodic=episodic)

"""Cache policies with other numbers for episodic memory."""

from dataclasses import replace

from headforcing.headforcing_core.methods.head_forcing import HeadForcing


def with_memory(
    method: HeadForcing, entries: int, recent: int, novelty: float, interval: int
) -> HeadForcing:
    """The method with these numbers, if it has episodic memory; one for all heads keeps its numbers
    of frames.
    """
    if not method.memory.episodic_frames:
        return method
    memory = method.memory
    if method.heads_by:
        memory = replace(memory, recent_frames=recent, episodic_frames=entries)
    episodic = replace(method.episodic, novelty_threshold=novelty, update_interval=interval)
    return replace(method, memory=memory, episodic=episodic)

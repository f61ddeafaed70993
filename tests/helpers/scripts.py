"""Scripts of numbered prompts, for tests whose prompts have no text."""

from collections.abc import Mapping, Sequence

from headforcing.headforcing_core.rollout.rows import Script, lay_out_rows
from headforcing.headforcing_core.rollout.schedule import Schedule
from headforcing.headforcing_core.timeline.switch import Switch
from torch import Tensor


def script_of(
    prompts: Sequence[int],
    schedule: Schedule,
    embeds: Sequence[Tensor],
    *,
    seed: int = 0,
    switches: Mapping[int, Switch] | None = None,
    start_blocks: int = 0,
) -> Script:
    """A script from the number of every block's prompt in `embeds`; as `rows.lay_out_rows`."""
    rows = lay_out_rows(list(map(str, prompts)), schedule, seed, switches or {}, start_blocks)
    return Script(rows, {str(number): embedding for number, embedding in enumerate(embeds)})

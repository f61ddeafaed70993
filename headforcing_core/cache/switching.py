"""What a prompt switch does to a cache with one policy per role (METHOD.md, "Where one prompt follows another")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from ..timeline.switch import Switch


class RoleSwitching:
    """Mixin: applies prompt switches to a cache that can `flush`, `re_anchor`, `rewind`, `end_scene` and `recall`."""

    shape: Any
    begin_block: Callable[[], None]
    close: Callable[[], None]
    end_scene: Callable[[], None]
    recall: Callable[[int], None]
    flush: Callable[[], None]
    re_anchor: Callable[[], None]
    rewind: Callable[[int], None]

    def switch_blocks(self, switch: Switch) -> int:
        """How many of the last blocks `apply_switch` writes again."""
        return self.shape.recache_blocks if switch.kind == "recache" else 0

    def apply_switch(self, switch: Switch, write_clean: Callable[[Tensor], None], latest: Sequence[Tensor]) -> None:
        """Drop history as the switch says, bring back the scene that it recalls, which has a number; a recache writes
        `latest` again block by block, under the new prompt."""
        self.end_scene()
        if switch.re_anchor:
            self.re_anchor()
        if switch.kind == "flush":
            self.flush()
        if switch.recall is not None:
            self.recall(switch.recall)
        if switch.kind == "recache":
            self.rewind(len(latest))
            for latents in latest:
                self.begin_block()
                write_clean(latents)
                self.close()

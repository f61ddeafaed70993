"""Guards against sink collapse: settings that other papers add to any cache with kept frames. All are off at first."""

from __future__ import annotations

from dataclasses import dataclass

from ..errors import HeadForcingError

COMPRESSIONS = ("prompt", "trigonometric")  # criteria for the tokens of a merge, see `roles.EpisodicPolicy`


@dataclass(frozen=True)
class Guards:
    """Guards of a cache (METHOD.md, "Guards").

    Attributes:
        sink_gate: share of heads above which a kept frame is left out of a pass (DySink; its authors use 0.8); 0: off.
        rope_jitter: strength of the change of every head's rotary base (LoL; its authors use 0.8); 0: off.
    """

    sink_gate: float = 0.0
    rope_jitter: float = 0.0

    def __post_init__(self) -> None:
        for name in ("sink_gate", "rope_jitter"):
            if not 0 <= getattr(self, name) < 1:
                raise HeadForcingError(f"{name} must be 0 (off) or below 1, got {getattr(self, name)}")

    def __bool__(self) -> bool:
        return bool(self.sink_gate or self.rope_jitter)


OFF = Guards()

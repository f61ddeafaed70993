"""Few-step flow-matching schedules: the noise levels of a block, per model family."""

from __future__ import annotations

import math
import re
import struct
from dataclasses import asdict, dataclass, replace
from typing import Any

from ..errors import HeadForcingError, unknown_name
from ..model.latents import WAN21, WAN22, LatentFormat
from ..timeline.clock import BlockClock

MAX_STEPS = 100
UNIPC_STEPS = 12
TRAINED_FRAMES = 21  # latent frames of a training clip of Self Forcing and its relatives of Wan 2.1


@dataclass(frozen=True)
class Schedule:
    """Noise levels of one block, highest first; a clean pass at 0 follows.

    Attributes:
        sigmas: noise levels in (0, 1], strictly decreasing. The model's timestep is `1000 * sigma`.
        frames_per_block: latent frames that are denoised together.
        first_block_sigmas: other noise levels for the first block; None uses `sigmas`.
        solver: the name of what leads from one noise level to the next, see `solvers.SOLVERS`.
        shot_prefix: stands before the prompt in the first block after a scene cut, and makes every
            prompt without a tag a scene cut; empty for models that were not trained with one.
        latents: of the models that the schedule is for.
        is_driven: whether these are driven by more than noise and prompts, see
            `WanConfig.is_driven`.
        size: width and height in pixels that they were trained at; None: as `latents` says.
    """

    sigmas: tuple[float, ...]
    frames_per_block: int = 3
    first_block_sigmas: tuple[float, ...] | None = None
    solver: str = "renoise"
    shot_prefix: str = ""
    latents: LatentFormat = WAN21
    is_driven: bool = False
    size: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        for sigmas in (self.sigmas, self.first_block_sigmas or self.sigmas):
            if not sigmas or len(sigmas) > MAX_STEPS:
                raise HeadForcingError(
                    f"a schedule needs 1 to {MAX_STEPS} sigmas, got {len(sigmas)}"
                )
            falling = all(a > b for a, b in zip(sigmas, sigmas[1:], strict=False))
            if not falling or not all(math.isfinite(s) and 0 < s <= 1 for s in sigmas):
                raise HeadForcingError(
                    f"sigmas must be decreasing, at most 1 and above 0, got {list(sigmas)}"
                )
        outside = self.sigmas[0] >= 1 or self.sigmas[-1] < 0.001 or len(self.sigmas) > UNIPC_STEPS
        if self.solver == "unipc" and outside:
            raise HeadForcingError(
                f"UniPC takes 1 to {UNIPC_STEPS} sigmas below 1 and from 0.001, got "
                f"{list(self.sigmas)}; leave them out, or give their number ('2 steps')"
            )
        if not 1 <= self.frames_per_block <= 64:
            raise HeadForcingError(
                f"frames_per_block must be between 1 and 64, got {self.frames_per_block}"
            )

    @property
    def key(self) -> dict[str, Any]:
        """The identity of the schedule, for the keys of stored blocks."""
        own = asdict(self)
        for of_the_model in ("latents", "is_driven", "size"):
            del own[of_the_model]
        return own

    @property
    def holds_image(self) -> bool:
        """Whether an image can be the first latent frame, held while the block's others are
        denoised.
        """
        return self.solver != "renoise" and self.frames_per_block > 1

    def fits_models_of(self, other: Schedule) -> bool:
        """Whether both are for models with the same latents and inputs."""
        return self.latents is other.latents and self.is_driven == other.is_driven

    @property
    def clock(self) -> BlockClock:
        """The blocks of a video that begins with noise, at the frame rate of the models."""
        return BlockClock(self.frames_per_block, self.latents.fps)

    def for_block(self, block: int) -> tuple[float, ...]:
        """The noise levels of a block, by its number."""
        return self.first_block_sigmas if block == 0 and self.first_block_sigmas else self.sigmas

    @classmethod
    def warped(cls, steps: list[int], shift: float = 5.0, frames_per_block: int = 3) -> Schedule:
        """Timesteps out of 1000, shifted by `sigma' = shift * sigma / (1 + (shift - 1) * sigma)`,
        rounded to float32.

        [1000, 750, 500, 250] at shift 5 is 1, 0.9375, 0.8333, 0.625: Self Forcing's
        `warp_denoising_step`.
        """
        return cls(tuple(_shift(step, shift) for step in steps), frames_per_block)

    @classmethod
    def unipc(cls, steps: int, frames_per_block: int = 8, shift: float = 5.0) -> Schedule:
        """Levels of equal distance from 0.999 downwards, shifted, in float32: four are the
        timesteps 999, 937, 833 and 624."""
        top = _float32(0.999)
        sigmas = tuple(_shift(1000 * top * (1 - step / steps), shift) for step in range(steps))
        return cls(sigmas, frames_per_block, solver="unipc")

    @classmethod
    def parse(cls, text: str) -> Schedule:
        """Parse text such as `"1, 0.9375, 0.8333, 0.625"`; a final 0 is allowed and ignored."""
        try:
            sigmas = [float(part) for part in text.replace(",", " ").split()[: MAX_STEPS + 2]]
        except ValueError:
            raise HeadForcingError(
                f"sigmas must be numbers separated by commas, got {text[:80]!r}"
            ) from None
        return cls(tuple(sigmas[:-1] if sigmas and sigmas[-1] == 0 else sigmas))


def _shift(step: float, shift: float) -> float:
    sigma = step / 1000
    return _float32(shift * sigma / (1 + (shift - 1) * sigma))


def _float32(value: float) -> float:
    """The nearest number of float32."""
    rounded: float = struct.unpack("f", struct.pack("f", value))[0]
    return rounded


FOUR_STEPS = Schedule.warped([1000, 750, 500, 250])
FRAMEWISE = replace(FOUR_STEPS, frames_per_block=1)
# with fewer steps after the first frame
_FEWER_STEPS = replace(FRAMEWISE, first_block_sigmas=FOUR_STEPS.sigmas)
LONGLIVE2 = replace(Schedule.unipc(4), shot_prefix="The scene transitions. ", latents=WAN22)
LIVETALK = replace(FOUR_STEPS, solver="renoise_held", is_driven=True, size=(512, 512))

SCHEDULES: dict[str, Schedule] = {
    "self_forcing": FOUR_STEPS,
    "longlive": FOUR_STEPS,
    "raven": FOUR_STEPS,
    "krea_14b": FOUR_STEPS,
    "causal_forcing_chunkwise": FOUR_STEPS,
    "causal_forcing_framewise": FRAMEWISE,
    "causal_forcing_framewise_2_steps": replace(
        _FEWER_STEPS, sigmas=Schedule.warped([1000, 500]).sigmas
    ),
    "causal_forcing_framewise_1_step": replace(_FEWER_STEPS, sigmas=Schedule.warped([1000]).sigmas),
    "longlive2": LONGLIVE2,
    "livetalk": LIVETALK,
    "self_gradient_forcing": FOUR_STEPS,
    "self_gradient_forcing_framewise": FRAMEWISE,
}


# the family of the weights file, see `plan.family`; self_forcing where that says nothing
AUTO_FAMILY = "auto"


def known_family(name: str) -> str:
    """A model family by its name; raises HeadForcingError with the list of names for an unknown
    one.
    """
    if name == AUTO_FAMILY:
        return next(iter(SCHEDULES))
    if name not in SCHEDULES:
        raise unknown_name("model_family", name, SCHEDULES)
    return name


def schedule(name: str, sigmas: str = "") -> Schedule:
    """The schedule of a model family, its noise levels replaced by `sigmas` if that text is not
    empty.
    """
    row = SCHEDULES[known_family(name)]
    if not sigmas.strip():
        return row
    steps = re.fullmatch(r"\s*(\d{1,3}) steps?\s*", sigmas)
    if steps is not None:
        count = int(steps[1])
        if not 1 <= count <= UNIPC_STEPS:
            raise HeadForcingError(
                f"sigmas can be 1 to {UNIPC_STEPS} steps of equal distance, got {count}"
            )
        evenly = [1000 - 1000 * step // count for step in range(count)]
        own = Schedule.unipc(count) if row.solver == "unipc" else Schedule.warped(evenly)
        return replace(row, sigmas=own.sigmas, first_block_sigmas=None)
    return replace(row, sigmas=Schedule.parse(sigmas).sigmas, first_block_sigmas=None)

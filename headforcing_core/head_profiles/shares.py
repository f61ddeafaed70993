"""Measured attention shares: what they were measured on, merging, averages, head profile,
stability, files.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

from ..cache.roles import HeadRole, RolePolicy
from ..cache.scenes import spread_over
from ..cache.shape import CacheShape
from ..errors import HeadForcingError
from ..files import Fields, check_regular, replacing
from ..methods.head_forcing import HeadForcing
from ..model.wan import WanConfig
from ..rollout.schedule import Schedule
from .profile import HeadProfile, classify, stability

FORMAT_VERSION = 1
MADE = "made_"  # and the number of a prompt: the name of its finished blocks in a file
# 0-based, the third: stability over blocks and prompts is compared in it, as in the paper
FIXED_STEP = 2
WINDOW = 21  # latent frames in every head's context, sink and current block included
FIRST_BLOCK = 2  # the first that is measured
CONDITIONS = 4  # runs compared per condition (paper, "Core stability ratio")
# the paper's core stability ratios for Self Forcing, shown beside those of a measurement
PUBLISHED_STABILITY = {
    "blocks": {"anchor": 0.901, "memory": 0.916, "local": 0.922, "mean": 0.913},
    "steps": {"anchor": 0.949, "memory": 0.953, "local": 0.961, "mean": 0.954},
    "prompts": {"anchor": 0.908, "memory": 0.891, "local": 0.897, "mean": 0.898},
}


@dataclass(frozen=True)
class ProfileSetup:
    """Everything that a measurement depends on; measurements with equal setups can be merged."""

    fingerprint: str
    num_layers: int
    num_heads: int
    # all prompts of the whole measurement, including those that other machines measure
    prompts: tuple[str, ...]
    blocks: int  # number of blocks of every rollout; those from `first_block` on are measured
    sigmas: tuple[float, ...]
    frames_per_block: int
    width: int
    height: int
    rope: str = "absolute"
    window_frames: int = WINDOW
    sink_frames: int = 1
    first_block: int = FIRST_BLOCK
    seed: int = 0
    first_block_sigmas: tuple[float, ...] | None = None
    solver: str = "renoise"
    # a hash of the prompts' embeddings and the dtype, where a measurement may be gone on with by a
    # render that has others
    inputs: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        if not self.prompts:
            raise HeadForcingError("profiling needs at least one prompt")

    @classmethod
    def of(
        cls,
        fingerprint: str,
        config: WanConfig,
        prompts: tuple[str, ...],
        blocks: int,
        family: Schedule,
        size: tuple[int, int],
        **options: Any,
    ) -> ProfileSetup:
        """The setup for a model's config and schedule, width and height in `size`; `options` are
        other attributes.
        """
        if config.is_driven:
            raise HeadForcingError(
                "heads of a model that speech drives cannot be measured: a measurement has neither "
                "portrait nor speech"
            )
        model = (fingerprint, config.num_layers, config.num_heads)
        more = {"first_block_sigmas": family.first_block_sigmas, "solver": family.solver, **options}
        return cls(*model, prompts, blocks, family.sigmas, family.frames_per_block, *size, **more)

    @property
    def steps(self) -> int:
        """Denoising steps of all prompts."""
        return len(self.prompts) * self.blocks * len(self.sigmas)

    @property
    def schedule(self) -> Schedule:
        """The noise levels of the rollout."""
        return Schedule(self.sigmas, self.frames_per_block, self.first_block_sigmas, self.solver)

    def shape(self, config: WanConfig) -> CacheShape:
        """The cache shape of one rollout, with the same policy for all heads."""
        every_head = [[HeadRole.MEMORY] * self.num_heads] * self.num_layers
        recent = self.window_frames - self.sink_frames - self.frames_per_block
        method = HeadForcing.uniform(RolePolicy(self.sink_frames, recent), self.rope)
        _, _, height, width = self.block_shape(config)
        sizes = (height, width, self.frames_per_block, self.blocks * self.frames_per_block)
        return CacheShape.for_model(config, every_head, method, *sizes)

    def flops(self, config: WanConfig) -> list[tuple[float, float]]:
        """Floating-point operations of every block of a video, its clean pass included: in linear
        layers, and in self-attention, which a measured step runs once.
        """
        frame_tokens = self.shape(config).frame_tokens
        tokens = self.frames_per_block * frame_tokens
        weights = 6 * config.dim**2 + 2 * config.dim * config.ffn_dim
        of_blocks: list[tuple[float, float]] = []
        for block in range(self.blocks):
            keys = frame_tokens * min(self.window_frames, self.frames_per_block * (block + 1))
            passes = config.num_layers * (len(self.sigmas) + 1)
            linear = passes * 2 * tokens * weights
            of_blocks.append((linear, passes * 4 * tokens * keys * config.dim))
        return of_blocks

    def block_shape(self, config: WanConfig) -> tuple[int, int, int, int]:
        """The shape of a block's latents, `[frames, channels, h, w]`."""
        stride = config.latents.stride
        return self.frames_per_block, config.out_dim, self.height // stride, self.width // stride

    @property
    def prompts_hash(self) -> str:
        """Hash of all prompts, which identifies them in a profile."""
        return hashlib.blake2b("\n".join(self.prompts).encode(), digest_size=8).hexdigest()


@dataclass(frozen=True)
class ReturnStory:
    """One return story of a measurement: the number of a prompt of it for every block, the latent
    frames of the visit that the prompt returns to, and the measured blocks, those after the
    return."""

    prompts: tuple[int, ...]
    visited: range
    measured: range

    @classmethod
    def of(cls, setup: ProfileSetup, number: int) -> ReturnStory:
        """The story of that number, as long as the window; raises HeadForcingError where none
        fits.
        """
        blocks = setup.window_frames // setup.frames_per_block
        count = len(setup.prompts)
        visit = (blocks - 1) // 3
        if not visit or count < 3:
            raise HeadForcingError(
                "a return story has three prompts in at least four blocks of a window of "
                f"{setup.window_frames} latent frames, got {count} prompts and blocks of "
                f"{setup.frames_per_block}; give more prompts, or leave out --returns"
            )
        opening = blocks - 3 * visit
        before = number % count
        scene = (number + 1) % count
        between = (number + 2) % count
        prompts = (before,) * opening + (scene,) * visit + (between,) * visit + (scene,) * visit
        visited = range(
            opening * setup.frames_per_block, (opening + visit) * setup.frames_per_block
        )
        return cls(prompts, visited, range(blocks - visit, blocks))

    def even_share(self, frames_per_block: int) -> float:
        """The share of attention that the visit would get if all frames in the context got the
        same, mean over the measured blocks."""
        shares = [len(self.visited) / ((block + 1) * frames_per_block) for block in self.measured]
        return sum(shares) / len(shares)


def measured_blocks(schedule: Schedule, seconds: float | None = None) -> int:
    """Number of blocks of a measured video: of so many seconds, by default of a window. In a window
    no head sees a frame farther away than in a render, where keys have contiguous positions.
    """
    if seconds is not None:
        return schedule.clock.blocks_for(seconds)
    return max(math.ceil(WINDOW / schedule.frames_per_block), FIRST_BLOCK + 1)


class HeadShares:
    """Sums of attention shares per (prompt, block, denoising step, layer, head), float64, which are
    merged by addition.

    `returns` are the mean shares of every return story, zero where it is not measured; `made` the
    finished blocks `[frames, channels, h, w]` of prompts whose measurement was stopped.
    """

    def __init__(self, setup: ProfileSetup):
        self.setup = setup
        cells = (len(setup.prompts), setup.blocks - setup.first_block, len(setup.sigmas))
        self.sums = torch.zeros(*cells, setup.num_layers, setup.num_heads, 3, dtype=torch.float64)
        self.counts = torch.zeros(*cells, dtype=torch.float64)
        self.returns = torch.zeros(
            len(setup.prompts), setup.num_layers, setup.num_heads, dtype=torch.float64
        )
        self.made: dict[int, list[Tensor]] = {}

    @property
    def tensors(self) -> dict[str, Tensor]:
        """The tensors of every file, by name."""
        return {"sums": self.sums, "counts": self.counts, "returns": self.returns}

    def add(self, prompt: int, block: int, step: int, shares: Tensor) -> None:
        """Add the shares `[layers, heads, 3]` (sink, middle, current) of one denoising step;
        numbers count from 0.
        """
        cell = (prompt, block - self.setup.first_block, step)
        self.sums[cell] += shares
        self.counts[cell] += 1

    def merge(self, other: HeadShares) -> None:
        """Add another measurement; raises HeadForcingError if its setup differs."""
        if other.setup != self.setup:
            mine = asdict(self.setup)
            theirs = asdict(other.setup)
            different = ", ".join(key for key in mine if mine[key] != theirs[key])
            raise HeadForcingError(
                f"these measurements cannot be merged, they differ in {different}"
            )
        self.sums += other.sums
        self.counts += other.counts
        self.returns += other.returns * ~self._has_returns[:, None, None]

    @property
    def _has_returns(self) -> Tensor:
        """True for every return story that is measured, `[prompts]`."""
        return self.returns.flatten(1).any(dim=1)

    def missing_prompts(self) -> list[int]:
        """Indices of prompts that are not measured completely."""
        return [p for p in range(len(self.setup.prompts)) if not self.counts[p].all()]

    def forget(self, prompt: int, first: int = 0) -> None:
        """Reset the sums of one prompt from block `first` on, before they are measured again."""
        measured = max(0, first - self.setup.first_block)
        self.sums[prompt, measured:] = 0
        self.counts[prompt, measured:] = 0

    def mean(
        self,
        prompts: Sequence[int] | None = None,
        blocks: Sequence[int] | None = None,
        steps: Sequence[int] | None = None,
    ) -> Tensor:
        """Shares `[layers, heads, 3]` averaged over steps, then blocks, then prompts (all of them
        for None), where they are measured. `blocks` are counted from the first measured one."""
        sums = self.sums
        counts = self.counts
        for dim, chosen in enumerate((prompts, blocks, steps)):
            if chosen is not None:
                numbers = torch.tensor(chosen, dtype=torch.long)
                sums = sums.index_select(dim, numbers)
                counts = counts.index_select(dim, numbers)
        if not counts.any():
            raise HeadForcingError("nothing has been measured yet")
        values = sums / counts[..., None, None, None]  # NaN where nothing was measured
        return values.nanmean(dim=2).nanmean(dim=1).nanmean(dim=0)

    def profile(self, name: str, provenance: Fields | None = None) -> HeadProfile:
        """The head profile of all measurements so far; roles as of `profile.classify`."""
        setup = self.setup
        returns = self.returns[self._has_returns]
        shares = self.mean().tolist()
        measured = {
            "fingerprint": setup.fingerprint,
            "window_frames": setup.window_frames,
            "sink_frames": setup.sink_frames,
            "rope": setup.rope,
            "blocks": setup.blocks,
            "first_block": setup.first_block,
            "seed": setup.seed,
            "prompts": int(self.counts.flatten(1).any(dim=1).sum()),
            "prompts_hash": setup.prompts_hash,
            "steps": len(setup.sigmas),
            "size": f"{setup.width}x{setup.height}",
        }
        if len(returns):
            even = ReturnStory.of(setup, 0).even_share(setup.frames_per_block)
            measured |= {"return_stories": len(returns), "return_even_share": round(even, 6)}
        return HeadProfile(
            name,
            setup.num_layers,
            setup.num_heads,
            roles=classify(shares),
            shares=shares,
            measured=measured,
            provenance=provenance or {},
            returns=returns.mean(dim=0).tolist() if len(returns) else None,
        )

    def stability(self) -> dict[str, dict[str, float]]:
        """Core stability ratios over blocks, denoising steps and prompts, where at least two were
        measured.

        As in the paper, up to four evenly spaced values of one condition are compared while the
        other two are fixed.
        """
        prompts = [p for p in range(len(self.setup.prompts)) if self.counts[p].all()]
        if not prompts:
            return {}
        blocks, steps = self.counts.shape[1:]
        fixed = {
            "prompts": prompts[:1],
            "blocks": [blocks // 2],
            "steps": [min(FIXED_STEP, steps - 1)],
        }
        ranges = {"blocks": list(range(blocks)), "steps": list(range(steps)), "prompts": prompts}
        result = {}
        for condition, values in ranges.items():
            if len(values) > 1:
                runs = []
                for value in spread_over(values, CONDITIONS):
                    runs.append(classify(self.mean(**{**fixed, condition: [value]}).tolist()))
                result[condition] = stability(runs)
        return result

    def describe(self, profile: HeadProfile) -> list[str]:
        """Role counts, stability beside the paper's and what is missing as lines of text; `profile`
        is that of these shares.
        """
        lines = [profile.counted]
        for condition, ratios in self.stability().items():
            published = PUBLISHED_STABILITY[condition]
            values = [f"{name} {ratios[name]:.2f} ({published[name]:.2f})" for name in ratios]
            lines.append(f"stable over {condition} (paper, its model): {', '.join(values)}")
        missing = self.missing_prompts()
        if missing:
            lines.append(
                f"{len(missing)} of {len(self.setup.prompts)} prompts are not measured yet"
            )
        return lines

    def save(self, path: Path) -> None:
        """Write sums, counts, blocks of stopped prompts and setup as a safetensors file."""
        tags = {"head_shares": json.dumps({"format_version": FORMAT_VERSION, **asdict(self.setup)})}
        made = {
            f"{MADE}{prompt}": torch.stack(self.made[prompt])
            for prompt in self.missing_prompts()
            if self.made.get(prompt)
        }
        with replacing(path) as temporary:
            temporary.write_bytes(save({**self.tensors, **made}, tags))

    @classmethod
    def load(cls, path: Path) -> HeadShares:
        """Read a file written by `save`; raises HeadForcingError for any other or damaged file."""
        check_regular(path)
        try:
            with safe_open(path, "pt") as file:
                setup: Fields = json.loads(file.metadata()["head_shares"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}
            version = setup.pop("format_version")
            if version != FORMAT_VERSION:
                raise ValueError(
                    f"it has format version {version}, this program reads {FORMAT_VERSION}"
                )
            setup |= {key: tuple(value) for key, value in setup.items() if isinstance(value, list)}
            shares = cls(ProfileSetup(**setup))
            for name, own in shares.tensors.items():
                if tensors[name].shape != own.shape:
                    raise ValueError(f"its {name} do not fit its setup")
                own.copy_(tensors[name])
            for name, blocks in tensors.items():
                if name.startswith(MADE):
                    shares.made[int(name.removeprefix(MADE))] = list(blocks)
        except Exception as error:  # of JSON, of safetensors, or of a setup that is none
            raise HeadForcingError(
                f"{path} is not a file of measured head shares: {error}"
            ) from error
        return shares

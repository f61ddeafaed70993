"""Estimate memory and disk use of a render; suggest settings that fit."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ..cache.policy import preset
from ..cache.shape import CacheShape
from ..errors import HeadForcingError
from ..head_profiles.profile import default_profile
from .describe import format_bytes
from .plan import RenderPlan

VIDEO_BITS_PER_PIXEL = 0.5  # H.264 at crf 18 rarely takes more
_REMEDIES = 3
_DISK_REMEDIES = {
    "video": "decode later or to another disk",
    "finished blocks": "keep none of them: turn resume off, or leave out --runs",
}


@dataclass(frozen=True)
class Needs:
    """Estimated memory and disk use, all in bytes.

    Memory is that of the device which samples; temporary memory of attention kernels is not counted.

    Attributes:
        weights: of the model; may exceed the device's memory if the host streams them.
        cache: KV cache.
        activations: of a pass over one block.
        prompt: cross-attention keys and values of the active prompt.
        decode: of decoding a chunk, weights of the VAE included; 0 if the device that samples does not decode.
        run_folder: finished blocks on disk.
        state: stored state of the cache on disk; 0 if it is not stored.
        video: upper estimate of the video file.
    """

    weights: int
    cache: int
    activations: int
    prompt: int
    decode: int = 0
    run_folder: int = 0
    state: int = 0
    video: int = 0

    @property
    def besides_weights(self) -> int:
        """Memory that is needed even if no weights stay on the device."""
        return self.cache + self.activations + self.prompt + self.decode

    @property
    def memory(self) -> int:
        return self.weights + self.besides_weights

    @property
    def disk(self) -> int:
        return self.run_folder + self.state + self.video

    def describe(self) -> str:
        """One line for memory and, if something is written, one for the disk."""
        memory = {
            "weights": self.weights,
            "KV cache": self.cache,
            "activations": self.activations,
            "prompt": self.prompt,
            "decoding": self.decode,
        }
        disk = {"finished blocks": self.run_folder, "cache state": self.state, "video": self.video}
        lines = [f"memory   about {format_bytes(self.memory)}: {_parts(memory)}"]
        if self.disk:
            lines.append(f"disk     up to {format_bytes(self.disk)}: {_parts(disk)}")
        return "\n".join(lines)


def _parts(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items() if size)


def needs_of(
    plan: RenderPlan,
    dtype: torch.dtype,
    weights: int,
    *,
    decode: int = 0,
    kept: bool = False,
    state: bool = False,
    writes_video: bool = False,
    scale: int = 1,
    videos: int = 1,
    finished_blocks: int = 0,
) -> Needs:
    """The estimate for a plan: disk for all its videos, memory for one of them, since they are made in turn.

    Args:
        weights, decode: bytes, as in `Needs`; `decode` counts twice if a video frame is encoded between rollouts.
        kept: blocks are stored in a run folder.
        state: the cache is stored there, too.
        scale: enlargement of the video.
        finished_blocks: number of blocks, of all videos together, that are stored already.
    """
    config, tokens = plan.config, plan.frames_per_pass * plan.shape.rows * plan.shape.columns
    # peak of a pass: nine tensors of the model's width (residual stream, its normalised copies, q, k, v ...), and
    # either the feed-forward layer before and after its GELU, or float32 temporaries of the rotation
    width = config.dim * dtype.itemsize
    feed_forward, rotation = 2 * config.ffn_dim * dtype.itemsize + 3 * width, 4 * config.dim * 4
    activations = tokens * (9 * width + max(feed_forward, rotation))
    block = 4 * math.prod(plan.block_shape) * plan.blocks_per_pass  # float32; includes the unfinished blocks after it
    pixels = plan.video_frames * plan.width * plan.height * scale**2
    return Needs(
        weights,
        plan.cache_bytes(dtype),
        activations,
        2 * config.num_layers * config.text_len * config.dim * dtype.itemsize,
        decode * (2 if plan.restart_frames else 1),
        run_folder=block * (plan.new_blocks * videos - finished_blocks) if kept else 0,
        state=_state_bytes(plan, dtype) if kept and state and plan.policy.stores_state else 0,
        video=videos * round(pixels * VIDEO_BITS_PER_PIXEL / 8) if writes_video else 0,
    )


def _state_bytes(plan: RenderPlan, dtype: torch.dtype) -> int:
    scenes = plan.shape.scene_slots if isinstance(plan.shape, CacheShape) else 0
    return plan.shape.bytes_of(plan.shape.frame_slots + scenes, dtype)


def in_turn(renders: Sequence[Needs]) -> Needs:
    """The estimate for several renders in turn: memory of the one that needs most, disk of all of them."""
    most = max(renders, key=lambda needs: needs.memory)
    run_folder, video = sum(needs.run_folder for needs in renders), sum(needs.video for needs in renders)
    return replace(most, run_folder=run_folder, state=sum(needs.state for needs in renders), video=video)


def check_memory(needs: Needs, plan: RenderPlan, dtype: torch.dtype, room: int, streams_weights: bool) -> None:
    """Refuse a render that does not fit into `room` bytes; the error names the sizes and the cheapest remedies.

    Args:
        streams_weights: whether the host can keep weights in main memory and copy them as they are used.
    """
    wanted = needs.besides_weights if streams_weights else needs.memory
    if wanted <= room:
        return
    remedies = _remedies(needs, plan, dtype, wanted - room)
    helps = "; ".join(f"{text} (saves {format_bytes(saved)})" for text, saved in remedies)
    raise HeadForcingError(
        f"not enough memory: {plan.width}x{plan.height} needs {format_bytes(wanted)}"
        f"{' besides the weights' if streams_weights else ''} ({needs.describe().splitlines()[0].partition(': ')[2]}), "
        f"the device has {format_bytes(room)}. Remedies, cheapest first: {helps}"
    )


def check_disk(needs: Needs, run_folder: Path | None, video: Path | None) -> None:
    """Refuse a render whose files do not fit into these folders, which may be on the same disk.

    The state of the cache is not counted: rendering continues without it.
    """
    writes = {"finished blocks": (run_folder, needs.run_folder), "video": (video, needs.video)}
    disks: dict[int, dict[str, int]] = {}
    places: dict[int, Path] = {}
    for name, (folder, size) in writes.items():
        if folder is not None:
            disk = folder.stat().st_dev
            places[disk] = folder
            disks.setdefault(disk, {})[name] = size
    for disk, sizes in disks.items():
        wanted, free = sum(sizes.values()), shutil.disk_usage(places[disk]).free
        if wanted > free:
            remedies = ["remove old renders with `headforcing runs prune`"]
            for name, remedy in _DISK_REMEDIES.items():
                if sizes.get(name):
                    remedies.append(f"{remedy} (saves {format_bytes(sizes[name])})")
            remedies.append("make a shorter or smaller video")
            raise HeadForcingError(
                f"not enough disk: the render writes about {format_bytes(wanted)} ({_parts(sizes)}), "
                f"{places[disk]} has {format_bytes(free)} free. Remedies, cheapest first: "
                + "; ".join(remedies[:_REMEDIES])
            )


def _remedies(needs: Needs, plan: RenderPlan, dtype: torch.dtype, excess: int) -> list[tuple[str, int]]:
    """(what to do, bytes saved), those first that do not change the video."""
    helpful = [(text, saved) for text, saved in _all_remedies(needs, plan, dtype, excess) if saved > 0]
    return helpful[:_REMEDIES]


def _all_remedies(needs: Needs, plan: RenderPlan, dtype: torch.dtype, excess: int) -> Iterator[tuple[str, int]]:
    if not plan.restart_frames:
        yield "decode afterwards, without a vae on the sampler", needs.decode
    if plan.auto is not None:
        yield "load a head profile instead of finding the roles", needs.cache - plan.shape.bytes(dtype)
    size, smaller = plan.shape.bytes(dtype), plan.policy.smaller()
    for change, policy in smaller:
        before, size = size, replace(plan.shape, policy=policy).bytes(dtype)
        yield change, before - size
    if not smaller:
        others = ((f"method {name}", needs.cache - other.bytes(dtype)) for name, other in _other_methods(plan))
        yield max(others, key=lambda other: other[1])
    yield _shorter(needs, plan, dtype, excess)
    by_area = needs.cache + needs.activations + needs.decode
    share = max(0.0, 1 - excess / max(1, by_area)) ** 0.5
    width, height = (max(16, int(side * share) // 16 * 16) for side in (plan.width, plan.height))
    yield f"{width}x{height}", by_area - by_area * width * height // (plan.width * plan.height)


def _other_methods(plan: RenderPlan) -> Iterator[tuple[str, CacheShape]]:
    """Cache shapes of methods whose cache does not grow: one for all heads, Head Forcing if a bundled profile fits."""
    config, shape = plan.config, plan.shape
    sizes = (shape.rows, shape.columns, shape.head_dim, shape.frames_per_block, shape.total_frames)
    uniform = [["memory"] * config.num_heads] * config.num_layers
    yield "uniform_memory", CacheShape(uniform, preset("uniform_memory"), *sizes)
    with suppress(HeadForcingError):
        roles = default_profile(config.num_layers, config.num_heads).roles
        yield "head_forcing", CacheShape(roles, preset("head_forcing"), *sizes)


def _shorter(needs: Needs, plan: RenderPlan, dtype: torch.dtype, excess: int) -> tuple[str, int]:
    """The longest video that fits, if the cache grows with the length, and the bytes it saves; else no remedy."""
    shape, size = plan.shape, plan.schedule.frames_per_block
    start, clock = plan.blocks - plan.new_blocks, plan.timeline.clock
    lengths = range(plan.new_blocks - 1, 0, -1) if shape.depends_on_length else ()
    for blocks in lengths:
        saved = needs.cache - replace(shape, total_frames=(start + blocks) * size).bytes(dtype)
        if saved <= 0:
            break
        if saved >= excess:
            return f"{clock.video_frames(blocks) / clock.fps:.2f} s", saved
    return "", 0

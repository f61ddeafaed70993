"""Estimate memory and disk use of a render; refuse what does not fit."""

from __future__ import annotations

import math
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..cache.shape import CacheShape
from ..devices import free_memory, pinned_bytes
from ..errors import HeadForcingError
from ..model.wan import WanConfig
from ..video.memory import DecoderMemory
from .describe import format_bytes
from .plan import RenderPlan

# of a GPU's free memory: workspaces of libraries and gaps between allocations, not counted
MARGIN = 500_000_000
# what PyTorch reserves of a GPU with room to spare, by what is in use: 12.80 GB of 8.63 on an H100
RESERVED = 1.5
VIDEO_BITS_PER_PIXEL = 0.5  # H.264 at crf 18 rarely takes more
NO_DECODER = DecoderMemory()


@dataclass(frozen=True)
class MemorySavings:
    """The ways to save memory where a render runs, in its own words."""

    streams_weights: bool  # weights can be kept in main memory and copied as they are used
    decode_afterwards: str
    # how to keep the decoder's features in main memory between blocks; empty if that cannot be done
    park: str = ""
    # how to make the weights smaller, and the bytes that it saves; None if that cannot be done, or
    # is done already
    smaller_weights: tuple[str, Callable[[WanConfig, torch.dtype], int]] | None = None


COMMAND_LINE = MemorySavings(
    streams_weights=False,
    decode_afterwards="decode afterwards (--latents in place of --out, then `headforcing decode`)",
    park="--park-features",
)
COMFYUI = MemorySavings(True, "decode afterwards, without a vae on the sampler")


@dataclass(frozen=True)
class Needs:
    """Estimated memory and disk use, all in bytes.

    Memory is that of the device which samples. Sampling and decoding take turns there, so the
    larger of the two counts; what libraries allocate for themselves is not counted, see `MARGIN`.

    Attributes:
        weights: of the model; may exceed the device's memory if the host streams them.
        activations: of a pass over one block.
        prompt: cross-attention keys and values of the active prompt.
        vae, held, decode: as for `DecoderMemory`; 0 if the device that samples does not decode.
        text_encoder: of encoding the prompts, before the weights are loaded; 0 where that is done
            elsewhere.
        scenes: main memory of the frames that scenes and pictures bring back.
        run_folder, state: finished blocks and the stored cache, on disk.
        video: upper estimate of the video file.
    """

    weights: int
    cache: int
    activations: int
    prompt: int
    vae: int = 0
    held: int = 0
    decode: int = 0
    text_encoder: int = 0
    scenes: int = 0
    run_folder: int = 0
    state: int = 0
    video: int = 0

    @property
    def temporary(self) -> int:
        """Memory of a pass or a chunk that is decoded, in turn, besides what stays allocated."""
        return max(self.activations, self.decode - self.held)

    @property
    def working(self) -> int:
        """Memory that is needed besides all weights."""
        return self.cache + self.prompt + self.held + self.temporary

    @property
    def rendering(self) -> int:
        """Memory from the first block to the last."""
        return self.weights + self.vae + self.working

    @property
    def memory(self) -> int:
        """The most at any time."""
        return max(self.rendering, self.text_encoder)

    @property
    def disk(self) -> int:
        return self.run_folder + self.state + self.video

    def wanted(self, savings: MemorySavings) -> int:
        """Memory that the device must have, without weights where they can be streamed."""
        return self.vae + self.working if savings.streams_weights else self.rendering

    @property
    def parts(self) -> str:
        """The parts of the memory: what stays, and what is needed in turn."""
        return _parts(
            {
                "weights": self.weights,
                "KV cache": self.cache,
                "prompt": self.prompt,
                "VAE": self.vae,
                "while sampling activations": self.activations,
                "and VAE features": self.held,
                "while decoding": self.decode,
                "before that the text encoder": self.text_encoder,
            }
        )

    def describe(self, device: torch.device | None = None) -> str:
        """One line for memory, one for what PyTorch reserves of such a GPU and, if something is
        written, one for the disk.
        """
        lines = [f"memory   about {format_bytes(self.memory)}: {self.parts}"]
        if device is not None and device.type == "cuda":
            reserved = format_bytes(round(RESERVED * self.memory))
            lines.append(f"reserved up to {reserved} if there is room: PyTorch keeps freed memory")
        if self.scenes:
            lines.append(f"main memory  about {format_bytes(self.scenes)} for frames of scenes")
        if self.disk:
            disk = {
                "finished blocks": self.run_folder,
                "cache state": self.state,
                "video": self.video,
            }
            lines.append(f"disk     up to {format_bytes(self.disk)}: {_parts(disk)}")
        return "\n".join(lines)


def _parts(sizes: dict[str, int]) -> str:
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in sizes.items() if size)


def needs_of(
    plan: RenderPlan,
    dtype: torch.dtype,
    weights: int,
    *,
    decoder: DecoderMemory = NO_DECODER,
    text_encoder: int = 0,
    kept: bool = False,
    state: bool = False,
    writes_video: bool = False,
    scale: int = 1,
    videos: int = 1,
    finished_blocks: int = 0,
    more_for_a_token: int = 0,
) -> Needs:
    """The estimate for a plan: disk for all its videos, memory for one of them, since they are made
    in turn.

    Args:
        decoder: of the device that samples; a second one is counted where a video frame is encoded
            between rollouts.
        kept, state: blocks are stored in a run folder, and the cache, too.
        finished_blocks: number of blocks, of all videos together, that are stored already.
        more_for_a_token: bytes of a pass for each token, besides those of `pass_bytes`.
    """
    block = 4 * math.prod(plan.block_shape) * (1 + plan.blocks_ahead)  # float32, with its `extra`
    pixels = plan.video_frames * plan.width * plan.height * scale**2
    stores_state = kept and state and "state" in plan.method.resumes_from
    scenes = plan.shape.scene_slots if isinstance(plan.shape, CacheShape) else 0
    return Needs(
        weights,
        cache=plan.cache_bytes(dtype),
        activations=activation_bytes(plan, dtype, more_for_a_token),
        prompt=2 * plan.config.num_layers * plan.config.text_len * plan.config.dim * dtype.itemsize,
        vae=decoder.weights,
        held=decoder.held,
        decode=decoder.peak + (decoder.held if plan.vae_use else 0),
        text_encoder=text_encoder,
        scenes=pinned_bytes(plan.shape.bytes_of(scenes, dtype)) if scenes else 0,
        run_folder=block * (plan.new_blocks * videos - finished_blocks) if kept else 0,
        state=plan.shape.bytes_of(plan.shape.frame_slots + scenes, dtype) if stores_state else 0,
        video=videos * round(pixels * VIDEO_BITS_PER_PIXEL / 8) if writes_video else 0,
    )


def room_on(device: torch.device) -> int | None:
    """Free memory of a device in bytes, less a margin on a GPU; None where it is not known."""
    free = free_memory(device)
    return free if free is None or device.type == "cpu" else free - MARGIN


def activation_bytes(plan: RenderPlan, dtype: torch.dtype, more_for_a_token: int = 0) -> int:
    """Most memory in bytes of a plan's largest pass, without the KV cache."""
    tokens = plan.largest_pass * plan.shape.frame_tokens
    return pass_bytes(plan.config, tokens, dtype) + tokens * more_for_a_token


def pass_bytes(config: WanConfig, tokens: int, dtype: torch.dtype) -> int:
    """Most memory in bytes while a pass over so many tokens computes a layer, without the KV cache.

    It is reached in the feed-forward layer, beside six tensors of the model's width; or, in a model
    with narrow feed-forward layers, in the float32 temporaries of a norm or a rotation beside nine.
    """
    width = config.dim * dtype.itemsize
    feed_forward = 6 * width + 2 * config.ffn_dim * dtype.itemsize
    return tokens * max(feed_forward, 9 * width + 2 * config.dim * torch.float32.itemsize)


def check_growth(more: int, free: int | None) -> None:
    """Refuse what takes `more` bytes beside a render under way, if its device has less than that
    free.
    """
    if free is not None and more > max(0, free):
        raise HeadForcingError(
            f"not enough memory for the new story: it needs {format_bytes(more)} more, "
            f"{format_bytes(max(0, free))} is free; leave out switches or prompts that it brings"
        )


def check_scenes(needs: Needs, free: int | None) -> None:
    """Refuse a render whose kept frames of scenes need more than `free` bytes of main memory."""
    if free is not None and needs.scenes > free:
        raise HeadForcingError(
            "not enough main memory for the frames of scenes that can come back: they take "
            f"{format_bytes(needs.scenes)}, {format_bytes(free)} is free. Remedies: a smaller "
            "size; fewer prompts; the method option scenes=off, without [recall] tags"
        )


def check_disk(
    renders: Sequence[Needs],
    run_folder: Path | None,
    video: Path | None,
    remedy: str = "remove old renders with `headforcing runs prune`",
) -> None:
    """Refuse renders whose files, the cache's states left out, do not fit into these folders."""
    blocks = sum(needs.run_folder for needs in renders)
    videos = sum(needs.video for needs in renders)
    folders: dict[int, Path] = {}  # one of each disk
    wanted: Counter[int] = Counter()
    for folder, size in ((run_folder, blocks), (video, videos)):
        if folder is not None and size:
            disk = folder.stat().st_dev
            folders[disk] = folder
            wanted[disk] += size
    for disk, folder in folders.items():
        free = shutil.disk_usage(folder).free
        if wanted[disk] > free:
            raise HeadForcingError(
                f"not enough disk: {folder} has {format_bytes(free)} free for "
                f"{format_bytes(wanted[disk])}; {remedy}, make a shorter or smaller video, write "
                "to another disk, or keep no finished blocks (turn resume off, leave out --runs)"
            )

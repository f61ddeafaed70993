"""The rows of a video: one per block, with everything that the block adds to what came before it,
and its noise.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import torch
from torch import Tensor

from ..errors import HeadForcingError
from ..hashing import digest
from ..timeline.switch import Blend, Switch
from .schedule import Schedule

Embeddings = Mapping[str, Tensor]  # text embeddings `[tokens, text_dim]` by prompt


@dataclass(frozen=True)
class Picture:
    """A picture that prompts can name: a block of latents `[frames, channels, h, w]`, and the hash
    of what it shows.
    """

    latents: Tensor
    key: str


@dataclass(frozen=True)
class BlockRow:
    """Everything that one block depends on besides the blocks before it."""

    # the text of the prompt, or an interpolation of two; its embedding is in the script
    prompt: str | Blend
    # noise levels, highest first; empty for a start block, whose latents are given
    sigmas: tuple[float, ...] = ()
    seed: int = 0  # of the block's noise
    # before it; None within a prompt, and where a new prompt leaves the cache alone
    switch: Switch | None = None
    # what it depends on because scenes come back (`scenes.number_recalls`)
    recall_key: tuple[int, ...] = ()
    solver: str = "renoise"  # as in `Schedule`
    # names of those that the caches hold from this block on; empty within a prompt
    pictures: tuple[str, ...] = ()
    # latent frames that its passes read at most, perhaps by what the next rows are; None: all that
    # the cache holds
    window_frames: int | None = None

    def key(self, embedding: str, pictures: Sequence[str] = ()) -> str:
        """The hash of the row, with those of its text embedding and pictures, and without what all
        rows share.
        """
        parts: list[object] = [embedding, list(self.sigmas), self.seed]
        if self.switch is not None and (self.switch.changes_cache or self.recall_key):
            parts += [self.switch.kind, self.switch.re_anchor, list(self.recall_key)]
        if pictures:
            parts += ["pictures", *pictures]
        if self.window_frames is not None:
            parts += ["window", self.window_frames]
        return digest(*parts)


def lay_out_rows(
    prompts: Sequence[str | Blend],
    schedule: Schedule,
    seed: int = 0,
    switches: Mapping[int, Switch] = MappingProxyType({}),
    start_blocks: int = 0,
    first: int = 0,
) -> list[BlockRow]:
    """Rows of blocks, from number `first` on, from the prompt of each; the first `start_blocks` of
    the video are given and have no noise levels.
    """
    return [
        BlockRow(
            prompt,
            () if block < start_blocks else schedule.for_block(block - start_blocks),
            seed,
            switches.get(block),
            solver=schedule.solver,
        )
        for block, prompt in enumerate(prompts, first)
    ]


def keep_windows(rows: Sequence[BlockRow], begun: Sequence[BlockRow]) -> tuple[BlockRow, ...]:
    """The rows of a changed story, the first of which have the windows of those that have begun."""
    kept = [
        row
        if row.window_frames == old.window_frames
        else replace(row, window_frames=old.window_frames)
        for row, old in zip(rows, begun, strict=False)
    ]
    return (*kept, *rows[len(kept) :])


@dataclass(frozen=True)
class KnownKeys:
    """The rows of a script, and what `Script.keys` returned for them."""

    rows: Sequence[BlockRow]
    keys: Sequence[str]


class HasBegunError(HeadForcingError):
    """Rows would change what has begun already."""


class Script:
    """The rows of one video, of which those that have not begun may be replaced, and the embeddings
    of their prompts.

    Args:
        alike: by prompt, the text whose embedding tells which scenes are alike, see
            `timeline.likeness`; others stand for themselves.
        pictures: by name, those that rows hold.
    """

    def __init__(
        self,
        rows: Sequence[BlockRow],
        embeds: Embeddings,
        alike: Mapping[str, str] = MappingProxyType({}),
        pictures: Mapping[str, Picture] = MappingProxyType({}),
    ):
        self.rows = tuple(rows)
        self.embeds = embeds
        self.alike = alike
        self.pictures = pictures
        self.begun = 0  # number of rows that have begun

    def __len__(self) -> int:
        return len(self.rows)

    def begin(self, block: int) -> BlockRow:
        """The row of a block; from now on it stays."""
        self.begun = max(self.begun, block + 1)
        return self.rows[block]

    def embedding(self, block: int) -> Tensor:
        """The text embedding of a block's prompt, `[tokens, text_dim]`."""
        prompt = self.rows[block].prompt
        return prompt.interpolate(self.embeds) if isinstance(prompt, Blend) else self.embeds[prompt]

    def replace(self, other: Script) -> None:
        """Go on with the rows of another script; raises HasBegunError where one that has begun
        differs.
        """
        first = first_difference(self.rows, other.rows)
        if first < min(self.begun, len(self.rows)):
            raise HasBegunError(
                f"block {first} has begun; leave everything before block {self.begun} as it was"
            )
        self.rows = other.rows
        self.embeds = other.embeds
        self.alike = other.alike

    def keys(
        self,
        setup: str,
        ahead: int = 0,
        more: Mapping[int, str] = MappingProxyType({}),
        known: KnownKeys | None = None,
    ) -> list[str]:
        """The key of every block that is made: the setup's hash, chained with the rows' up to the
        block.

        Args:
            ahead: how many of the next rows, or their absence, a block depends on, where blocks are
                denoised together.
            more: by block, the hash of something else that it depends on.
            known: those of other rows with the same arguments and embeddings. The keys of the first
                rows are taken from there as far as the rows are the same.
        """
        hashes: dict[str | Blend, str] = {}
        keys = [setup]
        held: tuple[str, ...] = ()
        first = 0
        if known is not None:
            same = first_difference(self.rows, known.rows)
            made = same - sum(not row.sigmas for row in self.rows[:same])
            if made > ahead:
                first = same
                keys = [setup, *[""] * ahead, *known.keys[: made - ahead]]
        for block, row in enumerate(self.rows[first:], first):
            if not row.sigmas:  # a start block has no key, and is written behind the pictures
                held = row.pictures or held
                continue
            if row.prompt not in hashes:
                hashes[row.prompt] = digest(self.embedding(block))
            shown = [self.pictures[name].key for name in (*held, *row.pictures)]
            keys.append(digest(keys[-1], row.key(hashes[row.prompt], shown), more.get(block, "")))
            held = ()
        for _ in range(ahead):
            keys.append(digest(keys[-1], "end"))
        return keys[ahead + 1 :]


def first_difference(rows: Sequence[BlockRow], others: Sequence[BlockRow]) -> int:
    """The first block whose rows differ; the length of the shorter video if none does."""
    for block, (row, other) in enumerate(zip(rows, others, strict=False)):
        if row is not other and row != other:
            return block
    return min(len(rows), len(others))


# -------------------------------------------------------------------------------------------- noise


class SeededNoise:
    """Gaussian noise seeded by (seed, video, block, step), a pure function of these, so that a
    resumed video has the same; the same numbers for every device. `seed` is of the block's row.

    Args:
        shape: `(frames_per_block, channels, h, w)`.
        video: number of the video within a batch.
    """

    def __init__(self, shape: tuple[int, int, int, int], video: int = 0):
        self.shape = shape
        self.video = video
        self._ahead: dict[tuple[int, int], Tensor] = {}

    def initial(self, block: int, seed: int) -> Tensor:
        """The initial noise of a block, `[frames, channels, h, w]` float32."""
        drawn = self._ahead.pop((block, seed), None)
        return self._draw(block, seed, -1) if drawn is None else drawn

    def renoise(self, block: int, seed: int, step: int) -> Tensor:
        """Fresh noise added after a denoising step of a block, same shape."""
        return self._draw(block, seed, step)

    def ahead(self, block: int, seed: int) -> None:
        """Draw the initial noise of a block now, while a GPU is at work."""
        self._ahead = {(block, seed): self._draw(block, seed, -1)}

    def _draw(self, block: int, seed: int, step: int) -> Tensor:
        # a hash and not a sum, so that a seed's first block never has the noise of another seed's
        # later block
        key = struct.pack("<Qqqq", seed % 2**64, self.video, block, step)
        number = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little", signed=True)
        return torch.randn(self.shape, generator=torch.Generator().manual_seed(number))

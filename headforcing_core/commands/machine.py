"""Devices, attention, run folder and ranks with which a command computes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ..hashing import digest
from ..model import fp8
from ..model.attention import AttentionFunction, attention_function
from ..render.plan import RenderPlan
from ..render.render import Place
from ..weights.checkpoint import CheckpointInfo
from .arguments import found_profiles_folder, pick_device

if TYPE_CHECKING:
    from ..distributed.peers import Peers


@dataclass(frozen=True)
class Machine:
    """Devices, attention backend and run folder of a command.

    Attributes:
        vae_device: None for decoding in turn.
        peers: the ranks that make one video together; None for one GPU.
        shard_weights: whether they divide the weights, too.
    """

    device: torch.device
    dtype: torch.dtype
    attention: AttentionFunction
    attention_choice: str
    cuda_graph: bool
    compile: bool
    runs: Path | None
    found_profiles: Path | None
    quiet: bool
    vae_device: torch.device | None
    fp8_linears: bool = False
    peers: Peers | None = None
    shard_weights: bool = False

    @classmethod
    def of(cls, args: argparse.Namespace, dtype: torch.dtype, head_dim: int, elsewhere: bool = False) -> Machine:
        """Take the fields from the arguments of the same names.

        `elsewhere`: another machine or process renders, and no device of this one is tried.
        """
        kept = args.runs, found_profiles_folder(args.found_profiles)
        if elsewhere:
            cpu, attention = torch.device("cpu"), attention_function("auto", "cpu", dtype, head_dim)
            choices = "auto", False, args.compile
            return cls(cpu, dtype, attention, *choices, *kept, args.json, None, args.fp8_linears)
        device = pick_device(args.device)
        attention = attention_function(args.attention, device, dtype, head_dim)
        vae_device = None if args.vae_device is None else pick_device(args.vae_device, "--vae-device")
        if vae_device is not None and vae_device.type != "cpu" and vae_device == device:
            vae_device = None  # on one GPU sampling and decoding take turns
        choices = args.attention, args.cuda_graph, args.compile
        machine = cls(device, dtype, attention, *choices, *kept, args.json, vae_device, args.fp8_linears)
        if (peers := vars(args).get("peers")) is None:
            return machine
        machine = replace(machine, peers=peers, shard_weights=args.shard_weights)
        # rank 0 alone has a run folder and shows progress
        return machine if peers.leads else replace(machine, runs=None, quiet=True)

    @property
    def inexact(self) -> list[str]:
        """Settings that make the numbers other than those of the dtype, for reports."""
        if not self.fp8_linears:
            return []
        how = (
            "" if fp8.has_product(self.device) else ", emulated: this device does not multiply them, nothing is faster"
        )
        return [f"{fp8.INEXACT} (--fp8-linears{how})"]

    def identified(self, info: CheckpointInfo) -> CheckpointInfo:
        """The model with an identity of its own where it is computed inexactly."""
        if not self.fp8_linears:
            return info
        return replace(info, identify=lambda: digest(info.fingerprint, fp8.IDENTITY)[:16])

    @property
    def rank(self) -> str:
        """The beginning of messages about this rank alone; empty for one GPU."""
        return "" if self.peers is None else f"rank {self.peers.rank} of {self.peers.world} ({self.device}): "

    def place(self, plan: RenderPlan) -> Place:
        """Choose where a plan's video is made; the attention backend `auto` is timed at the sizes of its cache.

        Not on several ranks, because each of them could choose another one.
        """
        attention, shape = self.attention, plan.shape
        if self.peers is not None:
            from ..distributed.ranks import rank_place

            return rank_place(self.peers, self.device, attention, self.attention_choice)
        if self.attention_choice == "auto":
            attention = attention_function("auto", self.device, self.dtype, shape.head_dim, shape.layer_sizes)
        return Place(self.device, attention, self.attention_choice)

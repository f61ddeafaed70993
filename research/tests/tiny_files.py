"""Tiny models that have learnt nothing: of the world of rooms, and in real layouts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from headforcing.headforcing_core.demo.rooms_autoencoder import RoomsAutoencoder
from headforcing.headforcing_core.demo.words import Look
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, classify
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.weights.umt5 import save_embeddings
from headforcing.research.rooms.judge import RoomsJudge
from headforcing.research.training.training import STRUCTURE, save
from tiny_checkpoints import wan_vae

TINY = WanConfig(
    dim=64,
    ffn_dim=64,
    num_layers=2,
    num_heads=2,
    freq_dim=32,
    text_dim=64,
    text_len=12,
)
# a broad head with a little more sink than the others, as in models without sinks; one that looks
# back, and two more
SHARES = (
    ((0.2, 0.75, 0.05), (0.05, 0.6, 0.35)),
    ((0.1, 0.2, 0.7), (0.02, 0.08, 0.9)),
)
TEAL = Look("red", "ball", motion="gliding", background="teal", pattern="striped")
SAND = replace(TEAL, background="sand")
NAVY = replace(TEAL, background="navy")


def tiny_judge(folder: Path) -> RoomsJudge:
    """The judge of a model of the world of rooms, with a head profile that has shares."""
    torch.manual_seed(0)
    model = WanModel(TINY)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.1)
    save(model.state_dict(), folder / "student.safetensors", metadata=STRUCTURE)
    save(RoomsAutoencoder().state_dict(), folder / "autoencoder.safetensors")
    profile = HeadProfile(
        "probe",
        2,
        num_heads=2,
        roles=classify(SHARES, 0.25, 0.25),
        shares=SHARES,
        anchor_fraction=0.25,
        local_fraction=0.25,
    )
    return RoomsJudge(folder / "student.safetensors", folder / "autoencoder.safetensors", profile)


def real_files(folder: Path, texts: list[str]) -> dict[str, Any]:
    """Options of a tiny model in the real layouts that knows these texts, for two short videos."""
    save_embeddings(folder / "texts.safetensors", {text: torch.randn(12, 48) for text in texts})
    return {
        "--weights": Path(__file__).parents[2]
        / "tests"
        / "golden"
        / "self_forcing_tiny_d32"
        / "model.safetensors",
        "--num-heads": 4,
        "--vae": wan_vae(folder / "wan_2.1_vae.safetensors"),
        "--embeddings": folder / "texts.safetensors",
        "--videos": 2,
        "--seconds": 0.9,
        "--size": "96x64",
        "--dtype": "fp32",
        "--device": "cpu",
    }

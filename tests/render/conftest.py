"""Fixtures shared by the tests of renders."""

import json
import shutil
from itertools import chain
from pathlib import Path

import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.head_profiles.profile import HeadProfile
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.weights.umt5 import save_embeddings
from safetensors.torch import load_file
from tiny_checkpoints import wan_vae
from toy_renders import toy_model


@pytest.fixture(scope="session")
def golden(repo_root: Path) -> Path:
    return repo_root / "tests" / "golden"


@pytest.fixture(scope="session")
def backbone() -> WanModel:
    """Three layers of the toy model, because bits are compared and not pictures."""
    return toy_model(3)


@pytest.fixture(scope="session")
def tiny(golden: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, head profile, VAE and embeddings of three prompts about apples."""
    folder = tmp_path_factory.mktemp("tiny")
    shutil.copy(golden / "self_forcing_tiny_d32" / "model.safetensors", folder)
    rows = torch.randn(3, 12, 48, generator=torch.Generator().manual_seed(0))
    texts = ["a green apple", "a red apple", "an apple"]
    save_embeddings(folder / "prompts.safetensors", dict(zip(texts, rows, strict=True)))
    HeadProfile("tiny", 4, 4, (("local", "anchor", "memory", "memory"),) * 4).save(
        folder / "tiny.json"
    )
    wan_vae(folder / "wan_2.1_vae.safetensors")
    return folder


@pytest.fixture(scope="session")
def tiny_model(tiny: Path) -> list[str]:
    """The arguments of a command that renders with it at 96x64; the embeddings are the first
    two.
    """
    options = {
        "--embeddings": tiny / "prompts.safetensors",
        "--weights": tiny / "model.safetensors",
        "--num-heads": 4,
        "--profile": tiny / "tiny.json",
        "--size": "96x64",
        "--dtype": "fp32",
        "--device": "cpu",
    }
    return list(map(str, chain(*options.items())))


@pytest.fixture
def generate(tiny_model: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """Run `generate --latents` with it; what was printed and the latents, or what was said of a
    mistake.
    """

    def run(*more: object, prompts="0:00 a green apple\n0:01 a red apple"):
        out = tmp_path / "latents.safetensors"
        command = ["generate", *tiny_model, "--prompts", prompts, "--latents", out, "--json", *more]
        code = main(list(map(str, command)))
        said = capsys.readouterr()
        return (json.loads(said.out), load_file(out)["latents"]) if code == 0 else said.err

    return run

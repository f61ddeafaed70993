"""The line of a report on the cheapest gain in speed: a second GPU or a tiny decoder at hand."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from headforcing.cli import render as commands
from headforcing.cli.cli import main
from headforcing.headforcing_core.model.latents import WAN21, WAN22
from headforcing.headforcing_core.video import advice
from headforcing.headforcing_core.video.advice import faster_decoding, tiny_names
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder
from safetensors.torch import save_file
from tiny_checkpoints import wan22_vae

CPU = torch.device("cpu")
FIRST = torch.device("cuda:0")
SECOND = torch.device("cuda:1")


@pytest.fixture
def gpus(monkeypatch):
    """So many GPUs, of which none is there."""
    return lambda count: monkeypatch.setattr(torch.cuda, "device_count", lambda: count)


@pytest.mark.parametrize(
    ("count", "sampling", "decoding", "tiny", "expected"),
    [
        (2, FIRST, FIRST, None, "cheapest gain in speed: the VAE on the second GPU (so)"),
        (1, FIRST, FIRST, "taew2_2.pth", "speed: the tiny decoder taew2_2.pth as VAE, for a draft"),
        (2, FIRST, FIRST, "t.pth", "(so), or the tiny decoder t.pth as VAE, for a draft"),
        (2, CPU, CPU, "t.pth", "cheapest gain in speed: the tiny decoder t.pth"),
        (2, FIRST, SECOND, None, ""),
        (2, FIRST, CPU, None, ""),
        (1, FIRST, FIRST, None, ""),
    ],
)
def test_what_is_at_hand_is_named(gpus, count, sampling, decoding, tiny, expected):
    gpus(count)
    line = faster_decoding(sampling, decoding, tiny, second_gpu="so")
    assert expected in line and bool(line) == bool(expected) and "\n" not in line


@pytest.mark.parametrize("installed", [True, False])
def test_8_bit_attention_is_offered_where_it_is_installed_and_not_chosen(
    gpus, monkeypatch, tmp_path, installed
):
    gpus(1)
    spec = object() if installed else None
    monkeypatch.setattr(advice, "find_spec", lambda name: spec)
    words = "attention that rounds to 8 bits (--attention sage), which changes the video slightly"
    for vae in (tmp_path / "wan2.2_vae.safetensors", tmp_path / "draft.safetensors"):
        if vae.name == "draft.safetensors":
            save_file(TinyDecoder((12, 10, 8, 6)).state_dict(), vae)
        else:
            wan22_vae(vae)
        expected = f"cheapest gain in speed: {words}" if installed else ""
        assert commands._advice(*source_of(vae, WAN22)) == expected
        assert commands._advice(*source_of(vae, WAN22, attention="sage")) == ""
        assert commands._advice(*source_of(vae, WAN22, device=CPU)) == ""


def source_of(vae: Path, latents, device=FIRST, vae_device=None, is_alone=True, attention="auto"):
    machine = SimpleNamespace(
        device=device, vae_device=vae_device, is_alone=is_alone, attention_choice=attention
    )
    plan = SimpleNamespace(config=SimpleNamespace(latents=latents))
    return SimpleNamespace(machine=machine, files=SimpleNamespace(vae=vae)), plan


def test_the_command_line_names_its_option_and_the_tiny_decoder_beside_the_vae(gpus, tmp_path):
    gpus(2)
    vae = tmp_path / "wan2.2_vae.safetensors"
    wan22_vae(vae)
    only_gpu = "cheapest gain in speed: the VAE on the second GPU (--vae-device cuda:1)"
    assert commands._advice(*source_of(vae, WAN22)) == only_gpu
    (tmp_path / "taew2_1.safetensors").touch()  # for other latents
    assert commands._advice(*source_of(vae, WAN22)) == only_gpu
    (tmp_path / "taew2_2.safetensors").touch()
    tiny = "the tiny decoder taew2_2.safetensors as VAE, for a draft"
    assert commands._advice(*source_of(vae, WAN22)) == f"{only_gpu}, or {tiny}"
    assert commands._advice(*source_of(vae, WAN22, vae_device=SECOND)).endswith(f"speed: {tiny}")
    assert "--vae-device cuda:0" in commands._advice(*source_of(vae, WAN22, SECOND))
    assert commands._advice(*source_of(vae, WAN22, is_alone=False)) == ""
    assert tiny_names(WAN21) == ("lighttaew2_1.", "taew2_1.")


def test_the_report_of_a_render_has_the_line(generate, tiny, tiny_model, tmp_path, capsys):
    vae = tmp_path / "wan_2.1_vae.safetensors"
    vae.write_bytes((tiny / vae.name).read_bytes())
    options = ("--seconds", 1, "--vae", vae, "--out", tmp_path / "x.mp4")
    report, _ = generate(*options, prompts="an apple")
    assert "advice" not in report
    (tmp_path / "lighttaew2_1.safetensors").touch()
    report, _ = generate(*options, prompts="an apple")
    line = "cheapest gain in speed: the tiny decoder lighttaew2_1.safetensors as VAE, for a draft"
    assert report["advice"] == line
    prompts = ("--prompts", "an apple")
    assert main(["generate", *tiny_model, *prompts, *map(str, options)]) == 0
    assert f"\n{line}\n" in capsys.readouterr().out
    draft = tmp_path / "draft.safetensors"
    save_file(TinyDecoder((12, 10, 8, 6)).state_dict(), draft)
    told = ("--seconds", 1, "--vae", draft, "--out", tmp_path / "x.mp4")
    report, _ = generate(*told, prompts="an apple")
    assert "advice" not in report

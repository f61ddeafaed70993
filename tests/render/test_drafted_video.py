"""`--live-decoder`: the video grows by a tiny decoder, and the VAE makes the final file of the same
latents.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from flat_colour import decoded
from headforcing.headforcing_core.render.sinks import VideoFile
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder, TinyVideoDecoder
from headforcing.headforcing_core.video.wan_vae import WanVideoDecoder
from safetensors.torch import save_file
from tiny_checkpoints import wan22_vae


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """A tiny decoder of random weights, as published in float16."""
    torch.manual_seed(0)
    weights = TinyDecoder((12, 10, 8, 6)).state_dict()
    path = tmp_path / "taew2_1.safetensors"
    save_file({name: weight.half() for name, weight in weights.items()}, path)
    return path


@pytest.fixture
def told(tiny: Path, draft: Path, tmp_path: Path):
    """Options of a render of two seconds with a draft."""
    vae = tiny / "wan_2.1_vae.safetensors"
    return ("--seconds", 2, "--vae", vae, "--out", tmp_path / "x.mp4", "--live-decoder", draft)


def test_the_final_file_is_that_of_an_ordinary_render_and_the_draft_was_there_before(
    generate, told, tmp_path, monkeypatch
):
    seen = []
    begin = VideoFile.begin

    def watch(self, render):
        if (tmp_path / "x.mp4").exists():
            seen.append(decoded(tmp_path / "x.mp4"))
        begin(self, render)

    _, expected = generate(*told[:-2])
    ordinary = (tmp_path / "x.mp4").read_bytes()
    frames = decoded(tmp_path / "x.mp4")
    (tmp_path / "x.mp4").unlink()
    monkeypatch.setattr(VideoFile, "begin", watch)
    report, latents = generate(*told)
    assert torch.equal(latents, expected)
    assert np.array_equal(decoded(tmp_path / "x.mp4"), frames)
    assert len((tmp_path / "x.mp4").read_bytes()) == len(ordinary)
    (shown,) = seen
    assert shown.shape == frames.shape and abs(shown.astype(int) - frames).mean() > 2
    assert report["video"] == str(tmp_path / "x.mp4")
    assert not list(tmp_path.glob("*part*"))


def test_a_stop_between_draft_and_final_file_is_resumed_without_a_second_draft(
    generate, told, tmp_path, monkeypatch
):
    generate(*told[:-2])
    frames = decoded(tmp_path / "x.mp4")
    (tmp_path / "x.mp4").unlink()
    told += ("--runs", tmp_path / "runs")
    decode = WanVideoDecoder.decode
    of_tiny = []

    def stop(self, latents):
        if not isinstance(self, TinyVideoDecoder):
            raise KeyboardInterrupt
        of_tiny.append(len(latents))
        return decode(self, latents)

    with monkeypatch.context() as patch:
        patch.setattr(WanVideoDecoder, "decode", stop)
        assert "interrupted" in generate(*told)
    assert sum(of_tiny) == 9 and decoded(tmp_path / "x.mp4").shape == frames.shape
    assert not np.array_equal(decoded(tmp_path / "x.mp4"), frames), "the draft is kept"
    monkeypatch.setattr(TinyVideoDecoder, "decode", None)
    generate(*told)
    assert np.array_equal(decoded(tmp_path / "x.mp4"), frames)


def test_a_draft_that_fails_does_not_end_the_render(generate, told, tmp_path, monkeypatch):
    def fail(self, latents):
        raise RuntimeError("no kernel")

    monkeypatch.setattr(TinyVideoDecoder, "_decode", fail)
    report, _ = generate(*told)
    assert "failure" not in report and len(decoded(tmp_path / "x.mp4")) == 32


def test_videos_of_several_rollouts_are_drafted_with_the_encoder_of_the_vae(
    generate, told, tmp_path
):
    options = ("--method", "causvid", "--seconds", 4)
    generate(*told[:-2], *options)
    frames = decoded(tmp_path / "x.mp4")
    generate(*told, *options)
    assert np.array_equal(decoded(tmp_path / "x.mp4"), frames)


def test_what_is_no_tiny_decoder_or_of_no_use_is_refused(generate, told, draft, tmp_path):
    *given, _ = told
    vae = told[3]
    assert f"{vae.name} is no tiny decoder for latents of 16 channels" in generate(*given, vae)
    other = tmp_path / "wan2.2_vae.safetensors"
    wan22_vae(other)
    assert "use a file such as taew2_1.safetensors" in generate(*given, other)
    twice = ("--vae", draft, "--live-decoder", draft)
    both = generate("--out", tmp_path / "y.mp4", *twice)
    assert "of --vae is a tiny decoder, too" in both
    assert "give --vae and --out, too" in generate("--live-decoder", draft)
    assert not (tmp_path / "y.mp4").exists()


def test_the_estimate_counts_both_decoders_that_are_never_at_work_at_the_same_time(
    generate, told, draft, tmp_path
):
    """The larger one works when no features of the other are kept."""
    report, _ = generate(*told)
    ordinary = generate(*told[:-2])[0]["needs"]
    alone = generate("--seconds", 2, "--out", tmp_path / "y.mp4", "--vae", draft)[0]["needs"]
    both = report["needs"]
    assert both["vae"] == ordinary["vae"] + alone["vae"]
    assert both["held"] == alone["held"] < ordinary["held"]
    assert both["decode"] == max(ordinary["decode"], alone["decode"])

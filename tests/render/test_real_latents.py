"""A render that begins with real latents of Wan 2.1, which lie beside the repository."""

import torch
from safetensors.torch import save_file

COMMAND = ("--size", "512x320", "--sigmas", "1", "--start-latents")  # the size is the clip's
FRAMES = 15  # five blocks of the 16 latent frames


def test_a_render_goes_on_from_real_latents_and_is_resumed_behind_them(
    generate, real_file, tmp_path
):
    def made(file, seconds, *more):
        return generate(*COMMAND, file, "--seconds", seconds, *more, prompts="an apple")

    clip = torch.load(real_file("test_latents_wan.pth"), weights_only=True, map_location="cpu")
    latents = clip[0].transpose(0, 1).contiguous()
    whole_clip = tmp_path / "clip.safetensors"
    start = tmp_path / "start.safetensors"
    save_file({"latents": latents}, whole_clip)
    save_file({"latents": latents[:FRAMES].contiguous()}, start)
    assert "start frames must fill whole blocks of 3 latent frames, got 16" in made(whole_clip, 1)
    runs = ("--runs", tmp_path / "runs")
    _, short = made(start, 0.75, *runs)
    assert torch.equal(short[:FRAMES], latents[:FRAMES].float())
    again, longer = made(start, 1.5, *runs)
    assert again["reused_blocks"] == 1 and torch.equal(longer[: len(short)], short)
    _, whole = made(start, 1.5)
    assert torch.equal(longer, whole), "as if it had never stopped"

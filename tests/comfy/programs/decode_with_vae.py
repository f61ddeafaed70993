"""ComfyUI's own decode: VAE file, latents file, and the file to write the video frames to."""

import inside_comfy  # noqa: F401

# isort: split
import sys

import comfy.latent_formats
import comfy.sd
import comfy.utils
import torch
from safetensors.torch import load_file, save_file

vae_path, latents_path, out_path = sys.argv[1:]
vae = comfy.sd.VAE(sd=comfy.utils.load_torch_file(vae_path))
assert vae.vae_dtype == torch.float32, vae.vae_dtype
latents = load_file(latents_path)["latents"].movedim(0, 1)[None]
pictures = vae.decode(comfy.latent_formats.Wan21().process_out(latents))
save_file({"pictures": pictures.flatten(0, -4).float().contiguous()}, out_path)

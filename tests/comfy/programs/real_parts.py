"""Real latents in ComfyUI's previews and the pack's pictures of takes, and the real tokenizer in
ComfyUI's: prints what it finds as JSON.
"""

from inside_comfy import load_pack

# isort: split

import importlib
import io
import json
import sys
from types import SimpleNamespace

import comfy.latent_formats
import torch
from comfy.text_encoders.wan import WanT5Tokenizer
from PIL import Image

pack = load_pack()
latents_file, tokenizer_file, text = sys.argv[1:]


def module(name):
    return importlib.import_module(name, pack.__name__)


progress = module(".nodes.host.browser.progress")
runs = module(".nodes.host.browser.runs")
conditioning = module(".nodes.host.graph.conditioning")

# [16 frames, 16 channels, 40, 64]
latents = torch.load(latents_file, weights_only=True, map_location="cpu")[0].transpose(0, 1)
wan = comfy.latent_formats.Wan21()
factors = torch.tensor(wan.latent_rgb_factors)
bias = torch.tensor(wan.latent_rgb_factors_bias)


def expected(frame):
    """The colours 0..255 of a latent frame by ComfyUI's factors, written out."""
    colours = torch.einsum("chw,cr->hwr", frame.float(), factors) + bias
    return ((colours + 1) / 2).clamp(0, 1) * 255


def apart(picture, frame):
    """The mean difference of a picture from those colours, 0..255, after it is made as small."""
    small = picture.convert("RGB").resize((frame.shape[2], frame.shape[1]), Image.Resampling.BOX)
    found = torch.tensor(list(small.getdata()), dtype=torch.float32).view(*frame.shape[1:], 3)
    return float((found - expected(frame)).abs().mean())


model = SimpleNamespace(load_device=torch.device("cpu"), model=SimpleNamespace(latent_format=wan))
preview = progress.MovingPreview(model)
previews = [preview.next(latents[:3]), preview.next(None), preview.next(None)]
colours = expected(latents[6])
take = SimpleNamespace(about={"latent_format": "Wan21"}, name="take")
thumbnail = Image.open(io.BytesIO(runs._draw(take, latents[6])))
with open(tokenizer_file, "rb") as file:
    pieces = torch.frombuffer(bytearray(file.read()), dtype=torch.uint8)
tokenizer = WanT5Tokenizer(tokenizer_data={"spiece_model": pieces})
clip = SimpleNamespace(tokenizer=tokenizer, tokenize=tokenizer.tokenize_with_weights)
(row,) = clip.tokenize(text)["umt5xxl"]
count = 1 + next(place for place, (token, _) in enumerate(row) if token == 1)
found = {
    "previews": [
        apart(image, frame) for (_, image, _), frame in zip(previews, latents, strict=False)
    ],
    "thumbnail": apart(thumbnail, latents[6]),
    "another frame": apart(thumbnail, latents[0]),
    "at the ends": float(((colours == 0) | (colours == 255)).float().mean()),
    "brightness": float(colours.mean()),
    "cut": conditioning.cut_prompts({text: torch.ones(count, 4)}, 512, clip),
    "unknown": conditioning.cut_prompts({text: torch.ones(count, 4)}, 512),
    "other tokenizer": conditioning.cut_prompts(
        {text: torch.ones(count, 4)}, 512, SimpleNamespace()
    ),
    "only the end": conditioning.cut_prompts({text: torch.ones(count, 4)}, count - 1, clip),
}
print("RESULTS" + json.dumps(found))

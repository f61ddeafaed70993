"""Finishes a video in chunks of several lengths, whole, and from frames on; prints how they differ, and the memory."""

from inside_comfy import load_pack

# isort: split

import importlib
import json
import sys

import comfy.model_management
import torch

short, long, helpers = sys.argv[1:]
sys.path.append(helpers)
from comfy_extras.nodes_frame_interpolation import FrameInterpolate, FrameInterpolationModelLoader
from comfy_extras.nodes_upscale_model import ImageUpscaleWithModel, UpscaleModelLoader
from peak_memory import peak_bytes

pack = load_pack()
node = importlib.import_module(".nodes.finish_video", pack.__name__)
Footage = importlib.import_module(".headforcing_core.video.section", pack.__name__).Footage
loaders = (UpscaleModelLoader, FrameInterpolationModelLoader)
upscale, interpolation = (loader.execute("tiny.safetensors").args[0] for loader in loaders)
footage = Footage.of_file(short)


def finish(models, first=0, most=16, footage=footage):
    node.MOST_AT_ONCE = most
    return torch.cat(list(models.finish(footage, first)))


found = {"differs": {}, "frames": footage.video_frames, "fps": footage.fps}
with torch.inference_mode():  # as ComfyUI runs nodes
    (images,) = footage.chunks(0, 1000)
    both, enlarged = node._Models(upscale, interpolation, 3), node._Models(upscale, None, 1)
    added = node._Models(None, interpolation, 2)
    whole = ImageUpscaleWithModel.execute(upscale, FrameInterpolate.execute(interpolation, images, 3).args[0]).args[0]
    whole = (whole * 255).round().byte()
    found["moves"] = (whole[1:].int() - whole[:-1]).abs().float().mean().item()
    for name, ours, theirs in (
        ("one chunk", finish(both, most=1000), whole),
        ("chunks of 1", finish(both, most=1), whole),
        ("chunks of 5", finish(both, most=5), whole),
        ("from 17 on", finish(both, 17, 4), whole[17:]),
        ("from 18 on", finish(both, 18, 4), whole[18:]),
        ("only larger", finish(enlarged, 2, 4), whole[6::3]),
        ("only more", finish(added, 5, 4), finish(added, most=1000)[5:]),
    ):
        found["differs"][name] = (ours.int() - theirs.int()).abs().max().item() if ours.shape == theirs.shape else -1
    found["keys"] = len({models.key for models in (both, enlarged, added)})

    node.MOST_AT_ONCE, footage, longest = 16, Footage.of_file(long), 0
    before = peak_bytes()
    for chunk in enlarged.finish(footage, 0):
        longest = max(longest, len(chunk))
    found |= {"grown": peak_bytes() - before, "longest": longest, "long": footage.video_frames}
comfy.model_management.unload_all_models()
print(json.dumps(found))

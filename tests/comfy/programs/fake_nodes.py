"""Test-only nodes: text conditioning without the 11 GB encoder, and what tests need to fail or to watch."""

import copy
import json
import shutil
import types

import comfy.latent_formats
import comfy.model_patcher
import comfy.sd
import comfy.taesd.taesd
import latent_preview
import torch

NODE_CLASS_MAPPINGS = {}


def node(*returns, output=False, always=False, **inputs):
    """Make a function a node of its name; `always`: run it in every graph again."""

    def register(function):
        members = {"RETURN_TYPES": returns, "FUNCTION": "run", "CATEGORY": "testing", "OUTPUT_NODE": output}
        members["INPUT_TYPES"] = classmethod(lambda cls: {"required": inputs})
        members["run"] = lambda self, **given: function(**given)
        if always:
            members["IS_CHANGED"] = classmethod(lambda cls, **_: float("nan"))
        NODE_CLASS_MAPPINGS[function.__name__] = type(function.__name__, (), members)
        return function

    return register


@node("CONDITIONING", seed=("INT", {"default": 0}), words=("INT", {"default": 8, "min": 0, "max": 512}))
def TestFakeText(seed, words):
    """CONDITIONING as the native umt5 encoder gives it: 512 rows, exactly zero after the words."""
    rows = torch.randn(1, 512, 4096, generator=torch.Generator().manual_seed(seed))
    rows[:, words:] = 0
    return ([[rows, {"pooled_output": None}]],)


@node("VAE")
def TestImageVAE():
    """A native VAE for images with 4 latent channels, as Stable Diffusion has (random weights)."""
    return (comfy.sd.VAE(sd=comfy.taesd.taesd.TAESD().state_dict()),)


@node("MODEL")
def TestOtherModel():
    """A MODEL that is not Wan."""
    model, cpu = torch.nn.Module(), torch.device("cpu")
    model.diffusion_model, model.device = torch.nn.Linear(2, 2), cpu
    model.latent_format = comfy.latent_formats.SD15()
    return (comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu),)


class BrokenDecoder:
    def __init__(self, decoder, chunks):
        self.decoder, self.chunks = decoder, chunks

    def reset(self):
        self.decoder.reset()

    def decode(self, latents):
        self.chunks -= 1
        if self.chunks < 0:
            raise RuntimeError("the test broke the decoder")
        return self.decoder.decode(latents)


@node("VAE", vae=("VAE",), chunks=("INT", {"default": 1}))
def TestBrokenVAE(vae, chunks):
    """The demo's VAE, whose decoder fails after some chunks."""
    broken, decoder = copy.copy(vae), vae.first_stage_model.streaming_decoder
    broken.first_stage_model = types.SimpleNamespace(streaming_decoder=lambda: BrokenDecoder(decoder(), chunks))
    return (broken,)


SEEN, GET_PREVIEWER, DISK_USAGE = [], latent_preview.get_previewer, shutil.disk_usage


class PreviewSpy:
    """Takes all frames and gives no picture, as VideoHelperSuite's does; it notes how many frames it got."""

    def decode_latent_to_preview_image(self, preview_format, x0):
        SEEN.append(x0.shape[2])


@node("MODEL", model=("MODEL",))
def TestPreviewSpy(model):
    latent_preview.get_previewer = lambda *args, **kwargs: PreviewSpy()
    return (model,)


@node(output=True, after=("STRING", {"forceInput": True}))
def TestPreviewsSeen(after):
    latent_preview.get_previewer = GET_PREVIEWER
    return {"ui": {"text": [json.dumps(SEEN)]}}


@node("INT", always=True, number=("INT", {"default": 0}), free=("INT", {"default": 0, "max": 2**40}))
def TestFreeDisk(number, free):
    """Pass a number on and make every disk have that many bytes free; 0: what it really has."""
    shutil.disk_usage = (lambda path: DISK_USAGE(path)._replace(free=free)) if free else DISK_USAGE
    return (number,)

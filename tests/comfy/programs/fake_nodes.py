"""Test-only nodes: text conditioning without the 11 GB encoder, and a node that only takes its time."""

import copy
import json
import shutil
import time
import types

import comfy.latent_formats
import comfy.model_patcher
import comfy.sd
import comfy.taesd.taesd
import comfy.utils
import latent_preview
import torch
from PIL import Image


class TestFakeText:
    """CONDITIONING as the native umt5 encoder gives it: 512 rows, exactly zero after the words."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("CONDITIONING",), "make", "testing"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"seed": ("INT", {"default": 0}), "words": ("INT", {"default": 8, "min": 0, "max": 512})}}

    def make(self, seed, words):
        rows = torch.randn(1, 512, 4096, generator=torch.Generator().manual_seed(seed))
        rows[:, words:] = 0
        return ([[rows, {"pooled_output": None}]],)


class TestSlow:
    """Counts to `steps` with a preview each, `seconds` in all; shows a still image when done."""

    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = ("IMAGE",), "run", "testing", True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"steps": ("INT", {"default": 4, "min": 1}), "seconds": ("FLOAT", {"default": 0.2})}}

    def run(self, steps, seconds):
        bar = comfy.utils.ProgressBar(steps)
        for step in range(1, steps + 1):
            time.sleep(seconds / steps)
            bar.update_absolute(step, steps, ("JPEG", Image.new("RGB", (64, 32), (255 * step // steps, 64, 64)), 512))
        return (torch.full((1, 32, 64, 3), 0.5),)


class TestImageVAE:
    """A native VAE for images with 4 latent channels, as Stable Diffusion has (random weights)."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("VAE",), "make", "testing"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def make(self):
        return (comfy.sd.VAE(sd=comfy.taesd.taesd.TAESD().state_dict()),)


class TestOtherModel:
    """A MODEL that is not Wan."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("MODEL",), "make", "testing"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {}}

    def make(self):
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


class TestBrokenVAE:
    """The demo's VAE, whose decoder fails after some chunks."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("VAE",), "make", "testing"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"vae": ("VAE",), "chunks": ("INT", {"default": 1})}}

    def make(self, vae, chunks):
        broken = copy.copy(vae)
        decoder = vae.first_stage_model.streaming_decoder
        broken.first_stage_model = types.SimpleNamespace(streaming_decoder=lambda: BrokenDecoder(decoder(), chunks))
        return (broken,)


SEEN, GET_PREVIEWER = [], latent_preview.get_previewer


class PreviewSpy:
    """Takes all frames and gives no picture, as VideoHelperSuite's does; it notes how many frames it got."""

    def decode_latent_to_preview_image(self, preview_format, x0):
        SEEN.append(x0.shape[2])


class TestPreviewSpy:
    RETURN_TYPES, FUNCTION, CATEGORY = ("MODEL",), "start", "testing"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"model": ("MODEL",)}}

    def start(self, model):
        latent_preview.get_previewer = lambda *args, **kwargs: PreviewSpy()
        return (model,)


class TestPreviewsSeen:
    RETURN_TYPES, FUNCTION, CATEGORY, OUTPUT_NODE = (), "stop", "testing", True

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"after": ("STRING", {"forceInput": True})}}

    def stop(self, after):
        latent_preview.get_previewer = GET_PREVIEWER
        return {"ui": {"text": [json.dumps(SEEN)]}}


DISK_USAGE = shutil.disk_usage


class TestFreeDisk:
    """Passes a number on and makes every disk have that many bytes free; 0: what it really has."""

    RETURN_TYPES, FUNCTION, CATEGORY = ("INT",), "set", "testing"

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"number": ("INT", {"default": 0}), "free": ("INT", {"default": 0, "max": 2**40})}}

    @classmethod
    def IS_CHANGED(cls, **_):
        return float("nan")

    def set(self, number, free):
        def usage(path):
            return DISK_USAGE(path)._replace(free=free)

        shutil.disk_usage = usage if free else DISK_USAGE
        return (number,)


NODE_CLASS_MAPPINGS = {
    "TestFreeDisk": TestFreeDisk,
    "TestBrokenVAE": TestBrokenVAE,
    "TestPreviewSpy": TestPreviewSpy,
    "TestPreviewsSeen": TestPreviewsSeen,
    "TestFakeText": TestFakeText,
    "TestSlow": TestSlow,
    "TestImageVAE": TestImageVAE,
    "TestOtherModel": TestOtherModel,
}

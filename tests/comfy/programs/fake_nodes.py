"""Test-only nodes: text conditioning without the 11 GB encoder, and what tests need to fail or to
watch.
"""

import json
import sys
import threading

import comfy.latent_formats
import comfy.model_patcher
import comfy.sd
import comfy.taesd.taesd
import latent_preview
import torch
from aiohttp import web
from server import PromptServer

NODE_CLASS_MAPPINGS = {}


def node(*returns, output=False, **inputs):
    """Make a function a node of its name."""

    def register(function):
        members = {
            "RETURN_TYPES": returns,
            "FUNCTION": "run",
            "CATEGORY": "testing",
            "OUTPUT_NODE": output,
        }
        members["INPUT_TYPES"] = classmethod(lambda cls: {"required": inputs})
        members["run"] = lambda self, **given: function(**given)
        NODE_CLASS_MAPPINGS[function.__name__] = type(function.__name__, (), members)
        return function

    return register


@node(
    "CONDITIONING",
    seed=("INT", {"default": 0}),
    words=("INT", {"default": 8, "min": 0, "max": 1024}),
)
def TestFakeText(seed, words):
    """CONDITIONING as the native umt5 encoder gives it: 512 rows, exactly zero after the words."""
    rows = torch.randn(1, max(512, words), 4096, generator=torch.Generator().manual_seed(seed))
    rows[:, words:] = 0
    return ([[rows, {"pooled_output": None}]],)


class FakeClip:
    """A text encoder of the width that Wan reads, without weights."""

    def tokenize(self, text):
        return text

    def encode_from_tokens_scheduled(self, text):
        (entries,) = TestFakeText(len(text), 8)
        return entries


@node("CLIP")
def TestFakeClip():
    return (FakeClip(),)


@node("VAE")
def TestImageVAE():
    """A native VAE for images with 4 latent channels, as Stable Diffusion has (random weights)."""
    return (comfy.sd.VAE(sd=comfy.taesd.taesd.TAESD().state_dict()),)


@node("MODEL")
def TestOtherModel():
    """A MODEL that is not Wan."""
    model = torch.nn.Module()
    cpu = torch.device("cpu")
    model.diffusion_model = torch.nn.Linear(2, 2)
    model.device = cpu
    model.latent_format = comfy.latent_formats.SD15()
    return (comfy.model_patcher.ModelPatcher(model, load_device=cpu, offload_device=cpu),)


@node(
    "MODEL",
    model=("MODEL",),
    kind=("STRING", {"default": "apply_model"}),
    factor=("FLOAT", {"default": 1.05}),
)
def TestModelPatch(model, kind, factor):
    """What packs put on a MODEL: a wrapper of that type, or what the kind names; it scales what it
    gets.
    """

    def wrapper(executor, *args, **kwargs):
        return executor(*args, **kwargs) * factor

    model = model.clone()
    if kind == "model_function_wrapper":
        model.set_model_unet_function_wrapper(
            lambda call, of: call(of["input"], of["timestep"], **of["c"]) * factor
        )
    elif kind == "optimized_attention_override":
        options = model.model_options["transformer_options"]
        options[kind] = lambda attention, *args, **kwargs: attention(*args, **kwargs) * factor
    elif kind == "sampler_post_cfg_function":
        model.set_model_sampler_post_cfg_function(lambda given: given["denoised"] * factor)
    elif kind == "unreadable":
        state = (_ for _ in range(3))
        model.set_model_sampler_post_cfg_function(
            lambda given: given["denoised"] * (factor if state else 1)
        )
    elif kind == "unknown":
        model.model_options["of_another_pack"] = factor
    else:
        model.add_wrapper_with_key(kind, "test", wrapper)
    return (model,)


@node("CONDITIONING", conditioning=("CONDITIONING",), part=("STRING", {"default": ""}))
def TestPartOfPrompt(conditioning, part):
    """A CONDITIONING as other packs and core's nodes change it."""
    (tensor, entry), *_ = conditioning
    if part == "batch":
        return ([[tensor.repeat(3, 1, 1), entry]],)
    return ([[tensor, {**entry, part: 0.5}]],)


class Pace:
    """Lets a render make so many blocks, and then wait until a test allows more."""

    def __init__(self):
        self.loop = next(
            module for name, module in sys.modules.items() if name.endswith(".rollout.loop")
        )
        self.make_block = self.loop.make_block
        self.allowed = threading.Semaphore(0)
        self.loop.make_block = self.make_when_allowed

    def make_when_allowed(self, *args, **kwargs):
        self.allowed.acquire(timeout=60)  # a test that failed allows none
        return self.make_block(*args, **kwargs)

    def end(self):
        self.loop.make_block = self.make_block
        self.allowed.release(1000)


PACES = []


@PromptServer.instance.routes.post("/test/pace")
async def pace(request):
    """Allow some more blocks, from the next one on; without a number the render runs free again."""
    blocks = (await request.json())["blocks"]
    if blocks is None:
        PACES.pop().end()
    else:
        if not PACES:
            PACES.append(Pace())
        PACES[0].allowed.release(blocks)
    return web.json_response({})


SEEN = []
GET_PREVIEWER = latent_preview.get_previewer


class PreviewSpy:
    """Takes all frames and gives no picture, as VideoHelperSuite's does; it notes how many frames
    it got.
    """

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

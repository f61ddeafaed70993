"""Test-only nodes: text conditioning without the 11 GB encoder, and what tests need to fail or to
watch.
"""

import json
import math
import time

import comfy.latent_formats
import comfy.model_management
import comfy.model_patcher
import comfy.sd
import comfy.taesd.taesd
import comfy.utils
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
    """Where a node's progress waits for a test: it ends there by the test's word, a Stop, or after
    `LONGEST` seconds, so that nothing that is asked of a growing video depends on the machine.
    """

    LONGEST = 120.0  # seconds: a test that failed says nothing more

    def __init__(self):
        self.node, self.at = "", math.inf  # of any node without a name
        self.pause = 0.0  # seconds that each step takes at least
        self.update = comfy.utils.ProgressBar.update_absolute
        pace = self

        def update_absolute(bar, value, *args, **kwargs):
            pace.update(bar, value, *args, **kwargs)
            pace.wait(bar, value)

        comfy.utils.ProgressBar.update_absolute = update_absolute

    def wait(self, bar, value):
        """Send the progress that ComfyUI may have left out, and tell a script, which names the node,
        that it waits; a page knows no such message.
        """
        server = PromptServer.instance
        stopped = comfy.model_management.processing_interrupted
        if self.pause and not stopped():
            time.sleep(self.pause)
        of_a_part = getattr(bar.hook, "__name__", "") == "stop_where_asked"  # no page sees that bar
        if value < self.at or of_a_part or self.node not in ("", server.last_node_id):
            return
        if bar.hook is not None:  # a live video shows no progress
            bar.hook(value, bar.total, None, node_id=bar.node_id)
        if self.node:
            server.send_sync("test.waits", {"value": value}, server.client_id)
        end = time.monotonic() + self.LONGEST
        while value >= self.at and time.monotonic() < end and not stopped():
            time.sleep(0.01)
        if value >= self.at:
            self.at, self.pause = math.inf, 0.0


PACE = Pace()


@PromptServer.instance.routes.post("/test/pace")
async def pace(request):
    """Let a node come so far, and wait there; without a number nothing waits. Until the next word
    each step takes so many seconds.
    """
    asked = await request.json()
    PACE.pause = asked["pause"]
    PACE.node, PACE.at = asked["node"], math.inf if asked["at"] is None else asked["at"]
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

"""What fingerprints and reports say with dynamic VRAM and without; prints it as JSON.

Dynamic VRAM needs an NVIDIA GPU. Here its patcher is told that the device is the CPU, and that it has a buffer of its
own: everything that it does with the weights besides copying them to the device is its own code.
"""

from inside_comfy import load_pack

# isort: split

import importlib
import json
import sys
import types
from unittest.mock import patch

import comfy.model_detection
import comfy.model_patcher
import comfy.ops
import comfy.sd
import torch
from safetensors.torch import load_file

helpers, vae_file = sys.argv[1:]
sys.path.append(helpers)
from tiny_checkpoints import wan_t2v_weights

pack, CPU = load_pack(), torch.device("cpu")
fingerprint = importlib.import_module(".nodes.host.loaded_model", pack.__name__).fingerprint
inexact = importlib.import_module(".nodes.host.loaded_model", pack.__name__).inexact
native_model = importlib.import_module(".nodes.host.native_model", pack.__name__)
codec_of = importlib.import_module(".nodes.host.vae", pack.__name__).codec_of
has_dynamic = hasattr(comfy.model_patcher, "ModelPatcherDynamic")
META = {"config": json.dumps({"transformer": {"causal_ar": True}})}
FP8 = torch.float8_e4m3fn
# dtype of the file, dtype that weights are stored in on the device, dtype that they are cast to for products
CASES = {
    "fp32 at fp16": (torch.float32, torch.float16, None),
    "fp32 at bf16": (torch.float32, torch.bfloat16, None),
    "bf16 at fp16": (torch.bfloat16, torch.float16, None),
    "fp16 at bf16": (torch.float16, torch.bfloat16, None),
    "bf16 at bf16": (torch.bfloat16, torch.bfloat16, None),
    "fp16 at fp16": (torch.float16, torch.float16, None),
    "fp32 at fp32": (torch.float32, torch.float32, None),
    "bf16 at fp8": (torch.bfloat16, FP8, torch.bfloat16),
    "fp32 at fp8": (torch.float32, FP8, torch.float16),
}
if has_dynamic:
    import comfy.memory_management
    import comfy_aimdo.host_buffer

    comfy_aimdo.host_buffer.HostBuffer = lambda *_: types.SimpleNamespace(size=0, truncate=lambda *_, **__: None)


def patcher_class(dynamic):
    """The patcher that ComfyUI makes all MODELs and VAEs with from now on."""
    if has_dynamic:
        comfy.memory_management.aimdo_enabled = dynamic
        made = DynamicOnCPU if dynamic else comfy.model_patcher.ModelPatcher
        comfy.model_patcher.CoreModelPatcher = made
        return made
    return comfy.model_patcher.ModelPatcher


if has_dynamic:

    class DynamicOnCPU(comfy.model_patcher.ModelPatcherDynamic):
        def __new__(cls, *_, **__):  # ComfyUI's own gives another patcher for a CPU
            return object.__new__(cls)


def weights(dtype, quantised=False):
    given = {name: tensor.to(dtype) for name, tensor in wan_t2v_weights().items()}
    if quantised:
        for name in [name for name in given if name.startswith("blocks.") and ".ffn." in name and "weight" in name]:
            scale = given[name].abs().max().float() / torch.finfo(FP8).max
            given[name] = (given[name].float() / scale).to(FP8)
            given[name.replace("weight", "weight_scale")] = scale
            told = json.dumps({"format": "float8_e4m3fn"}).encode()
            given[name.replace("weight", "comfy_quant")] = torch.tensor(list(told), dtype=torch.uint8)
    return given


def build(dynamic, file, stored, cast=None, quantised=False):
    made, given = patcher_class(dynamic), weights(file, quantised)
    config = comfy.model_detection.model_config_from_unet(given, "", metadata=META)
    config.set_inference_dtype(stored, cast)
    patcher = made(config.get_model(given, ""), CPU, CPU)
    assign = {"assign": patcher.is_dynamic()} if has_dynamic else {}
    patcher.model.load_model_weights(dict(given), "", **assign)
    return patcher


def loaded(patcher):
    patcher.load(CPU) if getattr(patcher, "is_dynamic", bool)() else patcher.load(CPU, full_load=True)
    return patcher


def dtypes(net):
    return sorted({str(weight.dtype) for weight in net.parameters()})


def of_models(dynamic):
    found = {}
    for name, case in CASES.items():
        patcher = build(dynamic, *case)
        held, before = dtypes(patcher.model.diffusion_model), fingerprint(patcher)
        loaded(patcher)
        after = fingerprint(patcher)
        getattr(patcher, "restore_loaded_backups", patcher.detach)()  # what unloading does to weights
        names, told = [before, after, fingerprint(patcher)], inexact(patcher)
        found[name] = {"names": names, "inexact": told, "held": held}
    return found


def of_quantised(dynamic):
    patcher = build(dynamic, torch.float32, torch.bfloat16, quantised=True)
    kind = type(patcher.model.diffusion_model.blocks[0].ffn[0].weight).__name__
    return {"kind": kind, "names": [fingerprint(patcher), fingerprint(loaded(patcher))]}


def of_vaes(dynamic):
    """Of a file in float32, at both dtypes that VAEs are computed in."""
    patcher_class(dynamic)
    found = {}
    for dtype in (torch.float32, torch.bfloat16):
        vae = comfy.sd.VAE(sd=load_file(vae_file), dtype=dtype, device=CPU)
        before = codec_of(vae).fingerprint()
        loaded(vae.patcher)
        found[str(dtype)] = [before, codec_of(vae).fingerprint()]
    return found


def of_halves():
    """Load Self Forcing's model of a file in float32, beside the same model with the weights of the file."""
    found = {}
    for name in ("fp32 at fp16", "fp32 at fp32", "fp32 at fp8"):
        plain, halves = build(True, *CASES[name]), build(True, *CASES[name])
        with patch.object(native_model.comfy.sd, "load_diffusion_model_state_dict", lambda *_, made=halves, **__: made):
            made = native_model.native_model(weights(torch.float32), None)
        held, share = dtypes(made.model.diffusion_model), made.model_size() / plain.model_size()
        names = [fingerprint(model) for model in (plain, made, loaded(made))]
        found[name] = {"held": held, "share": share, "names": names}
    return found


results = {"static": {"models": of_models(False), "vaes": of_vaes(False)}}
if has_dynamic:
    results["dynamic"] = {"models": of_models(True), "vaes": of_vaes(True)}
    results |= {"quantised": [of_quantised(dynamic) for dynamic in (False, True)], "halves": of_halves()}
print(json.dumps(results))

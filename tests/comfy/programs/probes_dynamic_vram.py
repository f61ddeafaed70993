"""Stored blocks are found again with ComfyUI's dynamic VRAM: a weight has one name before and after
it is loaded.

Dynamic VRAM needs an NVIDIA GPU and a newer ComfyUI. Here its patcher is told that the device is
the CPU, and that it
has a buffer of its own: everything that it does with the weights besides copying them to the device
is its own code.
"""

import importlib
import json
import types
from contextlib import contextmanager
from unittest.mock import patch

import comfy.model_detection
import comfy.model_patcher
import comfy.sd
import torch
from parity import VAE, loaded_model, probe, toy, vae_decoding, weights
from safetensors.torch import load_file

CPU = torch.device("cpu")
FP8 = torch.float8_e4m3fn
PATCHER = comfy.model_patcher
META = {"config": json.dumps({"transformer": {"causal_ar": True}})}
# dtype of the file, dtype that weights are stored in on the device, dtype that they are cast to for
# products
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


@contextmanager
def vram(dynamic):
    """ComfyUI makes all MODELs and VAEs with this patcher, for dynamic VRAM or the plain one."""
    memory, buffer = map(
        importlib.import_module, ("comfy.memory_management", "comfy_aimdo.host_buffer")
    )

    class DynamicOnCPU(PATCHER.ModelPatcherDynamic):
        def __new__(cls, *_, **__):  # ComfyUI's own gives another patcher for a CPU
            return object.__new__(cls)

    made = DynamicOnCPU if dynamic else PATCHER.ModelPatcher
    own_buffer = types.SimpleNamespace(size=0, truncate=lambda *_, **__: None)
    with (
        patch.object(memory, "aimdo_enabled", dynamic),
        patch.object(buffer, "HostBuffer", lambda *_: own_buffer),
        patch.object(PATCHER, "CoreModelPatcher", made),
    ):
        yield


def weights_in(dtype, quantised=False):
    given = {name: tensor.to(dtype) for name, tensor in weights().items()}
    if quantised:
        for name in [
            name
            for name in given
            if name.startswith("blocks.") and ".ffn." in name and "weight" in name
        ]:
            scale = given[name].abs().max().float() / torch.finfo(FP8).max
            given[name] = (given[name].float() / scale).to(FP8)
            given[name.replace("weight", "weight_scale")] = scale
            told = json.dumps({"format": "float8_e4m3fn"}).encode()
            given[name.replace("weight", "comfy_quant")] = torch.tensor(
                list(told), dtype=torch.uint8
            )
    return given


def build(file, stored, cast=None, quantised=False):
    given = weights_in(file, quantised)
    config = comfy.model_detection.model_config_from_unet(given, "", metadata=META)
    config.set_inference_dtype(stored, cast)
    patcher = PATCHER.CoreModelPatcher(config.get_model(given, ""), CPU, CPU)
    patcher.model.load_model_weights(dict(given), "", assign=patcher.is_dynamic())
    return patcher


def loaded(patcher):
    patcher.load(CPU) if patcher.is_dynamic() else patcher.load(CPU, full_load=True)
    return patcher


def dtypes(patcher):
    return sorted({str(weight.dtype) for weight in patcher.model.diffusion_model.parameters()})


@probe
def weights_have_one_name_before_loading_and_after_with_dynamic_vram_and_without():
    names = {case: set() for case in CASES}
    held = {}
    for dynamic in (False, True):
        for case, given in CASES.items():
            with vram(dynamic):
                patcher = build(*given)
                held[case, dynamic] = dtypes(patcher)
                names[case] |= {
                    loaded_model.name_model(patcher),
                    loaded_model.name_model(loaded(patcher)),
                }
                # what unloading does to weights
                getattr(patcher, "restore_loaded_backups", patcher.detach)()
                names[case].add(loaded_model.name_model(patcher))
                fp8 = (
                    ["weights stored in 8-bit floating point (float8_e4m3fn)"]
                    if case.endswith("fp8")
                    else []
                )
                assert loaded_model.approximations(patcher) == fp8, (case, dynamic)
    assert {case: len(own) for case, own in names.items()} == dict.fromkeys(CASES, 1)
    # bf16 to fp16 and back is exact for these weights, but another dtype is another computation
    assert len(set().union(*names.values())) == len(CASES)
    assert held["fp32 at fp16", False] == ["torch.float16", "torch.float32"]
    assert held["fp32 at fp16", True] == ["torch.float32"], (
        "the dtype of the file, else nothing was cast"
    )


@probe
def quantised_weights_and_vaes_keep_their_names_with_dynamic_vram():
    # at both dtypes that VAEs are computed in
    models = set()
    vaes = {torch.float32: set(), torch.bfloat16: set()}
    for dynamic in (False, True):
        with vram(dynamic):
            patcher = build(torch.float32, torch.bfloat16, quantised=True)
            weight = patcher.model.diffusion_model.blocks[0].ffn[0].weight
            assert type(weight).__name__ == "QuantizedTensor"
            models |= {loaded_model.name_model(patcher), loaded_model.name_model(loaded(patcher))}
            for dtype, names in vaes.items():
                vae = comfy.sd.VAE(sd=load_file(VAE), dtype=dtype, device=CPU)
                names.add(vae_decoding.codec_of(vae).fingerprint())
                loaded(vae.patcher)
                names.add(vae_decoding.codec_of(vae).fingerprint())
    assert [len(models), *map(len, vaes.values())] == [1, 1, 1] and len(
        set().union(*vaes.values())
    ) == 2


@probe
def load_self_forcing_casts_once_what_dynamic_vram_would_cast_at_each_copy():
    """A model of a file in float32, beside the same model with the weights of the file."""
    halves = (["torch.float16", "torch.float32"], 0.5)
    whole = (["torch.float32"], 1.0)
    # ComfyUI keeps the first layer in fp32
    for case, expected in (
        ("fp32 at fp16", halves),
        ("fp32 at fp32", whole),
        ("fp32 at fp8", whole),
    ):
        with vram(True):
            plain = build(*CASES[case])
            cast = build(*CASES[case])
            with patch.object(
                comfy.sd, "load_diffusion_model_state_dict", lambda *_, made=cast, **__: made
            ):
                made = toy.native_model(weights_in(torch.float32), None)
            assert (dtypes(made), round(made.model_size() / plain.model_size(), 1)) == expected, (
                case
            )
            names = [loaded_model.name_model(model) for model in (plain, made, loaded(made))]
            assert len(set(names)) == 1, case

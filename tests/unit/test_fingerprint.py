"""A loaded MODEL: weights have a name, quantised ones too, and what a rollout does not run of it is named."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

PATH = Path(__file__).resolve().parents[2] / "nodes" / "host" / "loaded_model.py"  # the package of nodes needs ComfyUI
spec = importlib.util.spec_from_file_location("headforcing.nodes.host.loaded_model_alone", PATH)
loaded_model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loaded_model)
fingerprint = loaded_model.fingerprint


class GGMLTensor(Tensor):
    """As ComfyUI-GGUF's: raw bytes, a type, and a shape that is not that of the bytes."""

    def __new__(cls, data, tensor_type=2):
        made = data.as_subclass(cls)
        made.tensor_type = tensor_type
        return made

    @property
    def shape(self):
        return torch.Size((8, 8))

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        out = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(out, cls) and args and isinstance(args[0], cls):
            out.tensor_type = getattr(args[0], "tensor_type", None)
        return out


class QuantizedTensor(Tensor):
    """As ComfyUI's: without any storage of its own."""

    @staticmethod
    def __new__(cls, data, scale):
        return Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.bfloat16, device=data.device)

    def __init__(self, data, scale):
        self._qdata, self._scale = data, scale

    def __tensor_flatten__(self):
        return ["_qdata", "_scale"], {}

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0]._qdata, args[0]._scale)
        raise NotImplementedError(f"{function} would have to dequantise")


def numbers(count=40_000, seed=0):
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def host_model(net, **more):
    """A MODEL of ComfyUI with this network."""
    return SimpleNamespace(model=SimpleNamespace(diffusion_model=net), backup={}, patches={}, **more)


def network(count, size):
    net = nn.Module()
    net.blocks = nn.ModuleList(nn.Linear(size, size) for _ in range(count))
    net.head = nn.Linear(size, 3)
    return net


def model(weight):
    """A MODEL of one layer with this weight."""
    net = network(0, 2)
    nn.init.ones_(net.head.weight)
    nn.init.zeros_(net.head.bias)
    net.blocks.append(nn.Module())
    net.blocks[0].weight = weight
    return host_model(net)


KINDS = {
    "gguf": lambda data: nn.Parameter(GGMLTensor(data), requires_grad=False),
    "quantised": lambda data: nn.Parameter(QuantizedTensor(data, torch.tensor(0.5)), requires_grad=False),
}


@pytest.mark.parametrize("kind", KINDS)
def test_quantised_weights_have_names_of_their_own(kind: str):
    data, other = numbers(), numbers(seed=1)
    assert type(KINDS[kind](data)) is not nn.Parameter
    assert fingerprint(model(KINDS[kind](data))) == fingerprint(model(KINDS[kind](data.clone())))
    merged = data.clone()
    merged[20_000:] += 1  # a LoRA that reaches only some rows
    found = {fingerprint(model(KINDS[kind](x))) for x in (data, other, merged, data[:30_000])}
    assert len(found) == 4
    assert fingerprint(model(None)) == fingerprint(model(torch.empty(4, device="meta"))), "not there: passed over"
    weights = [GGMLTensor(data, 2), GGMLTensor(data, 8), *(QuantizedTensor(data, torch.tensor(s)) for s in (1.0, 2.0))]
    assert len({fingerprint(model(weight)) for weight in [*weights, nn.Parameter(data.float())]}) == 5


def layers():
    generator = torch.Generator().manual_seed(0)
    net = network(4, 6)
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    return host_model(net)


def test_one_number_in_any_tensor_or_patch_changes_the_name():
    found = {fingerprint(layers())}
    names = [name for name, _ in layers().model.diffusion_model.named_parameters()]
    for name in names:
        changed = layers()
        changed.model.diffusion_model.get_parameter(name).data.view(-1)[-1] += 1e-6
        found.add(fingerprint(changed))
    assert len(found) == 1 + len(names) and fingerprint(layers()) in found
    lora = torch.arange(12.0).reshape(3, 4)
    other = lora.clone()
    other[2, 3] += 1e-6

    def patched(weights, strength=1.0, offset=None, place="diffusion_model.blocks.0.weight"):
        made = layers()
        made.patches = {place: [(strength, ("diff", (weights,)), 1.0, offset, None)]}
        return fingerprint(made)

    named = [
        patched(lora), patched(other), patched(lora, 0.5), patched(lora, offset=(0, 1, 2)),
        patched(lora, place="diffusion_model.blocks.1.weight"),
    ]  # fmt: skip
    assert len({*found, *named}) == len(found) + len(named) and patched(lora.clone()) == patched(lora)


def test_a_weight_counts_in_the_dtype_that_comfyui_names_for_it():
    """As with dynamic VRAM, where ComfyUI casts some weights as they are used, and some in place without a backup."""

    def stored(dtype, named):
        made = layers()
        for module in made.model.diffusion_model.modules():
            for name, weight in module.named_parameters(recurse=False):
                weight.data = weight.data.to(dtype)
                setattr(module, f"{name}_comfy_model_dtype", named)
        return made

    half = fingerprint(stored(torch.float16, torch.float16))
    partly = stored(torch.float32, torch.float16)
    partly.model.diffusion_model.head.weight.data = partly.model.diffusion_model.head.weight.data.half()
    assert fingerprint(stored(torch.float32, torch.float16)) == fingerprint(partly) == half
    assert fingerprint(stored(torch.float16, None)) == half  # nothing is named: its own
    others = {
        fingerprint(stored(torch.float32, dtype)) for dtype in (torch.float32, torch.bfloat16, torch.float8_e4m3fn)
    }
    assert len(others | {half}) == 4 and fingerprint(layers()) in others


def patcher(**transformer_options):
    options = {"transformer_options": transformer_options}
    return host_model(network(3, 2), model_options=options, wrappers={}, object_patches={})


def test_every_kind_of_patch_that_is_not_run_is_named():
    model = patcher(
        patches={"attn2_patch": [print]},
        patches_replace={"dit": {("double_block", 1): print}},
        wrappers={"diffusion_model": {"TeaCache": [print], loaded_model.KEY: [print]}},
    )
    model.object_patches = {"diffusion_model.forward_orig": print, "model_sampling": print}
    model.wrappers = {"apply_model": {"torch.compile": [print]}}
    for block in model.model.diffusion_model.blocks[1:]:
        block.register_forward_pre_hook(lambda *_: None)
    told = "\n".join(loaded_model.ignored(model))
    parts = "attn2_patch, dit|(TeaCache)|torch.compile|diffusion_model.forward_orig|hooks on 2 blocks"
    assert all(named in told for named in parts.split("|"))
    plain = patcher(wrappers={"diffusion_model": {loaded_model.KEY: [print]}, "outer_sample": {"theirs": [print]}})
    assert loaded_model.ignored(plain) == []
    assert len(told.splitlines()) == 5 and "model_sampling" not in told

"""Weights have a name, quantised ones too: what one model made is never taken for what another would make."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

PATH = Path(__file__).resolve().parents[2] / "nodes" / "host" / "fingerprint.py"  # the package of nodes needs ComfyUI
spec = importlib.util.spec_from_file_location("fingerprint_alone", PATH)
fingerprint_module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(fingerprint_module)
fingerprint = fingerprint_module.fingerprint


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


def model(weight):
    """A MODEL of one layer whose weights are all like this one."""
    linear = SimpleNamespace(weight=weight)
    block = SimpleNamespace(modulation=torch.ones(6, 4), get_submodule=lambda name: linear)
    net = SimpleNamespace(head=SimpleNamespace(modulation=torch.ones(2, 4)), blocks=[block])
    return SimpleNamespace(model=SimpleNamespace(diffusion_model=net), backup={}, patches={})


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


def test_the_type_and_the_scale_of_quantised_weights_count():
    data = numbers()
    weights = [GGMLTensor(data, 2), GGMLTensor(data, 8), *(QuantizedTensor(data, torch.tensor(s)) for s in (1.0, 2.0))]
    assert len({fingerprint(model(weight)) for weight in [*weights, nn.Parameter(data.float())]}) == 5


def test_a_weight_that_is_not_there_is_passed_over():
    assert fingerprint(model(None)) == fingerprint(model(torch.empty(4, device="meta")))

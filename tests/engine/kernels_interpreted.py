"""Every kernel against its specification, run by Triton's interpreter on the CPU.

Not collected by itself: test_kernels.py runs this file in a process of its own, with
TRITON_INTERPRET=1, because Triton decides when it is imported whether it interprets.
"""

import pytest
import torch
from headforcing.headforcing_core.model import fp8
from headforcing.kernels import attend, write
from headforcing.kernels.dispatch import TOLERANCE, Operation
from headforcing.kernels.feature_frames import feature_frames
from headforcing.kernels.language import interpreting
from headforcing.kernels.layout import LayoutError
from headforcing.kernels.modulate import norm_modulate
from headforcing.kernels.move import move_frames
from kernel_cases import OPERATIONS, ROLE_MAPS, case, distance, roll_out
from kernel_choice import using

assert interpreting(), "run by test_kernels.py"

CPU = torch.device("cpu")
EVERY_OPERATION = pytest.mark.parametrize(
    "operation", OPERATIONS, ids=lambda operation: operation.name
)
EVERY_DTYPE = pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str
)


@pytest.fixture(autouse=True)
def kernels_only():
    with using("triton"):
        yield


def allowed(operation: Operation, dtype: torch.dtype) -> float:
    """Distances of numbers that were rounded once; the interpreter cuts bfloat16 off instead, one
    unit at most.

    Frames may move three times, and a norm magnifies the unit that the sum before it is off.
    """
    units = {move_frames: 3.2, norm_modulate: 12, feature_frames: 12}.get(operation, 1.02)
    return {torch.float32: 5e-6, torch.float16: 2e-3, torch.bfloat16: units * 2**-7}[dtype]


@pytest.mark.repeat("torch.float16")
@EVERY_DTYPE
@EVERY_OPERATION
def test_a_kernel_passes_its_self_test(operation, dtype):
    assert operation.difference(CPU, dtype) <= min(allowed(operation, dtype), TOLERANCE[dtype])


@pytest.mark.repeat("wide", "bfloat16")
@pytest.mark.parametrize(
    ("dtype", "s", "head_dim", "seed"),
    [
        (torch.float32, 24, 20, 0),
        (torch.float32, 40, 24, 1),
        (torch.float32, 24, 20, 2),
        (torch.float16, 40, 128, 3),
        (torch.bfloat16, 40, 24, 0),
    ],
    ids=["", "other options", "third options", "wide", "bfloat16"],
)
@EVERY_OPERATION
def test_a_kernel_equals_plain_torch_on_awkward_sizes(operation, dtype, s, head_dim, seed):
    assert distance(operation, lambda: case(operation, seed, dtype, s, head_dim)) <= allowed(
        operation, dtype
    )


@pytest.mark.parametrize("in_place", [True, False])
def test_values_of_keys_that_only_turn_are_copied_only_to_another_buffer(in_place):
    """In place they lie where they belong, and reading them would be half of the traffic."""
    given = case(move_frames, 0, torch.float32, 8, 24)
    given["moves"] = torch.tensor([[[8, 8, 1]]], dtype=torch.int32)
    k, v = given["k_from"], given["v_from"]
    before = v.clone()
    given["v_to"] = v if in_place else torch.zeros_like(v)
    given["k_to"] = k if in_place else torch.zeros_like(k)
    move_frames(**given)
    assert torch.equal(given["v_to"][8:16], before[8:16])
    assert torch.equal(v, before)


def test_attention_does_not_depend_on_its_tiles(monkeypatch):
    monkeypatch.setattr(attend, "FLOAT32_BLOCK_Q", 16)
    monkeypatch.setattr(attend, "FLOAT32_BLOCK_K", 16)
    assert distance(attend.attend, lambda: case(attend.attend, 1, torch.float32, 40, 24)) <= 5e-6


@pytest.mark.repeat("every role-5", "no anchor heads")
@pytest.mark.parametrize(
    ("roles", "episodic_frames", "rope", "sinks"),
    [
        ("every role", 3, "contiguous", 0),
        ("every role", 5, "contiguous", 0),
        ("a layer without memory heads", 3, "absolute", 0),
        ("no anchor heads", 3, "contiguous", 2),
    ],
)
def test_the_engine_with_its_kernels_follows_the_one_without(
    roles, episodic_frames, rope, sinks, monkeypatch
):
    """With large tiles: the interpreter's time goes with their number, and other tests see to their
    edges.
    """
    monkeypatch.setattr(write, "ROWS", 128)
    monkeypatch.setattr(attend, "FLOAT32_BLOCK_Q", 128)
    monkeypatch.setattr(attend, "FLOAT32_BLOCK_K", 256)
    roll_out(ROLE_MAPS[roles], episodic_frames, rope, sinks)


def test_a_linear_layer_in_8_bits_rounds_its_tokens_by_the_kernel():
    """Also tokens that do not lie one after the other."""
    layer = fp8.Fp8Linear(torch.nn.Linear(64, 48), native=False)
    x = torch.randn(64, 7).T[None]
    with using("reference"):
        expected = layer(x)
    assert torch.equal(layer(x.clone()), expected)
    assert layer(x[:, :0]).shape == (1, 0, 48)
    with pytest.raises(LayoutError, match="contiguous"):
        fp8.quantise(x[0])


@pytest.mark.parametrize(
    "change",
    [
        dict(k=torch.zeros(24, 96, dtype=torch.float16).T),
        dict(v=torch.zeros(20, 288).T),
        dict(k=torch.zeros(288, 24)),
        dict(q=torch.zeros(3, 24, 20, dtype=torch.float64)),
    ],
)
def test_tensors_that_do_not_lie_as_described_are_refused(change):
    with pytest.raises(LayoutError, match="must be contiguous"):
        attend.attend(**(case(attend.attend, 0, torch.float32, 24, 20) | change))

"""The kernels' specification, the plain torch beside each, against the engine; its properties; and who decides."""

import logging
from pathlib import Path

import pytest
import torch
from headforcing.kernels import dispatch
from headforcing.kernels.dispatch import Operation, kernels_put_aside
from headforcing.kernels.layout import LayoutError
from headforcing.kernels.merge import merge_frames
from headforcing.kernels.move import in_sequence
from headforcing.kernels.quantise import quantise, quantise_gelu
from headforcing.kernels.rotation import rotated
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import OPERATIONS, ROLE_MAPS, case, int_table, roll_out, rotations_around
from own_process import run
from torch import Tensor

KERNELS = Path(__file__).resolve().parents[2] / "kernels"


def noise(*size: int, seed: int = 0) -> Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(seed))


@settings(deadline=None)
@given(st.integers(-9, 9), st.integers(-9, 9))
def test_turning_twice_is_turning_by_the_sum(a, b):
    rotations = rotations_around(24, 18)
    x = noise(40, 24)
    twice = rotated(rotated(x, rotations[18 + a]), rotations[18 + b])
    torch.testing.assert_close(twice, rotated(x, rotations[18 + a + b]), atol=1e-5, rtol=1e-5)
    assert torch.equal(rotated(x, rotations[18 + a])[:, 8:], x[:, 8:])  # only temporal channels rotate


@settings(deadline=None)
@given(st.permutations(range(2 * 24)))
def test_a_merge_keeps_exactly_a_frame_of_tokens_and_touches_nothing_else(tokens):
    s = 24
    k, v = noise(4 * s, 20), torch.arange(4.0 * s)[:, None].repeat(1, 20)
    kept = int_table([sorted(tokens[:s])])
    before_k, before_v = k.clone(), v.clone()
    still = 9
    merge_frames(k, v, int_table([[s, 3 * s, s, still, still, 0]]), kept, rotations_around(20, 9))
    sources = [s + token if token < s else 2 * s + token for token in kept[0].tolist()]
    assert v[s : 2 * s, 0].tolist() == sources and len(set(sources)) == s
    torch.testing.assert_close(k[s : 2 * s], before_k[sources])
    others = [*range(s), *range(2 * s, 4 * s)]
    assert torch.equal(k[others], before_k[others]) and torch.equal(v[others], before_v[others])


@settings(deadline=None)
@given(st.permutations(range(7)), st.integers(0, 7))
def test_moves_in_sequence_bring_every_slot_to_its_place(order, kept):
    slots = [*range(7), None]
    for source, target in in_sequence(order[:kept], spare=7):
        slots[target] = slots[source]
    assert slots[:kept] == order[:kept]


def doubled(x: Tensor) -> Tensor:
    """Twice x."""
    return 2 * x


def operation(launch, reference=doubled):
    return Operation(reference, launch, lambda device, dtype: dict(x=torch.ones(3, dtype=dtype)))


ELSEWHERE = torch.ones(2, device="meta")  # stands for a device with kernels


def test_a_kernel_that_agrees_is_used():
    used = []
    launch = operation(lambda x: used.append(x) or 2 * x)
    launch(ELSEWHERE)
    launch(ELSEWHERE)
    assert len(used) == 3  # one self-test, two calls


@pytest.mark.parametrize("wrong", [lambda x: 2.001 * x, lambda x: x / 0 - x / 0, lambda x: x[:1], lambda x: x.half()])
def test_a_kernel_that_differs_is_put_aside_with_one_line(wrong, caplog):
    broken = operation(wrong)
    with caplog.at_level(logging.INFO):
        assert [broken(ELSEWHERE).shape, broken(x=ELSEWHERE).shape] == [(2,)] * 2
    assert [record.message.split(":")[0] for record in caplog.records] == [
        "doubled runs without its Triton kernel on meta in torch.float32"
    ]


def test_a_kernel_that_raises_is_put_aside_with_one_line(caplog):
    def fails(x):
        raise OSError("no compiler here")

    with caplog.at_level(logging.INFO):
        broken = operation(fails)
        broken(ELSEWHERE)
        broken(ELSEWHERE)
    assert len(caplog.records) == 1 and "no compiler here" in caplog.text
    told = kernels_put_aside(ELSEWHERE.device)
    assert told.startswith("Triton kernels not used") and "doubled" in told
    assert kernels_put_aside(torch.device("cpu")) == ""


def failing_later(error: Exception, calls: list[Tensor]):
    """An operation that works in its self-test only."""

    def fails_later(x):
        calls.append(x)
        if len(calls) > 1:
            raise error
        return 2 * x

    return operation(fails_later)


def test_a_kernel_that_fails_later_is_put_aside_and_the_call_still_answered(caplog):
    calls = []
    broken = failing_later(RuntimeError("out of resources: shared memory"), calls)
    with caplog.at_level(logging.INFO):
        assert broken(ELSEWHERE).shape == (2,)
        assert broken(ELSEWHERE).shape == (2,)
    assert len(calls) == 2 and len(caplog.records) == 1


@pytest.mark.parametrize("error", [LayoutError("q must be contiguous"), torch.cuda.OutOfMemoryError("full")])
def test_mistakes_of_the_caller_and_a_full_card_are_not_hidden(error):
    with pytest.raises(type(error)):
        failing_later(error, [])(ELSEWHERE)


def test_processors_are_not_asked_for_a_kernel_and_either_side_can_be_forced():
    other = operation(lambda x: 3 * x)
    x = torch.ones(2)
    assert other(x).tolist() == [2, 2]
    with dispatch.using("triton"):
        assert other(x).tolist() == [3, 3]
        with dispatch.using("reference"):
            assert other(x).tolist() == [2, 2]
    assert other(x).tolist() == [2, 2]
    with pytest.raises(ValueError, match="auto, reference, triton"), dispatch.using("cuda"):
        pass


def test_infinities_agree_with_themselves_alone():
    for other, differs in ((float("inf"), False), (-float("inf"), True), (float("nan"), True), (1.0, True)):
        x = torch.tensor([float("inf"), float("nan")])
        y = torch.tensor([other, float("nan")])
        compared = Operation(lambda x: x, lambda x, y=y: y, lambda device, dtype, x=x: dict(x=x))
        assert (compared.difference(torch.device("cpu"), torch.float32) > 0) == differs


def test_a_self_test_sees_what_is_written_in_place():
    def writes(x: Tensor) -> None:
        x += 1

    assert operation(lambda x: None, reference=writes).difference(torch.device("cpu"), torch.float32) > 0.4


@pytest.mark.parametrize("tested", OPERATIONS, ids=lambda operation: operation.name)
def test_every_example_distinguishes_and_every_operation_explains_itself(tested):
    """An example on which nothing happens would let any kernel pass."""
    untouched = Operation(tested.reference, lambda **arguments: None, tested.example)
    expected = tested.reference(**tested.example(torch.device("cpu"), torch.float32))
    assert expected is not None or untouched.difference(torch.device("cpu"), torch.float32) > 0.1
    assert tested.__doc__


def test_importing_and_using_every_kernel_file_imports_no_triton(tmp_path):
    names = [f"headforcing.kernels.{path.stem}" for path in KERNELS.glob("[!_]*.py")]
    assert len(names) > 11
    program = "\n".join(
        [
            "import importlib, sys, torch",
            "sys.modules['triton'] = None  # importing it would raise",
            f"for name in {names}: importlib.import_module(name)",
            "from headforcing.kernels.modulate import norm_modulate",
            "norm_modulate(torch.ones(4, 8), None, None, torch.ones(2, 8), torch.ones(2, 8), 1e-6)",
        ]
    )
    run("-c", program)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: compiled kernels are not run")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tested", OPERATIONS, ids=lambda operation: operation.name)
def test_every_kernel_equals_plain_torch_on_a_gpu(tested, dtype):
    pytest.importorskip("triton")
    device = torch.device("cuda")
    if tested in (quantise, quantise_gelu) and torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("this GPU does not round to 8 bits: the reference does")
    assert tested.difference(device, dtype) <= dispatch.TOLERANCE[dtype]
    for seed, (s, head_dim) in enumerate([(24, 20), (40, 24), (40, 128), (1560, 128)]):
        arguments = case(tested, seed, dtype, s, head_dim)
        on_gpu = {name: x.to(device) if isinstance(x, Tensor) else x for name, x in arguments.items()}
        if "k_to" in on_gpu:
            on_gpu |= dict(k_to=on_gpu["k_from"], v_to=on_gpu["v_from"])
        compared = Operation(tested.reference, tested.launch, lambda device, dtype, on_gpu=on_gpu: on_gpu)
        assert compared.difference(device, dtype) <= dispatch.TOLERANCE[dtype]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: compiled kernels are not run")
def test_the_engine_with_its_kernels_follows_the_one_without_on_a_gpu():
    pytest.importorskip("triton")
    with dispatch.using("triton"):
        roll_out(ROLE_MAPS["every role"], 5, "contiguous", blocks=9, device="cuda")

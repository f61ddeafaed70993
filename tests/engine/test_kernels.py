"""The kernels' specification, the plain torch beside each: its properties; and who decides which of
both runs.

The kernels in Triton are run by its interpreter and compiled for GPUs that are not there, each in a
process of its own, since Triton decides at import whether it interprets. `tasks.py` installs it for
the tests where there is one.
"""

import importlib.util
import json
import logging
import os
import sys
import threading
from itertools import product
from pathlib import Path
from types import FunctionType, SimpleNamespace

import pytest
import torch
from headforcing.kernels import dispatch
from headforcing.kernels.dispatch import Operation, kernels_put_aside
from headforcing.kernels.language import kernel
from headforcing.kernels.layout import LayoutError
from headforcing.kernels.move import in_sequence
from headforcing.kernels.quantise import quantise, quantise_gelu
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_cases import OPERATIONS, case, moved
from kernel_choice import using
from own_process import run, run_tests
from torch import Tensor

CPU = torch.device("cpu")


@settings(deadline=None, max_examples=50)
@given(st.permutations(range(7)), st.integers(0, 7))
def test_moves_in_sequence_bring_every_slot_to_its_place(order, kept):
    slots = [*range(7), None]
    for source, target in in_sequence(order[:kept], spare=7):
        slots[target] = slots[source]
    assert slots[:kept] == order[:kept]


# -------------------------------------------------------------------------------------- who decides


ELSEWHERE = torch.ones(2, device="meta")  # stands for a device with kernels


def doubled(x: Tensor) -> Tensor:
    return 2 * x


def operation(launch, reference=doubled):
    return Operation(reference, launch, lambda device, dtype: dict(x=torch.ones(3, dtype=dtype)))


def raising(error: Exception, times: int = 1):
    """A launch that works some times and then fails."""
    calls = []

    def launch(x):
        calls.append(x)
        if len(calls) >= times:
            raise error
        return 2 * x

    return launch


def test_a_kernel_that_agrees_is_used_after_one_self_test():
    used = []
    launch = operation(lambda x: used.append(x) or 2 * x)
    launch(ELSEWHERE)
    launch(ELSEWHERE)
    assert len(used) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: 2.001 * x,
        lambda x: x / 0 - x / 0,
        lambda x: x[:1],
        lambda x: x.half(),
        raising(OSError("no compiler here. Pages follow")),
        # works in its self-test only
        raising(RuntimeError("out of resources: shared memory"), times=2),
    ],
)
def test_a_kernel_that_differs_or_raises_is_put_aside_with_one_line_and_the_call_answered(
    wrong, caplog, monkeypatch
):
    monkeypatch.setattr(dispatch, "_put_aside", {})
    broken = operation(wrong)
    with caplog.at_level(logging.INFO):
        assert [broken(ELSEWHERE).shape, broken(x=ELSEWHERE).shape] == [(2,)] * 2
    (record,) = caplog.records
    assert record.message.startswith(
        "doubled runs without its Triton kernel on meta in torch.float32: "
    )
    assert "Pages" not in record.message
    sentence = kernels_put_aside(ELSEWHERE.device)
    assert sentence.startswith("Triton kernels not used")
    assert "doubled" in sentence
    assert kernels_put_aside(CPU) == ""


@pytest.mark.parametrize(
    "error", [LayoutError("q must be contiguous"), torch.cuda.OutOfMemoryError("full")]
)
def test_mistakes_of_the_caller_and_a_full_card_are_not_hidden(error):
    with pytest.raises(type(error)):
        operation(raising(error, times=2))(ELSEWHERE)


def test_processors_are_not_asked_for_a_kernel_and_either_side_can_be_forced(monkeypatch):
    other = operation(lambda x: 3 * x)
    x = torch.ones(2)
    with using("triton"):
        assert other(x).tolist() == [3, 3]
        with using("reference"):
            assert other(x).tolist() == [2, 2]
    assert other(x).tolist() == [2, 2]
    monkeypatch.setitem(sys.modules, "triton", None)  # importing it would raise
    for ours in OPERATIONS:
        ours(**ours.example(CPU, torch.float32))


def test_a_self_test_sees_what_is_written_in_place_and_infinities_agree_with_themselves_alone():
    def writes(x: Tensor) -> None:
        x += 1

    assert operation(lambda x: None, reference=writes).difference(CPU, torch.float32) > 0.4
    for other, differs in ((float("inf"), False), (-float("inf"), True), (float("nan"), True)):
        x = torch.tensor([float("inf"), float("nan")])
        y = torch.tensor([other, float("nan")])
        compared = Operation(lambda x: x, lambda x, y=y: y, lambda device, dtype, x=x: dict(x=x))
        assert (compared.difference(CPU, torch.float32) > 0) == differs


def rows_in_another_order(x: Tensor) -> list[Tensor]:
    """A tensor with its rows in another order; a table of numbers with one column after another
    so.
    """
    columns = range(x.shape[-1]) if x.ndim > 1 and x.shape[-1] < 10 else [slice(None)]
    found = []
    for column in columns if x.dtype == torch.int32 else [slice(None)]:
        found.append(x.clone())
        found[-1][..., column] = x.roll(1, 0)[..., column]
    return found


@pytest.mark.parametrize("tested", OPERATIONS, ids=lambda operation: operation.name)
def test_a_self_test_sees_a_kernel_that_reads_other_rows(tested):
    def reading(name: str, wrong: Tensor) -> Operation:
        return Operation(
            tested.reference,
            lambda **given: tested.reference(**{**given, name: wrong}),
            tested.example,
        )

    given = {
        name: x for name, x in tested.example(CPU, torch.float32).items() if isinstance(x, Tensor)
    }
    for name, x in given.items():
        for wrong in rows_in_another_order(x):
            assert reading(name, wrong).difference(CPU, torch.float32) > 0.03, name


def test_a_thread_waits_while_another_compiles_the_kernels_of_a_file(monkeypatch):
    """Else it would launch a kernel whose file does not know Triton's language yet."""
    scope = {"tl": None}
    for name in ("first", "second"):
        scope[name] = kernel(FunctionType((lambda: None).__code__, scope, name))
    first = scope["first"]
    seen = []

    def launch():
        seen.append((first.jit, scope["first"], scope["second"], scope["tl"]))

    other = threading.Thread(target=launch)

    def jit(function):
        if function.__name__ == "second":  # the file is half done
            other.start()
            other.join(0.1)
        return f"compiled {function.__name__}"

    monkeypatch.setitem(
        sys.modules, "triton", SimpleNamespace(jit=jit, language="Triton's language")
    )
    monkeypatch.setitem(sys.modules, "triton.language", "Triton's language")
    launch()
    other.join()
    assert (
        seen == [("compiled first", "compiled first", "compiled second", "Triton's language")] * 2
    )


NO_TRITON = (
    "triton is not installed, so no kernel was run or compiled (tasks.py installs it on Linux)"
)
WITH_TRITON = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason=NO_TRITON)


@WITH_TRITON
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU: compiled kernels are not run")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tested", OPERATIONS, ids=lambda operation: operation.name)
def test_every_kernel_equals_plain_torch_on_a_gpu(tested, dtype):
    device = torch.device("cuda")
    if tested in (quantise, quantise_gelu) and torch.cuda.get_device_capability(device) < (8, 9):
        pytest.skip("this GPU does not round to 8 bits: the reference does")
    assert tested.difference(device, dtype) <= dispatch.TOLERANCE[dtype]
    for seed, (s, head_dim) in enumerate([(24, 20), (40, 24), (40, 128), (1560, 128)]):
        arguments = case(tested, seed, dtype, s, head_dim)
        on_gpu = {name: moved(x, device) for name, x in arguments.items()}
        if "k_to" in on_gpu:
            on_gpu |= dict(k_to=on_gpu["k_from"], v_to=on_gpu["v_from"])
        compared = Operation(
            tested.reference, tested.launch, lambda device, dtype, on_gpu=on_gpu: on_gpu
        )
        assert compared.difference(device, dtype) <= dispatch.TOLERANCE[dtype]


# --------------------------------------------------------- in a process of their own, without a GPU

HERE = Path(__file__).resolve().parent
SHARED_MEMORY = {80: 163, 86: 99, 89: 99, 90: 227, 100: 227, 120: 99}  # KiB that one kernel may use
SPILLS = {"attend": 128, "attend_with_sums": 128}  # bytes of registers that may spill
OLDER = (80, 86)  # have no conversion to 8-bit floating point: there the reference rounds


@WITH_TRITON
@pytest.mark.slow
def test_every_kernel_equals_plain_torch_in_the_interpreter(tmp_path):
    run_tests(HERE / "kernels_interpreted.py", TRITON_INTERPRET="1", TRITON_CACHE_DIR=str(tmp_path))


@WITH_TRITON
@pytest.mark.slow
def test_every_kernel_compiles_for_gpus_that_are_not_there_within_their_limits(tmp_path):
    output = run(HERE / "kernels_compiled.py", TRITON_INTERPRET="0", TRITON_CACHE_DIR=str(tmp_path))
    builds = [json.loads(line) for line in output.splitlines()]
    places = {(build["dtype"], build["target"]) for build in builds}
    everything = set(product(("bf16", "fp16"), SHARED_MEMORY))
    some = {("bf16", 86), ("bf16", 90), ("fp16", 100)}
    assert places == (everything if os.environ.get("HEADFORCING_EVERYTHING") else some)
    assert len({build["kernel"] for build in builds}) == 12 and len(builds) == 12 * len(places)
    for build in builds:
        kernel = build["kernel"]
        target = build["target"]
        if kernel.startswith("quantise") and target in OLDER:
            assert "fp8e4nv not supported in this architecture" in build["refused"], build
            continue
        assert build["shared"] <= 1024 * SHARED_MEMORY[target], build
        assert build["stack"] <= SPILLS.get(kernel, 0), build
        if kernel.startswith("attend"):  # on the matrix units, of the newest kind the GPU has
            assert build["matrix"] == {90: "wgmma", 100: "tcgen05"}.get(target, "mma.sync"), build

"""What only a GPU can show: that nothing waits for it by accident, and that half precision is as
exact as it can be.

Everything here is skipped, and says so, where there is no CUDA device. Kernels have GPU tests of
their own (test_kernels.py).
"""

from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.attention import BACKENDS, attention_function, explicit
from headforcing.headforcing_core.rollout.loop import RolloutInputs, WanVideoModel, rollout
from headforcing.headforcing_core.rollout.rows import SeededNoise
from headforcing.headforcing_core.rollout.schedule import SCHEDULES
from headforcing.research.recordings.replay import Case, replay
from scripts import script_of
from small_engine import BUSY, wan

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU: nothing was run on CUDA"
)

ROLES = [["memory", "local"], ["anchor", "local"], ["memory", "memory"]]
EXACT = [name for name in BACKENDS if name != "sage"]  # which rounds to 8 bits, on purpose
GOLDEN = Path(__file__).parents[1] / "golden" / "head_forcing_tiny_d32"


def backend(name: str, dtype: torch.dtype, head_dim: int):
    try:
        return attention_function(name, "cuda", dtype, head_dim)
    except HeadForcingError as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_attention_is_off_by_its_rounding_alone(name, dtype):
    """Against float64 from the same half-precision numbers; one unit of the largest result is
    allowed.
    """
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(3, 300, 128, generator=generator).to("cuda", dtype)
    k = torch.randn(3, 2000, 128, generator=generator).to("cuda", dtype)
    v = torch.randn(3, 2000, 128, generator=generator).to("cuda", dtype)
    expected = explicit(q.double(), k.double(), v.double())
    found = backend(name, dtype, 128)(q, k, v).double()
    assert (found - expected).abs().max() <= torch.finfo(dtype).eps * expected.abs().max()


@pytest.mark.parametrize("name", EXACT)
def test_a_block_is_made_without_waiting_for_the_device(name):
    """From its noise to the end of its clean pass: only a candidate's novelty is read, once, after
    that.
    """
    model = wan(3, 2, head_dim=128, ffn_dim=512).to("cuda", torch.bfloat16)
    model.patch_embedding.float()
    video = WanVideoModel(model, torch.bfloat16, "cuda")
    shape = CacheShape.for_model(model.config, ROLES, BUSY, 8, 12, 3, 60)
    cache = HeadCache(shape, torch.bfloat16, "cuda", backend(name, torch.bfloat16, 128))
    script = script_of([0] * 20, SCHEDULES["self_forcing"], [torch.ones(4, 10)])
    blocks = rollout(video, cache, RolloutInputs(script, SeededNoise((3, 16, 8, 12))))
    for _ in range(3):  # kernels are tried and compiled
        next(blocks)

    begin_block = cache.begin_block
    write_clean = video.write_clean

    def watched_from_here() -> None:
        torch.cuda.set_sync_debug_mode("error")
        begin_block()

    def watched_until_here(*arguments) -> None:
        write_clean(*arguments)
        torch.cuda.set_sync_debug_mode("default")

    cache.begin_block = watched_from_here
    video.write_clean = watched_until_here
    try:
        for _ in range(10):
            next(blocks)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("run", ["paper_defaults", "overflow"])
def test_recorded_runs_come_out_of_every_backend_with_all_kernels(name, run):
    """In float32 without its shortcuts, so that only the order of sums differs; a backend without
    float32 says so.
    """
    assert torch.get_float32_matmul_precision() == "highest"
    case = Case.open(GOLDEN)
    backend(name, torch.float32, case.dimensions.head_dim)
    with torch.backends.cudnn.flags(enabled=False):
        done = replay(case, run, device="cuda", attention=name)
    assert (done.latents - case.tensors[f"latents/{run}"]).abs().max() < 1e-3
    recorded = case.run(run)["memory_events"]
    assert [event["admitted"] for event in done.memory_events] == [
        event["admitted"] for event in recorded
    ]

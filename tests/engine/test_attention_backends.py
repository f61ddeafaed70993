"""Every attention backend computes softmax attention."""

import math

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.attention import BACKENDS, attention_function
from small_engine import difference


def works(name: str) -> bool:
    try:
        attention_function(name)
    except HeadForcingError:
        return False
    return True


WORKING = [name for name in BACKENDS if works(name)]


@pytest.mark.parametrize("name", ["auto", *WORKING])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)])
def test_every_backend_gives_softmax_attention(name, dtype, tolerance):
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(5, n, 22, generator=generator, dtype=torch.float64) for n in (7, 31, 31))
    scores = torch.einsum("hqd,hkd->hqk", q, k) / math.sqrt(22)
    expected = torch.einsum("hqk,hkd->hqd", scores.softmax(-1), v)
    out = attention_function(name)(q.to(dtype), k.to(dtype), v.to(dtype))
    assert out.dtype == dtype
    assert difference(out.double(), expected) < tolerance


def test_an_unknown_backend_is_refused_by_name():
    with pytest.raises(HeadForcingError, match="attention must be one of auto, .*sdpa, .*explicit.*'warp'"):
        attention_function("warp")

"""What a block at 832x480 launches on a GPU, and what linear layers in 8 bits read and write,
counted without a GPU.

The sizes are those of the 1.3B model; nothing is computed. Bounds are what was counted: nothing is
added unseen.
"""

import sys
from collections import Counter
from pathlib import Path

import pytest
import torch
from counted_launches import Launches, counted_launches
from headforcing.headforcing_core.cache.head_cache import HeadCache
from headforcing.headforcing_core.model.attention import LayerAttention
from headforcing.headforcing_core.model.fp8 import use_fp8_linears
from headforcing.headforcing_core.model.wan import PromptKV, WanModel, forward_block
from headforcing.tests.benchmarks.case import Case
from headforcing.tests.benchmarks.rows import HEAD_FORCING
from torch import nn
from torch.nn import functional as F

CASE = Case(device=torch.device("meta"))
BLOCKS = 8  # after which the contexts of local and anchor heads are full
PRODUCTS = {"addmm", "_scaled_mm", "_addmm_activation"}


def model(layers: int) -> WanModel:
    with torch.device("meta"):
        made = WanModel(CASE.config).requires_grad_(False).to(torch.bfloat16)
    made.blocks = nn.ModuleList(list(made.blocks)[:layers])
    made.patch_embedding.float()
    return made


def launches(backbone: WanModel) -> Launches:
    """Of a block in a full cache, with one attention call a layer: four denoising passes, the clean
    one, the update.
    """
    shape = CASE.shape(HEAD_FORCING, 40)
    attention = LayerAttention(lambda q, k, v, spans: F.scaled_dot_product_attention(q))
    cache = HeadCache(shape, torch.bfloat16, "meta", attention)
    key = torch.empty(1, 12, 512, 128, dtype=torch.bfloat16, device="meta")
    prompt = PromptKV([(key, key)] * len(backbone.blocks), 60, key[0, 0])
    latents = torch.empty(3, 16, 60, 104, dtype=torch.bfloat16, device="meta")
    for block in range(BLOCKS):
        cache.begin_block()
        if block == BLOCKS - 1:
            with counted_launches():  # tables are sent to the device once
                forward_block(backbone, latents, torch.zeros(3), prompt, cache)
        cache.close()
    cache.begin_block()
    with counted_launches() as found:
        for step in range(5):
            forward_block(
                backbone,
                latents,
                torch.full((3,), 250.0 * step),
                prompt,
                cache,
                write_only=step == 4,
            )
        cache.close()
        cache.begin_block()
    return found


def test_no_layer_asks_for_the_length_of_a_tensor(monkeypatch: pytest.MonkeyPatch):
    """It is a function of Python: 55 of them in a layer took the host 5 ms a block."""
    asked = Counter()
    length = torch.Tensor.__len__

    def count(x: torch.Tensor) -> int:
        code = sys._getframe(1).f_code
        asked[f"{Path(code.co_filename).name} {code.co_name}"] += 1
        return length(x)

    counted = []
    for backbone in map(model, (2, 3)):
        use_fp8_linears(backbone, native=True)
        with monkeypatch.context() as patch:
            patch.setattr(torch.Tensor, "__len__", count)
            launches(backbone)
        counted.append(asked.copy())
        asked.clear()
    few, more = counted
    assert more == few


@pytest.mark.slow
@pytest.mark.parametrize(
    ("joined", "products", "most"), [(False, 1213, 2631), (True, 1213 - 2 * 149, 2333)]
)
def test_a_block_launches_no_more_than_it_needs(joined, products, most):
    """8 products, 4 norms, 2 attentions, a write, GELU and the order of heads, in each layer and
    pass.

    On the command line one product makes queries, keys and values, but for the last ones of the
    clean pass. What 2 and 3 layers launch says what a layer does.
    """
    counted = []
    for backbone in map(model, (2, 3)):
        if joined:
            backbone.join_projections()
        counted.append(launches(backbone).names)
    few, more = counted
    names = Counter(
        {name: few[name] + (CASE.layers - 2) * (more[name] - few[name]) for name in more}
    )
    assert names["addmm"] == products and names["attention"] == 2 * 149
    assert names["_move_kernel"] <= 6  # one to drop frames and one to rotate, for every role
    assert most - 33 < names.total() <= most, names.most_common()


@pytest.mark.slow
def test_rounding_to_8_bits_moves_less_than_15_gb_a_block_beside_the_products():
    """Queries, keys and values are rounded once, biases added by the product, GELU applied by the
    rounding.
    """
    eight = model(2)
    with counted_launches():  # on meta tensors
        use_fp8_linears(eight, native=True)
    plain = launches(model(2))
    small = launches(eight)

    def bytes_beside_products(found):
        return sum(size for name, size in found.traffic.items() if name not in PRODUCTS)

    layer_passes = 2 * 5 - 1
    extra = (bytes_beside_products(small) - bytes_beside_products(plain)) / layer_passes * 149
    assert extra < 15e9, f"{extra / 1e9:.1f} GB: {small.traffic.most_common()}"
    assert small.names["_quantise_kernel"] == layer_passes * 6 + 1  # the last keys and values, too

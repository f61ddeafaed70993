"""Linear layers in 8-bit floating point: the reference, the device's product, and what they do to a
video's latents.
"""

import json
from pathlib import Path

import pytest
import torch
from counted_memory import CountsMemory
from headforcing.cli.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model import fp8
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from safetensors.torch import load_file
from torch import nn


def layer(seed: int = 0) -> tuple[nn.Linear, torch.Tensor]:
    torch.manual_seed(seed)
    return nn.Linear(64, 48).requires_grad_(False), torch.randn(1, 7, 64)


def test_the_product_is_that_of_the_rounded_numbers_token_by_token_and_near_the_exact_one():
    linear, x = layer()
    found = fp8.Fp8Linear(linear, native=False)(x)
    (rows, scale), (weight, per_row) = fp8.quantise(x[0]), fp8.quantise(linear.weight)
    assert rows.dtype == weight.dtype == torch.float8_e4m3fn and per_row.shape == (48, 1)
    expected = (rows.double() * scale.double()) @ (
        weight.double() * per_row.double()
    ).T + linear.bias.double()
    torch.testing.assert_close(found[0].double(), expected, rtol=1e-5, atol=1e-5)
    # 3 bits of mantissa: at most 1/16 for each number, much less for their sum
    assert 0 < (found - linear(x)).norm() / linear(x).norm() < 0.05
    small = fp8.Fp8Linear(linear, native=False)
    louder = x.clone()
    louder[0, 3] *= 1000
    louder[0, 4], louder[0, 5, 1] = 0.0, torch.nan
    others = small(louder)[0]
    assert torch.equal(others[:3], found[0, :3]), (
        "a token does not depend on the others in its pass"
    )
    assert (
        torch.equal(others[4], linear.bias)
        and others[5].isnan().all()
        and others[6].isfinite().all()
    )


def test_the_devices_own_product_gives_the_reference():
    """On a CPU, where PyTorch has this product for tests only; which layout and which scales it
    takes is the same.
    """
    linear, x = layer()
    linear = linear.to(torch.bfloat16)
    x = x.to(torch.bfloat16)
    try:
        found = fp8.Fp8Linear(linear, native=True)(x)
    except (RuntimeError, NotImplementedError):
        pytest.skip("this PyTorch has no such product on a CPU")
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found, fp8.Fp8Linear(linear, native=False)(x), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_rows_of_every_dtype_have_the_bits_of_float32_arithmetic(dtype: torch.dtype):
    x = (
        torch.randn(9, 1000, generator=torch.Generator().manual_seed(0))
        * torch.logspace(-6, 4, 9)[:, None]
    ).to(dtype)
    x[1] = 0
    x[2, 7] = torch.nan
    x[3, 5] = torch.inf
    x[4, -1] = -torch.inf
    rows, scale = fp8.quantise(x)
    expected = x.float().abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 448
    torch.testing.assert_close(scale, expected, rtol=0, atol=0, equal_nan=True)
    assert torch.equal(
        rows.view(torch.uint8), (x.float() / expected).to(torch.float8_e4m3fn).view(torch.uint8)
    )
    assert rows[[0, 1, 5, 6, 7, 8]].float().abs().amax(dim=1).tolist() == [
        448,
        0,
        448,
        448,
        448,
        448,
    ]


def test_gelu_comes_before_rounding_and_layers_of_one_input_round_it_once(monkeypatch):
    linear, x = layer()
    exact = nn.functional.gelu(x[0].bfloat16().float(), approximate="tanh")
    for found, expected in zip(
        fp8.quantise_gelu(x[0].bfloat16()), fp8.quantise(exact), strict=True
    ):
        assert torch.equal(found, expected), "not rounded twice"
    gelu = fp8.Fp8Linear(linear, native=False, gelu=True)(x)
    plain = fp8.Fp8Linear(linear, native=False)(nn.functional.gelu(x, approximate="tanh"))
    assert torch.equal(gelu, plain)
    rounded = []
    quantise = fp8.quantise
    rounding = fp8.Rounding()
    layers = [fp8.Fp8Linear(layer(seed=seed)[0], False, rounding) for seed in range(3)]
    monkeypatch.setattr(fp8, "quantise", lambda x: rounded.append(len(x)) or quantise(x))
    together = [one(x) for one in layers]
    assert rounded == [7]
    for found, one in zip(together, layers, strict=True):
        one.rounding = fp8.Rounding()
        assert torch.equal(found, one(x.clone()))
        assert not torch.equal(one(2 * x), found)


def refused(*given, **more):
    raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED")


@pytest.mark.parametrize(
    ("product", "works"),
    [
        (fp8.emulated_product, True),
        (refused, False),
        (lambda *given, **more: 2 * fp8.emulated_product(*given, **more), False),
    ],
    ids=["right", "refused", "wrong"],
)
def test_the_devices_product_is_tried_with_tokens_as_a_render_has_them(monkeypatch, product, works):
    tokens = []

    def call(a, *given, **more):
        tokens.append(len(a))
        return product(a, *given, **more)

    make = torch.linspace
    monkeypatch.setattr(torch, "linspace", lambda *sizes, device=None: make(*sizes))
    monkeypatch.setattr(fp8, "scaled_product", call)
    assert fp8.has_product.__wrapped__(torch.device("cuda")) == works
    assert tokens[0] % 16 == 4680 % 16


def test_all_linear_layers_of_blocks_are_replaced_and_nothing_else():
    config = WanConfig(
        dim=64, ffn_dim=96, num_layers=2, num_heads=2, freq_dim=32, text_dim=24, text_len=8
    )
    model = WanModel(config).to(torch.bfloat16)
    before = sum(parameter.nbytes for parameter in model.parameters())
    fp8.use_fp8_linears(model)
    assert sum(isinstance(module, fp8.Fp8Linear) for module in model.modules()) == 2 * 10
    kept = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    assert not any(name.startswith("blocks.") for name in kept) and "head.head" in kept
    after = sum(x.nbytes for x in (*model.parameters(), *model.buffers()))
    assert before - after == fp8.saved_bytes(config, torch.bfloat16) > 0
    assert not fp8.has_product(torch.device("cpu"))
    odd = WanModel(
        WanConfig(
            dim=40, ffn_dim=96, num_layers=1, num_heads=2, freq_dim=32, text_dim=24, text_len=8
        )
    )
    with pytest.raises(HeadForcingError, match="multiples of 16, got 40x40"):
        fp8.use_fp8_linears(odd)


def test_an_emulated_product_takes_one_float32_result_beside_the_rounded_one():
    """As the estimate says, for the widest layer; with a bias, too."""
    config = WanConfig()
    tokens = 4680
    with torch.device("meta"):
        a = torch.empty(tokens, config.dim, dtype=fp8.DTYPE)
        b = torch.empty(config.ffn_dim, config.dim, dtype=fp8.DTYPE)
        ones = torch.empty(config.ffn_dim, 1)
        a_scale = torch.empty(tokens, 1)
    with CountsMemory((a, b, ones, a_scale)) as counted:
        fp8.emulated_product(
            a, a_scale, b=b, b_scale=ones, dtype=torch.bfloat16, bias=ones.flatten()
        )
    rounded = 2 * tokens * config.ffn_dim
    assert counted.peak == rounded + tokens * fp8.emulated_bytes(config)


@pytest.mark.slow
def test_the_demos_latents_deviate_little_are_called_inexact_and_are_stored_as_other_blocks(
    tmp_path: Path, capsys
):
    runs = tmp_path / "runs"

    def render(*more: str) -> tuple[dict, list[torch.Tensor]]:
        known = set(runs.glob("*")) if runs.exists() else set()
        demo = ["demo", "--seconds", "1", "--scale", "1", "--device", "cpu", "--json"]
        assert main([*demo, "--out", str(tmp_path), "--runs", str(runs), *more]) == 0
        latents = []
        for run in set(runs.glob("*")) - known:
            for block in sorted(run.rglob("block-*")):
                latents.append(load_file(block)["latents"])
        return json.loads(capsys.readouterr().out), latents

    exact, reference = render()
    fast, latents = render("--fp8-linears")
    assert exact["inexact"] == [] and len(reference) == len(latents) == 2
    (line,) = fast["inexact"]
    assert line.startswith("linear layers in 8-bit floating point (--fp8-linears, emulated")
    apart = [float((a - b).norm() / b.norm()) for a, b in zip(latents, reference, strict=True)]
    # later blocks inherit what came before
    assert 1e-3 < apart[0] < 0.2 and apart[0] < apart[1] < 0.4, apart
    again, nothing_new = render("--fp8-linears")
    assert (fast["reused_blocks"], again["reused_blocks"], nothing_new) == (0, 2, [])

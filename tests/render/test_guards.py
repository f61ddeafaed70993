"""A render is guarded against NaN and infinity."""

import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.request import RenderRequest, StartLatents
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.rows import Picture
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.weights.checkpoint import load_state_dict
from headforcing.headforcing_core.weights.containers import all_finite, first_not_finite
from safetensors.torch import save_file
from toy_renders import Render, toy_model


def test_one_bad_value_is_found_in_any_type():
    eight = torch.zeros(12).to(torch.float8_e4m3fn)
    assert (
        all_finite(eight)
        and all_finite(torch.arange(3))
        and all_finite(torch.zeros(12, dtype=torch.bfloat16))
    )
    eight.view(torch.uint8)[1] = 0x7F  # NaN
    for values in (
        eight,
        *(torch.tensor([0.0, float(bad)]).half() for bad in ("nan", "inf", "-inf")),
    ):
        assert (
            not all_finite(values)
            and first_not_finite([("a", torch.zeros(2)), ("b", values)]) == "b"
        )


def test_inputs_are_refused_by_name():
    good = torch.zeros(2, 3)
    bad = torch.tensor([[0.0, float("inf")]])

    def request(**fields) -> RenderRequest:
        return RenderRequest(
            assets.TOY_CONFIG,
            RenderOptions(),
            parse_timeline("a"),
            **{"embeds": {"a": good}, **fields},
        )

    start = StartLatents(good)
    request(
        embeds={"a": good, "b": good}, start=start, pictures={"hall": Picture(good, "")}
    ).check_finite()
    for name, given in {
        "the embedding of the prompt 'b'": {"embeds": {"a": good, "b": bad}},
        "the start latents": {"start": StartLatents(bad)},
        "the picture @hall": {"pictures": {"hall": Picture(bad, "a key")}},
    }.items():
        with pytest.raises(HeadForcingError, match=f"{name}: NaN or infinity"):
            request(**given).check_finite()


class BreaksAt(WanVideoModel):
    """Predicts NaN in one denoising step of one block."""

    def __init__(self, *args, call):
        super().__init__(*args)
        self.calls = 0
        self.call = call

    def denoise(self, latents, sigma, cache):
        self.calls += 1
        clean = super().denoise(latents, sigma, cache)
        return clean * float("nan") if self.calls == self.call else clean


def test_a_block_that_is_not_finite_stops_the_render_and_the_next_one_goes_on(backbone, tmp_path):
    render = Render(backbone, tmp_path, seconds=3.0)
    said = r"^block 3 of 5, denoising step 2 of 2: NaN or infinity in the latents;.*bf16 or float32 \(now float32\)"
    with pytest.raises(HeadForcingError, match=said):
        render.go(model=BreaksAt(backbone, torch.float32, call=2 * 2 + 2))
    assert torch.equal(render.go(), render.straight()) and render.reused == 2


def test_a_weight_that_is_not_finite_is_named(tmp_path):
    broken = toy_model(1)
    broken.blocks[0].ffn[2].weight.data[0, 0] = float("nan")
    named = r"^block 1 of 13, denoising step 1 of 2: NaN or infinity, because the weight blocks\.0\.ffn\.2\.weight"
    with pytest.raises(HeadForcingError, match=named):
        Render(broken, tmp_path).go()


def test_weights_with_nan_are_refused_before_anything_is_made(tmp_path, capsys):
    weights, _ = load_state_dict(assets.model_path())
    weights = {name: tensor.clone() for name, tensor in weights.items()}
    weights["blocks.5.ffn.2.weight"][1, 1] = float("nan")
    path = tmp_path / "model.safetensors"
    save_file(weights, path, {"config": '{"transformer": {"num_heads": 6, "text_len": 32}}'})
    assert main(["inspect", str(path)]) == 2
    assert "blocks.5.ffn.2.weight holds NaN or infinity" in capsys.readouterr().err

"""What a render is guarded against: drift (keys, roles found on the way, reports), and NaN and infinity."""

from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.demo import assets
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.head_profiles.auto import AutoProfile
from headforcing.headforcing_core.head_profiles.profile import HeadProfile, default_profile
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.render.request import RenderRequest, StartLatents
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.rollout.rows import Picture
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.weights.checkpoint import load_state_dict
from headforcing.headforcing_core.weights.containers import first_not_finite, is_finite
from jobs import job_of
from safetensors.torch import save_file
from toy_renders import Render, measured, toy_model


def setup(profile: HeadProfile | None = None, **settings) -> str:
    options = RenderOptions(width=64, height=64, seconds=3.0, profile=profile, **settings)
    plan = options.plan(assets.TOY_CONFIG, parse_timeline("a fox", 3.0))
    return job_of(plan, {}, "0" * 16).setup


def test_block_keys_name_every_guard_and_statistics_that_are_used():
    assert setup(measured(8)) == setup(), "query statistics that are not used are no part of the keys"
    trigonometric = [setup(measured(8, seed), compression="trigonometric") for seed in (0, 1)]
    others = [setup(sink_gate=0.8), setup(sink_gate=0.7), setup(rope_jitter=0.8), setup(sink_gate=0.8, rope_jitter=0.8)]
    assert len({setup(), *trigonometric, *others}) == 7
    assert setup(compression="trigonometric") != setup(), "the demo model's bundled profile has statistics"


def test_trigonometric_compression_needs_a_profile_with_statistics():
    without = replace(default_profile(8, 6), queries=None)
    for profile, said in ((without, "profile 'toy_world' has none; measure one"), (AutoProfile(), "seconds has none")):
        with pytest.raises(HeadForcingError, match=said):
            setup(profile, compression="trigonometric")


def test_the_reports_of_a_render_and_a_comparison_say_what_the_guards_did(tmp_path, capsys):
    arguments = f"--out {tmp_path} --seconds 2 --scale 1 --sigmas 1 --rope-jitter 0.8 --prompts ball".split()
    assert main(["demo", *arguments, "--sink-gate", "0.3"]) == 0
    said = capsys.readouterr().out
    assert "\nsink gate 0.3: left out " in said and "\nrope jitter 0.8: rotary bases" in said
    assert main(["compare", "--demo", "--methods", "head_forcing", *arguments, "--seed", "3"]) == 0
    lines = (tmp_path / "comparison.md").read_text("utf-8").splitlines()
    assert lines[-1].startswith("guard: head_forcing, seed 3: rope jitter 0.8: rotary bases from ")


def test_one_bad_value_is_found_in_any_type():
    eight = torch.zeros(12).to(torch.float8_e4m3fn)
    assert is_finite(eight) and is_finite(torch.arange(3)) and is_finite(torch.zeros(12, dtype=torch.bfloat16))
    eight.view(torch.uint8)[1] = 0x7F  # NaN
    for values in (eight, *(torch.tensor([0.0, float(bad)]).half() for bad in ("nan", "inf", "-inf"))):
        assert not is_finite(values) and first_not_finite([("a", torch.zeros(2)), ("b", values)]) == "b"


def test_inputs_are_refused_by_name():
    good, bad = torch.zeros(2, 3), torch.tensor([[0.0, float("inf")]])

    def request(**fields) -> RenderRequest:
        return RenderRequest(
            assets.TOY_CONFIG, RenderOptions(), parse_timeline("a"), **{"embeds": {"a": good}, **fields}
        )

    start = StartLatents(good)
    request(embeds={"a": good, "b": good}, start=start, pictures={"hall": Picture(good, "")}).check_finite()
    for name, given in {
        "the embedding of prompt 2": {"embeds": {"a": good, "b": bad}},
        "the start latents": {"start": StartLatents(bad)},
        "the picture @hall": {"pictures": {"hall": Picture(bad, "a key")}},
    }.items():  # fmt: skip
        with pytest.raises(HeadForcingError, match=f"{name}: NaN or infinity"):
            request(**given).check_finite()


class BreaksAt(WanVideoModel):
    """Predicts NaN in one denoising step of one block."""

    def __init__(self, *args, call):
        super().__init__(*args)
        self.calls, self.call = 0, call

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

"""LoRAs merge as their formula says; converted checkpoints and LoRAs are the same under the names
of ComfyUI.
"""

import json
import math
from pathlib import Path
from typing import Any

import checkpoint_files as files
import pytest
import torch
from checkpoint_files import FACTORS, MODULES, OTHER, WEIGHTS, Weights, assert_same, save
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.weights.checkpoint import (
    convert,
    convert_lora,
    inspect_checkpoint,
    load_state_dict,
)
from headforcing.headforcing_core.weights.layouts import (
    diffusers_name,
    expected_shapes,
    wan_name,
)
from headforcing.headforcing_core.weights.lora import read_patches
from headforcing.headforcing_core.weights.lora_names import find_parameter, parameters_by_layer
from safetensors import safe_open
from safetensors.torch import load_file

T = torch.ones(2, 2)
LORA_NAMES = {  # prefix, and the halves
    "peft": ("base_model.model.", "lora_A", "lora_B"),
    "kohya": ("lora_unet_", "lora_down", "lora_up"),
    "peft named": ("base_model.model.model.", "lora_A.default", "lora_B.default"),
    "bare": ("", "lora_A", "lora_B"),
    "comfyui": ("diffusion_model.", "lora_A", "lora_B"),
    "comfyui down": ("diffusion_model.", "lora_down", "lora_up"),
}


def lora(form: str) -> tuple[Weights, float]:
    """The factors in one of the published forms, and the scale that form implies (rank 4)."""
    result: Weights = {}
    prefix, a, b = LORA_NAMES[form]
    for module, (down, up) in FACTORS.items():
        base = prefix + (module.replace(".", "_") if form == "kohya" else module)
        result |= {f"{base}.{a}.weight": down, f"{base}.{b}.weight": up}
        result |= {f"{base}.alpha": torch.tensor(2.0)} if form == "kohya" else {}
    return result, (2.0 / 4 if form == "kohya" else 1.0)


def merge_lora(state: Weights, lora_state: Weights, strength: float = 1.0) -> int:
    """Merge a LoRA into `state`, keeping each dtype; how many tensors changed."""
    patches = read_patches(state, lora_state, "the LoRA")
    for target, patch in patches.items():
        state[target] = patch.apply(state[target], strength).to(state[target].dtype)
    return len(patches)


@pytest.mark.parametrize("form", LORA_NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_every_form_merges_as_the_formula_says_and_converts_to_comfyuis_names(
    form, dtype, tmp_path
):
    original = {name: tensor.to(dtype) for name, tensor in WEIGHTS.items()}
    tensors, scale = lora(form)
    tensors = {name: tensor.to(dtype) for name, tensor in tensors.items()}
    state = dict(original)
    again = dict(original)
    assert merge_lora(state, tensors, strength=0.7) == len(MODULES)
    changed = {f"{module}.weight": factors for module, factors in FACTORS.items()}
    assert {name for name, before in original.items() if state[name] is not before} == set(changed)
    for name, factors in changed.items():
        down, up = factors
        product = up.to(dtype).double() @ down.to(dtype).double()
        expected = original[name].double() + 0.7 * scale * product
        # float32 arithmetic, and in bf16 one rounding at the end (to 8 significant bits: relative
        # error 2**-8 at most)
        tolerance = 1e-5 + (2**-8 * expected.abs() if dtype == torch.bfloat16 else 0)
        assert state[name].dtype == dtype
        assert ((state[name].double() - expected).abs() <= tolerance).all()
    published = save(
        tmp_path / "lora.pt", {"generator_lora": tensors, "critic_lora": lora("peft")[0]}
    )
    assert convert_lora(published, tmp_path / "out.safetensors", dtype) == len(tensors)
    renamed = load_file(tmp_path / "out.safetensors")
    modules = {name.rpartition(".lora")[0] or name.removesuffix(".alpha") for name in renamed}
    assert modules == {f"diffusion_model.{module}" for module in FACTORS}
    merge_lora(again, renamed, 0.7)
    assert_same(again, state)


def test_diffusers_named_loras_and_full_differences_merge_also_when_they_were_converted(
    tmp_path: Path,
) -> None:
    down, up = FACTORS["blocks.0.self_attn.q"]
    module = "transformer.blocks.0.attn1.to_q"
    q = "blocks.0.self_attn.q"
    changes = {f"{module}.lora_A.weight": down, f"{module}.lora_B.weight": up}
    state = dict(WEIGHTS)
    again = dict(WEIGHTS)
    expected = {f"{q}.weight": up @ down}
    for name, parameter in (
        (f"{q}.diff", f"{q}.weight"),
        (f"{q}.diff_b", f"{q}.bias"),
        ("blocks.1.norm3.diff", "blocks.1.norm3.weight"),
        ("blocks.1.diff_m", "blocks.1.modulation"),
        ("head.modulation.diff", "head.modulation"),
        ("patch_embedding.diff", "patch_embedding.weight"),
    ):
        changes[f"diffusion_model.{name}"] = torch.randn(WEIGHTS[parameter].shape)
        expected[parameter] = changes[f"diffusion_model.{name}"] + expected.get(parameter, 0)
    assert merge_lora(state, changes, 0.5) == 6
    for parameter, delta in expected.items():
        torch.testing.assert_close(state[parameter], WEIGHTS[parameter] + 0.5 * delta)
    convert_lora(save(tmp_path / "diff.pt", changes), tmp_path / "out.safetensors", torch.float32)
    merge_lora(again, load_file(tmp_path / "out.safetensors"), 0.5)
    assert_same(again, state)


FRONTS = ("", "diffusion_model.", "pipe.dit.", "base_model.model.model._fsdp_wrapped_module.")


def test_every_layer_is_found_in_every_spelling():
    names = expected_shapes(WanConfig(num_layers=12))
    table = parameters_by_layer(names)
    for name in names:
        layer, _, last = name.rpartition(".")
        for spelling in (name, diffusers_name(name)):
            assert wan_name(spelling) == name
            layer = spelling.rpartition(".")[0]
            if last == "modulation":
                layer, what = spelling, "diff"
            else:
                what = {"weight": "down", "bias": "diff_b"}[last]
            flat = layer.replace(".", "_")
            for module in (f"lora_unet_{flat}", f"lycoris_{flat}", *(f + layer for f in FRONTS)):
                assert find_parameter(table, module, what) == name, module


A = "blocks.0.self_attn.q.lora_A.weight"
B = "blocks.0.self_attn.q.lora_B.weight"
GOOD_A, GOOD_B = FACTORS["blocks.0.self_attn.q"]


def test_a_lora_that_does_not_fit_is_refused() -> None:
    good = {A: GOOD_A, B: GOOD_B}
    q = "blocks.0.self_attn.q"
    for tensors, word in (
        ({"foo.weight": T}, "foo.weight"),
        ({}, "no LoRA tensors"),
        ({A: GOOD_A}, "half"),
        (good | {A.replace("0", "35"): T, B.replace("0", "35"): T}, "blocks.35"),
        (good | {"model." + A: T}, "twice"),
        ({"lora_te_text_model_x.lora_down.weight": T}, "lora_te"),
        (good | {f"{q}.dora_scale": T}, "another size"),
        ({A: torch.ones(4, 5120), B: torch.ones(5120, 4)}, "another size"),
        ({A: GOOD_A, B: torch.ones(128, 3)}, "another size"),
        ({f"{q}.diff": torch.ones(512, 512)}, "another size"),
        (good | {f"{q}.alpha": torch.tensor(torch.nan)}, "alpha"),
    ):
        with pytest.raises(HeadForcingError, match=word):
            read_patches(WEIGHTS, tensors, "the LoRA")


def test_converting_writes_one_bf16_copy_that_comfyui_knows_as_autoregressive_and_again_the_same(
    tmp_path: Path,
):
    published = {
        "generator": OTHER,
        "generator_ema": files.prefixed(WEIGHTS, "model."),
        "critic": OTHER,
    }
    source = save(tmp_path / "sf.pt", published)
    out = tmp_path / "new" / "sf.safetensors"
    before = inspect_checkpoint(source, num_heads=4)
    progress: list[tuple[int, ...]] = []
    info = convert(
        source,
        out,
        num_heads=4,
        frames_per_block=3,
        on_progress=lambda *done: progress.append(done),
    )
    assert_same(
        load_file(out), {name: tensor.to(torch.bfloat16) for name, tensor in WEIGHTS.items()}
    )
    with safe_open(out, "pt") as file:
        metadata = file.metadata()
    assert json.loads(metadata["config"]) == {"transformer": {"causal_ar": True, "num_heads": 4}}
    noted = {"source": "sf.pt", "source_layout": "generator_ema", "fingerprint": info.fingerprint}
    assert noted.items() <= json.loads(metadata["head_forcing"]).items()
    assert info.fingerprint != before.fingerprint, "the weights were rounded"
    assert (info.frames_per_block, info.config.num_heads, info.dtype) == (
        3,
        4,
        "bfloat16",
    )
    data = 2 * before.parameters
    assert data < out.stat().st_size < data + 32_000
    assert (
        progress[-1] == (data, data)
        and len(progress) == len(WEIGHTS)
        and info == inspect_checkpoint(out)
    )
    again = convert(out, tmp_path / "2.safetensors")
    assert (again.fingerprint, again.frames_per_block, again.config) == (
        info.fingerprint,
        3,
        info.config,
    )


def test_a_lora_merges_while_loading_and_converting_and_a_failure_spares_the_old_file(
    tmp_path: Path,
) -> None:
    base = save(tmp_path / "base.pt", {"generator": files.prefixed(WEIGHTS, "model.")})
    adapter = save(
        tmp_path / "style.pt", {"generator_lora": lora("peft")[0], "critic_lora": lora("peft")[0]}
    )
    merged = dict(WEIGHTS)
    out = tmp_path / "out" / "out.safetensors"
    merge_lora(merged, lora("peft")[0], 0.25)
    state, loaded = load_state_dict(base, lora=adapter, lora_strength=0.25)
    assert_same(state, merged)
    assert (
        loaded.fingerprint
        == inspect_checkpoint(save(tmp_path / "merged.safetensors", merged)).fingerprint
    )
    info = convert(base, out, dtype=torch.float16, lora=adapter, lora_strength=0.25)
    assert_same(load_file(info.path), {name: tensor.half() for name, tensor in merged.items()})
    with safe_open(info.path, "pt") as file:
        history = json.loads(file.metadata()["head_forcing"])
    assert info.lora == loaded.lora == "style.pt"
    assert (history["lora_strength"], history["fingerprint"]) == (0.25, info.fingerprint)

    def stop(done: int, total: int) -> None:
        if done > total // 2:
            raise KeyboardInterrupt

    before = out.read_bytes()
    with pytest.raises(KeyboardInterrupt):
        convert(base, out, on_progress=stop)
    assert list(out.parent.iterdir()) == [out] and out.read_bytes() == before


def test_conversion_arguments_are_checked_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = save(tmp_path / "a.safetensors", WEIGHTS)
    adapter = save(tmp_path / "lora.safetensors", lora("bare")[0])
    (tmp_path / "link.safetensors").symlink_to(source)
    out = tmp_path / "b.safetensors"
    listing = sorted(tmp_path.iterdir())
    cases: list[tuple[dict[str, Any], str]] = [
        ({"out": source}, "would write over"),
        ({"out": tmp_path / "link.safetensors"}, "would write over"),
        ({"out": adapter, "lora": adapter}, "would write over"),
        ({"out": tmp_path / "b.pt"}, "ends in .safetensors"),
        ({"lora": adapter, "lora_strength": math.nan}, "lora_strength is nan: give a number"),
        ({"lora": adapter, "lora_strength": -math.inf}, "lora_strength is -inf: give a number"),
        ({"lora": source}, "a.safetensors is not a LoRA"),
        ({"lora": tmp_path / "gone.pt"}, "gone.pt was not found"),
    ]
    for arguments, match in cases:
        with pytest.raises(HeadForcingError, match=match):
            convert(source, **{"out": out, **arguments})
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1000})())
    with pytest.raises(HeadForcingError, match="make room"):
        convert(source, out)
    assert sorted(tmp_path.iterdir()) == listing
    for content, match in (
        (WEIGHTS, "is not a LoRA"),
        ({"double_blocks.0.img.lora_A.weight": T}, "no layer of a Wan model"),
        ({"a.layers.0.attn1.to_q.diff": T}, "no layer of a Wan model"),
        ({"blocks.0.attn1.to_q.diff": T, "blocks.0.self_attn.q.diff": T.clone()}, "twice"),
    ):
        with pytest.raises(HeadForcingError, match=match):
            convert_lora(save(tmp_path / "bad.pt", content), out)

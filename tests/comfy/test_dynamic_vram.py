"""Stored blocks are found again with ComfyUI's dynamic VRAM: a weight has one name before and after it is loaded."""

import json
from pathlib import Path
from typing import Any

import pytest
from comfy_harness import run_in_comfy
from comfy_setup import FLOOR, ComfyInstall
from tiny_checkpoints import wan_vae

pytestmark = pytest.mark.comfy

PROGRAM = Path(__file__).parent / "programs" / "dynamic_vram.py"
HELPERS = Path(__file__).parents[1] / "helpers"


@pytest.fixture(scope="module")
def found(comfy_install: ComfyInstall, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    vae = wan_vae(tmp_path_factory.mktemp("files") / "vae.safetensors")
    told = json.loads(run_in_comfy(comfy_install, PROGRAM, HELPERS, vae).splitlines()[-1])
    assert ("dynamic" in told) == (comfy_install.version != FLOOR)  # the oldest version has no dynamic VRAM
    return told


def test_weights_have_one_name_before_loading_and_after_with_dynamic_vram_and_without(found: dict[str, Any]):
    modes = [found[mode]["models"] for mode in ("static", "dynamic") if mode in found]
    names = {case: {name for models in modes for name in models[case]["names"]} for case in modes[0]}
    assert {case: len(own) for case, own in names.items()} == dict.fromkeys(names, 1)
    # bf16 to fp16 and back is exact for these weights, but another dtype is another computation
    assert len(set().union(*names.values())) == len(names)
    if len(modes) == 2:
        assert modes[0]["fp32 at fp16"]["held"] == ["torch.float16", "torch.float32"]
        assert modes[1]["fp32 at fp16"]["held"] == ["torch.float32"], "the dtype of the file, else nothing was cast"


def test_weights_stored_in_fp8_on_the_device_only_are_in_the_report(found: dict[str, Any]):
    stored = ["weights stored in 8-bit floating point (float8_e4m3fn)"]
    for mode in found.keys() & {"static", "dynamic"}:
        told = {case: model["inexact"] for case, model in found[mode]["models"].items()}
        assert told == {case: stored if case.endswith("fp8") else [] for case in told}, mode


def test_quantised_weights_keep_their_names_with_dynamic_vram(found: dict[str, Any]):
    for model in found.get("quantised", []):
        assert model["kind"] == "QuantizedTensor"
    names = {name for model in found.get("quantised", []) for name in model["names"]}
    assert len(names) == ("dynamic" in found)


def test_a_vae_has_one_name_before_loading_and_after_with_dynamic_vram_and_without(found: dict[str, Any]):
    vaes = [found[mode]["vaes"] for mode in ("static", "dynamic") if mode in found]
    names = [{name for own in vaes for name in own[dtype]} for dtype in ("torch.float32", "torch.bfloat16")]
    assert [len(own) for own in names] == [1, 1] and names[0] != names[1]


def test_load_self_forcing_casts_once_what_dynamic_vram_would_cast_at_each_copy(found: dict[str, Any]):
    if "dynamic" not in found:
        assert "halves" not in found
        return
    for case, model in found["halves"].items():
        assert set(model["names"]) == {found["dynamic"]["models"][case]["names"][0]}
    halves = {case: (model["held"], round(model["share"], 1)) for case, model in found["halves"].items()}
    whole = (["torch.float32"], 1.0)
    assert halves["fp32 at fp16"] == (["torch.float16", "torch.float32"], 0.5)  # ComfyUI keeps the first layer in fp32
    assert halves["fp32 at fp32"] == halves["fp32 at fp8"] == whole

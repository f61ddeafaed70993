"""The table of published weights against the code: what it says loads, loads; the rest is refused in its words."""

import re
from collections.abc import Callable
from pathlib import Path

import checkpoint_files as files
import pytest
import torch
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import METHODS, method_policy
from headforcing.headforcing_core.names import NOT_BUILT
from headforcing.headforcing_core.render.comparison import entries_of
from headforcing.headforcing_core.rollout.schedule import SCHEDULES
from headforcing.headforcing_core.weights.checkpoint import convert_lora, load_state_dict
from releases import RELEASES, TESTS, Release, refusal_table, release_table
from safetensors.torch import save_file

WEIGHTS = files.wan_weights()
LOADED = [row for row in RELEASES if not row.refused]
REFUSED = [row for row in RELEASES if row.refused]
WAN_5B = files.wan_shapes(dim=3072, ffn=14336, layers=30, text=4096, freq=256, channels=48, out=48)
WAN_14B = files.wan_shapes(dim=5120, ffn=13824, layers=40, text=4096, freq=256)


def name_of(row: Release) -> str:
    return row.name


def written(path: Path, row: Release, tensors: files.Weights) -> Path:
    """A file of these weights in the layout of a row."""
    named = files.prefixed(files.diffusers(tensors) if row.diffusers else tensors, row.prefix)
    path = path.with_suffix(Path(row.files.split(",")[0]).suffix)
    if path.suffix == ".safetensors":
        save_file(named, path)
    else:
        torch.save(named if row.wrapper == "bare" else {row.wrapper: named}, path)
    return path


@pytest.mark.parametrize("row", [row for row in LOADED if not row.lora], ids=name_of)
def test_weights_in_the_table_load_from_a_small_file_in_their_layout(row: Release, tmp_path: Path):
    state, info = load_state_dict(written(tmp_path / "x", row, WEIGHTS))
    assert all(torch.equal(state[name], tensor) for name, tensor in WEIGHTS.items()) and state.keys() == WEIGHTS.keys()
    assert info.layout == row.wrapper


@pytest.mark.parametrize("row", [row for row in LOADED if row.lora], ids=name_of)
def test_a_lora_in_the_table_merges_and_converts(row: Release, tmp_path: Path):
    factors = files.lora_factors(["blocks.0.self_attn.q", "blocks.1.ffn.2"], files.wan_shapes())
    halves = {f"{module}.lora_{half}.weight": t for module, pair in factors.items() for half, t in zip("AB", pair)}  # noqa: B905
    lora = written(tmp_path / "lora", row, halves)
    base = written(tmp_path / "base", LOADED[0], WEIGHTS)
    merged = load_state_dict(base, lora=lora)[0]
    down, up = factors["blocks.1.ffn.2"]
    torch.testing.assert_close(merged["blocks.1.ffn.2.weight"], WEIGHTS["blocks.1.ffn.2.weight"] + up @ down)
    assert convert_lora(lora, tmp_path / "out.safetensors") == 4


def test_a_lora_of_a_training_file_is_read_and_not_its_running_mean(tmp_path: Path):
    shapes, base = files.wan_shapes(), written(tmp_path / "base", LOADED[0], WEIGHTS)
    (down, up), (other, _) = (files.lora_factors(["blocks.1.ffn.2"], shapes, seed)["blocks.1.ffn.2"] for seed in (3, 4))

    def named(half: torch.Tensor) -> files.Weights:
        name = "_fsdp_wrapped_module.base_model.model.blocks.1.ffn.2"
        return {f"{name}.lora_A.student.weight": half, f"{name}.lora_B.student.weight": up}

    torch.save({"generator_ema": named(other), "generator_lora": named(down), "step": 7}, tmp_path / "opsdv.pt")
    merged = load_state_dict(base, lora=tmp_path / "opsdv.pt")[0]["blocks.1.ffn.2.weight"]
    torch.testing.assert_close(merged, WEIGHTS["blocks.1.ffn.2.weight"] + up @ down)


def _sparse(file: str, shapes: dict[str, tuple[int, ...]], **more: tuple[int, ...]) -> Callable[[Path], Path]:
    return lambda folder: files.sparse_safetensors(folder / file, shapes | more)


def _with_scales(folder: Path) -> Path:
    save_file(WEIGHTS | {"blocks.0.ffn.0.scale_weight": torch.ones(1)}, folder / "fp8.safetensors")
    return folder / "fp8.safetensors"


EXAMPLES: dict[str, Callable[[Path], Path]] = {
    "LongLive 2.0 5B in NVFP4": _sparse("x.safetensors", WAN_5B | {"blocks.0.ffn.0.quantized_weight_values": (8, 8)}),
    "Self Gradient Forcing+": _sparse(
        "x.safetensors", files.wan_shapes() | {"blocks.0.ffn.0.memory_weight": (192, 128)}
    ),
    "Wan2.2 T2V A14B, causal ones too": _sparse("wan2.2_t2v_high_noise_14B.safetensors", WAN_14B),
    "Wan2.2 I2V A14B, causal ones too": _sparse(
        "wan2.2_i2v_high_noise_14B.safetensors", WAN_14B | {"patch_embedding.weight": (5120, 36, 1, 2, 2)}
    ),
    "scaled fp8 and NVFP4 of the family": _with_scales,
}  # fmt: skip


@pytest.mark.parametrize("row", REFUSED, ids=name_of)
def test_weights_in_the_table_are_refused_in_its_words(row: Release, tmp_path: Path, capsys):
    path = EXAMPLES[row.name](tmp_path)
    assert main(["inspect", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith((f"error: {path.name} is ", f"error: {path.name} holds ")) and row.refused in told
    assert told.count("\n") == 1
    with pytest.raises(HeadForcingError):
        load_state_dict(path)


def test_the_table_names_methods_and_families_that_exist_and_every_trained_method_has_weights():
    for row in RELEASES:
        assert all(method_policy(method) for method in row.methods)
        assert row.family in SCHEDULES or (row.refused and not row.family) or "fp8" in row.name
    meant = {method for row in LOADED for method in row.methods}
    variants = {"memflow_sma"}  # of memflow, the same weights
    assert {name for name, row in METHODS.items() if row.trained} <= meant | variants


def test_the_page_has_the_tables_of_the_code(repo_root: Path):
    page = (repo_root / "docs" / "weights.md").read_text("utf-8")
    assert release_table() in page and refusal_table() in page


@pytest.mark.parametrize("name", NOT_BUILT)
def test_a_method_that_is_known_and_not_built_is_refused_by_name(name: str, tmp_path: Path, capsys):
    with pytest.raises(HeadForcingError, match=f"{name} .*not built here; with .* choose head_forcing or"):
        method_policy(name)
    with pytest.raises(HeadForcingError, match="not built here"):
        entries_of(f"head_forcing, {name}")
    assert main(["demo", "--method", name, "--out", str(tmp_path)]) == 2
    assert NOT_BUILT[name] in capsys.readouterr().err


def test_every_test_that_the_table_claims_is_there(repo_root: Path):
    recorded = {folder.name for folder in (repo_root / "tests" / "golden" / "peers").iterdir()} | {"self_forcing"}
    recorded |= {path.stem.removeprefix("test_golden_") for path in (repo_root / "tests" / "golden").glob("test_*.py")}
    told = (repo_root / "tests" / "unit" / "test_checkpoint.py").read_text("utf-8")
    for row in LOADED:
        assert set(row.tested) <= set(TESTS) and "layout" in row.tested, row.name
        if "recorded" in row.tested:
            assert any(method.removesuffix("_interactive") in recorded for method in row.methods)
        if "size" in row.tested:
            size = re.search("14B|5B", row.name)
            assert {"14B": "wan2.1-t2v-14b", "5B": "wan2.2-ti2v-5b", "": "wan2.1-t2v-1.3b"}[
                size[0] if size else ""
            ] in told
        assert ("graph" in row.tested) == row.lora
    nodes = (repo_root / "tests" / "comfy" / "test_nodes.py").read_text("utf-8")
    assert "def test_longlives_lora_in_the_graph_equals_the_merged_checkpoint_at_every_strength" in nodes

"""The page on weights against the code: what it says loads, loads; the rest is refused in its words."""

import re
from pathlib import Path

import checkpoint_files as files
import pytest
import torch
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import METHODS, NOT_BUILT, method_policy
from headforcing.headforcing_core.render.comparison import entries_of
from headforcing.headforcing_core.rollout.schedule import SCHEDULES
from headforcing.headforcing_core.weights.checkpoint import convert_lora, load_state_dict

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "weights.md").read_text("utf-8")
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in PAGE.splitlines() if re.match(r"\| \w", line)]
LOADED = {row[0]: row[1:] for row in ROWS if len(row) == 4 and row[0] != "weights"}  # file; family; tested with
REFUSED = {row[0]: row[1] for row in ROWS if len(row) == 3 and row[0] != "weights"}
WAN_5B = files.wan_shapes(dim=3072, ffn=14336, layers=30, text=4096, freq=256, channels=48, out=48)
WAN_14B = files.wan_shapes(dim=5120, ffn=13824, layers=40, text=4096, freq=256)

AR_5_SECONDS = "head_forcing rolling_sink echo_forcing pyramid_forcing"
# the top-level key and the prefix of names as their authors publish them, and the methods that they are meant for
LAYOUTS = {
    "Self Forcing (DMD, SiD, 10 s)": ("generator_ema", "model.", f"{AR_5_SECONDS} self_forcing"),
    "Self Forcing, repackaged for ComfyUI": ("bare", "", AR_5_SECONDS),
    "Self Forcing, FastVideo's port": ("bare", "", AR_5_SECONDS),  # diffusers' names
    "Causal Forcing, chunkwise": ("generator", "model.", "causal_forcing rolling_sink pyramid_forcing"),
    "Causal Forcing and Causal Forcing++, framewise": ("bare", "", "causal_forcing"),
    "LongLive 1.3B, base": ("generator", "model.", "longlive longlive_infinite memrope"),
    "LongLive 1.3B, LoRA": ("generator_lora", "base_model.model.", "longlive longlive_infinite memrope"),
    "MemFlow, base and LoRA": ("generator", "model.", "memflow memflow_interactive"),
    "RAVEN and CM-GRPO, merged": ("bare", "", "head_forcing self_forcing"),
    "Infinite-Forcing": ("generator_ema", "model.", "infinity_rope"),
    "Rolling Forcing": ("generator_ema", "model._fsdp_wrapped_module.", "rolling_forcing"),
    "Self Gradient Forcing": ("generator_ema", "model.", "self_gradient_forcing"),
    "OPSD-V for Self Forcing or LongLive, LoRA": ("generator_lora", "base_model.model.", "self_forcing longlive"),
    "Reward Forcing": ("bare", "model.", "reward_forcing"),
    "CausVid, causal": ("generator", "model.", "causvid"),
    "ShotStream": ("generator", "model.", "head_forcing"),
    "Krea Realtime 14B": ("bare", "model.", "head_forcing forcing_kv"),
    "LongLive 2.0 5B": ("generator", "model.", "longlive2 head_forcing"),
}


def written(path: Path, name: str, tensors: files.Weights) -> Path:
    """A file of these weights in the layout of a row."""
    wrapper, prefix, _ = LAYOUTS[name]
    named = files.prefixed(files.diffusers(tensors) if "FastVideo" in name else tensors, prefix)
    path = path.with_suffix(Path(LOADED[name][0].split(",")[0]).suffix)
    return files.save(path, named if wrapper == "bare" else {wrapper: named})


def test_weights_in_the_table_load_from_a_small_file_in_their_layout(tmp_path: Path):
    assert set(LAYOUTS) == set(LOADED)
    for number, name in enumerate(name for name in LOADED if not name.endswith(", LoRA")):
        state, info = load_state_dict(written(tmp_path / str(number), name, files.WEIGHTS))
        files.assert_same(state, files.WEIGHTS)
        assert info.layout == LAYOUTS[name][0], name


@pytest.mark.parametrize("name", [name for name in LOADED if name.endswith(", LoRA")])
def test_a_lora_in_the_table_merges_and_converts(name: str, tmp_path: Path):
    factors = {module: files.FACTORS[module] for module in ("blocks.0.self_attn.q", "blocks.2.ffn.2")}
    halves = {f"{m}.lora_{half}.weight": t for m, pair in factors.items() for half, t in zip("AB", pair, strict=True)}
    lora, base = written(tmp_path / "lora", name, halves), files.save(tmp_path / "base.pt", files.WEIGHTS)
    down, up = factors["blocks.2.ffn.2"]
    # beside it, a training file has its running mean
    trained = {
        f"_fsdp_wrapped_module.base_model.model.{n.replace('.weight', '.student.weight')}": t for n, t in halves.items()
    }
    mean = {n: -t if "lora_A" in n else t for n, t in trained.items()}
    training = files.save(tmp_path / "run.pt", {"generator_ema": mean, "generator_lora": trained, "step": 7})
    for file in (lora, training):
        merged = load_state_dict(base, lora=file)[0]["blocks.2.ffn.2.weight"]
        torch.testing.assert_close(merged, files.WEIGHTS["blocks.2.ffn.2.weight"] + up @ down)
    assert convert_lora(lora, tmp_path / "out.safetensors") == 4


EXAMPLES = {  # a file's name and shapes
    "LongLive 2.0 5B in NVFP4": ("x", WAN_5B | {"blocks.0.ffn.0.quantized_weight_values": (8, 8)}),
    "Self Gradient Forcing+": ("x", files.wan_shapes() | {"blocks.0.ffn.0.memory_weight": (2, 2)}),
    "Wan2.2 T2V A14B, causal ones too": ("wan2.2_t2v_high_noise_14B", WAN_14B),
    "Wan2.2 I2V A14B, causal ones too": (
        "wan2.2_i2v_high_noise_14B", WAN_14B | {"patch_embedding.weight": (5120, 36, 1, 2, 2)}
    ),
    "scaled fp8 and NVFP4 of the family": ("fp8", files.wan_shapes() | {"blocks.0.ffn.0.scale_weight": (1,)}),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_weights_in_the_table_are_refused_in_its_words(name: str, tmp_path: Path, capsys):
    file, shapes = EXAMPLES[name]
    path = files.sparse_safetensors(tmp_path / f"{file}.safetensors", shapes)
    assert main(["inspect", str(path)]) == 2
    told = capsys.readouterr().err
    assert told.startswith((f"error: {path.name} is ", f"error: {path.name} holds ")) and REFUSED[name] in told
    assert told.count("\n") == 1
    with pytest.raises(HeadForcingError):
        load_state_dict(path)


def test_the_table_names_families_and_tests_that_exist_and_every_trained_method_has_weights():
    golden, meant = ROOT / "tests" / "golden", set()
    recorded = {folder.name for folder in (golden / "peers").iterdir()} | {"self_forcing"}
    recorded |= {path.stem.removeprefix("test_golden_") for path in golden.glob("test_*.py")}
    sizes = (ROOT / "tests" / "unit" / "test_checkpoint.py").read_text("utf-8")
    for name, (_, family, tested) in LOADED.items():
        methods, claims = LAYOUTS[name][2].split(), tested.partition(";")[0].split(", ")
        meant |= set(methods)
        assert family.strip("`") in SCHEDULES and all(map(method_policy, methods)), name
        assert set(claims) <= {"layout", "real size", "recorded", "LoRA loader"} and "layout" in claims, name
        assert "recorded" not in claims or any(m.removesuffix("_interactive") in recorded for m in methods), name
        size = re.search("14B|5B", name)
        real = {"14B": "wan2.1-t2v-14b", "5B": "wan2.2-ti2v-5b", "": "wan2.1-t2v-1.3b"}[size[0] if size else ""]
        assert "real size" not in claims or real in sizes, name
        assert ("LoRA loader" in claims) == name.endswith(", LoRA")
    assert {name for name, row in METHODS.items() if row.trained} <= meant | {"memflow_sma"}  # of memflow's weights


@pytest.mark.parametrize("name", NOT_BUILT)
def test_a_method_that_is_known_and_not_built_is_refused_by_name(name: str, tmp_path: Path, capsys):
    with pytest.raises(HeadForcingError, match=f"{name} .*not built here; with .* choose head_forcing or"):
        method_policy(name)
    with pytest.raises(HeadForcingError, match="not built here"):
        entries_of(f"head_forcing, {name}")
    assert main(["demo", "--method", name, "--out", str(tmp_path)]) == 2
    assert NOT_BUILT[name] in " ".join(capsys.readouterr().err.split())

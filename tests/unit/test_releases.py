"""The page on weights against the code, what it says loads, loads, the rest is refused; families of
files.
"""

import json
import re
from pathlib import Path

import checkpoint_files as files
import pytest
import torch
from headforcing.cli.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.methods.registry import METHODS, NOT_BUILT, method_named
from headforcing.headforcing_core.plan.family import family_of_file, with_family
from headforcing.headforcing_core.plan.options import DEFAULTS, RenderOptions
from headforcing.headforcing_core.render.comparison import entries_of
from headforcing.headforcing_core.rollout.schedule import SCHEDULES
from headforcing.headforcing_core.weights.checkpoint import convert, convert_lora, load_state_dict
from safetensors.torch import save_file
from tiny_checkpoints import wan_t2v

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "weights.md").read_text("utf-8")


def cells_of(line: str) -> list[str]:
    return [cell.strip() for cell in line.split("|")[1:-1]]


ROWS = [cells_of(line) for line in PAGE.splitlines() if re.match(r"\| \w", line)]
# file; family; tested with
LOADED = {row[0]: row[1:] for row in ROWS if len(row) == 4 and row[0] != "weights"}
REFUSED = {row[0]: row[1] for row in ROWS if len(row) == 3 and row[0] != "weights"}
WAN_5B = files.wan_shapes(dim=3072, ffn=14336, layers=30, text=4096, freq=256, channels=48, out=48)
WAN_14B = files.wan_shapes(dim=5120, ffn=13824, layers=40, text=4096, freq=256)

AR_5_SECONDS = "head_forcing rolling_sink echo_forcing pyramid_forcing"
# the top-level key and the prefix of names as their authors publish them, and the methods that they
# are meant for
LAYOUTS = {
    "Self Forcing (DMD, SiD, 10 s)": ("generator_ema", "model.", f"{AR_5_SECONDS} self_forcing"),
    "Self Forcing, repackaged for ComfyUI": ("bare", "", AR_5_SECONDS),
    "Self Forcing, FastVideo's port": ("bare", "", AR_5_SECONDS),  # diffusers' names
    "Causal Forcing, chunkwise": (
        "generator",
        "model.",
        "causal_forcing rolling_sink pyramid_forcing",
    ),
    "Causal Forcing and Causal Forcing++, framewise": ("bare", "", "causal_forcing"),
    "LongLive 1.3B, base": ("generator", "model.", "longlive longlive_infinite memrope"),
    "LongLive 1.3B, LoRA": (
        "generator_lora",
        "base_model.model.",
        "longlive longlive_infinite memrope",
    ),
    "MemFlow, base and LoRA": ("generator", "model.", "memflow memflow_interactive"),
    "RAVEN and CM-GRPO, merged": ("bare", "", "head_forcing self_forcing"),
    "Infinite-Forcing": ("generator_ema", "model.", "infinity_rope"),
    "Rolling Forcing": ("generator_ema", "model._fsdp_wrapped_module.", "rolling_forcing"),
    "Self Gradient Forcing": ("generator_ema", "model.", "self_gradient_forcing"),
    "OPSD-V for Self Forcing or LongLive, LoRA": (
        "generator_lora",
        "base_model.model.",
        "self_forcing longlive",
    ),
    "Reward Forcing": ("bare", "model.", "reward_forcing"),
    "CausVid, causal": ("generator", "model.", "causvid"),
    "ShotStream": ("generator", "model.", "head_forcing"),
    "Krea Realtime 14B": ("bare", "model.", "head_forcing forcing_kv"),
    "LongLive 2.0 5B": ("generator", "model.", "longlive2 head_forcing"),
    "LiveTalk 1.3B": ("bare", "", "livetalk"),
}


def written(path: Path, name: str, tensors: files.Weights) -> Path:
    """A file of these weights in the layout of a row."""
    wrapper, prefix, _ = LAYOUTS[name]
    named = files.prefixed(files.diffusers(tensors) if "FastVideo" in name else tensors, prefix)
    path = path.with_suffix(Path(LOADED[name][0].split(",")[0]).suffix)
    return files.save(path, named if wrapper == "bare" else {wrapper: named})


def test_weights_in_the_table_load_from_a_small_file_in_their_layout(tmp_path: Path):
    assert set(LAYOUTS) == set(LOADED) and set(EXAMPLES) == set(REFUSED)
    for number, name in enumerate(name for name in LOADED if not name.endswith(", LoRA")):
        state, info = load_state_dict(written(tmp_path / str(number), name, files.WEIGHTS))
        files.assert_same(state, files.WEIGHTS)
        assert info.layout == LAYOUTS[name][0], name


@pytest.mark.parametrize("name", [name for name in LOADED if name.endswith(", LoRA")])
def test_a_lora_in_the_table_merges_and_converts(name: str, tmp_path: Path):
    factors = {
        module: files.FACTORS[module] for module in ("blocks.0.self_attn.q", "blocks.2.ffn.2")
    }
    halves = {}
    for module, (down, up) in factors.items():
        halves[f"{module}.lora_A.weight"] = down
        halves[f"{module}.lora_B.weight"] = up
    lora = written(tmp_path / "lora", name, halves)
    base = files.save(tmp_path / "base.pt", files.WEIGHTS)
    down, up = factors["blocks.2.ffn.2"]
    # beside it, a training file has its running mean
    trained = {
        f"_fsdp_wrapped_module.base_model.model.{n.replace('.weight', '.student.weight')}": t
        for n, t in halves.items()
    }
    mean = {n: -t if "lora_A" in n else t for n, t in trained.items()}
    training = files.save(
        tmp_path / "run.pt", {"generator_ema": mean, "generator_lora": trained, "step": 7}
    )
    for file in (lora, training):
        merged = load_state_dict(base, lora=file)[0]["blocks.2.ffn.2.weight"]
        torch.testing.assert_close(merged, files.WEIGHTS["blocks.2.ffn.2.weight"] + up @ down)
    assert convert_lora(lora, tmp_path / "out.safetensors") == 4


EXAMPLES = {  # a file's name and shapes
    "LongLive 2.0 5B in NVFP4": ("x", WAN_5B | {"blocks.0.ffn.0.quantized_weight_values": (8, 8)}),
    "Self Gradient Forcing+": ("x", files.wan_shapes() | {"blocks.0.ffn.0.memory_weight": (2, 2)}),
    "Wan2.2 T2V A14B, causal ones too": ("wan2.2_t2v_high_noise_14B", WAN_14B),
    "Wan2.2 I2V A14B, causal ones too": (
        "wan2.2_i2v_high_noise_14B",
        WAN_14B | {"patch_embedding.weight": (5120, 36, 1, 2, 2)},
    ),
    "scaled fp8 and NVFP4 of the family": (
        "fp8",
        files.wan_shapes() | {"blocks.0.ffn.0.scale_weight": (1,)},
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_weights_in_the_table_are_refused_in_its_words(name: str, tmp_path: Path, capsys):
    file, shapes = EXAMPLES[name]
    path = files.sparse_safetensors(tmp_path / f"{file}.safetensors", shapes)
    assert main(["inspect", str(path)]) == 2
    told = capsys.readouterr().err
    assert (
        told.startswith((f"error: {path.name} is ", f"error: {path.name} holds "))
        and REFUSED[name] in told
    )
    assert told.count("\n") == 1


def test_the_table_names_families_that_exist_and_every_trained_method_has_weights():
    meant = set()
    for name, (_, family, tested) in LOADED.items():
        methods = LAYOUTS[name][2].split()
        meant |= set(methods)
        assert family.strip("`") in SCHEDULES and all(map(method_named, methods)), name
        assert ("LoRA loader" in tested) == name.endswith(", LoRA") and "layout" in tested
    # of memflow's weights
    assert {name for name, row in METHODS.items() if row.trained} <= meant | {"memflow_sma"}


def test_a_method_that_is_known_and_not_built_is_refused_by_name(tmp_path: Path, capsys):
    instead = "(with .* choose head_forcing or|choose pyramid_forcing)"
    for name, reason in NOT_BUILT.items():
        for use in (method_named, lambda name: entries_of(f"head_forcing, {name}")):
            with pytest.raises(HeadForcingError, match=f"{name} .*{instead}"):
                use(name)
        assert main(["demo", "--method", name, "--out", str(tmp_path)]) == 2
        assert reason in " ".join(capsys.readouterr().err.split())


ONE = {"weight": torch.zeros(1)}
NAMES = {
    "causal_forcing-framewise.safetensors": "causal_forcing_framewise",
    "framewise/causal_forcing.pt": "causal_forcing_framewise",
    "causal_forcing_pp_framewise_2step.pt": "causal_forcing_framewise_2_steps",
    "framewise-1step/causal_forcing.pt": "causal_forcing_framewise_1_step",
    "causal_forcing_chunkwise_bf16.safetensors": "causal_forcing_chunkwise",
    "framewise/model.pt": None,
    "longlive_base.pt": "longlive",
    "raven_model.pt": "raven",
    "self_forcing_dmd.pt": "self_forcing",
    "model.safetensors": None,
    "craven.pt": None,
    "LongLive-2.0-5B.pt": "longlive2",
    "self_gradient_forcing.pt": "self_gradient_forcing",
    "self_gradient_forcing_framewise.pt": "self_gradient_forcing_framewise",
}


def test_the_names_of_published_files_are_known(tmp_path):
    for name, family in NAMES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        torch.save(ONE, path) if path.suffix == ".pt" else save_file(ONE, path)
        options, line = with_family(RenderOptions(model_family="auto"), path)
        assert (family_of_file(path) or (None,))[0] == family, name
        assert options.model_family == (family or "self_forcing") and options.model_family in line


def test_what_the_file_states_wins_over_its_name_and_convert_keeps_it(tmp_path):
    path = tmp_path / "self_forcing.safetensors"
    save_file(
        ONE, path, {"head_forcing": json.dumps({"model_family": "causal_forcing_framewise_1_step"})}
    )
    assert family_of_file(path) == ("causal_forcing_framewise_1_step", "stated in the file")
    save_file(
        ONE,
        path,
        {"head_forcing": json.dumps({"frames_per_block": 1, "model_family": ["longlive"]})},
    )
    assert family_of_file(path) == (
        "causal_forcing_framewise",
        "stated in the file: blocks of 1 latent frame",
    )
    tiny = wan_t2v(tmp_path / "a.safetensors", dim=128, ffn=128, layers=1)
    convert(tiny, tmp_path / "b.safetensors", model_family="longlive")
    convert(tmp_path / "b.safetensors", tmp_path / "c.safetensors")
    assert family_of_file(tmp_path / "c.safetensors") == ("longlive", "stated in the file")
    assert family_of_file(tiny) is None


def test_a_family_that_was_chosen_stays_and_a_contradiction_is_noted(tmp_path):
    framewise = tmp_path / "framewise.safetensors"
    save_file(ONE, framewise)
    note = (
        "note: the model family is self_forcing as chosen; that of the file is "
        "causal_forcing_framewise (by the name"
    )
    assert with_family(DEFAULTS, framewise) == (DEFAULTS, f"{note} of framewise.safetensors)")
    two_steps = RenderOptions(model_family="causal_forcing_framewise_2_steps")
    assert with_family(two_steps, framewise) == (two_steps, "")
    assert with_family(RenderOptions(model_family="auto"), None)[0] == DEFAULTS

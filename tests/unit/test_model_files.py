"""Model and LoRA files in the spellings and layouts that programs write, and what they hold."""

import json
import math
from pathlib import Path

import checkpoint_files as files
import pytest
import torch
from checkpoint_files import FACTORS, OTHER, WEIGHTS, assert_same, save
from headforcing.cli.cli import main
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.weights.checkpoint import (
    convert_lora,
    inspect_checkpoint,
    load_state_dict,
)
from headforcing.headforcing_core.weights.containers import read_tensors
from headforcing.headforcing_core.weights.layouts import reject_experts
from headforcing.headforcing_core.weights.lora import read_patches
from safetensors.torch import load_file, save_file

Q = "blocks.0.self_attn.q"
DOWN, UP = FACTORS[Q]
RANK = len(DOWN)
TO_Q = "blocks.0.attn1.to_q"
SPELLINGS = {  # the layer as a program writes it, and the two halves
    "PEFT": (f"base_model.model.{Q}", "lora_A.weight", "lora_B.weight"),
    "PEFT with a name": (
        f"base_model.model.model.{Q}",
        "lora_A.default.weight",
        "lora_B.default.weight",
    ),
    "ComfyUI": (f"diffusion_model.{Q}", "lora_A.weight", "lora_B.weight"),
    "without .weight": (f"diffusion_model.{Q}", "lora_A", "lora_B"),
    "musubi": ("lora_unet_blocks_0_self_attn_q", "lora_down.weight", "lora_up.weight"),
    "Wan-Fun": ("lora_unet__blocks_0_self_attn_q", "lora_down.weight", "lora_up.weight"),
    "half flat": ("lora_unet_blocks_0.self_attn.q", "lora_down.weight", "lora_up.weight"),
    "ai-toolkit": ("lycoris_blocks_0_attn1_to_q", "lora_down.weight", "lora_up.weight"),
    "diffusers": (f"transformer.{TO_Q}", "lora_A.weight", "lora_B.weight"),
    "old diffusers": (f"transformer.{TO_Q}", "lora.down.weight", "lora.up.weight"),
    "DiffSynth": (f"pipe.dit.{Q}", "lora_A.default.weight", "lora_B.default.weight"),
    "UniAnimate": (f"dit.{Q}", "lora_A.weight", "lora_B.weight"),
    "unet": (f"unet.{Q}", "lora_A.weight", "lora_B.weight"),
    "net": (f"net.{Q}", "lora_A.weight", "lora_B.weight"),
    "generator": (f"generator.model.{Q}", "lora_A.weight", "lora_B.weight"),
    "FSDP": (f"model._fsdp_wrapped_module.{Q}", "lora_A.weight", "lora_B.weight"),
    "bare": (Q, "lora_A.weight", "lora_B.weight"),
}


def adapter(form: str = "bare", **more: torch.Tensor) -> dict[str, torch.Tensor]:
    layer, a, b = SPELLINGS[form]
    return {
        f"{layer}.{a}": DOWN,
        f"{layer}.{b}": UP,
        **{f"{layer}.{name}": tensor for name, tensor in more.items()},
    }


def change(lora: Path, strength: float = 1.0) -> torch.Tensor:
    """What a LoRA file changes of one layer; nothing else may change."""
    model = save(lora.parent / "model.safetensors", WEIGHTS)
    state, _ = load_state_dict(model, lora=lora, lora_strength=strength, dtype=torch.float32)
    assert [name for name in state if not torch.equal(state[name], WEIGHTS[name].float())] == [
        f"{Q}.weight"
    ]
    return state[f"{Q}.weight"] - WEIGHTS[f"{Q}.weight"].float()


@pytest.mark.parametrize("form", SPELLINGS)
def test_a_lora_of_any_program_changes_the_layer_that_it_names(form, tmp_path):
    torch.testing.assert_close(
        change(save(tmp_path / "lora.safetensors", adapter(form))), UP @ DOWN
    )


def test_layers_for_images_are_left_out_and_named(tmp_path, caplog):
    image = {
        f"diffusion_model.blocks.0.cross_attn.k_img.lora_{half}.weight": torch.ones(4, 4)
        for half in "AB"
    }
    found = change(save(tmp_path / "lora.safetensors", adapter("ComfyUI") | image))
    torch.testing.assert_close(found, UP @ DOWN)
    assert (
        "left out 2 tensors of layers for images (diffusion_model.blocks.0.cross_attn.k_img"
        in caplog.text
    )


ALPHA = 2.0 * RANK
SCALES = {  # more tensors, the header, PEFT's config, and the scale
    "nothing": ({}, {}, None, 1.0),
    "a tensor": ({"alpha": torch.tensor(ALPHA)}, {}, None, 2.0),
    "FastVideo": (
        {"lora_alpha": torch.tensor(ALPHA), "lora_rank": torch.tensor(RANK)},
        {},
        None,
        2.0,
    ),
    "the header": ({}, {"transformer.r": RANK, "transformer.lora_alpha": ALPHA}, None, 2.0),
    "two parts of a pipeline": (
        {},
        {
            "transformer.lora_alpha": ALPHA,
            "transformer_2.lora_alpha": 3.0,
            "transformer_2.use_rslora": True,
            "transformer_2.alpha_pattern": {"self_attn.q": 5.0},
            "text_encoder.lora_alpha": 7.0,
        },
        None,
        2.0,
    ),
    "a list as the header": ({}, [ALPHA], None, 1.0),
    "a list as the config": ({}, {}, [ALPHA], 1.0),
    "a config": ({}, {}, {"r": RANK, "lora_alpha": ALPHA}, 2.0),
    "rsLoRA": (
        {},
        {},
        {"r": RANK, "lora_alpha": ALPHA, "use_rslora": True},
        ALPHA / math.sqrt(RANK),
    ),
    "a layer of its own": (
        {},
        {},
        {"lora_alpha": 1.0, "alpha_pattern": {"self_attn.q": ALPHA}},
        2.0,
    ),
    "a tensor before a config": ({"alpha": torch.tensor(ALPHA)}, {}, {"lora_alpha": 1.0}, 2.0),
    "both alike": ({}, {"lora_alpha": ALPHA}, {"lora_alpha": ALPHA}, 2.0),
}


def stated(folder: Path, tensors: dict, header: dict | list, config: dict | list | None) -> Path:
    metadata = {"lora_adapter_metadata": json.dumps(header)} if header else None
    save_file(adapter("PEFT", **tensors), folder / "adapter_model.safetensors", metadata)
    if config is not None:
        (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder / "adapter_model.safetensors"


@pytest.mark.parametrize("case", SCALES)
def test_alpha_counts_wherever_it_is_stated_and_after_a_conversion(case, tmp_path):
    *given, scale = SCALES[case]
    lora = stated(tmp_path, *given)
    torch.testing.assert_close(change(lora), scale * UP @ DOWN)
    (tmp_path / "other").mkdir()
    convert_lora(lora, tmp_path / "other" / "lora.safetensors", torch.float32)
    torch.testing.assert_close(change(tmp_path / "other" / "lora.safetensors"), scale * UP @ DOWN)


@pytest.mark.parametrize(("form", "scale"), [("musubi", 2.0), ("ComfyUI", 1.0)])
def test_kohyas_header_counts_with_kohyas_names_only(form, scale, tmp_path):
    save_file(adapter(form), tmp_path / "lora.safetensors", {"ss_network_alpha": str(ALPHA)})
    torch.testing.assert_close(change(tmp_path / "lora.safetensors"), scale * UP @ DOWN)


def test_two_statements_of_alpha_that_disagree_are_refused(tmp_path):
    lora = stated(tmp_path, {}, {"lora_alpha": 1.0}, {"lora_alpha": 2.0})
    with pytest.raises(
        HeadForcingError, match="its header states alpha 1 and adapter_config.json states alpha 2"
    ):
        change(lora)


def test_other_algorithms_change_a_weight_by_the_formulas_of_their_papers():
    weight = WEIGHTS[f"{Q}.weight"].double()
    rows, columns = weight.shape
    generator = torch.Generator().manual_seed(5)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    hada = {
        "hada_w1_a": random(rows, 3),
        "hada_w1_b": random(3, columns),
        "hada_w2_a": random(rows, 3),
    }
    hada |= {"hada_w2_b": random(3, columns), "alpha": torch.tensor(6.0)}
    product = (hada["hada_w1_a"] @ hada["hada_w1_b"]) * (hada["hada_w2_a"] @ hada["hada_w2_b"])
    whole = {
        "lokr_w1": random(4, 4),
        "lokr_w2": random(rows // 4, columns // 4),
        "alpha": torch.tensor(9.0),
    }
    divided = {
        "lokr_w1": random(4, 4),
        "lokr_w2_a": random(rows // 4, 2),
        "lokr_w2_b": random(2, columns // 4),
    }
    divided["alpha"] = torch.tensor(1.0)
    halves = {"lora_A.weight": DOWN, "lora_B.weight": UP}
    merged = weight + (UP @ DOWN).double()
    magnitude = random(rows).abs() + 0.5
    by_row = merged * (magnitude.double()[:, None] / merged.norm(dim=1, keepdim=True))
    across = random(1, columns).abs() + 0.5
    by_column = merged * (across.double() / merged.norm(dim=0, keepdim=True))
    second = divided["lokr_w2_a"] @ divided["lokr_w2_b"]
    cases = {
        "LoHa": (hada, weight + 2 * product.double()),
        "LoKr": (whole, weight + torch.kron(whole["lokr_w1"], whole["lokr_w2"]).double()),
        "LoKr, divided": (divided, weight + 0.5 * torch.kron(divided["lokr_w1"], second).double()),
        "DoRA": (halves | {"dora_scale": magnitude[:, None]}, by_row),
        "DoRA of PEFT": (halves | {"lora_magnitude_vector": magnitude}, by_row),
        "DoRA by columns": (halves | {"dora_scale": across}, by_column),
        "a replaced weight": ({"set_weight": merged.float()}, merged),
    }
    for name, (tensors, expected) in cases.items():
        patches = read_patches(
            WEIGHTS, {f"diffusion_model.{Q}.{what}": x for what, x in tensors.items()}, name
        )
        found = patches[f"{Q}.weight"].apply(WEIGHTS[f"{Q}.weight"], 1.0)
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4, msg=name)
    (half,) = read_patches(
        WEIGHTS, {f"{Q}.{what}": x for what, x in cases["DoRA"][0].items()}, "DoRA"
    ).values()
    found = half.apply(WEIGHTS[f"{Q}.weight"], 0.5).double()
    torch.testing.assert_close(found, (weight + by_row) / 2, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("name", "kind"),
    {
        "lora_mid.weight": "a LoCon",
        "oft_blocks": "an OFT or BOFT",
        "boft_R": "an OFT or BOFT",
        "a1.weight": "a GLoRA",
        "hada_t1": "a LoHa in Tucker form",
        "b_norm": "sets norms",
        "reshape_weight": "the shape of weights",
    }.items(),
)
def test_a_kind_that_is_not_merged_is_named_with_the_node_that_merges_it(name, kind):
    with pytest.raises(HeadForcingError, match=f"{kind}.*LoraLoaderModelOnly"):
        read_patches(WEIGHTS, adapter() | {f"{Q}.{name}": torch.ones(2, 2)}, "x.safetensors")


@pytest.mark.parametrize("name", ["a1.weight", "boft_R", "w_norm", "lokr_t2"])
def test_a_file_of_such_a_kind_alone_is_named_too(name, tmp_path):
    lora = save(tmp_path / "lora.safetensors", {f"diffusion_model.{Q}.{name}": torch.ones(2, 2)})
    with pytest.raises(
        HeadForcingError, match="does not merge: connect it with ComfyUI's LoraLoaderModelOnly"
    ):
        change(lora)


def test_a_replaced_weight_alone_is_a_lora(tmp_path):
    lora = save(tmp_path / "lora.safetensors", {f"{Q}.set_weight": WEIGHTS[f"{Q}.weight"] + 1})
    torch.testing.assert_close(change(lora), torch.ones_like(WEIGHTS[f"{Q}.weight"]))


def test_biases_have_the_scale_of_the_product_and_stay_after_a_conversion(tmp_path):
    model = save(tmp_path / "model.safetensors", WEIGHTS)
    bias = torch.arange(len(UP), dtype=torch.float32)
    tensors = adapter("PEFT", **{"lora_B.bias": bias, "alpha": torch.tensor(ALPHA)})
    lora = save(tmp_path / "lora.safetensors", tensors)
    convert_lora(lora, tmp_path / "renamed.safetensors", torch.float32)
    for file in (lora, tmp_path / "renamed.safetensors"):
        state, _ = load_state_dict(model, lora=file, dtype=torch.float32)
        torch.testing.assert_close(state[f"{Q}.bias"], WEIGHTS[f"{Q}.bias"].float() + 2 * bias)
        torch.testing.assert_close(
            state[f"{Q}.weight"], WEIGHTS[f"{Q}.weight"].float() + 2 * UP @ DOWN
        )
    alone = save(tmp_path / "alone.safetensors", {f"{Q}.lora_B.bias": bias})
    with pytest.raises(HeadForcingError, match="has a bias for .* without its matrices"):
        load_state_dict(model, lora=alone)


CHECKPOINTS = {
    "EMA after the model": ({"model": OTHER, "ema": WEIGHTS}, "ema"),
    "EMA of the state dict": ({"state_dict": OTHER, "state_dict_ema": WEIGHTS}, "state_dict_ema"),
    "model_ema": ({"model": OTHER, "model_ema": WEIGHTS}, "model_ema"),
    "EMA in capitals": ({"model": OTHER, "EMA": WEIGHTS}, "EMA"),
    "EMA with a model in it": ({"ema": {"model": WEIGHTS}, "model": OTHER}, "ema"),
    "EMA with a model in it, last": (
        {"model": OTHER, "ema": {"module": WEIGHTS, "decay": 0.9}},
        "ema",
    ),
    "EMA in a generator": ({"generator": {"model": OTHER, "ema": WEIGHTS}}, "ema"),
    "an averaged model": ({"model": OTHER, "averaged_model": WEIGHTS}, "averaged_model"),
    "EMA by prefix": (
        files.prefixed(OTHER, "net.") | files.prefixed(WEIGHTS, "net_ema."),
        "net_ema",
    ),
    "two models under one name": ({"one": {"model": WEIGHTS}, "two": {"model": OTHER}}, "model"),
    "a teacher after a word": ({"model_teacher": OTHER, "model": WEIGHTS}, "model"),
    "an averaged teacher": ({"ema_teacher": OTHER, "student": WEIGHTS}, "student"),
    "a teacher in capitals": ({"Teacher": OTHER, "model": WEIGHTS}, "model"),
    "a teacher by prefix": (
        files.prefixed(OTHER, "net_teacher.") | files.prefixed(WEIGHTS, "net."),
        "net",
    ),
    "trained by teacher forcing": ({"teacher_forcing": WEIGHTS}, "teacher_forcing"),
    "a fake generator": ({"fake_generator": OTHER, "model": WEIGHTS}, "model"),
    "a teacher before": ({"teacher": OTHER, "student": WEIGHTS}, "student"),
    "scores of distillation": (
        {"real_score": OTHER, "fake_score": OTHER, "generator": WEIGHTS},
        "generator",
    ),
    "a teacher beside it in one dict": (
        {"state_dict": files.prefixed(OTHER, "teacher.") | files.prefixed(WEIGHTS, "student.")},
        "state_dict.student",
    ),
    "Lightning": ({"state_dict": files.prefixed(WEIGHTS, "generator.model.")}, "generator"),
    "two levels": ({"app": {"model": WEIGHTS}}, "model"),
    "two levels, generator": (
        {"checkpoint": {"generator": files.prefixed(WEIGHTS, "model.")}},
        "generator",
    ),
    **{
        prefix: (files.prefixed(WEIGHTS, prefix), "bare")
        for prefix in (
            "net.",
            "dit.",
            "pipe.dit.",
            "unet.",
            "student.",
            "ema_model.",
            "model.diffusion_model.",
            "whatever.it.is.",
        )
    },
}


@pytest.mark.parametrize("case", CHECKPOINTS)
def test_the_averaged_weights_or_the_student_are_loaded_whatever_stands_in_front_of_names(
    case, tmp_path
):
    content, layout = CHECKPOINTS[case]
    path = save(tmp_path / "model.pt", content)
    state, info = load_state_dict(path, num_heads=4)
    assert_same(state, WEIGHTS)
    assert info.layout == layout


NAMES = sorted(WEIGHTS)
HALVES = {1: NAMES[: len(NAMES) // 2], 2: NAMES[len(NAMES) // 2 :]}


def shards(folder: Path) -> Path:
    """A model in two files with their index."""
    folder.mkdir()
    place = {}
    for number, names in HALVES.items():
        file = f"diffusion_pytorch_model-0000{number}-of-00002.safetensors"
        save_file({name: WEIGHTS[name] for name in names}, folder / file)
        place |= dict.fromkeys(names, file)
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(
        json.dumps({"weight_map": place})
    )
    return folder


def test_a_model_in_several_files_is_that_of_one_file(tmp_path):
    whole = inspect_checkpoint(save(tmp_path / "whole.safetensors", WEIGHTS), num_heads=4)
    folder = shards(tmp_path / "sharded")
    blocks = tmp_path / "blocks"
    blocks.mkdir()
    for number in range(whole.config.num_layers):
        part = {name: x for name, x in WEIGHTS.items() if name.startswith(f"blocks.{number}.")}
        save_file(part, blocks / f"block_{number}.safetensors")
    rest = {name: x for name, x in WEIGHTS.items() if not name.startswith("blocks.")}
    save_file(rest, blocks / "non_block.safetensors")
    numbered = shards(tmp_path / "numbered")
    for file in list(numbered.iterdir()):
        if file.suffix == ".json":
            file.unlink()
        for ending in ("sha256", "aria2", "part"):
            file.with_name(f"{file.name}.{ending}").touch()
    for place in (numbered, folder, *folder.iterdir(), blocks, *blocks.iterdir()):
        state, info = load_state_dict(place, num_heads=4)
        assert_same(state, WEIGHTS)
        assert info.fingerprint == whole.fingerprint and info.bytes > 0.9 * whole.bytes, place
    (folder / "config.json").write_text("{}")
    for name in ("diffusion_pytorch_model.safetensors.index.json", "config.json"):
        assert main(["inspect", str(folder / name), "--num-heads", "4"]) == 0


def test_a_missing_file_of_several_is_named_and_an_index_leads_nowhere_else(tmp_path):
    folder = shards(tmp_path / "sharded")
    index = folder / "diffusion_pytorch_model.safetensors.index.json"
    (folder / "diffusion_pytorch_model-00002-of-00002.safetensors").unlink()
    for place in (folder, index, folder / "diffusion_pytorch_model-00001-of-00002.safetensors"):
        with pytest.raises(
            HeadForcingError,
            match="model-00002-of-00002.safetensors is missing, one of the 2 files",
        ):
            inspect_checkpoint(place)
    numbered = shards(tmp_path / "numbered")
    (numbered / index.name).unlink()
    first = numbered / "diffusion_pytorch_model-00001-of-00002.safetensors"
    first.rename(numbered / "other-00001-of-00002.safetensors")
    with pytest.raises(HeadForcingError, match="numbered is a folder: choose a file in it"):
        inspect_checkpoint(numbered)
    (numbered / "other-00001-of-00002.safetensors").unlink()
    with pytest.raises(
        HeadForcingError, match="model-00001-of-00002.safetensors is missing, one of the 2 files"
    ):
        inspect_checkpoint(numbered)
    index.write_text(json.dumps({"weight_map": {"a": "../../secret.safetensors"}}))
    with pytest.raises(HeadForcingError, match="names no files beside it"):
        inspect_checkpoint(index)


@pytest.mark.parametrize("folder", ["high_noise_model", "low_noise_model"])
def test_an_expert_is_refused_through_links_too(folder, tmp_path):
    config = WanConfig(dim=5120, num_heads=40)
    blob = tmp_path / "blobs" / "0123abcd"
    blob.parent.mkdir()
    blob.touch()
    snapshot = tmp_path / "snapshots" / folder / "diffusion_pytorch_model.safetensors"
    snapshot.parent.mkdir(parents=True)
    snapshot.symlink_to(blob)
    named = tmp_path / "models" / "wan.safetensors"
    named.parent.mkdir()
    named.symlink_to(snapshot)
    linked_folder = tmp_path / "wan"
    linked_folder.symlink_to(snapshot.parent, target_is_directory=True)
    alone = snapshot.with_name("alone.safetensors")
    alone.touch()
    for path in (snapshot, named, linked_folder / "alone.safetensors"):
        with pytest.raises(HeadForcingError, match="one expert of Wan2.2 A14B"):
            reject_experts(path, config)
    reject_experts(blob, config)


def test_a_gguf_file_is_answered_with_what_reads_it_and_files_that_work(tmp_path):
    (tmp_path / "x.gguf").write_bytes(b"GGUF\x03\0\0\0" + bytes(20))
    with pytest.raises(HeadForcingError, match="CLIPLoader.*give .* umt5_xxl.* wan_2.1_vae"):
        read_tensors(tmp_path / "x.gguf")


def test_tensors_in_one_dict_are_found(tmp_path):
    assert (
        read_tensors(save(tmp_path / "vae.pt", {"state_dict": {"a": torch.ones(2)}}))["a"].sum()
        == 2
    )


@pytest.mark.parametrize(
    "device", ["privateuseone", "hpu", "mtia", "mps", "meta", "lazy", "hip", "nonsense"]
)
def test_a_device_that_is_not_there_gets_one_short_sentence(device, capsys, tmp_path):
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has MPS")
    assert main(["demo", "--seconds", "1", "--device", device, "--out", str(tmp_path)]) == 2
    told = capsys.readouterr().err
    assert (
        f"--device '{device}' cannot be used here: " in told
        and len(told) < 200
        and "Traceback" not in told
    )


def test_a_converted_lora_keeps_what_it_changes(tmp_path):
    lora = save(
        tmp_path / "lora.safetensors",
        adapter("ComfyUI", dora_scale=WEIGHTS[f"{Q}.weight"].norm(dim=1)[:, None]),
    )
    before = change(lora)
    (tmp_path / "other").mkdir()
    convert_lora(lora, tmp_path / "other" / "lora.safetensors", torch.float32)
    assert set(load_file(tmp_path / "other" / "lora.safetensors")) == {
        f"diffusion_model.{Q}.{what}" for what in ("lora_A.weight", "lora_B.weight", "dora_scale")
    }
    torch.testing.assert_close(change(tmp_path / "other" / "lora.safetensors"), before)

"""Weights of LiveTalk: its tensors are known by their names, kept, and told from others that look
alike.
"""

import hashlib
from pathlib import Path

import checkpoint_files as files
import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.speech import (
    SpeechProjection,
    audio_tensors,
    speech_layers,
    speech_rows,
)
from headforcing.headforcing_core.model.wan import WanConfig, WanModel
from headforcing.headforcing_core.plan.family import family_for, family_of_file
from headforcing.headforcing_core.weights.checkpoint import (
    convert,
    inspect_checkpoint,
    load_state_dict,
)
from headforcing.headforcing_core.weights.layouts import expected_shapes
from safetensors.torch import load_file, save_file

MODEL = Path(__file__).parents[1] / "golden" / "livetalk" / "model.safetensors"
HEADS = 2
PUBLISHED = WanConfig(in_dim=33, audio_width=14 * 768, audio_dim=32)


@pytest.mark.parametrize(
    "config, known",
    [
        (PUBLISHED, "2bf9513c7a3e908015f11a800fc9b820"),
        (
            WanConfig(
                dim=5120,
                ffn_dim=13824,
                num_layers=40,
                num_heads=40,
                in_dim=33,
                audio_width=14 * 768,
                audio_dim=32,
            ),
            "883a90b12576b9b8693a08cf690998dd",
        ),
    ],
)
def test_names_and_shapes_are_those_by_which_its_authors_know_their_file(config, known):
    """The constants are those of the authors' `WanModelStateDictConverter`."""
    listed = []
    for name, shape in expected_shapes(config).items():
        listed += [f"{name}:{'_'.join(map(str, shape))}", name]
    text = ",".join(sorted(listed))
    assert hashlib.md5(text.encode(), usedforsecurity=False).hexdigest() == known


def test_the_published_model_has_as_many_parameters_as_its_header_says():
    shapes = expected_shapes(PUBLISHED)
    assert len(shapes) == 857 and shapes == files.shapes_of(PUBLISHED)
    assert sum(torch.Size(shape).numel() for shape in shapes.values()) == 1_421_187_232
    assert list(speech_layers(30)) == list(range(2, 16))


def test_a_file_is_known_and_every_audio_tensor_is_loaded_and_counts_in_its_fingerprint(tmp_path):
    info = inspect_checkpoint(MODEL, num_heads=HEADS)
    assert info.config.is_driven and (info.config.in_dim, info.config.out_dim) == (33, 16)
    assert (info.config.audio_width, info.config.audio_dim) == (112, 32)
    assert info.summary().startswith("model.safetensors: livetalk-custom, 6 layers x 2 heads")
    assert family_of_file(MODEL) == ("livetalk", "by its 33 input channels")
    family, line = family_for("self_forcing", MODEL)
    assert family == "livetalk" and line.startswith("model family livetalk (")
    assert "not self_forcing" in line  # a family that was chosen is not replaced in silence
    state, _ = load_state_dict(MODEL, num_heads=HEADS)
    assert state.keys() == load_file(MODEL).keys()
    state["audio_cond_projs.1.bias"] = state["audio_cond_projs.1.bias"] + 1
    save_file(state, tmp_path / "other.safetensors")
    other = inspect_checkpoint(tmp_path / "other.safetensors", num_heads=HEADS)
    assert other.fingerprint != info.fingerprint


def test_convert_keeps_the_audio_tensors_and_the_model_computes_the_same(tmp_path: Path):
    out = tmp_path / "converted.safetensors"
    published = {"generator": files.prefixed(load_file(MODEL), "model.")}
    torch.save(published, tmp_path / "livetalk.pt")
    convert(tmp_path / "livetalk.pt", out, num_heads=HEADS)
    before, _ = load_state_dict(MODEL, num_heads=HEADS)
    after, info = load_state_dict(out)
    assert info.config == inspect_checkpoint(MODEL, num_heads=HEADS).config
    assert before.keys() == after.keys()
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]), name


def test_a_lora_is_merged_into_layers_and_leaves_the_audio_tensors(tmp_path: Path):
    lora = {
        "blocks.0.self_attn.q.lora_A.weight": torch.ones(2, 64),
        "blocks.0.self_attn.q.lora_B.weight": torch.ones(64, 2),
    }
    save_file(files.prefixed(lora, "diffusion_model."), tmp_path / "lora.safetensors")
    plain, _ = load_state_dict(MODEL, num_heads=HEADS)
    merged, info = load_state_dict(MODEL, num_heads=HEADS, lora=tmp_path / "lora.safetensors")
    changed = [name for name, tensor in plain.items() if not torch.equal(tensor, merged[name])]
    assert changed == ["blocks.0.self_attn.q.weight"] and info.lora == "lora.safetensors"
    assert audio_tensors(merged).keys() == audio_tensors(plain).keys()


def test_a_projection_of_its_own_gives_the_rows_of_the_model():
    config = inspect_checkpoint(MODEL, num_heads=HEADS).config
    state, _ = load_state_dict(MODEL, num_heads=HEADS, dtype=torch.float32)
    model = WanModel.from_state_dict(config, state, torch.float32)
    own = SpeechProjection.of(config, audio_tensors(state))
    features = torch.ones(3, 4 * 112)
    expected = speech_rows(model, features)
    for layer, row in speech_rows(own, features).items():
        assert torch.equal(row, expected[layer])


def without(*names: str) -> files.Weights:
    return {name: t for name, t in load_file(MODEL).items() if not name.startswith(names)}


@pytest.mark.parametrize(
    "weights, why",
    [
        (
            without("audio_proj.", "audio_cond_projs."),
            "LiveTalk model without its 32 audio tensors",
        ),
        (without("audio_cond_projs.1."), "2 of 185 tensors are missing"),
        (
            without("audio_proj.proj.weight"),
            "1 of 185 tensors are missing, such as audio_proj.proj.weight",
        ),
        (without() | {"audio_proj.norm_out.bias": torch.ones(7)}, r"has shape \(7,\)"),
        (files.wan_weights(channels=34), "34 input channels"),
    ],
)
def test_a_file_that_only_looks_alike_is_refused_in_a_sentence(tmp_path: Path, weights, why):
    save_file({name: t.contiguous() for name, t in weights.items()}, tmp_path / "x.safetensors")
    with pytest.raises(HeadForcingError, match=why):
        inspect_checkpoint(tmp_path / "x.safetensors", num_heads=HEADS)

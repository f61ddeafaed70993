"""The model family of a weights file: stated in it, else by the name under which it is published."""

import json

import torch
from headforcing.headforcing_core.render.family import family_of_file, with_family
from headforcing.headforcing_core.render.options import DEFAULTS, RenderOptions
from headforcing.headforcing_core.rollout.schedule import SCHEDULES
from headforcing.headforcing_core.weights.checkpoint import convert
from safetensors.torch import save_file
from tiny_checkpoints import wan_t2v

ONE = {"weight": torch.zeros(1)}
NAMES = {
    "causal_forcing-framewise.safetensors": "causal_forcing_framewise",
    "framewise/causal_forcing.pt": "causal_forcing_framewise",
    "causal_forcing_pp_framewise_2step.pt": "causal_forcing_framewise_2_steps",
    "framewise-1step/causal_forcing.pt": "causal_forcing_framewise_1_step",
    "causal_forcing_chunkwise_bf16.safetensors": "causal_forcing_chunkwise", "longlive_base.pt": "longlive",
    "raven_model.pt": "raven", "self_forcing_dmd.pt": "self_forcing", "model.safetensors": None, "craven.pt": None,
    "LongLive-2.0-5B.pt": "longlive2", "self_gradient_forcing.pt": "self_gradient_forcing",
    "self_gradient_forcing_framewise.pt": "self_gradient_forcing_framewise",
    "framewise/model.pt": None,
}  # fmt: skip


def test_the_names_of_published_files_are_known(tmp_path):
    for name, family in NAMES.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        torch.save(ONE, path) if path.suffix == ".pt" else save_file(ONE, path)
        assert (family_of_file(path) or (None,))[0] == family, name
        options, line = with_family(RenderOptions(model_family="auto"), path)
        assert options.model_family == (family or "self_forcing") and options.model_family in line
        assert options.schedule == SCHEDULES[options.model_family]


def test_what_the_file_states_wins_over_its_name_and_convert_keeps_it(tmp_path):
    path = tmp_path / "self_forcing.safetensors"
    save_file(ONE, path, {"head_forcing": json.dumps({"model_family": "causal_forcing_framewise_1_step"})})
    assert family_of_file(path) == ("causal_forcing_framewise_1_step", "stated in the file")
    save_file(ONE, path, {"head_forcing": json.dumps({"frames_per_block": 1, "model_family": ["longlive"]})})
    assert family_of_file(path) == ("causal_forcing_framewise", "stated in the file: blocks of 1 latent frame")
    tiny = wan_t2v(tmp_path / "a.safetensors", dim=128, ffn=128, layers=1)
    convert(tiny, tmp_path / "b.safetensors", model_family="longlive")
    convert(tmp_path / "b.safetensors", tmp_path / "c.safetensors")
    assert family_of_file(tmp_path / "c.safetensors") == ("longlive", "stated in the file")
    assert family_of_file(tiny) is None


def test_a_family_that_was_chosen_stays_and_a_contradiction_is_noted(tmp_path):
    framewise = tmp_path / "framewise.safetensors"
    save_file(ONE, framewise)
    note = "note: the model family is self_forcing as chosen; that of the file is causal_forcing_framewise (by the name"
    assert with_family(DEFAULTS, framewise) == (DEFAULTS, f"{note} of framewise.safetensors)")
    two_steps = RenderOptions(model_family="causal_forcing_framewise_2_steps")
    assert with_family(two_steps, framewise) == (two_steps, "")
    assert with_family(RenderOptions(model_family="auto"), None)[0] == DEFAULTS

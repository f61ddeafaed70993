"""The command `replay`: a recorded case into files, and one sentence for a case that cannot be used."""

import json
import shutil
from pathlib import Path

import pytest
from headforcing.headforcing_core.commands.cli import main
from safetensors.torch import load_file, save_file


def put(*path):
    """Set a value of the config, which stands last, or remove it where that is None."""
    *path, key, value = path

    def spoil(config, folder):
        for part in path:
            config = config[part]
        config[key] = value
        if value is None:
            del config[key]

    return spoil


RUN = ("runs", "paper_defaults")


def spoil_tensors(config, folder):
    tensors = load_file(folder / "golden.safetensors")
    del tensors["noise"]
    save_file(tensors, folder / "golden.safetensors")


SPOILED = {
    "an unknown method": (put(*RUN, "method", "magic"), "method"),
    "weights that are gone": (put("weights", "none.safetensors"), "none.safetensors"),
    "a fast memory within a block": (put(*RUN, "fast_frames", 4), "whole blocks"),
    "no patch size": (put("model", "patch_size", None), "patch_size"),
    "more frames than noise": (put(*RUN, "frames", 300), "300"),
    "a prompt that is not there": (put(*RUN, "prompt_schedule", [{"block": 0, "prompt": 7}]), "7"),
    "start frames that were not recorded": (put(*RUN, "initial_latent", True), "initial_latent"),
    "tensors without noise": (spoil_tensors, "noise"),
    "an unknown role": (put(*RUN, "roles", [["boss"] * 4] * 4), "boss"),
    "frames that are no number": (put(*RUN, "frames", "many"), "paper_defaults of the case cannot be used"),
    "no prompt for the first block": (put(*RUN, "prompt_schedule", [{"block": 3, "prompt": 0}]), "prompt"),
    "tensors that are garbage": (
        lambda config, folder: (folder / "golden.safetensors").write_bytes(b"garbage"), "golden.safetensors"
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SPOILED)
def test_a_spoiled_case_is_refused_in_one_sentence(what, golden: Path, tmp_path: Path, capsys):
    spoil, expected = SPOILED[what]
    folder = tmp_path / "case"
    shutil.copytree(golden / "head_forcing_tiny_d32", folder)
    config = json.loads((folder / "config.json").read_text())
    config["weights"] = str(golden / "self_forcing_tiny_d32" / "model.safetensors")
    spoil(config, folder)
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["replay", str(folder), "--run", "paper_defaults", "--out", str(tmp_path / "out.safetensors")]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and expected in error


@pytest.mark.parametrize(("folder", "run", "out", "expected"), [
    ("none", "full", "x", "config.json"), ("head_forcing_tiny_d32", "nope", "x", "no run 'nope'; it has paper_def"),
    ("self_forcing_tiny_d32", "window6", "file/x", "file"),
])  # fmt: skip
def test_bad_arguments_are_refused_in_one_sentence(folder, run, out, expected, golden, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["replay", str(golden / folder), "--run", run, "--out", str(tmp_path / out)]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and expected in error

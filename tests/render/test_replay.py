"""The command `replay`: a recorded case into files, and one sentence for a case that cannot be used."""

import json
import shutil
from pathlib import Path

import pytest
from headforcing.headforcing_core.commands.cli import main

SPOILED = {  # a field of the run, what it is set to, and what is said of it
    "an unknown method": ("method", "magic", "method"),
    "a fast memory within a block": ("fast_frames", 4, "whole blocks"),
    "more frames than noise": ("frames", 300, "300"),
    "a prompt that is not there": ("prompt_schedule", [{"block": 0, "prompt": 7}], "7"),
    "no prompt for the first block": ("prompt_schedule", [{"block": 3, "prompt": 0}], "prompt"),
    "start frames that were not recorded": ("initial_latent", True, "initial_latent"),
    "an unknown role": ("roles", [["boss"] * 4] * 4, "boss"),
    "frames that are no number": ("frames", "many", "paper_defaults of the case cannot be used"),
}


@pytest.mark.parametrize("what", [*SPOILED, "tensors that are garbage", "a run that is not there"])
def test_a_case_that_cannot_be_used_is_refused_in_one_sentence(what, golden: Path, tmp_path: Path, capsys):
    folder, run, expected = tmp_path / "case", "paper_defaults", "golden.safetensors"
    shutil.copytree(golden / "head_forcing_tiny_d32", folder)
    config = json.loads((folder / "config.json").read_text())
    config["weights"] = str(golden / "self_forcing_tiny_d32" / "model.safetensors")
    if what in SPOILED:
        field, value, expected = SPOILED[what]
        config["runs"][run][field] = value
    elif "garbage" in what:
        (folder / "golden.safetensors").write_bytes(b"garbage")
    else:
        run, expected = "nope", "no run 'nope'; it has paper_def"
    (folder / "config.json").write_text(json.dumps(config))
    assert main(["replay", str(folder), "--run", run, "--out", str(tmp_path / "out.safetensors")]) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1 and expected in error

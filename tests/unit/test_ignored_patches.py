"""The report names what other nodes have set on a model and a rollout does not run."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import torch
from torch import nn

PATH = Path(__file__).parents[2] / "nodes" / "host" / "loaded_model.py"
NAME = "headforcing.nodes.host.loaded_model"  # its package needs ComfyUI, it does not
spec = importlib.util.spec_from_file_location(NAME, PATH)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)


def patcher(**transformer_options):
    net = nn.Module()
    net.blocks = nn.ModuleList(nn.Linear(2, 2) for _ in range(3))
    model_options = {"transformer_options": transformer_options}
    return SimpleNamespace(
        model=SimpleNamespace(diffusion_model=net), model_options=model_options, wrappers={}, object_patches={}
    )


def test_nothing_is_said_of_a_model_that_runs_as_it_is():
    model = patcher(wrappers={"diffusion_model": {"ours": [print]}, "outer_sample": {"theirs": [print]}})
    model.model.diffusion_model.blocks[0].weight.data = torch.ones(2, 2)  # as a LoRA changes it
    assert module.ignored(model, "ours") == []


def test_every_kind_of_patch_that_is_not_run_is_named():
    model = patcher(
        patches={"attn2_patch": [print]},
        patches_replace={"dit": {("double_block", 1): print}},
        wrappers={"diffusion_model": {"TeaCache": [print], "ours": [print]}},
    )
    model.object_patches = {"diffusion_model.forward_orig": print, "model_sampling": print}
    model.wrappers = {"apply_model": {"torch.compile": [print]}}
    for block in model.model.diffusion_model.blocks[1:]:
        block.register_forward_pre_hook(lambda *_: None)
    told = "\n".join(module.ignored(model, "ours"))
    for named in (
        "attn2_patch, dit",
        "(TeaCache)",
        "torch.compile",
        "diffusion_model.forward_orig",
        "hooks on 2 blocks",
    ):
        assert named in told
    assert len(told.splitlines()) == 5 and "model_sampling" not in told

"""Loads a checkpoint as the node does; prints the growth of the peak of memory, and what became of the weights."""

from inside_comfy import load_pack

# isort: split

import importlib
import json
import sys
from pathlib import Path

import torch

path, helpers = sys.argv[1:]
sys.path.append(helpers)
from peak_memory import peak_bytes

pack = load_pack()
bridge = importlib.import_module(".nodes.host.bridge", pack.__name__)
checkpoint = importlib.import_module(".headforcing_core.weights.checkpoint", pack.__name__)
before = peak_bytes()
with torch.inference_mode():  # as ComfyUI runs nodes
    state_dict, _ = checkpoint.load_state_dict(path)
    model = bridge.native_model(dict(state_dict), None)
    half = bridge.native_model(dict(state_dict), torch.bfloat16)
grown = peak_bytes() - before
own, halves = model.model.diffusion_model.state_dict(), half.model.diffusion_model.state_dict()
found = {
    "grown": grown,
    "names": sorted(own),
    "same": all(torch.equal(own[name].float(), state_dict[name].float()) for name in state_dict),
    "halved": all(torch.equal(halves[name], state_dict[name].to(halves[name].dtype)) for name in state_dict),
    "mapped": sum(own[name].data_ptr() == state_dict[name].data_ptr() for name in state_dict),
    "file": Path(path).stat().st_size,
}
print(json.dumps(found))

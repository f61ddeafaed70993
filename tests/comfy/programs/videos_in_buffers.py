"""What Video Drift Report reads from a video in a buffer, whole and trimmed, and the flow by a model in models/metrics.

Prints JSON: the headings; with the argument `flow` the report's lines on it, and what torchvision's model finds itself.
"""

from inside_comfy import load_pack

# isort: split

import asyncio
import io
import json
import os
import sys
import types

import torch

sys.modules["server"] = types.SimpleNamespace(PromptServer=None)  # there is none here
pack = load_pack()
from comfy_api.latest import InputImpl, Types

extension = asyncio.run(pack.comfy_entrypoint())
nodes = {n.define_schema().node_id: n for n in asyncio.run(extension.get_node_list())}
node = nodes["HeadForcingVideoDriftReport"]
from fractions import Fraction

images = torch.rand(60, 32, 48, 3, generator=torch.Generator().manual_seed(0))
whole = InputImpl.VideoFromComponents(Types.VideoComponents(images=images, frame_rate=Fraction(16)))
whole.save_to("whole.mp4")
buffer = io.BytesIO(open("whole.mp4", "rb").read())
stored = InputImpl.VideoFromFile(buffer)


def heading(video):
    picture, text = node.execute(video).args
    assert picture.shape[0] == 1 and picture.shape[2] == 900 and picture.dtype == torch.float32
    return text.splitlines()[0]


found = [heading(stored), heading(stored)]
if hasattr(stored, "get_active_trim_window"):
    found.append(heading(stored.as_trimmed(1.0, 2.0)))
told = {"headings": found}
if "flow" in sys.argv:
    import folder_paths
    from torchvision.models.optical_flow import raft_large

    torch.manual_seed(0)
    raft = raft_large(weights=None).eval()
    torch.save(raft.state_dict(), "raft_large_C_T_V1-22a6c225.pth")  # the published name, with random numbers
    folder_paths.folder_names_and_paths["metrics"] = ([os.getcwd()], set())
    pair = torch.rand(2, 128, 128, 3, generator=torch.Generator().manual_seed(0))
    pair = (pair * 255).round() / 255
    small = InputImpl.VideoFromComponents(Types.VideoComponents(images=pair, frame_rate=Fraction(8)))
    told["lines"] = [line for line in node.execute(small).args[1].splitlines() if "flow, " in line]
    before, after = pair.permute(0, 3, 1, 2)[:, None] * 2 - 1
    with torch.inference_mode():
        flow = raft(before, after, num_flow_updates=20)[-1]
    told["mean_flow"] = float(flow.square().sum(dim=1).sqrt().mean()) * 2  # as if the side had 256 pixels
print(json.dumps(told))

"""What Video Drift Report reads from a video in a buffer, whole and trimmed; prints the headings as JSON."""

from inside_comfy import load_pack

# isort: split

import asyncio
import io
import json
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
print(json.dumps(found))

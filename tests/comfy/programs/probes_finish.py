"""Finish Video in chunks of several lengths and from frames on, beside ComfyUI's own nodes on the
whole clip.
"""

import importlib
import weakref
from unittest.mock import patch

import folder_paths
import torch
from parity import folder, module, probe


def bytes_of(result):
    """The video frames that a node of ComfyUI returns, as a file has them."""
    return (result.args[0] * 255).round().byte()


@probe
@torch.inference_mode()
def a_video_is_finished_in_chunks_without_seams_that_hold_a_few_frames_at_once():
    node = module(".nodes.finish_video")
    Footage = module(".headforcing_core.video.section").Footage
    loaders = {"upscale_model.UpscaleModelLoader": "upscale_models"}
    loaders["frame_interpolation.FrameInterpolationModelLoader"] = "frame_interpolation"
    loaded = []
    for name, kind in loaders.items():
        folder_paths.add_model_folder_path(kind, folder)
        file, _, loader = name.partition(".")
        made = getattr(importlib.import_module(f"comfy_extras.nodes_{file}"), loader).execute(
            f"{kind}.safetensors"
        )
        loaded.append(made.args[0])
    upscale, interpolation = loaded
    images = torch.rand(11, 48, 80, 3, generator=torch.Generator().manual_seed(0))
    images = (images * 255).round() / 255  # as a file has them
    footage = Footage.of_images(images, 16.0, None)

    def finish(models, first=0, most=16):
        with patch.object(node, "MOST_AT_ONCE", most):
            return torch.cat(list(models.finish(footage, first)))

    both = node._Models(upscale, interpolation, 3)
    enlarged = node._Models(upscale, None, 1)
    added = node._Models(None, interpolation, 2)
    more = importlib.import_module("comfy_extras.nodes_frame_interpolation").FrameInterpolate
    larger = importlib.import_module("comfy_extras.nodes_upscale_model").ImageUpscaleWithModel
    whole = bytes_of(larger.execute(upscale, more.execute(interpolation, images, 3).args[0]))
    assert (whole[1:].int() - whole[:-1]).abs().float().mean() > 1
    for name, ours, theirs in (
        ("one chunk", finish(both, most=1000), whole),
        ("chunks of 1", finish(both, most=1), whole),
        ("chunks of 5", finish(both, most=5), whole),
        ("from 17 on", finish(both, 17, 4), whole[17:]),
        ("from 18 on", finish(both, 18, 4), whole[18:]),
        ("only larger", finish(enlarged, 2, 4), bytes_of(larger.execute(upscale, images))[2:]),
        ("only more", finish(added, 5, 4), bytes_of(more.execute(interpolation, images, 2))[5:]),
    ):
        assert ours.shape == theirs.shape and (ours.int() - theirs.int()).abs().max() == 0, name
    assert len({models.key for models in (both, enlarged, added)}) == 3

    chunks = []
    with patch.object(node, "MOST_AT_ONCE", 4):
        for chunk in both.finish(footage, 0):
            chunks.append(weakref.ref(chunk))
            assert len(chunk) <= 3 * 4 + 1 and sum(ref() is not None for ref in chunks) <= 2

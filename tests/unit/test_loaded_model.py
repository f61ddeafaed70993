"""MODELs of ComfyUI that are not the transformer that a rollout runs on: what is said of each."""

import importlib.util
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError

PATH = Path(__file__).resolve().parents[2] / "nodes" / "host" / "loaded_model.py"  # the package of nodes needs ComfyUI
spec = importlib.util.spec_from_file_location("headforcing.nodes.host.loaded_model_of_wan", PATH)
loaded_model = importlib.util.module_from_spec(spec)
spec.loader.exec_module(loaded_model)

BLOCK = torch.nn.Module()
BLOCK.cross_attn = None
A14B = {"dim": 5120, "ffn_dim": 13824, "num_heads": 40, "freq_dim": 256, "text_dim": 4096, "text_len": 512}
A14B |= {"blocks": torch.nn.ModuleList([BLOCK] * 40), "patch_embedding": None, "in_dim": 16, "out_dim": 16}
A14B |= {"img_emb": None, "patch_size": (1, 2, 2)}
COSMOS = torch.nn.ModuleDict({"block0": torch.nn.Identity()})  # whose blocks have names


def model(*loaded_with: object, **net: object) -> SimpleNamespace:
    """A MODEL with this network, whose loader notes what it was loaded with."""
    inner = SimpleNamespace(diffusion_model=SimpleNamespace(**net))
    return SimpleNamespace(model=inner, cached_patcher_init=(print, loaded_with) if loaded_with else None)


def test_a_text_to_video_model_of_any_size_is_read():
    for loaded_with in ((), ("/models/krea.safetensors", {})):
        assert loaded_model.wan_config(model(*loaded_with, **A14B)).num_layers == 40


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (model(), "expected Wan 2.1 text-to-video weights"),
        (model(blocks=COSMOS, patch_embedding=None), "expected Wan 2.1 text-to-video weights"),
        (model(**A14B | {"in_dim": 48, "dim": 3072}), "got 48: a Wan model with 48 input channels (Fun Control"),
        (model(**A14B | {"in_dim": 36, "img_emb": torch.nn.Identity()}), "got 36"),
        (model(**A14B, vace_blocks=None), "got 16: VACE"),
        (model("/models/wan2.2_t2v_low_noise_14B.safetensors", {}, **A14B), "is one expert of Wan2.2 A14B"),
    ],
)
def test_another_model_is_named_with_what_to_load(other: SimpleNamespace, told: str):
    with pytest.raises(HeadForcingError) as error:
        loaded_model.wan_config(other)
    assert told in str(error.value)


def test_embeddings_of_another_text_encoder_are_refused():
    with pytest.raises(HeadForcingError, match="reads text embeddings of width 4096, got 64"):
        loaded_model.check_text_width(model(**A14B), [torch.zeros(5, 64)])

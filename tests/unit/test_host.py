"""The nodes' host folder without ComfyUI: loaded MODELs, names of files where two servers write,
the queued graph.
"""

import copy
import errno
import os
import re
import sys
import time
import unicodedata
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.files import replacing
from host_alone import host_module
from torch import Tensor, nn

loaded_model = host_module("model.loaded_model")
model_contents = host_module("model.model_contents")
fingerprint = loaded_model.name_model

BLOCK = nn.Module()
BLOCK.cross_attn = None
A14B = {
    "dim": 5120,
    "ffn_dim": 13824,
    "num_heads": 40,
    "freq_dim": 256,
    "text_dim": 4096,
    "text_len": 512,
}
A14B |= {
    "blocks": nn.ModuleList([BLOCK] * 40),
    "patch_embedding": None,
    "in_dim": 16,
    "out_dim": 16,
}
A14B |= {"img_emb": None, "patch_size": (1, 2, 2)}
COSMOS = nn.ModuleDict({"block0": nn.Identity()})  # whose blocks have names


def wan(*loaded_with: object, **net: object) -> SimpleNamespace:
    """A MODEL with this network, whose loader notes what it was loaded with."""
    inner = SimpleNamespace(diffusion_model=SimpleNamespace(**net))
    return SimpleNamespace(
        model=inner, cached_patcher_init=(print, loaded_with) if loaded_with else None
    )


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (wan(), "expected Wan 2.1 text-to-video weights"),
        (wan(blocks=COSMOS, patch_embedding=None), "expected Wan 2.1 text-to-video weights"),
        (
            wan(**A14B | {"in_dim": 48, "dim": 3072}),
            "got 48: a Wan model with 48 input channels (Fun Control",
        ),
        (wan(**A14B | {"in_dim": 36, "img_emb": nn.Identity()}), "got 36"),
        (wan(**A14B, vace_blocks=None), "got 16: VACE"),
        (
            wan("/models/wan2.2_t2v_low_noise_14B.safetensors", {}, **A14B),
            "is one expert of Wan2.2 A14B",
        ),
        (
            # "a14b" and "low" stand in two names, not in one as of an expert
            wan("/models/krea14b/flow.safetensors", {}, **A14B),
            "reads text embeddings of width 4096, got 64",
        ),
    ],
)
def test_another_model_is_named_with_what_to_load_and_text_of_another_width_is_refused(other, told):
    with pytest.raises(HeadForcingError) as error:
        loaded_model.check_text_width(other, [torch.zeros(5, 64)])
    assert told in str(error.value)


class GGMLTensor(Tensor):
    """As ComfyUI-GGUF's: raw bytes, a type, and a shape that is not that of the bytes."""

    def __new__(cls, data, tensor_type=2):
        made = data.as_subclass(cls)
        made.tensor_type = tensor_type
        return made

    @property
    def shape(self):
        return torch.Size((8, 8))

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        out = super().__torch_function__(function, types, args, kwargs or {})
        if isinstance(out, cls) and args and isinstance(args[0], cls):
            out.tensor_type = getattr(args[0], "tensor_type", None)
        return out


class QuantizedTensor(Tensor):
    """As ComfyUI's: without any storage of its own."""

    @staticmethod
    def __new__(cls, data, scale=1.0):
        return Tensor._make_wrapper_subclass(
            cls, data.shape, dtype=torch.bfloat16, device=data.device
        )

    def __init__(self, data, scale=1.0):
        self._qdata, self._scale = data, torch.as_tensor(scale)

    def __tensor_flatten__(self):
        return ["_qdata", "_scale"], {}

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        if function in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
            return cls(args[0]._qdata, args[0]._scale)
        raise NotImplementedError(f"{function} would have to dequantise")


def host_model(count=0, weight=None, **more):
    """A MODEL of ComfyUI with so many random layers and a head, and one weight besides."""
    net = nn.Module()
    generator = torch.Generator().manual_seed(0)
    net.blocks = nn.ModuleList(nn.Linear(6, 6) for _ in range(count))
    net.head = nn.Linear(6, 3)
    for parameter in net.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator)
    net.quantised = nn.Module()
    net.quantised.weight = weight
    return SimpleNamespace(
        model=SimpleNamespace(diffusion_model=net), backup={}, patches={}, **more
    )


def named(weight):
    return fingerprint(host_model(weight=weight))


@pytest.mark.parametrize("kind", [GGMLTensor, QuantizedTensor])
def test_quantised_weights_have_names_of_their_own(kind):
    def random_bytes(seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 256, (40_000,), dtype=torch.uint8, generator=generator)

    data = random_bytes(0)
    other = random_bytes(1)
    merged = data.clone()
    merged[20_000:] += 1  # a LoRA that reaches only some rows
    stored = [
        nn.Parameter(kind(x), requires_grad=False)
        for x in (data, data.clone(), other, merged, data[:30_000])
    ]
    found = [named(weight) for weight in stored]
    assert type(stored[0]) is not nn.Parameter and found[0] == found[1] and len(set(found)) == 4
    assert named(None) == named(torch.empty(4, device="meta")), "not there: passed over"


def test_the_type_and_the_scale_of_quantised_weights_are_part_of_their_names():
    data = torch.arange(40_000, dtype=torch.uint8)
    weights = [
        GGMLTensor(data, 2),
        GGMLTensor(data, 8),
        QuantizedTensor(data, 1.0),
        QuantizedTensor(data, 2.0),
    ]
    assert len({*map(named, weights), named(nn.Parameter(data.float()))}) == 5


def test_one_number_in_any_tensor_or_patch_changes_the_name():
    found = [fingerprint(host_model(4))]
    for name, _ in host_model(4).model.diffusion_model.named_parameters():
        changed = host_model(4)
        changed.model.diffusion_model.get_parameter(name).data.view(-1)[-1] += 1e-6
        found.append(fingerprint(changed))
    lora = torch.arange(12.0).reshape(3, 4)
    other = lora.clone()
    other[2, 3] += 1e-6

    def patched(weights, strength=1.0, offset=None, place="diffusion_model.blocks.0.weight"):
        made = host_model(4)
        made.patches = {place: [(strength, ("diff", (weights,)), 1.0, offset, None)]}
        return fingerprint(made)

    found += [
        patched(lora),
        patched(other),
        patched(lora, 0.5),
        patched(lora, offset=(0, 1, 2)),
        patched(lora, place="diffusion_model.blocks.1.weight"),
    ]
    assert len(set(found)) == len(found) == 16
    assert fingerprint(host_model(4)) == found[0] and patched(lora.clone()) == patched(lora)


def test_every_kind_of_patch_that_is_not_run_is_named():
    def patched(**transformer_options):
        options = {"transformer_options": transformer_options}
        return host_model(3, model_options=options, wrappers={}, object_patches={})

    model = patched(
        patches={"attn2_patch": [print]},
        patches_replace={"dit": {("double_block", 1): print}},
        wrappers={"diffusion_model": {"TeaCache": [print], model_contents.KEY: [print]}},
    )
    model.object_patches = {"diffusion_model.forward_orig": print, "model_sampling": print}
    model.wrappers = {"apply_model": {"torch.compile": [print]}}
    for block in model.model.diffusion_model.blocks[1:]:
        block.register_forward_pre_hook(lambda *_: None)
    told = model_contents.contents(model).lines()
    parts = (
        "attn2_patch, dit|(TeaCache)|torch.compile|diffusion_model.forward_orig|hooks on 2 blocks"
    ).split("|")
    assert len(told) == 5 and all(part in "\n".join(told) for part in parts)
    assert "model_sampling" not in "\n".join(told)
    plain = patched(wrappers={"diffusion_model": {model_contents.KEY: [print]}})
    assert model_contents.contents(plain).lines() == []


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """`nodes/host/folders.py` on a ComfyUI of which only the paths are there."""

    def get_save_image_path(prefix, output, width, height):
        """The counter as ComfyUI has it: one more than the highest number of the files that are
        there.
        """
        folder, name = os.path.split(os.path.join(output, prefix))
        os.makedirs(folder, exist_ok=True)
        numbers = [
            file[len(name) + 1 :].split("_")[0]
            for file in os.listdir(folder)
            if file.startswith(f"{name}_")
        ]
        counter = max((int(number) for number in numbers if number.isdecimal()), default=0) + 1
        return folder, name, counter, os.path.dirname(prefix), prefix

    host = ModuleType("folder_paths")
    host.folder_names_and_paths = {}
    host.models_dir = str(tmp_path / "models")
    host.get_folder_paths = lambda name: [str(tmp_path / "models" / name)]
    host.get_output_directory = lambda: str(tmp_path / "output")
    host.get_save_image_path = get_save_image_path
    monkeypatch.setitem(sys.modules, "folder_paths", host)
    return host_module("folders")


def write(path):
    with replacing(path) as temporary:
        temporary.write_text("video")


def test_two_files_that_are_written_at_once_get_two_numbers_and_none_is_that_of_a_link(
    folders, tmp_path
):
    with (
        folders.output_file("video/x", 64, 64) as one,
        folders.output_file("video/x", 64, 64) as other,
    ):
        assert (one.path.name, other.path.name) == ("x_00001_.mp4", "x_00002_.mp4")
        write(other.path)
    loaded = tmp_path / "loaded.mp4"
    loaded.write_text("loaded")
    other.path.with_name("x_00003_.mp4").symlink_to(loaded)
    other.path.with_name("x_00004_.mp4").hardlink_to(loaded)
    with folders.output_file("video/x", 64, 64) as next_one:
        write(next_one.path)
    assert (
        next_one.label == "video/x_00005_.mp4"
        and loaded.read_text() == "loaded"
        and not one.path.exists()
    )


def test_a_video_that_grows_in_two_servers_has_two_names_and_one_when_it_is_made_again(folders):
    with ExitStack() as stack:
        one = stack.enter_context(folders.growing_file("x", "0123abcd", 64, 64))
        other = stack.enter_context(folders.growing_file("x", "0123abcd", 64, 64))
        assert (one.path.name, other.path.name) == (
            "x_v0123abcd.part.mp4",
            "x_v0123abcd-2.part.mp4",
        )
        one.path.write_text("video")
        other.path.write_text("video")
        with folders.output_file("x", 64, 64) as numbered:
            assert numbered.path.name == "x_00001_.mp4", (
                "ComfyUI does not count from the name of a growing file"
            )
    with folders.growing_file("x", "0123abcd", 64, 64) as again:
        assert again == one and again.path.exists()


def test_growing_videos_that_nobody_went_on_with_for_a_day_are_removed(folders):
    kept = [
        "x_vffffffff.part.mp4",
        "y_v0123abcd.part.mp4",
        "x_v0123abcd.mp4",
        "x_vacation.part.mp4",
    ]
    with folders.growing_file("x", "aaaaaaaa", 64, 64) as file:
        folder = file.path.parent
    for name in (*kept, "x_v0123abcd.part.mp4", "x_v0123abcd-2.part.mp4"):
        (folder / name).write_text("video")
        age = 3600 if name == kept[0] else 25 * 3600
        os.utime(folder / name, (time.time() - age,) * 2)
    with folders.growing_file("x", "aaaaaaaa", 64, 64):
        pass
    assert sorted(path.name for path in folder.iterdir()) == sorted(kept)


def test_finished_videos_that_nobody_went_on_with_for_30_days_are_removed(folders):
    with folders.growing_file("x", "aaaaaaaa", 64, 64, lasting=True) as file:
        folder = file.path.parent
    for name, days in (
        ("f11111111.part", 29),
        ("f22222222.part", 31),
        ("f33333333.part.earlier", 31),
    ):
        path = folder / f"x_{name}.mp4"
        path.write_text("video")
        os.utime(path, (time.time() - days * 24 * 3600,) * 2)
    with folders.growing_file("x", "aaaaaaaa", 64, 64):
        pass
    assert [path.name for path in folder.iterdir()] == ["x_f11111111.part.mp4"]


DEVICE = "Windows keeps this name for a device"
ENDING = "a name may not end with a dot or a space"
OUTSIDE = "must stay inside ComfyUI's output folder"
PREFIXES = {  # a prefix, and what is said of it; None for nothing
    "video/clip": None,
    "a" * 190 + "/x" * 3: None,
    "%date:yyyy-MM-dd%/clip": None,  # sent through the API
    "nouvelle/he\u0301ros": None,
    "a/./b": None,
    "CON": DEVICE,
    "video/lpt\u00b9": DEVICE,
    "aux.d/clip": DEVICE,
    "a\\nul\\x": DEVICE,
    "video/clip.": ENDING,
    "video /clip": ENDING,
    "video/clip ": ENDING,
    "afile/x": "the folder cannot be used \\(afile is a file, not a folder\\)",
    "video/../afile/deeper/x": "the folder cannot be used \\(afile is a file, not a folder\\)",
    "readonly/x": "the folder cannot be used \\(Read-only file system\\)",
    "forbidden/x": "the folder cannot be used \\(Permission denied\\)",
    "../x": OUTSIDE,
    "/elsewhere/x": OUTSIDE,
    "link/x": OUTSIDE,
}
FAULTS = {"readonly": errno.EROFS, "forbidden": errno.EACCES}


@pytest.mark.parametrize("prefix", PREFIXES)
def test_what_is_said_of_a_prefix_is_the_systems_own_reason(folders, tmp_path, monkeypatch, prefix):
    output = tmp_path / "output"
    output.mkdir()
    (output / "afile").touch()
    (output / "link").symlink_to(tmp_path, target_is_directory=True)
    makedirs = os.makedirs

    def make(folder, **options):
        fault = FAULTS.get(Path(folder).name)
        if fault:
            raise OSError(fault, os.strerror(fault), folder)
        makedirs(folder, **options)

    monkeypatch.setattr(os, "makedirs", make)
    if PREFIXES[prefix] is None:
        folders.check_prefix(prefix)
        return
    with pytest.raises(HeadForcingError, match=PREFIXES[prefix]) as refusal:
        folders.check_prefix(prefix)
    assert (OUTSIDE in str(refusal.value)) == (PREFIXES[prefix] == OUTSIDE)


@pytest.mark.parametrize(
    ("prefix", "sign"), [("%date:yyyy-MM-dd%/clip", ":"), ("video/what?", "?"), ("%year%/a", None)]
)
def test_a_sign_that_windows_forbids_is_named_there(folders, monkeypatch, prefix, sign):
    monkeypatch.setattr(folders, "WINDOWS", True)
    if sign is None:
        folders.check_prefix(prefix)
        return
    with pytest.raises(HeadForcingError, match=f"Windows allows no {re.escape(sign)} in a name"):
        folders.check_prefix(prefix)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("my model", None),
        ("my.model-2_b", None),
        ("狐", None),
        ("\u0e2b\u0e21\u0e35", None),
        ("Zoe\u0308", None),
        ("console", None),
        ("com10", None),
        ("CON", DEVICE),
        ("nul.json", DEVICE),
        ("con.txt", DEVICE),
        ("aux .json", DEVICE),
        ("LPT\u00b9", DEVICE),
        ("com0", DEVICE),
        ("model.", ENDING),
        ("model ", ENDING),
        ("狐" * 70, "too long"),
        ("../x", "use up to 80 letters"),
        ("a/b", "use up to 80 letters"),
        ("\u0308x", "use up to 80 letters"),
        ("x" * 81, "use up to 80 letters"),
        ("a\n", "use up to 80 letters"),
        (".hidden", "use up to 80 letters"),
    ],
)
def test_a_profile_is_saved_under_a_name_that_every_system_has(folders, name, told):
    if told is None:
        path = folders.profile_path(name)
        assert path.name == unicodedata.normalize("NFC", name) + ".json"
        return
    with pytest.raises(HeadForcingError, match=told) as error:
        folders.profile_path(name)
    assert "save_name" in str(error.value)


STORY = {"prompts": "a", "seconds": 7.0, "switch": "reset"}


def hidden(prompt: Any) -> SimpleNamespace:
    """What a sampler of this graph sees."""
    return SimpleNamespace(prompt=prompt, unique_id="sampler", extra_pnginfo=None)


def two_timelines() -> dict[str, Any]:
    """A graph whose `positive` comes through another node from one of two."""
    return {
        "first": {"class_type": "Timeline", "inputs": STORY | {"clip": ["loader", 0]}},
        "second": {
            "class_type": "Timeline",
            "inputs": STORY | {"prompts": "b", "seconds": ["length", 0]},
        },
        "apart": {"class_type": "Timeline", "inputs": STORY},
        "choice": {"class_type": "Switch", "inputs": {"off": ["first", 0], "on": ["second", 0]}},
        "sampler": {"class_type": "Sampler", "inputs": {"positive": ["choice", 0], "seed": 1}},
    }


def test_the_node_that_a_value_comes_from_is_the_one_with_the_values_it_ran_with():
    find = host_module("graph.queued_graph").find_source
    graph = two_timelines()
    other = STORY | {"prompts": "b", "seconds": 9.0}
    cut = {"sampler": {"inputs": {"positive": ["gone", 0]}}}
    for prompt, values, source in (
        (graph, STORY, "first"),
        (graph, other, "second"),
        ({**graph, "sampler": {"inputs": {"positive": 1}}}, STORY, None),
        (graph, STORY | {"prompts": "c"}, None),
        (None, STORY, None),
        (cut, STORY, None),
        ({"sampler": {}}, STORY, None),
    ):
        assert find(hidden(prompt), "Timeline", values) == source


def test_the_graph_and_the_workflow_are_told_what_has_changed_and_nothing_else():
    seen = hidden({})
    rewrite = host_module("graph.queued_graph").rewrite
    values = ["kept", "a", 7, "reset", None]
    named = {"prompts": "a", "seconds": 7, "more": 1}
    inner = {"id": 5, "type": "Timeline", "widgets_values": values, "widgets_values_named": named}
    outer = {"id": 12, "type": "graph"}
    workflow = {"nodes": [outer], "definitions": {"subgraphs": [{"id": "graph", "nodes": [inner]}]}}
    seen.extra_pnginfo = {"workflow": workflow}
    seen.prompt["12:5"] = {"inputs": STORY | {"clip": ["loader", 0]}}
    rewrite(seen, "12:5", STORY, STORY | {"prompts": "b", "seconds": 9.0})
    assert seen.prompt["12:5"]["inputs"] == {
        "prompts": "b",
        "seconds": 9.0,
        "switch": "reset",
        "clip": ["loader", 0],
    }
    assert values == ["kept", "b", 9.0, "reset", None] and named == {
        "prompts": "b",
        "seconds": 9.0,
        "more": 1,
    }
    before = copy.deepcopy(seen)
    rewrite(seen, "gone", STORY, STORY | {"prompts": "b"})  # of a graph that a script queued
    assert seen == before


@pytest.mark.parametrize(
    "extra",
    [
        *(None, [], "x", {"workflow": []}, {"workflow": {"nodes": 5, "definitions": 5}}),
        {"workflow": {"nodes": [None, 5, {"type": []}, {"id": 12, "type": {}}]}},
        {"workflow": {"nodes": {}, "definitions": {"subgraphs": [5, {"id": [], "nodes": "x"}]}}},
    ],
)
def test_a_workflow_of_another_form_is_left_as_it_is(extra):
    graph = host_module("graph.queued_graph")
    seen = hidden({"12:5": {"inputs": STORY}})
    seen.extra_pnginfo = copy.deepcopy(extra)
    graph.rewrite(seen, "12:5", STORY, STORY | {"prompts": "b"})
    assert seen.prompt["12:5"]["inputs"]["prompts"] == "b" and seen.extra_pnginfo == extra
    assert graph.workflow_id(seen) == ""

"""Checkpoints in every published layout load to the same weights; everything else is refused in one
clear sentence.
"""

import itertools
import json
import os
import pickle
import struct
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import checkpoint_files as files
import pytest
import torch
from checkpoint_files import FACTORS, OTHER, WEIGHTS, assert_same, save
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.weights import checkpoint
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint, load_state_dict
from headforcing.headforcing_core.weights.identity import CHUNK, checksums, identity

DIFFUSERS = files.diffusers(WEIGHTS)
# beside those of published files, see test_releases.py: the file, its content, the layout that is
# read
LAYOUTS: dict[str, tuple[str, object, str]] = {
    "trainer": (
        "a.pt",
        {"critic": OTHER, "generator": OTHER, "generator_ema": files.fsdp(WEIGHTS), "step": 7},
        "generator_ema",
    ),
    "model": ("a.pt", {"model": WEIGHTS, "optimizer": {"x": torch.ones(3)}}, "model"),
    "state_dict": (
        "a.pt",
        {"state_dict": files.prefixed(WEIGHTS, "module."), "epoch": torch.tensor(3)},
        "state_dict",
    ),
    "dotted wrapper": (
        "a.safetensors",
        files.prefixed(WEIGHTS, "generator_ema.model."),
        "generator_ema",
    ),
    "comfyui": ("a.safetensors", files.prefixed(WEIGHTS, "model.diffusion_model."), "bare"),
    "diffusion_model": ("a.safetensors", files.prefixed(WEIGHTS, "diffusion_model."), "bare"),
    "compiled": ("a.safetensors", files.prefixed(WEIGHTS, "_orig_mod.model."), "bare"),
    "peft": ("a.safetensors", files.peft(WEIGHTS), "bare"),
    "diffusers": ("a.safetensors", files.prefixed(DIFFUSERS, "transformer."), "bare"),
    "a prefix before layers only": (
        "a.safetensors",
        {f"diffusion_model.{n}" if n.startswith("blocks.") else n: t for n, t in WEIGHTS.items()},
        "bare",
    ),
    "a prefix before every second name": (
        "a.pt",
        {
            name if number % 2 else f"model.{name}": tensor
            for number, (name, tensor) in enumerate(sorted(WEIGHTS.items()))
        },
        "bare",
    ),
    "content decides, not the suffix": ("really_a.safetensors", WEIGHTS, "bare"),
}


@pytest.fixture(scope="module")
def fingerprint(tmp_path_factory: pytest.TempPathFactory) -> str:
    return inspect_checkpoint(
        save(tmp_path_factory.mktemp("reference") / "x.pt", WEIGHTS)
    ).fingerprint


@pytest.mark.parametrize("case", LAYOUTS)
def test_every_layout_gives_the_same_weights_and_fingerprint(
    case: str, fingerprint: str, tmp_path: Path
) -> None:
    name, content, layout = LAYOUTS[case]
    path = save(tmp_path / name, content)
    if case.startswith("content"):
        path = path.rename(tmp_path / "safetensors_named.pt")
    before = path.read_bytes()
    state, info = load_state_dict(path)
    assert_same(state, WEIGHTS)
    assert (info.layout, info.fingerprint) == (layout, fingerprint)
    state["blocks.0.modulation"].zero_()
    assert path.read_bytes() == before, "a mapped weight was changed in place"


def test_the_ema_is_preferred_and_others_are_chosen_by_name(tmp_path: Path) -> None:
    path = save(
        tmp_path / "a.pt", {"generator": files.prefixed(OTHER, "model."), "generator_ema": WEIGHTS}
    )
    (state, info), (other, chosen) = (
        load_state_dict(path),
        load_state_dict(path, weights="generator"),
    )
    assert_same(state, WEIGHTS), assert_same(other, OTHER)
    assert (
        chosen.available == ("generator_ema", "generator")
        and chosen.fingerprint != info.fingerprint
    )
    with pytest.raises(
        HeadForcingError,
        match=r"a\.pt has no weights called 'bare'.*one of generator_ema, generator$",
    ):
        inspect_checkpoint(path, "bare")


@pytest.mark.parametrize(
    ("config", "family", "tensors", "parameters"),
    [
        (WanConfig(), "wan2.1-t2v-1.3b", 825, 1_418_996_800),
        (
            WanConfig(dim=5120, ffn_dim=13824, num_layers=40, num_heads=40),
            "wan2.1-t2v-14b",
            1095,
            14_288_491_584,
        ),
        (
            WanConfig(dim=3072, ffn_dim=14336, in_dim=48, out_dim=48, num_heads=24),
            "wan2.2-ti2v-5b",
            825,
            4_999_787_712,
        ),
    ],
)
def test_a_full_size_file_is_described_in_under_a_second(
    config, family, tensors, parameters, tmp_path: Path
) -> None:
    """The 14B's 28 GB also where the machine has less memory, which is why files are not mapped by
    their library.
    """
    shapes = files.shapes_of(config)
    path = files.sparse_safetensors(tmp_path / "big.safetensors", shapes)
    start = time.process_time()  # of this process, so that a busy machine does not matter
    info = inspect_checkpoint(path)
    assert time.process_time() - start < 1
    assert (info.config, info.family, info.dtype) == (config, family, "bfloat16")
    assert (len(shapes), info.parameters, info.bytes) == (tensors, parameters, path.stat().st_size)
    # its own would read all of the file
    named = replace(info, identify=lambda: "0123456789abcdef").summary()
    assert family in named and "big.safetensors" in named


def test_the_file_may_state_its_heads_an_argument_overrules_it_and_foreign_metadata_says_nothing(
    tmp_path,
):
    for text in (
        "{",
        "[" * 100_000,
        "[1]",
        '{"transformer": 3}',
        '{"transformer": {"num_heads": "x"}}',
    ):
        info = inspect_checkpoint(
            save(tmp_path / "a.safetensors", WEIGHTS, {"config": text, "head_forcing": text})
        )
        assert (info.config.num_heads, info.frames_per_block) == (1, None)
    for metadata in ({"num_heads": "4"}, {"config": json.dumps({"transformer": {"num_heads": 4}})}):
        path = save(tmp_path / "a.safetensors", WEIGHTS, metadata)
        assert [
            inspect_checkpoint(path, num_heads=heads).config.num_heads for heads in (None, 2)
        ] == [4, 2]
    for dim, heads, said in (
        (128, 3, "got 3"),
        (128, 0, "got 0"),
        (128, 128, "even size"),
        (72, None, "give num_heads"),
    ):
        path = save(tmp_path / "a.safetensors", files.wan_weights(dim=dim))
        with pytest.raises(HeadForcingError, match=said):
            inspect_checkpoint(path, num_heads=heads)


def test_weights_keep_their_dtype_but_for_plain_fp8_and_extra_tensors_are_left_out(
    tmp_path: Path, caplog
) -> None:
    stored = {
        n: t.to(torch.float8_e4m3fn if t.ndim == 2 else torch.bfloat16) for n, t in WEIGHTS.items()
    }
    extra = {
        f"{name}.weight": torch.ones(3)
        for name in ("vae.decoder.x", "logvar_linear", "_gan_ca_blocks.0.q", "control_blocks.0.q")
    }
    path = save(tmp_path / "fp8.safetensors", stored | extra)
    state, info = load_state_dict(path)
    assert info.dtype == "float8_e4m3fn" and "ignoring 4 tensors" in caplog.text
    assert_same(state, {name: tensor.to(torch.bfloat16) for name, tensor in stored.items()})
    half = save(tmp_path / "half.pt", {n: t.half() for n, t in WEIGHTS.items()})
    for file, dtype, expected in (
        (path, torch.float32, torch.float32),
        (half, None, torch.float16),
    ):
        assert {tensor.dtype for tensor in load_state_dict(file, dtype=dtype)[0].values()} == {
            expected
        }


def written(path: Path, content: bytes | None) -> Path:
    """A file with these bytes, or the first half of the one that is there."""
    content = path.read_bytes()[: path.stat().st_size // 2] if content is None else content
    path.write_bytes(content)
    return path


T = torch.ones(2, 2)
PEFT_LORA = {}
for _module, (_down, _up) in FACTORS.items():
    PEFT_LORA[f"base_model.model.{_module}.lora_A.weight"] = _down
    PEFT_LORA[f"base_model.model.{_module}.lora_B.weight"] = _up
SCALE = {"blocks.0.ffn.0.scale_weight": torch.ones(1)}
# beside the refused rows of test_releases.py: what lies in x.pt, or a function that makes a file;
# words of the sentence
LOOK_ALIKES: dict[str, tuple[Any, ...]] = {
    "I2V in diffusers names": (
        DIFFUSERS | {"blocks.0.attn2.add_k_proj.weight": T},
        "image-to-video",
    ),
    "VACE": (
        WEIGHTS | {"vace_blocks.0.after_proj.weight": T},
        "x.pt is a VACE model, which is not supported: choose",
    ),
    "PEFT LoRA": (PEFT_LORA, "is a LoRA", "--lora", "base model"),
    "unmerged PEFT": (
        {"model": files.peft(WEIGHTS) | PEFT_LORA},
        "x.pt holds a LoRA beside its model that is not merged: give the LoRA as a file of its own",
    ),
    "VAE": ({"encoder.conv1.weight": T, "decoder.conv1.weight": T}, "not a Wan video model"),
    "another variant": (
        WEIGHTS | {"blocks.1.cam_encoder.weight": T},
        "x.pt is another Wan: its layers",
        "blocks.1.cam_encoder.weight",
        "lacks",
    ),
    "comfy_quant": (
        WEIGHTS | {"blocks.0.ffn.0.comfy_quant": torch.ones(9, dtype=torch.uint8)},
        "quantised",
    ),
    "int8": (
        WEIGHTS | {"blocks.0.ffn.0.weight": torch.ones(192, 128, dtype=torch.int8)},
        "quantised",
    ),
    "I2V in scaled fp8": (WEIGHTS | SCALE | {"img_emb.proj.0.weight": T}, "image-to-video (I2V)"),
    "Wan2.2 I2V in scaled fp8": (files.wan_weights(channels=36) | SCALE, "Wan2.2 I2V A14B"),
    "VACE in scaled fp8": (WEIGHTS | SCALE | {"vace_blocks.0.q.weight": T}, "is a VACE model"),
    "Fun Control in scaled fp8": (files.wan_weights(channels=48) | SCALE, "48 input channels"),
    "LiveTalk in scaled fp8, without audio": (
        files.wan_weights(channels=33) | SCALE,
        "a LiveTalk model without",
    ),
    "LiveTalk in scaled fp8": (
        files.wan_weights(channels=33) | SCALE | {"audio_proj.proj.weight": T},
        "quantised",
        "LiveTalk, whose audio tensors that node drops: use the file as its authors published it",
    ),
    "Fun Control": (files.wan_weights(channels=48), "48 input channels"),
    "unknown model": ({"backbone.stem.weight": T}, "backbone.stem.weight", "not a Wan video model"),
    "GGUF": (
        lambda d: written(d / "x.gguf", b"GGUF\x03\0\0\0" + bytes(99)),
        "GGUF",
        "Unet Loader",
        "MODEL",
    ),
    "one block missing": (
        {name: t for name, t in WEIGHTS.items() if not name.startswith("blocks.1.")},
        "27 of 96",
        "blocks.1.self_attn.q",
    ),
    "no blocks": (
        {name: t for name, t in WEIGHTS.items() if "blocks." not in name},
        "incomplete",
        "blocks.0.self_attn.q",
    ),
    "wrong shape": (
        WEIGHTS | {"blocks.2.ffn.2.bias": torch.ones(7)},
        "blocks.2.ffn.2.bias",
        "(7,)",
        "(128,)",
    ),
    "wrong number of axes": (
        WEIGHTS | {"head.modulation": torch.ones(())},
        "head.modulation",
        "3 dimensions",
    ),
    "no size": (
        WEIGHTS | {"blocks.0.ffn.0.weight": torch.zeros(0, 128)},
        "blocks.0.ffn.0.weight",
        "(0, 128)",
    ),
    "only a critic": ({"critic": WEIGHTS}, "no model weights"),
    "a tensor": (T, "x.pt holds a Tensor, not a dict of weights: choose a checkpoint"),
    "a list": ([WEIGHTS], "x.pt holds a list, not a dict of weights: choose a checkpoint"),
    "a tuple": ((T, T), "x.pt holds a tuple, not a dict of weights: choose a checkpoint"),
    "a large header": (
        lambda d: written(d / "x.safetensors", struct.pack("<Q", 9 << 20) + b"{" * (9 << 20)),
        "its header is too large",
    ),
    "many tensors": (
        lambda d: files.sparse_safetensors(
            d / "x.safetensors", dict.fromkeys(map(str, range(20_001)), (1,))
        ),
        "its header has too many tensors",
    ),
    "a large pickle": ({"x" * 3_000_000: T}, "its part data.pkl is too large"),
    "an empty dict": ({}, "no model weights"),
    "text": (b"version https://git-lfs.github.com/spec/v1\n", "no model file", "download"),
    "truncated": (
        lambda d: written(save(d / "x.safetensors", WEIGHTS), None),
        "damaged",
        "download",
    ),
    "truncated pt": (lambda d: written(save(d / "x.pt", WEIGHTS), None), "damaged", "download"),
}


@pytest.mark.parametrize("case", LOOK_ALIKES)
def test_a_look_alike_gets_one_clear_sentence_at_once(case: str, tmp_path: Path) -> None:
    content, *words = LOOK_ALIKES[case]
    if callable(content):
        path = content(tmp_path)
    else:
        path = (written if isinstance(content, bytes) else save)(tmp_path / "x.pt", content)
    start = time.process_time()
    with pytest.raises(HeadForcingError) as caught:
        inspect_checkpoint(path)
    assert time.process_time() - start < 1
    message = str(caught.value)
    assert path.name in message and "\n" not in message and len(message) < 400 + 2 * len(str(path))
    assert all(word in message for word in words), message


@dataclass
class RunsCode:
    marker: Path

    def __reduce__(self) -> tuple[Callable[[str], int], tuple[str]]:
        return os.system, (f"echo run > '{self.marker}'",)


@pytest.mark.parametrize("how", ["torch", "torch inside", "torch legacy", "pickle"])
def test_a_pickle_that_would_run_code_does_not(how: str, tmp_path: Path) -> None:
    marker = tmp_path / "marker"
    path = tmp_path / "evil.pt"
    evil = RunsCode(marker)
    if how == "pickle":
        path.write_bytes(pickle.dumps({"generator": evil}))
    else:
        content = {"generator": WEIGHTS, "config": evil} if how == "torch inside" else evil
        torch.save(content, path, _use_new_zipfile_serialization=how != "torch legacy")
    with pytest.raises(HeadForcingError, match=r"evil.pt .*(could|can) run code"):
        load_state_dict(path)
    assert not marker.exists()
    pickle.loads(pickle.dumps(evil))  # the same object does run code when nothing stops it
    assert marker.exists()


def test_every_bit_shape_type_name_and_order_counts_and_where_a_tensor_lies_in_memory_does_not():
    values = torch.zeros(2 * CHUNK + 5, dtype=torch.uint8)
    first = checksums(values)
    for place, bit in itertools.product((0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 4), (1, 16, 128)):
        values[place] = bit
        assert checksums(values) != first and len(first) == 3, (place, bit)
        values[place] = 0
    types = (torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.uint8)
    for dtype, count in itertools.product(types, (1, 3, 1001)):
        values = torch.arange(count).to(torch.float32).to(dtype)
        name = identity([("x", values)])
        assert name == identity([("x", torch.cat([values[:1].clone(), values])[1:])])
        values.view(torch.uint8)[-1] ^= 1
        assert name != identity([("x", values)])
    x = torch.arange(6.0)
    others = [
        [("x", x)],
        [("y", x)],
        [("x", x.view(2, 3))],
        [("x", x.view(torch.int32))],
        [("x", x), ("z", x)],
        [("z", x), ("x", x)],
        [("x", x.flip(0))],
        [("x", x.view(3, 2))],
    ]
    assert len(set(map(identity, others))) == 8
    many = {str(number): torch.full((5,), float(number)) for number in range(40)}
    assert (
        len({identity((many | {name: torch.ones(5) * 99}).items()) for name in (*many, "none")})
        == 41
    )


def test_a_file_is_hashed_once_and_again_when_a_bit_of_any_tensor_changes(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    calls = []
    compute = checkpoint.identity
    path = tmp_path / "a.safetensors"
    monkeypatch.setattr(checkpoint, "identity", lambda *args: calls.append(1) or compute(*args))

    def fingerprint(expected_calls, tensors=None, old=True):
        if tensors is not None:
            save(path, tensors)
            os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 60 * old))
        found = inspect_checkpoint(path).fingerprint
        assert len(calls) == expected_calls
        return found

    first = fingerprint(1, WEIGHTS, old=False)
    assert fingerprint(2) == first, "a file of this moment may still change"
    assert {fingerprint(3, WEIGHTS), fingerprint(3), fingerprint(3)} == {first}
    changed = WEIGHTS["head.head.bias"].clone()
    changed[-1] *= 1 + 2**-20  # below bfloat16
    other = fingerprint(4, WEIGHTS | {"head.head.bias": changed})
    for stored in (tmp_path / "cache" / "headforcing" / "identities").iterdir():
        stored.write_text("../../etc", encoding="ascii")
    assert fingerprint(5) == other != first, "a damaged note is computed anew"
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert fingerprint(6) == other, "a cache that cannot be written costs time only"

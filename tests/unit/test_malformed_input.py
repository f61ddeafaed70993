"""Malformed and hostile input: one short sentence, no traceback, less than 5 s of a CPU and 1 GB of memory."""

import json
import random
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import WEIGHTS, save, wan_weights
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.render.sinks import load_latents
from headforcing.headforcing_core.video.codec import load_codec
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder
from headforcing.headforcing_core.weights.checkpoint import convert, inspect_checkpoint, load_state_dict
from headforcing.headforcing_core.weights.umt5 import load_embeddings, save_embeddings, sizes_of
from malformed import bounded, damaged, refusal
from safetensors.torch import load_file
from tiny_checkpoints import wan_vae

TARGET = "blocks.0.self_attn.q"


def by_header(path: Path, header: Any, body: bytes = b"") -> Path:
    """A safetensors file of any header: an object, or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


HEADERS: dict[str, Any] = {
    "infinite offset": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}',
    "sizes without end": {"a": {"dtype": "F32", "shape": [10**4000] * 300, "data_offsets": [0, 4]}},
    "many dimensions": {"a": {"dtype": "F32", "shape": [1] * 100_000, "data_offsets": [0, 4]}},
    "100,000 names": {f"a.{i}.b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for i in range(100_000)},
    "20,000 long names": {
        "model." * 38 + str(i): {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
        for i in range(20_000)
    },
    "much metadata": {"__metadata__": {str(i): "x" * 100 for i in range(90_000)}},
    "a very long name": {"model." * 100_000: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}},
    "tensors on top of each other": {
        f"a.{i}": {"dtype": "F32", "shape": [20_000], "data_offsets": [0, 80_000]} for i in range(1000)
    },
}  # fmt: skip


@pytest.mark.parametrize("case", HEADERS)
def test_a_hostile_header_is_refused(case: str, tmp_path: Path) -> None:
    path = by_header(tmp_path / "x.safetensors", HEADERS[case], b"\0" * 80_000)
    for use in (inspect_checkpoint, load_embeddings, load_latents):
        assert "x.safetensors" in refusal(lambda use=use: use(path))


def layers_of_an_encoder(count: int) -> dict[str, torch.Tensor]:
    names = ("SelfAttention.q.weight", "SelfAttention.relative_attention_bias.weight")
    return {f"encoder.block.{i}.layer.0.{name}": torch.ones(1, 1) for i in range(count) for name in names}


ONE_LAYER = layers_of_an_encoder(1)
SIZES = {
    "many layers": layers_of_an_encoder(9_000), "no table": ONE_LAYER,
    "a row as table": ONE_LAYER | {"shared.weight": torch.ones(3)},
    "no heads": ONE_LAYER | {
        "shared.weight": torch.ones(3, 3), "encoder.block.0.layer.1.DenseReluDense.wi_0.weight": torch.ones(3, 3),
        "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight": torch.ones(32, 0),
    },
}  # fmt: skip


def test_the_sizes_of_an_encoder_are_checked(tmp_path: Path) -> None:
    for case, weights in SIZES.items():
        told = refusal(lambda weights=weights: sizes_of(weights, tmp_path / "x.safetensors"))
        assert "not a umT5 encoder" in told, case


def test_stated_sizes_that_no_model_has_are_not_used(tmp_path: Path) -> None:
    for stated in (10**15, 10**400, -1, 1.5, "x", [], None, True):
        config = json.dumps({"transformer": {"num_heads": stated, "text_len": stated}})
        about = json.dumps({"frames_per_block": stated, "lora": stated})
        path = save(tmp_path / "x.safetensors", WEIGHTS, {"config": config, "head_forcing": about})
        with bounded():
            info = inspect_checkpoint(path)
        assert (info.config.num_heads, info.config.text_len, info.frames_per_block) == (1, 512, None)
    for heads in ("9" * 5000, "٣", "1e999", "-1", ""):
        path = save(tmp_path / "x.safetensors", WEIGHTS, {"num_heads": heads})
        with bounded():
            assert inspect_checkpoint(path).config.num_heads == 1


def test_a_model_without_a_size_is_refused(tmp_path: Path) -> None:
    for name in ("patch_embedding.weight", "head.modulation", "blocks.0.ffn.0.weight"):
        shape = list(WEIGHTS[name].shape)
        shape[0 if name.startswith("blocks") else -1] = 0
        path = save(tmp_path / "x.safetensors", {**WEIGHTS, name: torch.zeros(shape)})
        refusal(lambda path=path: inspect_checkpoint(path, num_heads=1))


def expanded(*shape: int) -> torch.Tensor:
    return torch.zeros(1).expand(shape)


PICKLES: dict[str, Callable[[], Any]] = {
    "a tensor that is one number": lambda: {**WEIGHTS, "patch_embedding.bias": expanded(10**12)},
    "a sparse tensor": lambda: {**WEIGHTS, "x": torch.eye(3).to_sparse()},
    "a tensor without numbers": lambda: {**WEIGHTS, "x": torch.empty(3, device="meta")},
    "a nested one": lambda: {"generator": {**WEIGHTS, "x": expanded(10**12)}},
    "one tensor under many names": lambda: dict.fromkeys(map(str, range(1000)), torch.zeros(10_000)),
    "many names": lambda: {str(i): {} for i in range(30_000)},
    "a long name": lambda: {"x" * 1_000_000: torch.zeros(1)},
}


@pytest.mark.parametrize("case", PICKLES)
def test_a_hostile_pickle_is_refused(case: str, tmp_path: Path) -> None:
    path = save(tmp_path / "x.pt", PICKLES[case]())
    assert "x.pt" in refusal(lambda: inspect_checkpoint(path))
    assert "x.pt" in refusal(lambda: convert(path, tmp_path / "out.safetensors"))


def factors(down: torch.Tensor, up: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"{TARGET}.lora_A.weight": down, f"{TARGET}.lora_B.weight": up}


LORAS: dict[str, tuple[str, Callable[[], Any]]] = {
    "rank 0": ("x.safetensors", lambda: factors(torch.zeros(0, 128), torch.zeros(128, 0))),
    "rank 0 of all": ("x.safetensors", lambda: factors(torch.zeros(0, 0), torch.zeros(128, 0))),
    "scalars": ("x.safetensors", lambda: factors(torch.zeros(()), torch.zeros(()))),
    "rows": ("x.safetensors", lambda: factors(torch.zeros(128), torch.zeros(128))),
    "rank above the matrix": ("x.safetensors", lambda: factors(torch.zeros(129, 128), torch.zeros(128, 129))),
    "rank of a billion": ("x.pt", lambda: factors(expanded(10**9, 128), expanded(128, 10**9))),
    "alpha of two numbers": (
        "x.safetensors",
        lambda: {**factors(torch.ones(1, 128), torch.ones(128, 1)), f"{TARGET}.alpha": torch.ones(2)},
    ),
    "many names": ("x.safetensors", lambda: {f"blocks.0.{i}.lora_A.weight": torch.ones(1) for i in range(5_000)}),
    "suffixes": ("x.safetensors", lambda: {".lora_A" * 30 + f"\n{i}": torch.ones(1) for i in range(5_000)}),
}  # fmt: skip


@pytest.mark.parametrize("case", LORAS)
def test_a_hostile_lora_is_refused(case: str, tmp_path: Path) -> None:
    model = save(tmp_path / "model.safetensors", WEIGHTS)
    name, make = LORAS[case]
    lora = save(tmp_path / name, make())
    assert name in refusal(lambda: load_state_dict(model, lora=lora))


ROWS = torch.ones(3, 8)
EMBEDDINGS: dict[str, tuple[str, Any]] = {
    "a number": ("5", ROWS), "lists": ('[["a"]]', ROWS), "a text": ('"a"', ROWS), "an object": ('{"a": 1}', ROWS),
    "deep nesting": ("[" * 1_000_000, ROWS), "no JSON": ("x", ROWS), "more prompts than tensors": ('["a", "b"]', ROWS),
    "one dimension": ('["a"]', torch.ones(8)), "three dimensions": ('["a"]', torch.ones(1, 3, 8)),
    "no rows": ('["a"]', torch.ones(0, 8)), "whole numbers": ('["a"]', torch.ones(3, 8, dtype=torch.int32)),
    "fp8": ('["a"]', torch.ones(3, 8).to(torch.float8_e4m3fn)), "NaN": ('["a"]', torch.full((3, 8), torch.nan)),
    "infinity": ('["a"]', torch.full((3, 8), torch.inf)),
}  # fmt: skip


def test_a_file_of_other_embeddings_is_refused(tmp_path: Path) -> None:
    for case, (prompts, rows) in EMBEDDINGS.items():
        path = save(tmp_path / "x.safetensors", {"prompt_0": rows}, {"prompts": prompts})
        assert "not a prompt embeddings file" in refusal(lambda path=path: load_embeddings(path)), case


LATENTS = {
    "fp8": torch.ones(3, 16, 2, 2).to(torch.float8_e4m3fn), "whole numbers": torch.ones(3, 16, 2, 2, dtype=torch.int64),
    "NaN": torch.full((3, 16, 2, 2), torch.nan), "infinity": torch.full((3, 16, 2, 2), -torch.inf),
    "no frames": torch.ones(0, 16, 2, 2), "three dimensions": torch.ones(16, 2, 2),
    "other channels": torch.ones(3, 4, 2, 2),
}  # fmt: skip


def test_other_latents_are_refused(tmp_path: Path) -> None:
    for latents in LATENTS.values():
        path = save(tmp_path / "x.safetensors", {"latents": latents})
        assert "x.safetensors" in refusal(lambda path=path: load_latents(path, (16, 16)))


VAES: dict[str, tuple[Callable[[torch.Tensor], torch.Tensor], str]] = {
    "NaN": (lambda tensor: torch.full_like(tensor, torch.nan), "NaN or infinity in decoder.conv1.weight"),
    "infinity": (lambda tensor: torch.full_like(tensor, -torch.inf), "NaN or infinity"),
    "more than float16 holds": (lambda tensor: torch.full_like(tensor, 1e5), "read as torch.float16"),
    "whole numbers": (torch.Tensor.int, "in torch.int32, not in floating point"),
    "complex numbers": (lambda tensor: tensor.to(torch.complex64), "not in floating point"),
    "no channels": (lambda tensor: tensor[:0], "expected"),
}


@pytest.mark.parametrize("kind", ["wan", "tiny"])
def test_a_vae_that_holds_no_finite_numbers_is_refused(
    kind: str, tmp_path: Path, recwarn: pytest.WarningsRecorder
) -> None:
    """It would decode every video to black, or to nothing that is seen, without a word."""
    if kind == "wan":
        weights, name = load_file(wan_vae(tmp_path / "good.safetensors")), "decoder.conv1.weight"
    else:
        weights, name = TinyDecoder((8, 8, 8, 8)).state_dict(), "decoder.1.weight"
    load_codec(save(tmp_path / "x.pt", weights), torch.device("cpu"), torch.float16, encodes=False)
    for case, (change, why) in VAES.items():
        path = save(tmp_path / "x.pt", {**weights, name: change(weights[name])})
        message = refusal(lambda path=path: load_codec(path, torch.device("cpu"), torch.float16, encodes=False))
        assert path.name in message and (why.replace("decoder.conv1.weight", name) in message or case == "no channels")
    assert not recwarn.list


def test_damage_anywhere_in_models_embeddings_latents_loras_and_vaes_is_one_sentence_or_harmless(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    save_embeddings(tmp_path / "e.safetensors", {"a red ball": ROWS, "b": ROWS})
    model = save(tmp_path / "model.safetensors", WEIGHTS)
    good = {
        "embeddings": ((tmp_path / "e.safetensors"), load_embeddings),
        "latents": (save(tmp_path / "l.safetensors", {"latents": torch.ones(3, 16, 2, 2)}), load_latents),
        "lora": (
            save(tmp_path / "x.safetensors", factors(torch.ones(2, 128), torch.ones(128, 2))),
            lambda path: load_state_dict(model, lora=path),
        ),
        "pt lora": (
            save(tmp_path / "x.pt", factors(torch.ones(2, 128), torch.ones(128, 2))),
            lambda path: load_state_dict(model, lora=path),
        ),
        "vae": (wan_vae(tmp_path / "v.safetensors"), lambda path: load_codec(path, torch.device("cpu"), torch.float32)),
    }
    rng, refused, tried = random.Random(5), 0, 0
    small = wan_weights(dim=2, ffn=2, layers=1, text=2, freq=2)
    for name in ("m.safetensors", "m.pt"):
        good[name] = save(tmp_path / name, small), lambda path: inspect_checkpoint(path, num_heads=1)
    for path, use in good.values():
        for number in range(60):
            bad = tmp_path / "bad"
            bad.write_bytes(damaged(path.read_bytes(), rng, number))
            tried += 1
            with bounded():
                try:
                    use(bad)
                except HeadForcingError:
                    refused += 1
    record_property("malformed files and texts tried", tried)
    assert tried == 420 and refused > 150


def test_ten_thousand_unknown_names_cost_little(tmp_path: Path) -> None:
    extra = {f"extra.{i}.x": torch.zeros(1) for i in range(10_000)}
    path = save(tmp_path / "x.safetensors", {**WEIGHTS, **extra})
    seconds = time.process_time()
    assert inspect_checkpoint(path).parameters == sum(tensor.numel() for tensor in WEIGHTS.values())
    assert time.process_time() - seconds < 2


def test_a_lora_of_the_largest_useful_rank_is_merged(tmp_path: Path) -> None:
    model = save(tmp_path / "model.safetensors", WEIGHTS)
    lora = save(tmp_path / "lora.safetensors", factors(torch.eye(128), torch.eye(128)))
    merged, _ = load_state_dict(model, lora=lora)
    assert torch.equal(merged[f"{TARGET}.weight"], WEIGHTS[f"{TARGET}.weight"] + torch.eye(128))

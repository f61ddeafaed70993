"""Malformed and hostile input: one short sentence, no traceback, less than 5 s of a CPU and 1 GB of memory."""

import json
import random
import struct
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
from headforcing.headforcing_core.weights.umt5 import load_embeddings, save_embeddings
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
    "many names": {f"a.{i}.b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for i in range(30_000)},
    "long names": {
        "model." * 38 + str(i): {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]} for i in range(3_000)
    },
    "much metadata": {"__metadata__": {str(i): "x" * 100 for i in range(20_000)}},
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


def expanded(*shape: int) -> torch.Tensor:
    return torch.zeros(1).expand(shape)


PICKLES: dict[str, Callable[[], Any]] = {
    "a tensor that is one number": lambda: {**WEIGHTS, "patch_embedding.bias": expanded(10**12)},
    "a sparse tensor": lambda: {**WEIGHTS, "x": torch.eye(3).to_sparse()},
    "a tensor without numbers": lambda: {**WEIGHTS, "x": torch.empty(3, device="meta")},
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


LORAS: dict[str, Callable[[], Any]] = {
    "rank 0": lambda: factors(torch.zeros(0, 128), torch.zeros(128, 0)),
    "scalars": lambda: factors(torch.zeros(()), torch.zeros(())),
    "rank above the matrix": lambda: factors(torch.zeros(129, 128), torch.zeros(128, 129)),
    "rank of a billion": lambda: factors(expanded(10**9, 128), expanded(128, 10**9)),
    "alpha of two": lambda: factors(torch.ones(1, 128), torch.ones(128, 1)) | {f"{TARGET}.alpha": torch.ones(2)},
    "many names": lambda: {f"blocks.0.{i}.lora_A.weight": torch.ones(1) for i in range(2_000)},
    "suffixes": lambda: {".lora_A" * 30 + f"\n{i}": torch.ones(1) for i in range(2_000)},
}


@pytest.mark.parametrize("case", LORAS)
def test_a_hostile_lora_is_refused(case: str, tmp_path: Path) -> None:
    model, lora = save(tmp_path / "model.safetensors", WEIGHTS), save(tmp_path / "x.pt", LORAS[case]())
    assert "x.pt" in refusal(lambda: load_state_dict(model, lora=lora))


ROWS = torch.ones(3, 8)


def test_embeddings_come_back_by_exact_prompt(tmp_path):
    embeddings = {"a red ball": torch.randn(4, 8).bfloat16(), "ein Bällchen\n🎈": torch.randn(7, 8).T.contiguous().T}
    save_embeddings(tmp_path / "e.safetensors", embeddings)
    loaded = load_embeddings(tmp_path / "e.safetensors")
    assert list(loaded) == list(embeddings)
    for prompt, rows in embeddings.items():
        assert torch.equal(loaded[prompt], rows) and loaded[prompt].dtype == rows.dtype
    with pytest.raises(HeadForcingError, match="'a blue ball'; the file has: 'a red ball'; 'ein B"):
        loaded["a blue ball"]


def test_files_of_other_embeddings_and_latents_are_refused(tmp_path: Path) -> None:
    texts = ("5", '[["a"]]', '"a"', '{"a": 1}', "[" * 1_000_000, "x", '["a", "b"]')
    tensors = (
        torch.ones(8), torch.ones(1, 3, 8), torch.ones(0, 8), ROWS.int(), ROWS.to(torch.float8_e4m3fn),
        ROWS * torch.nan, ROWS * torch.inf,
    )  # fmt: skip
    for prompts, rows in (*((text, ROWS) for text in texts), *(('["a"]', rows) for rows in tensors)):
        path = save(tmp_path / "x.safetensors", {"prompt_0": rows}, {"prompts": prompts})
        assert "not a prompt embeddings file" in refusal(lambda path=path: load_embeddings(path)), (prompts[:9], rows)
    good = torch.ones(3, 16, 2, 2)
    others = good.to(torch.float8_e4m3fn), good.long(), good * torch.nan, good * -torch.inf
    for latents in (*others, good[:0], good[0], good[:, :4]):
        path = save(tmp_path / "x.safetensors", {"latents": latents.contiguous()})
        assert "x.safetensors" in refusal(lambda path=path: load_latents(path, (16, 16)))


VAES: tuple[tuple[Callable[[torch.Tensor], torch.Tensor], str], ...] = (
    (lambda tensor: torch.full_like(tensor, torch.nan), "NaN or infinity in {}"), (lambda tensor: tensor[:0], ""),
    (lambda tensor: torch.full_like(tensor, -torch.inf), "NaN or infinity"), (torch.Tensor.int, "in torch.int32, not"),
    (lambda tensor: torch.full_like(tensor, 1e5), "read as torch.float16"),  # more than it holds
    (lambda tensor: tensor.to(torch.complex64), "not in floating point"),
)  # fmt: skip


@pytest.mark.parametrize("kind", ["wan", "tiny"])
def test_a_vae_that_holds_no_finite_numbers_is_refused(kind: str, tmp_path: Path, recwarn) -> None:
    """It would decode every video to black, or to nothing that is seen, without a word."""
    if kind == "wan":
        weights, name = load_file(wan_vae(tmp_path / "good.safetensors")), "decoder.conv1.weight"
    else:
        weights, name = TinyDecoder((8, 8, 8, 8)).state_dict(), "decoder.1.weight"
    load_codec(save(tmp_path / "x.pt", weights), torch.device("cpu"), torch.float16, encodes=False)
    for change, why in VAES:
        path = save(tmp_path / "x.pt", {**weights, name: change(weights[name])})
        message = refusal(lambda path=path: load_codec(path, torch.device("cpu"), torch.float16, encodes=False))
        assert path.name in message and why.format(name) in message
    assert not recwarn.list


def test_damage_anywhere_in_models_embeddings_latents_loras_and_vaes_is_one_sentence_or_harmless(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    save_embeddings(tmp_path / "e.safetensors", {"a red ball": ROWS, "b": ROWS})
    small = wan_weights(dim=4, ffn=2, layers=1, text=2, freq=2)
    model, lora = save(tmp_path / "model.safetensors", small), factors(torch.ones(2, 4), torch.ones(4, 2))
    good: list[tuple[Path, Callable[[Path], Any]]] = [
        (tmp_path / "e.safetensors", load_embeddings),
        (save(tmp_path / "l.safetensors", {"latents": torch.ones(3, 16, 2, 2)}), load_latents),
        (wan_vae(tmp_path / "v.safetensors"), lambda path: load_codec(path, torch.device("cpu"), torch.float32)),
    ]
    for kind in ("safetensors", "pt"):
        good.append((save(tmp_path / f"x.{kind}", lora), lambda path: load_state_dict(model, num_heads=1, lora=path)))
        good.append((save(tmp_path / f"m.{kind}", small), lambda path: inspect_checkpoint(path, num_heads=1)))
    rng, bad, refused, tried = random.Random(5), tmp_path / "bad", 0, 0
    for path, use in good:
        for number in range(30):
            bad.write_bytes(damaged(path.read_bytes(), rng, number))
            tried += 1
            with bounded():
                try:
                    use(bad)
                except HeadForcingError:
                    refused += 1
    record_property("malformed files and texts tried", tried)
    assert tried == 210 and refused > 75

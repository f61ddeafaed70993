"""umT5 prompts on the command line: both file layouts, against the umT5 of transformers."""

import io
import json
import math
import random
import re
import sys
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.errors import HeadForcingError
from headforcing.headforcing_core.weights import umt5
from headforcing.headforcing_core.weights.umt5 import clean_prompt, load_text_encoder
from malformed import damaged
from safetensors.torch import save_file

pytestmark = pytest.mark.slow  # importing transformers takes seconds

DIM = 24
HEADS = 3
HEAD_DIM = 8
FFN = 40
LAYERS = 2
BUCKETS = 32
VOCABULARY = 80
PROMPTS = [
    "a red ball bouncing in the teal plain room",
    "",
    "the quick brown fox jumps over the lazy dog " * 4,
]


@pytest.fixture(scope="module")
def tokenizer_bytes():
    sentencepiece = pytest.importorskip("sentencepiece")
    pytest.importorskip("transformers")
    model = io.BytesIO()
    more = ["cats & dogs <running> in the rain", "pack my box with five dozen jugs"]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([*PROMPTS, *more] * 4),
        model_writer=model,
        vocab_size=VOCABULARY - 10,
        hard_vocab_limit=False,
        pad_id=0,
        eos_id=1,
        unk_id=2,
        bos_id=-1,
        minloglevel=2,
    )
    return model.getvalue()


@pytest.fixture(scope="module")
def wan_weights():
    """Tiny umT5 with the names and shapes of Wan's own file."""
    generator = torch.Generator().manual_seed(0)
    inner = HEADS * HEAD_DIM

    def rand(*shape, scale=0.3):
        return torch.randn(shape, generator=generator) * scale

    weights = {
        "token_embedding.weight": rand(VOCABULARY, DIM, scale=1.0),
        "norm.weight": 1 + rand(DIM),
    }
    layer = {
        "pos_embedding.embedding": (BUCKETS, HEADS),
        "ffn.gate.0": (FFN, DIM),
        "ffn.fc1": (FFN, DIM),
        "ffn.fc2": (DIM, FFN),
        "attn.o": (DIM, inner),
        **{f"attn.{name}": (inner, DIM) for name in "qkv"},
    }
    for n in range(LAYERS):
        weights |= {f"blocks.{n}.norm{number}.weight": 1 + rand(DIM) for number in (1, 2)}
        weights |= {f"blocks.{n}.{name}.weight": rand(*shape) for name, shape in layer.items()}
    return weights


def comfy_weights(weights):
    """The same weights with the names of ComfyUI's file, spelled out once more rather than taken
    from the loader.
    """
    parts = {
        "norm1": "0.layer_norm",
        "attn": "0.SelfAttention",
        "norm2": "1.layer_norm",
        "pos_embedding.embedding": "0.SelfAttention.relative_attention_bias",
        "ffn.gate.0": "1.DenseReluDense.wi_0",
        "ffn.fc1": "1.DenseReluDense.wi_1",
        "ffn.fc2": "1.DenseReluDense.wo",
    }
    renamed = {}
    for name, tensor in weights.items():
        if match := re.fullmatch(r"blocks\.(\d+)\.(.+)", name):
            old = next(part for part in parts if match[2].startswith(part + "."))
            renamed[f"encoder.block.{match[1]}.layer.{parts[old]}{match[2][len(old) :]}"] = tensor
    renamed["shared.weight"] = weights["token_embedding.weight"]
    renamed["encoder.final_layer_norm.weight"] = weights["norm.weight"]
    return renamed


def as_tensor(data):
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def save_comfy(path, weights, tokenizer_bytes):
    save_file({**comfy_weights(weights), "spiece_model": as_tensor(tokenizer_bytes)}, path)
    return path


def reference(weights, tokens):
    """The library's own umT5 in float32, with weights under its names."""
    transformers = pytest.importorskip("transformers")
    sizes = {"vocab_size": VOCABULARY, "d_model": DIM, "d_kv": HEAD_DIM, "d_ff": FFN}
    more = {"num_layers": LAYERS, "num_heads": HEADS, "feed_forward_proj": "gated-gelu"}
    model = transformers.UMT5EncoderModel(transformers.UMT5Config(**sizes, **more))
    tied = {"encoder.embed_tokens.weight": weights["shared.weight"]}
    model.load_state_dict({name: tensor.float() for name, tensor in (tied | weights).items()})
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([tokens])).last_hidden_state[0]


def test_both_layouts_and_a_smaller_stored_type_give_what_a_plain_umt5_gives(
    tmp_path, wan_weights, tokenizer_bytes
):
    wan_file = tmp_path / "models_t5_umt5-xxl-enc-bf16.pth"
    small = tmp_path / "umt5_xxl_fp8.safetensors"
    torch.save(wan_weights, wan_file)
    comfy_file = save_comfy(tmp_path / "umt5_xxl_fp16.safetensors", wan_weights, tokenizer_bytes)
    fp8 = {name: tensor.to(torch.float8_e4m3fn) for name, tensor in wan_weights.items()}
    save_comfy(small, fp8, tokenizer_bytes)
    (tmp_path / "google" / "umt5-xxl").mkdir(parents=True)
    (tmp_path / "google" / "umt5-xxl" / "spiece.model").write_bytes(tokenizer_bytes)
    for path, weights in ((wan_file, wan_weights), (small, fp8), (comfy_file, wan_weights)):
        encoder = load_text_encoder(path, dtype=torch.float32)
        for prompt, rows in zip(PROMPTS, encoder.encode(PROMPTS), strict=True):
            assert torch.equal(encoder.encode([prompt])[0], rows), "alone as in company"
            tokens = encoder.tokens(prompt)
            assert rows.shape == (len(tokens), DIM)
            torch.testing.assert_close(
                rows, reference(comfy_weights(weights), tokens), atol=1e-4, rtol=1e-4
            )
    assert load_text_encoder(small).model.shared.weight.dtype == torch.bfloat16, (
        "fp8 rows cannot be read everywhere"
    )
    assert encoder.tokens("") == [1] and encoder.tokens("  a\n red   ball ") == encoder.tokens(
        "a red ball"
    )
    long = encoder.tokens("fox " * 600)
    assert len(long) == 512 and long[-1] == 1 and long.count(1) == 1
    assert clean_prompt("  cats &amp;amp; dogs\n\t&lt;running&gt;  ") == "cats & dogs <running>"


def test_an_encoder_in_shards_beside_its_tokenizer_is_that_of_one_file(
    tmp_path, wan_weights, tokenizer_bytes
):
    tensors = comfy_weights(wan_weights)
    folder = tmp_path / "text_encoder"
    folder.mkdir()
    (tmp_path / "tokenizer").mkdir()
    (tmp_path / "tokenizer" / "spiece.model").write_bytes(tokenizer_bytes)
    place = {
        name: f"model-0000{1 + number % 2}-of-00002.safetensors"
        for number, name in enumerate(tensors)
    }
    for file in set(place.values()):
        save_file({name: tensors[name] for name in tensors if place[name] == file}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": place}))
    whole = save_comfy(tmp_path / "umt5.safetensors", wan_weights, tokenizer_bytes)
    (expected,) = umt5.load_text_encoder(whole).encode(["a red ball"])
    for path in (folder, *folder.iterdir()):
        (found,) = umt5.load_text_encoder(path).encode(["a red ball"])
        torch.testing.assert_close(found, expected)


def scaled_fp8(weights, tokenizer_bytes, newer=False, per_row=False):
    """The layout of `umt5_xxl_fp8_e4m3fn_scaled`: matrices in fp8 with a scale each, all else in
    float16.

    Returns the file's tensors, and the weights that they stand for.
    """
    stored = {"spiece_model": as_tensor(tokenizer_bytes)}
    meant = {}
    for name, tensor in comfy_weights(weights).items():
        layer = name.removesuffix(".weight")
        if tensor.ndim < 2 or layer.endswith(("shared", "attention_bias")):
            stored[name] = meant[name] = tensor.half()
            continue
        scale = (tensor.abs().amax(dim=1, keepdim=True) if per_row else tensor.abs().max()) / 448
        stored[name] = (tensor / scale).to(torch.float8_e4m3fn)
        stored[f"{layer}.{'weight_scale' if newer else 'scale_weight'}"] = (
            scale.flatten() if per_row else scale
        )
        meant[name] = stored[name].float() * scale
        if newer:
            stored[f"{layer}.comfy_quant"] = as_tensor(b'{"format": "float8_e4m3fn"}')
            stored[f"{layer}.input_scale"] = torch.ones(())
    return stored | (
        {} if newer else {"scaled_fp8": torch.zeros(0, dtype=torch.float8_e4m3fn)}
    ), meant


@pytest.mark.parametrize("layout", [{}, {"newer": True}, {"newer": True, "per_row": True}], ids=str)
def test_scaled_fp8_weights_mean_what_their_scales_say(
    tmp_path, wan_weights, tokenizer_bytes, layout
):
    tensors, meant = scaled_fp8(wan_weights, tokenizer_bytes, **layout)
    path = tmp_path / "umt5_xxl_fp8_e4m3fn_scaled.safetensors"
    save_file(tensors, path)
    encoder = load_text_encoder(path, dtype=torch.float32)
    plain = encoder.encode(PROMPTS)
    for prompt, rows in zip(PROMPTS, plain, strict=True):
        torch.testing.assert_close(
            rows, reference(meant, encoder.tokens(prompt)), atol=1e-4, rtol=1e-4
        )
    encoder = load_text_encoder(path)
    in_bf16 = encoder.encode(PROMPTS)[0]
    assert (
        in_bf16.dtype == torch.bfloat16
        and (in_bf16.float() - plain[0]).norm() < 0.05 * plain[0].norm()
    )
    held = {id(tensor): tensor for tensor in encoder.model.state_dict().values()}.values()
    matrices = sum(tensor.numel() for tensor in held if tensor.dtype == torch.float8_e4m3fn)
    assert matrices == LAYERS * (4 * HEADS * HEAD_DIM + 3 * FFN) * DIM, "as the file has them"
    assert encoder.model.shared.weight.dtype == torch.float16
    others = [
        tensor for tensor in held if tensor.dtype.itemsize > 1 and tensor.shape != (VOCABULARY, DIM)
    ]
    assert {tensor.dtype for tensor in others} == {torch.bfloat16}
    wide = umt5.encoder_bytes(
        save_comfy(tmp_path / "wide.safetensors", wan_weights, tokenizer_bytes)
    )
    activations = DIM * FFN * 2 + HEADS * 512**2 * 16
    assert wide == 2 * sum(tensor.numel() for tensor in wan_weights.values()) + activations
    assert wide - umt5.encoder_bytes(path) == matrices


Q = "encoder.block.0.layer.0.SelfAttention.q"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{Q}.scale_weight": torch.ones(5)}, "scale of .*q does not belong"),
        ({f"{Q}.scale_weight": torch.tensor(math.nan)}, "scale of .*q does not"),
        (
            {"encoder.block.0.layer.0.SelfAttention.x.scale_weight": torch.ones(())},
            "a scale for .*x, which is not",
        ),
        (
            {f"{Q}.weight": torch.zeros(24, 12, dtype=torch.uint8)},
            r"q.weight is of shape \[24, 12\]",
        ),
        ({f"{Q}.weight": None}, "not a umT5 encoder"),
        ({"shared.weight": torch.zeros(5, DIM)}, "do not belong together"),
        (
            {"encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight": None},
            "block.1.*bias.weight is missing",
        ),
        ({"shared.weight": None}, "expected a tensor shared.weight .*found encoder.block"),
        ({"spiece_model": as_tensor(b"nonsense")}, "not a sentencepiece model"),
        (
            {"spiece_model": None},
            r"contains no tokenizer; put spiece.model of google/umt5-xxl beside it",
        ),
    ],
)
def test_wrong_weights_are_named(tmp_path, wan_weights, tokenizer_bytes, change, message):
    tensors = scaled_fp8(wan_weights, tokenizer_bytes)[0] | change
    save_file(
        {name: t for name, t in tensors.items() if t is not None}, tmp_path / "scaled.safetensors"
    )
    with pytest.raises(HeadForcingError, match=message):
        load_text_encoder(tmp_path / "scaled.safetensors")


def test_damage_anywhere_in_a_tokenizer_is_one_sentence_or_harmless(
    tmp_path, wan_weights, tokenizer_bytes, record_property
):
    refused = 0
    path = tmp_path / "comfy.safetensors"
    for seed in range(30):
        bad = damaged(tokenizer_bytes, random.Random(seed), seed)
        save_comfy(path, wan_weights, bad)
        try:
            load_text_encoder(path).encode([PROMPTS[0]])
        except HeadForcingError as error:
            assert "not a sentencepiece model" in str(error) or "do not belong" in str(error)
            refused += 1
    record_property("malformed files and texts tried", 30)
    assert 5 < refused < 30


@pytest.mark.parametrize("package", ["transformers", "sentencepiece"])
def test_missing_packages_are_named(tmp_path, monkeypatch, package):
    for name in ("transformers", "sentencepiece"):
        monkeypatch.setitem(sys.modules, name, None if name == package else io)
    with pytest.raises(
        HeadForcingError, match=rf'need the package {package}, .*pip install -e "\.\[text\]"'
    ):
        load_text_encoder(tmp_path / "any.pth")


@pytest.mark.skipif(
    not Path("/proc/self/status").exists(), reason="only Linux tells own memory from mapped files"
)
def test_the_table_of_words_is_not_held_beside_that_of_the_file(
    tmp_path, wan_weights, tokenizer_bytes
):
    def own_bytes():
        return 1024 * int(re.search(r"RssAnon:\s+(\d+)", Path("/proc/self/status").read_text())[1])

    words = 2**20
    tensors, _ = scaled_fp8(wan_weights, tokenizer_bytes)
    save_file(tensors, tmp_path / "small.safetensors")
    # imports, and what libraries keep
    load_text_encoder(tmp_path / "small.safetensors").encode(PROMPTS)
    save_file(
        {**tensors, "shared.weight": torch.ones(words, DIM).half()}, tmp_path / "scaled.safetensors"
    )
    before = own_bytes()
    encoder = load_text_encoder(tmp_path / "scaled.safetensors")
    encoder.encode(PROMPTS)
    assert own_bytes() - before < words * DIM, "half of the table in float16"

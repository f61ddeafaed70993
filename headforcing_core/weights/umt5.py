"""umT5-xxl prompt embeddings for the command line, computed or read from a file (ComfyUI has its
own encoder).

Its matrices and a table of words in two bytes stay as the file stores them, fp8 with scales
included, and are widened while they are used.
"""

from __future__ import annotations

import html
import importlib
import json
import logging
import re
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import HeadForcingError, import_optional
from ..files import replacing
from .containers import WRITABLE, Weights, all_finite, read_tensors, read_weights, tensor_of

log = logging.getLogger(__name__)

MAX_TOKENS = 512
_END = 1  # id of the end-of-sequence token
_SPACE = "\u2581"  # sentencepiece's mark of a space, before the word that follows
_LONGEST_WORD = 40  # characters; a longer one is a text without spaces
# few digits: a malicious name must not claim many layers; umT5-xxl has 24
_LAYER = re.compile(r"encoder\.block\.\d{1,2}\.layer\.0\.SelfAttention\.q\.weight")
_SCALES = ("scale_weight", "weight_scale")  # of fp8 weights, in ComfyUI's older and newer files
_EMBEDDINGS_FORMAT = "headforcing-prompt-embeddings-1"

# parts of names in Wan's own `models_t5_umt5-xxl-enc-bf16.pth`, and those of transformers (and of
# ComfyUI's files) in their place
_WAN_NAMES = (
    (r"^token_embedding\.", "shared."),
    (r"^norm\.", "encoder.final_layer_norm."),
    (r"^blocks\.", "encoder.block."),
    (r"\.norm1\.", ".layer.0.layer_norm."),
    (r"\.attn\.", ".layer.0.SelfAttention."),
    (
        r"\.pos_embedding\.embedding\.",
        ".layer.0.SelfAttention.relative_attention_bias.",
    ),
    (r"\.norm2\.", ".layer.1.layer_norm."),
    (r"\.ffn\.gate\.0\.", ".layer.1.DenseReluDense.wi_0."),
    (r"\.ffn\.fc1\.", ".layer.1.DenseReluDense.wi_1."),
    (r"\.ffn\.fc2\.", ".layer.1.DenseReluDense.wo."),
)


@dataclass
class UMT5Encoder:
    """A umT5 encoder and its sentencepiece tokenizer."""

    model: Any
    tokenizer: Any

    def tokens(self, prompt: str) -> list[int]:
        """Token ids of the cleaned prompt with the end token, at most 512."""
        tokens: list[int] = self.tokenizer.encode(clean_prompt(prompt))
        return [*tokens[: MAX_TOKENS - 1], _END]

    @torch.no_grad()
    def encode(self, prompts: list[str]) -> list[Tensor]:
        """One `[tokens, text_dim]` per prompt, each encoded alone: independent of padding and of
        the batch.
        """
        device = self.model.shared.weight.device
        encoded = []
        for prompt in prompts:
            tokens = self.tokens(prompt)
            if len(tokens) == MAX_TOKENS:
                self._warn_if_cut(prompt)
            ids = torch.tensor([tokens], device=device)
            encoded.append(self.model(input_ids=ids).last_hidden_state[0])
        return encoded

    def _warn_if_cut(self, prompt: str) -> None:
        """Log which word is the first that the model does not read whole, if the prompt is too
        long.
        """
        pieces = self.tokenizer.encode(clean_prompt(prompt), out_type=str)
        if len(pieces) < MAX_TOKENS:
            return
        log.warning(
            "the prompt %r has %d tokens and the model reads %d: the first word that is cut is %r; "
            "say it in fewer words",
            prompt[:40],
            len(pieces) + 1,
            MAX_TOKENS,
            first_cut_word(pieces, MAX_TOKENS - 1),
        )


def first_cut_word(pieces: list[str], kept: int) -> str:
    """The first word of which a piece lies beyond the first `kept`, without spaces.

    Of a text without spaces, as Chinese, it is what follows the cut. At most 40 characters.
    """
    begun = "".join(pieces[:kept]).rpartition(_SPACE)[2]
    cut = "".join(pieces[kept:])
    if cut.startswith(_SPACE) or len(begun) > _LONGEST_WORD:
        begun = ""
    rest = cut.removeprefix(_SPACE).partition(_SPACE)[0]
    return (begun + rest)[:_LONGEST_WORD]


def clean_prompt(prompt: str) -> str:
    """Text cleaning as in Wan's training: repaired Unicode (if ftfy is installed), HTML entities,
    single spaces. umT5's tokenizer itself only joins spaces, it does not normalise letters.
    """
    with suppress(ImportError):
        prompt = importlib.import_module("ftfy").fix_text(prompt)
    return re.sub(r"\s+", " ", html.unescape(html.unescape(prompt))).strip()


def load_text_encoder(
    path: Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.bfloat16
) -> UMT5Encoder:
    """Load a umT5 encoder from ComfyUI's file (`umt5_xxl_*.safetensors`) or Wan's
    (`models_t5_umt5-xxl-enc-bf16.pth`).

    The dimensions are inferred from the tensors. The tokenizer is read from the file, or else from
    `spiece.model` in the same folder, its subfolder `google/umt5-xxl/`, or diffusers' `tokenizer`.
    Raises HeadForcingError for missing packages or unusable files.
    """
    transformers = import_optional("transformers")
    sentencepiece = import_optional("sentencepiece")
    weights, scales, tokenizer_model = _read_umt5(path)
    tokenizer = _load_tokenizer(path, tokenizer_model, sentencepiece)
    config = transformers.UMT5Config(**sizes_of(weights, path), feed_forward_proj="gated-gelu")
    if tokenizer.get_piece_size() > config.vocab_size:
        raise HeadForcingError(
            f"The tokenizer of {path.name} has {tokenizer.get_piece_size()} tokens but the encoder "
            f"only {config.vocab_size}: they do not belong together, use the spiece.model of "
            "google/umt5-xxl."
        )
    with torch.device("meta"):
        model = transformers.UMT5EncoderModel(config)
    expected = model.state_dict()
    del expected["encoder.embed_tokens.weight"]  # the same as `shared.weight`
    for name in sorted(expected):
        stored = tensor_of(
            weights, name, expected[name].shape, f"{path.name} is not a umT5 encoder"
        )
        # each tensor is freed after its conversion, so that stored and converted weights never
        # exist together
        del weights[name]
        _put(model, name.removesuffix(".weight"), stored.to(device), dtype, scales)
    model.set_input_embeddings(model.shared)
    if scales:
        raise HeadForcingError(
            f"{path.name} has a scale for {min(scales)}, which is not a matrix stored in fp8."
        )
    return UMT5Encoder(model.eval().requires_grad_(False), tokenizer)


def _put(model: Any, layer: str, stored: Tensor, dtype: torch.dtype, scales: Weights) -> None:
    """Put a layer's weight into the model, and its scale, which is taken out of `scales`."""
    stays = _stays(layer, stored, dtype)
    if stays and layer != "shared":
        model.set_submodule(layer, StoredLinear(stored, scales.pop(layer, None)))
        return
    if stays:
        # of a mapped file the system reads the pages of the rows that are used; a converted copy
        # would be a second
        model.shared.register_forward_hook(lambda module, inputs, rows: rows.to(dtype))
    else:
        stored = stored.to(dtype)
    model.load_state_dict({f"{layer}.weight": stored}, strict=False, assign=True)


class StoredLinear(nn.Module):
    """A linear layer whose weight stays in the dtype of its file, `[out, in]`; computes in that of
    its input.

    The product is multiplied in float32 by the scale of fp8 weights, one number or one per output.
    """

    weight = None  # transformers would convert activations to the dtype of a weight

    def __init__(self, stored: Tensor, scale: Tensor | None):
        super().__init__()
        self.stored = nn.Parameter(stored, requires_grad=False)
        if scale is not None:
            scale = scale.to(stored.device, torch.float32).expand(len(stored))
        self.scale = scale

    def forward(self, x: Tensor) -> Tensor:
        product = F.linear(x, self.stored.to(x.dtype))
        return product if self.scale is None else (product * self.scale).to(x.dtype)


def encoder_bytes(path: Path) -> int:
    """Estimated memory in bytes of encoding a prompt in bf16 with the umT5 encoder of a file, by
    the shapes in it.
    """
    dtype = torch.bfloat16
    weights = _read_umt5(path)[0]
    sizes = sizes_of(weights, path)
    total = 0
    for name, tensor in weights.items():
        stays = _stays(name.removesuffix(".weight"), tensor, dtype)
        total += tensor.numel() * (tensor.dtype if stays else dtype).itemsize
    heads = sizes["num_heads"]
    widest = sizes["d_model"] * max(sizes["d_ff"], heads * sizes["d_kv"]) * dtype.itemsize
    score_bytes = 3 * torch.float32.itemsize + 2 * dtype.itemsize
    return total + widest + heads * MAX_TOKENS**2 * score_bytes


def _stays(layer: str, stored: Tensor, dtype: torch.dtype) -> bool:
    """Whether a layer's matrix is kept as it is stored; position biases are small, and transformers
    reads them.

    A table of words in fp8 is not: PyTorch cannot read its rows everywhere, and transformers' mask
    takes its dtype.
    """
    size = stored.dtype.itemsize
    is_matrix = stored.ndim == 2 and not layer.endswith("attention_bias")
    is_fp8_table = layer == "shared" and size == 1
    return is_matrix and not is_fp8_table and stored.dtype != dtype and size <= dtype.itemsize


def _read_umt5(path: Path) -> tuple[Weights, Weights, Tensor | None]:
    """The mapped weights of a umT5 encoder under transformers' names, scales of fp8 by layer,
    sentencepiece model.

    Raises HeadForcingError for other files.
    """
    tensors = read_tensors(path)
    tokenizer = tensors.pop("spiece_model", None)
    if "shared.weight" not in tensors and "token_embedding.weight" not in tensors:
        raise HeadForcingError(
            f"{path.name} is not a umT5 encoder: expected a tensor shared.weight (ComfyUI's file) "
            "or token_embedding.weight (Wan's file), found "
            f"{', '.join(sorted(tensors)[:3]) or 'no tensors'}."
        )
    weights: Weights = {}
    scales: Weights = {}
    for name, tensor in tensors.items():
        for wan, transformers in _WAN_NAMES:
            name = re.sub(wan, transformers, name)
        layer, _, kind = name.rpartition(".")
        if kind in _SCALES:
            scales[layer] = tensor.flatten()
        elif kind == "weight" and name.startswith(("shared.", "encoder.")):
            weights[name] = tensor
    for layer, scale in scales.items():
        rows = len(weights.get(f"{layer}.weight", ()))
        if scale.numel() not in (1, rows) or not all_finite(scale):
            raise HeadForcingError(
                f"{path.name} is damaged: the scale of {layer} does not belong to its weight."
            )
    return weights, scales, tokenizer


def sizes_of(weights: Weights, path: Path) -> dict[str, int]:
    """Sizes in transformers' `UMT5Config`, inferred from the shapes of weights with its names."""
    first = "encoder.block.0.layer."
    layers = len([name for name in weights if _LAYER.fullmatch(name)])
    try:
        vocab_size, d_model = weights["shared.weight"].shape
        buckets, heads = weights[f"{first}0.SelfAttention.relative_attention_bias.weight"].shape
        d_kv = len(weights[f"{first}0.SelfAttention.q.weight"]) // heads
        d_ff = len(weights[f"{first}1.DenseReluDense.wi_0.weight"])
    except (LookupError, ValueError, ZeroDivisionError) as error:
        raise HeadForcingError(
            f"{path.name} is not a umT5 encoder: its first layer lacks tensors, or they have "
            "another shape"
        ) from error
    return {
        "vocab_size": vocab_size,
        "d_model": d_model,
        "d_kv": d_kv,
        "d_ff": d_ff,
        "num_layers": layers,
        "num_heads": heads,
        "relative_attention_num_buckets": buckets,
    }


def _load_tokenizer(path: Path, embedded: Tensor | None, sentencepiece: ModuleType) -> Any:
    folder = path if path.is_dir() else path.parent
    places = ("", "google/umt5-xxl", "../tokenizer")  # the last beside diffusers' text_encoder
    beside = [folder / place / "spiece.model" for place in places]
    file = next((str(place) for place in beside if place.is_file()), None)
    if embedded is None and file is None:
        raise HeadForcingError(
            f"{path.name} contains no tokenizer; put spiece.model of google/umt5-xxl beside it, at "
            f"{beside[0]} or {beside[1]}."
        )
    try:
        if embedded is None:
            return sentencepiece.SentencePieceProcessor(model_file=file)
        return sentencepiece.SentencePieceProcessor(model_proto=embedded.numpy().tobytes())
    except (OSError, RuntimeError) as error:
        raise HeadForcingError(
            f"The tokenizer of {path.name} is not a sentencepiece model ({error})."
        ) from error


class PromptEmbeddings(dict[str, Tensor]):
    """Precomputed embeddings `[tokens, text_dim]` by exact prompt; HeadForcingError for others
    lists these.
    """

    def __missing__(self, prompt: str) -> Tensor:
        available = "; ".join(repr(text) for text in self) or "nothing"
        raise HeadForcingError(
            f"There is no embedding for the prompt {prompt!r}; the file has: {available}."
        )


def save_embeddings(path: Path, embeddings: Weights) -> None:
    """Write `{prompt: [tokens, text_dim]}` as tensors `prompt_0`, ..., with the prompts as JSON in
    the metadata.
    """
    tensors = {
        f"prompt_{number}": rows.detach().cpu().clone().contiguous()
        for number, rows in enumerate(embeddings.values())
    }
    metadata = {
        "format": _EMBEDDINGS_FORMAT,
        "prompts": json.dumps(list(embeddings), ensure_ascii=False),
    }
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors, metadata))


def load_embeddings(path: Path) -> PromptEmbeddings:
    """Read a file written by `save_embeddings`. Raises HeadForcingError for any other file and for
    NaN and infinity.
    """
    try:
        tensors, metadata = read_weights(path)
        prompts = json.loads(metadata["prompts"])
        if not isinstance(prompts, list) or not all(isinstance(text, str) for text in prompts):
            raise HeadForcingError("its prompts are not a list of texts")
        embeddings = PromptEmbeddings()
        for number, text in enumerate(prompts):
            embeddings[text] = _checked_rows(tensors.get(f"prompt_{number}"), number)
        return embeddings
    except (KeyError, ValueError, RecursionError) as error:
        raise HeadForcingError(
            f"{path} is not a prompt embeddings file ({error}); write one with `headforcing "
            "encode`."
        ) from error


def _checked_rows(rows: Any, number: int) -> Tensor:
    """A copy of a stored embedding; HeadForcingError unless it is `[tokens, text_dim]` of finite
    numbers.
    """
    usable = isinstance(rows, Tensor) and rows.ndim == 2 and rows.numel() > 0
    if not usable or rows.dtype not in WRITABLE or not all_finite(rows):
        raise HeadForcingError(
            f"prompt_{number} must be [tokens, text_dim] of finite numbers in float32, float16 or "
            "bfloat16"
        )
    copy: Tensor = rows.clone()
    return copy

"""umT5-xxl prompt embeddings for the command line, computed or read from a file (ComfyUI has its own encoder).

The encoder needs optional packages (`pip install -e ".[text]"`), imported only when used. Its matrices stay as the file
stores them, fp8 with scales included, and so does a table of words in two bytes. They are widened while they are used.
"""

from __future__ import annotations

import html
import importlib
import json
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import HeadForcingError
from ..files import replacing
from ..versions import import_optional
from .containers import WRITABLE, read_weights
from .umt5_file import read_umt5, sizes_of

MAX_TOKENS = 512
_END = 1  # id of the end-of-sequence token
_EMBEDDINGS_FORMAT = "headforcing-prompt-embeddings-1"


def clean_prompt(prompt: str) -> str:
    """Text cleaning as in Wan's training: repaired Unicode (if ftfy is installed), HTML entities, single spaces."""
    with suppress(ImportError):
        prompt = importlib.import_module("ftfy").fix_text(prompt)
    return re.sub(r"\s+", " ", html.unescape(html.unescape(prompt))).strip()


class UMT5Encoder:
    """A umT5 encoder and its sentencepiece tokenizer."""

    def __init__(self, model: Any, tokenizer: Any):
        self.model = model
        self.tokenizer = tokenizer

    def tokens(self, prompt: str) -> list[int]:
        """Token ids of the cleaned prompt with the end token, at most 512."""
        return self.tokenizer.encode(clean_prompt(prompt))[: MAX_TOKENS - 1] + [_END]

    @torch.no_grad()
    def encode(self, prompts: list[str]) -> list[Tensor]:
        """One `[tokens, text_dim]` per prompt, each encoded alone: independent of padding and of the batch."""
        device = self.model.get_input_embeddings().weight.device
        return [
            self.model(input_ids=torch.tensor([self.tokens(prompt)], device=device)).last_hidden_state[0]
            for prompt in prompts
        ]


def load_text_encoder(
    path: str | Path, device: str | torch.device = "cpu", dtype: torch.dtype = torch.bfloat16
) -> UMT5Encoder:
    """Load a umT5 encoder from ComfyUI's file (`umt5_xxl_*.safetensors`) or Wan's (`models_t5_umt5-xxl-enc-bf16.pth`).

    The dimensions are inferred from the tensors. The tokenizer is read from the file, or else from `spiece.model` in
    the same folder or its subfolder `google/umt5-xxl/`. Raises HeadForcingError for missing packages or unusable files.
    """
    transformers = import_optional("transformers", "text encoders", "text")
    sentencepiece = import_optional("sentencepiece", "text encoders", "text")
    path = Path(path)
    weights, scales, tokenizer_model = read_umt5(path)
    tokenizer = _load_tokenizer(path, tokenizer_model, sentencepiece)
    config = transformers.UMT5Config(**sizes_of(weights, path))
    if tokenizer.get_piece_size() > config.vocab_size:
        raise HeadForcingError(
            f"The tokenizer of {path.name} has {tokenizer.get_piece_size()} tokens but the encoder only "
            f"{config.vocab_size}: they do not belong together, use the spiece.model of google/umt5-xxl."
        )
    with torch.device("meta"):
        model = transformers.UMT5EncoderModel(config)
    expected = set(model.state_dict()) - {"encoder.embed_tokens.weight"}
    if missing := sorted(expected - set(weights)):
        raise HeadForcingError(f"{path.name} is not a complete umT5 encoder: {missing[0]} is missing.")
    # `pop` frees each tensor after its conversion, so that stored and converted weights never exist together
    ready = {name: weights.pop(name) for name in sorted(expected)}
    for name, layer in list(model.named_modules()):
        stored = ready.get(f"{name}.weight")
        if isinstance(layer, nn.Linear) and stored is not None and _stays(name, stored.dtype, dtype):
            if stored.shape != layer.weight.shape:
                raise HeadForcingError(f"{path.name} is not a umT5 encoder: {name} has the shape {list(stored.shape)}.")
            widened = StoredLinear(ready.pop(f"{name}.weight").to(device), scales.pop(name, None), device)
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, widened)
    if scales:
        raise HeadForcingError(f"{path.name} has a scale for {sorted(scales)[0]}, which is not stored in fp8.")
    words = model.shared
    if _stays("shared", ready["shared.weight"].dtype, dtype):
        words = StoredEmbedding(ready.pop("shared.weight").to(device), dtype)
    model.set_input_embeddings(words)
    try:
        model.load_state_dict({k: ready.pop(k).to(device, dtype) for k in sorted(ready)}, strict=False, assign=True)
    except RuntimeError as error:
        raise HeadForcingError(f"{path.name} is not a umT5 encoder: {error}") from error
    return UMT5Encoder(model.eval().requires_grad_(False), tokenizer)


class StoredEmbedding(nn.Embedding):
    """A table of words that stays in the dtype of its file, `[words, dim]`; only rows that are read are widened.

    Of a mapped file the system reads the pages of these rows alone; a widened copy would hold the table twice.
    """

    def __init__(self, stored: Tensor, dtype: torch.dtype):
        words, dim = stored.shape
        super().__init__(words, dim, _weight=stored, _freeze=True)
        self.dtype = dtype

    def forward(self, input: Tensor) -> Tensor:
        return self.weight[input].to(self.dtype)


class StoredLinear(nn.Module):
    """A linear layer whose weight stays in the dtype of its file, `[out, in]`; computes in that of its input.

    The product is multiplied in float32 by the scale of fp8 weights, one number or one per output.
    """

    weight = None  # transformers would convert activations to the dtype of a weight

    def __init__(self, stored: Tensor, scale: Tensor | None, device: str | torch.device):
        super().__init__()
        self.stored = nn.Parameter(stored, requires_grad=False)
        self.scale = None if scale is None else scale.to(device, torch.float32).flatten()

    def forward(self, x: Tensor) -> Tensor:
        product = F.linear(x, self.stored.to(x.dtype))
        return product if self.scale is None else (product * self.scale).to(x.dtype)


def encoder_bytes(path: str | Path, dtype: torch.dtype = torch.bfloat16) -> int:
    """Estimated memory in bytes of encoding a prompt with the umT5 encoder of a file, by the shapes in it."""
    path = Path(path)
    return weights_bytes(read_umt5(path)[0], dtype, path)


def weights_bytes(weights: Mapping[str, Tensor], dtype: torch.dtype, path: Path = Path("umt5-xxl")) -> int:
    """`encoder_bytes` of weights with transformers' names, on any device."""
    sizes, total = sizes_of(weights, path), 0
    for name, tensor in weights.items():
        kept = tensor.ndim == 2 and _stays(name.removesuffix(".weight"), tensor.dtype, dtype)
        total += tensor.numel() * (tensor.dtype if kept else dtype).itemsize
    widest = sizes["d_model"] * max(sizes["d_ff"], sizes["num_heads"] * sizes["d_kv"]) * dtype.itemsize
    scores = sizes["num_heads"] * MAX_TOKENS**2 * (3 * torch.float32.itemsize + 2 * dtype.itemsize)
    return total + widest + scores


def _stays(layer: str, stored: torch.dtype, dtype: torch.dtype) -> bool:
    """Whether a layer's matrix is kept as it is stored; position biases are small, and transformers reads them.

    A table of words in fp8 is not: older PyTorch cannot read rows of it, and older transformers compute the attention
    mask in the dtype of the encoder's first weight, which is the table.
    """
    if layer == "shared" and stored.itemsize == 1:
        return False
    return stored != dtype and stored.itemsize <= dtype.itemsize and not layer.endswith("attention_bias")


class PromptEmbeddings(dict[str, Tensor]):
    """Precomputed embeddings `[tokens, text_dim]` by exact prompt; with the same `encode` as a text encoder.

    Other prompts raise HeadForcingError, which lists the available ones.
    """

    def __missing__(self, prompt: str) -> Tensor:
        available = "; ".join(repr(text) for text in self) or "nothing"
        raise HeadForcingError(f"There is no embedding for the prompt {prompt!r}; the file has: {available}.")

    def encode(self, prompts: list[str]) -> list[Tensor]:
        return [self[prompt] for prompt in prompts]


def save_embeddings(path: str | Path, embeddings: Mapping[str, Tensor]) -> None:
    """Write embeddings `{prompt: [tokens, text_dim]}` to a safetensors file.

    The tensors are named `prompt_0`, `prompt_1`, ...; the prompts are JSON in the metadata.
    """
    for prompt, rows in embeddings.items():
        if rows.ndim != 2:
            raise HeadForcingError(f"The embedding of {prompt!r} must be [tokens, text_dim], got {list(rows.shape)}.")
    tensors = {f"prompt_{i}": rows.detach().cpu().clone().contiguous() for i, rows in enumerate(embeddings.values())}
    metadata = {"format": _EMBEDDINGS_FORMAT, "prompts": json.dumps(list(embeddings), ensure_ascii=False)}
    with replacing(path) as temporary:
        temporary.write_bytes(save(tensors, metadata))


def load_embeddings(path: str | Path) -> PromptEmbeddings:
    """Read a file written by `save_embeddings`. Raises HeadForcingError for any other file and for NaN and infinity."""
    path = Path(path)
    try:
        _, tensors, metadata = read_weights(path)
        prompts = json.loads(metadata["prompts"])
        if not isinstance(prompts, list) or not all(isinstance(text, str) for text in prompts):
            raise HeadForcingError("its prompts are not a list of texts")
        return PromptEmbeddings({text: _checked_rows(tensors.get(f"prompt_{i}"), i) for i, text in enumerate(prompts)})
    except (KeyError, ValueError, RecursionError) as error:
        raise HeadForcingError(
            f"{path} is not a prompt embeddings file ({error}); write one with `headforcing encode`."
        ) from error


def _checked_rows(rows: object, number: int) -> Tensor:
    """A copy of a stored embedding; HeadForcingError unless it is `[tokens, text_dim]` of finite numbers."""
    if not isinstance(rows, Tensor):
        raise HeadForcingError(f"prompt_{number} is missing")
    if rows.ndim != 2 or rows.numel() == 0 or rows.dtype not in WRITABLE:
        wanted = "[tokens, text_dim] in float32, float16 or bfloat16"
        raise HeadForcingError(f"prompt_{number} must be {wanted}, got {list(rows.shape)} in {rows.dtype}")
    if not torch.isfinite(rows).all():
        raise HeadForcingError(f"prompt_{number} holds NaN or infinity")
    return rows.clone()


def _load_tokenizer(path: Path, embedded: Tensor | None, sentencepiece: ModuleType) -> Any:
    beside = (path.parent / "spiece.model", path.parent / "google" / "umt5-xxl" / "spiece.model")
    source = next((file for file in beside if file.is_file()), None)
    if embedded is None and source is None:
        raise HeadForcingError(
            f"{path.name} contains no tokenizer; put spiece.model of google/umt5-xxl beside it, at {beside[0]} "
            f"or {beside[1]}."
        )
    try:
        if embedded is not None:
            return sentencepiece.SentencePieceProcessor(model_proto=embedded.numpy().tobytes())
        return sentencepiece.SentencePieceProcessor(model_file=str(source))
    except (OSError, RuntimeError) as error:
        raise HeadForcingError(f"The tokenizer of {path.name} is not a sentencepiece model ({error}).") from error

"""A block made by the authors' model beside one made here: `python tests/benchmarks/authors.py CHECKOUT`.

CHECKOUT is a folder with the authors' code, of Self Forcing or of LongLive v1.0, which the reader provides. Their model
gets the same weights, noise, prompt and noise levels; the loop over noise levels is this pack's for both. On a CPU, in
float32; packages that their files import and do not use here are replaced by empty ones.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from types import ModuleType
from typing import Any

import torch
from headforcing.headforcing_core.cache.policy import PRESETS
from headforcing.headforcing_core.methods.registry import method_policy
from headforcing.headforcing_core.model.attention import attention_function
from headforcing.headforcing_core.rollout.loop import WanVideoModel, make_block
from headforcing.tests.benchmarks.case import PROMPT, SCHEDULE, Case, random_model, warm_up_blocks
from headforcing.tests.benchmarks.environment import environment
from headforcing.tests.benchmarks.stopwatch import Stopwatch, in_turns
from torch import Tensor, nn
from torch.nn import functional as F

# ours, and the window and sinks of theirs, in latent frames with the current block
PAIRS = {"self_forcing_window_21": (21, 0), "longlive": (12, 3)}
CPU = torch.device("cpu")


def authors_network(checkout: Path, case: Case, window: int, sinks: int) -> Any:
    """The authors' causal model with the weights of `random_model`.

    Attention in its two forms is PyTorch's: their own asks for a GPU, or computes in bfloat16.
    """
    for name in ("wan", "wan.modules"):  # as packages without their `__init__`, which import text encoder and VAE
        package = ModuleType(name)
        package.__path__ = [str(checkout.joinpath(*name.split(".")))]
        sys.modules[name] = package
    memory: Any = ModuleType("utils.memory")  # LongLive's asks for a GPU when it is imported
    memory.__getattr__ = lambda name: None
    sys.modules["utils.memory"] = memory
    sys.path.insert(0, str(checkout))
    from wan.modules import causal_model  # type: ignore[import-not-found]
    from wan.modules import model as blocks

    causal_model.attention = blocks.flash_attention = _attention
    config = case.config
    sizes = {name: vars(config)[name] for name in ("dim", "ffn_dim", "num_heads", "num_layers")}
    network = causal_model.CausalWanModel(**sizes, local_attn_size=window, sink_size=sinks)
    ours = random_model(config, torch.float32, CPU, case.seed).backbone
    network.load_state_dict(
        {name: weight.view_as(network.get_parameter(name)) for name, weight in ours.named_parameters()}
    )
    return network.eval().requires_grad_(False)


def _attention(q: Tensor, k: Tensor, v: Tensor, **unused: Any) -> Tensor:
    """`[1, tokens, heads, d]` each."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2)


class Stored(nn.Module):
    """A module that answers every call with its first answer: both compute the text's embedding once for a prompt."""

    def __init__(self, module: nn.Module):
        super().__init__()
        self._module, self._answer = module, None

    def forward(self, x: Tensor) -> Tensor:
        if self._answer is None:
            self._answer = self._module(x)
        return self._answer


class AuthorsCache:
    """The KV cache of the authors' model as a `BlockCache`: a window of `window` latent frames a layer."""

    device, reads_queries = CPU, True

    def __init__(self, case: Case, window: int):
        self._block_tokens, self.block = SCHEDULE.frames_per_block * case.frame_tokens, 0
        heads = case.config.num_heads
        room = (1, window * case.frame_tokens, heads, case.dim // heads)
        self.layers = [
            {"k": torch.zeros(room), "v": torch.zeros(room)}
            | {name: torch.zeros(1, dtype=torch.long) for name in ("global_end_index", "local_end_index")}
            for _ in range(case.layers)
        ]
        self.text: list[dict[str, Any]] = [{"is_init": False} for _ in range(case.layers)]

    @property
    def start(self) -> int:
        """The first token of the block."""
        return self.block * self._block_tokens

    def begin_block(self) -> None: ...

    def commit(self, prompt: Any) -> None:
        self.block += 1


def authors_model(network: Any, text: Tensor) -> WanVideoModel:
    """The authors' model as a `VideoModel`, for the prompt with the embedding `text [tokens, text_dim]`."""
    network.text_embedding = Stored(network.text_embedding)

    def forward(network: Any, x: Tensor, timesteps: Tensor, prompt: Any, cache: Any, write_only: bool) -> Tensor:
        flow = network(
            x.transpose(0, 1)[None],
            t=timesteps[None],
            context=[text],
            seq_len=x.shape[0] * x.shape[2] * x.shape[3] // 4,  # tokens, 2x2 latents each
            kv_cache=cache.layers,
            crossattn_cache=cache.text,
            current_start=cache.start,
        )
        return flow[0].transpose(0, 1)

    model = WanVideoModel(network, torch.float32, forward=forward)
    model.prompt = text  # type: ignore[assignment]
    return model


class WholePasses(WanVideoModel):
    """This pack's model without its shortcut through the last layer of a clean pass, which is most of a model with few
    layers."""

    def write_clean(self, latents: Tensor, cache: Any) -> None:
        self.flow(latents, 0.0, cache)


def our_cache(method: str, case: Case, blocks: int) -> Any:
    """The cache of a method for a video of so many blocks."""
    policy = method_policy(method)
    frames = SCHEDULE.frames_per_block
    sizes = (case.height // 8, case.width // 8, frames, blocks * frames)
    shape = policy.shape(case.config, case.roles, *sizes)
    return policy.make_cache(shape, torch.float32, CPU, attention_function("auto", CPU))


@torch.no_grad()
def measure(checkout: Path, method: str, case: Case) -> dict[str, Any]:
    """Seconds a block of the authors' code, of `method` and of Head Forcing, when all caches are full."""
    window, sinks = PAIRS[method]
    full = -(-window // SCHEDULE.frames_per_block)
    first = {"authors": full, method: full, "head_forcing": warm_up_blocks(PRESETS["head_forcing"])}
    blocks = max(first.values()) + case.timed_blocks
    text = case.embeds[PROMPT]
    theirs = authors_model(authors_network(checkout, case, window, sinks), text)
    ours = WholePasses(random_model(case.config, torch.float32, CPU, case.seed).backbone, torch.float32)
    ours.use_prompt(text)
    caches = {"authors": AuthorsCache(case, window), method: our_cache(method, case, blocks)}
    caches["head_forcing"] = our_cache("head_forcing", case, blocks)
    row, noise = case.script(1).rows[0], case.noise()

    def make(name: str, block: int) -> Tensor:
        return make_block(theirs if name == "authors" else ours, caches[name], row, noise, block)[0]

    for name, untimed in first.items():
        for block in range(untimed):
            make(name, block)
    timed, apart = [], []
    for index in range(case.timed_blocks):
        calls = {name: partial(make, name, first[name] + index) for name in caches}
        seconds, made = in_turns(CPU, calls, index)
        timed.append(seconds)
        apart.append(float((made[method] - made["authors"]).norm() / made["authors"].norm()))
    return {
        "seconds_per_block": {name: [seconds[name] for seconds in timed] for name in caches},
        "of_the_authors_time": {
            name: median(seconds[name] / seconds["authors"] for seconds in timed) for name in (method, "head_forcing")
        },
        "difference_of_latents": apart,  # relative to their size
    }


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    """Measure and write the result to the file of `--out`, if one is given."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path, help="folder with the authors' code: `wan/modules/causal_model.py`")
    parser.add_argument("--method", choices=PAIRS, default="self_forcing_window_21", help="whose code it is")
    parser.add_argument("--size", default="128x96", help="WIDTHxHEIGHT in pixels (128x96)")
    parser.add_argument("--layers", type=int, default=1, help="of 30 in the 1.3B model (1)")
    parser.add_argument("--dim", type=int, default=1536, help="width; 1536 in the 1.3B model (1536)")
    parser.add_argument("--blocks", type=int, default=6, help="timed blocks, with full caches (6)")
    parser.add_argument("--out", type=Path, help="JSON file")
    args = parser.parse_args(arguments)
    if not (args.checkout / "wan" / "modules" / "causal_model.py").is_file():
        parser.error(f"{args.checkout} has no wan/modules/causal_model.py; give a checkout of Self Forcing or LongLive")
    torch.set_num_threads(1)
    Stopwatch.clock = time.process_time
    width, height = map(int, args.size.split("x"))
    case = Case(width, height, args.layers, args.dim, torch.float32, CPU, args.blocks, vae_dim=0)
    found = {
        "environment": environment(CPU, torch.float32),
        "case": case.describe() | {"method": args.method},
        **measure(args.checkout.resolve(), args.method, case),
    }
    if args.out is not None:
        args.out.write_text(json.dumps(found, indent=1) + "\n")
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps(main(), indent=1) + "\n")

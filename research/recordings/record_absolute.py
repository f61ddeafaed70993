"""Record a run of Head Forcing with absolute positions in which episodic memory merges entries.

No recording of others has one, so this is the repository's own reference cache
(`reference_cache.py`) in float64: agreement with it says that caches and kernels do what the
reference does, not that the reference is right. Noise and prompts are those of
`head_forcing_tiny_d32`, the noise a corner of it. `make_subset.py` calls this.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ...headforcing_core.cache.shape import CacheShape
from ...headforcing_core.model.wan import WanModel
from ...headforcing_core.rollout.loop import RolloutInputs, WanVideoModel, rollout
from ...headforcing_core.rollout.rows import Script, lay_out_rows
from ...headforcing_core.weights.checkpoint import load_state_dict
from .reference_cache import ReferenceCache
from .replay import Case, read_run

SOURCE = "head_forcing_tiny_d32"
NAME = "head_forcing_absolute"
RUN = "absolute_with_merges"
TENSORS = "golden.safetensors"
# the first merge comes after block 4, so that the last two blocks attend to merged entries
FRAMES = 21
ROWS = 4
COLUMNS = 4
SETTINGS = {
    "frames": FRAMES,
    "rope": "absolute",
    "episodic_frames": 3,
    "prompt_schedule": [{"block": 0, "prompt": 0}, {"block": 3, "prompt": 1}],
}


def record_absolute(source: Path, target: Path) -> None:
    """Write the case to `target / NAME`, from the noise, prompts and weights of the cases in
    `source`.
    """
    given = Case.open(source / SOURCE)
    f = given.config["frames_per_block"]
    tensors = {
        key: tensor for key, tensor in given.tensors.items() if key.startswith("prompt_embeds_")
    }
    tensors["noise"] = given.tensors["noise"][:FRAMES, :, :ROWS, :COLUMNS]
    tensors["renoise"] = given.tensors["renoise"][: FRAMES // f, ..., :ROWS, :COLUMNS]
    config = {
        **given.config,
        "source": "the reference cache of this repository, in float64",
        "runs": {RUN: {**given.run("overflow"), **SETTINGS}},
    }
    latents, events, sources = reference_run(Case(source / SOURCE, config, tensors))
    config["runs"][RUN] |= {"memory_events": events, "final_episodic_sources": sources}
    tensors[f"latents/{RUN}"] = latents
    write_case(target / NAME, tensors, config)


def write_case(folder: Path, tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, folder / TENSORS)
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")


@torch.no_grad()
def reference_run(case: Case) -> tuple[Tensor, list[dict[str, Any]], list[list[int]]]:
    """The latents float32 of the case's run, the memory events, and the entries' source frames at
    the end.
    """
    run = read_run(case, RUN)
    config = case.dimensions
    weights, _ = load_state_dict(case.folder / case.config["weights"], num_heads=config.num_heads)
    model = WanVideoModel(WanModel.from_state_dict(config, weights, torch.float64), torch.float64)
    shape = run.method.shape(
        config, run.roles, ROWS, COLUMNS, run.schedule.frames_per_block, FRAMES
    )
    assert isinstance(shape, CacheShape)  # that of the paper's method
    cache = ReferenceCache(shape, torch.float64, "cpu")
    prompts = [str(prompt) for prompt in run.prompts]
    embeds = {str(number): embedding for number, embedding in enumerate(run.embeds)}
    script = Script(lay_out_rows(prompts, run.schedule), embeds)
    blocks = list(rollout(model, cache, RolloutInputs(script, run.noise)))
    events = [block.event.to_dict() for block in blocks if block.event]
    return torch.cat([block.latents for block in blocks]), events, cache.memory.sources

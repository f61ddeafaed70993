"""Short videos of every method, compared with recorded ones: one number per block of each; and the
page of them.

The recorded cases of `tests/golden` show that the methods are those of their authors; these show in
seconds that they still are. `python tasks.py test --record tests/engine/test_method_rules.py`
records them anew, once `tests/golden` has passed.
"""

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.demo import word_hash
from headforcing.headforcing_core.methods.base import MethodCache
from headforcing.headforcing_core.methods.head_forcing import PRESETS
from headforcing.headforcing_core.methods.registry import (
    ALIASES,
    METHODS,
    describe_method,
    method_named,
    method_names,
)
from headforcing.headforcing_core.model.latents import WAN22
from headforcing.headforcing_core.model.wan import WanConfig
from headforcing.headforcing_core.plan.options import RenderOptions
from headforcing.headforcing_core.plan.plan import RenderPlan
from headforcing.headforcing_core.render.render import begin_render
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from method_renders import PROFILE, family_for, job_of
from policies import with_memory
from small_engine import wan

pytestmark = pytest.mark.usefixtures("shots")

RECORDED = Path(__file__).with_suffix(".json")
SECONDS = 10.0  # 14 blocks: longer than every window
STORY = "0:00 a red ball\n0:06 {}a yellow ring"  # the second prompt in block 8
RECALL = "0:00 a red ball\n0:03 a yellow ring\n0:06 [recall 1] the ball again"
# have a cache of roles
ELSEWHERE = ("head_forcing", "self_forcing", "self_forcing_sink", "causal_forcing")
CASES = {  # method, its settings, text
    **{
        name: (name, {}, STORY.format("")) for name in (*METHODS, *ALIASES) if name not in ELSEWHERE
    },
    "head_forcing, recache": ("head_forcing", {}, STORY.format("[recache] ")),
    "head_forcing, recall": ("head_forcing", {}, RECALL),
    "echo_forcing, recall": ("echo_forcing", {}, RECALL),
    "echo_forcing, one use": ("echo_forcing", {"max_reuse": 1}, "a red ball"),
    "deep_forcing, one compression": ("deep_forcing", {"max_reuse": 1}, "a red ball"),
    "infinity_rope, cut": ("infinity_rope", {}, STORY.format("[re-anchor] ")),
    "infinity_rope, flush": (
        "infinity_rope",
        {"window_frames": 12},
        "0:00 a red ball\n0:03 a yellow ring",
    ),
    "infinity_rope, window of no whole blocks": (
        "infinity_rope",
        {"window_frames": 8},
        "a red ball",
    ),
    "forcing_kv, switch before the split": (
        "forcing_kv",
        {},
        "0:00 a red ball\n0:00.6 a yellow ring",
    ),
    "longlive, clean_reads": ("longlive", {"clean_reads": "recent"}, STORY.format("")),
    "self_gradient_forcing, clean_reads": (
        "self_gradient_forcing",
        {"clean_reads": "recent"},
        STORY.format(""),
    ),
    "memflow, switch in an interval": ("memflow", {}, "0:00 a red ball\n0:05 a yellow ring"),
    "memflow, small bank": ("memflow", {"bank_frames": 2, "interval": 2}, STORY.format("")),
}
SHOTS = "0:00 a red ball\n0:03 [re-anchor] a yellow ring\n0:06 a red ring"
CASES_22 = {  # with a model of 48 latent channels, blocks of 8, UniPC
    **{
        f"{name} on Wan 2.2, shots": (name, {}, SHOTS)
        for name in ("longlive2", "head_forcing", "uniform_memory")
    },
    "longlive2 on Wan 2.2, infinite": ("longlive2", {"infinite": True}, SHOTS),
    "longlive2 on Wan 2.2, drops_old_shots": ("longlive2", {"drops_old_shots": True}, SHOTS),
}


@pytest.fixture(scope="module")
def backbones():
    words = {"text_dim": word_hash.TEXT_DIM, "text_len": word_hash.TEXT_LEN}
    return wan(3, 3, **words), wan(3, 3, in_dim=WAN22.channels, out_dim=WAN22.channels, **words)


def bytes_held(value, seen: set[int]) -> int:
    """Of all tensors of floating point that an object holds, views of one storage counted once."""
    if isinstance(value, torch.Tensor):
        storage = value.untyped_storage()
        known = storage.data_ptr() in seen or not value.is_floating_point()
        seen.add(storage.data_ptr())
        return 0 if known else storage.nbytes()
    if isinstance(value, dict):
        value = list(value.values())
    if hasattr(value, "__dict__") and type(value).__module__.startswith(
        "headforcing.headforcing_core.methods"
    ):
        value = [
            held
            for name, held in vars(value).items()
            if name not in ("rope", "prompt", "shape", "method")
        ]
    return sum(bytes_held(part, seen) for part in value) if isinstance(value, (list, tuple)) else 0


def numbers(backbone, name: str, settings: dict, text: str) -> list[float]:
    """The dot product of every block's latents with a fixed random direction; no cache may take
    more than it says.
    """
    method = replace(method_named(name), **settings)
    method = with_memory(method, 4, 3, 0.99, 1) if name == "head_forcing" else method
    timeline = parse_timeline(text, SECONDS)
    is_22 = backbone.config.latents is WAN22
    family = "longlive2" if is_22 else family_for(method)
    options = RenderOptions(
        given_method=method,
        width=64,
        height=64 if is_22 else 48,
        seed=3,
        profile=PROFILE,
        model_family=family,
        sigmas="" if is_22 else "1, 0.6",
    )
    plan = RenderPlan.of(backbone.config, options, timeline)
    made = []
    held = []
    with begin_render(job_of(plan), WanVideoModel(backbone, torch.float32)) as render:
        for block in render.blocks():
            made.append(block.latents.flatten())
            if isinstance(cache := render.run.cache, MethodCache):
                assert bytes_held(cache, set()) <= cache.bytes <= plan.cache_bytes(torch.float32)
                held.append(cache.occupied)
    assert not held or 0 < held[0] < max(held) <= plan.shape.frame_slots, (
        "of the frames that are there"
    )
    direction = torch.randn(len(made[0]), generator=torch.Generator().manual_seed(1))
    return (torch.stack(made) @ direction / direction.norm()).tolist()


@pytest.mark.slow
@pytest.mark.parametrize("case", [*CASES, *CASES_22])
def test_a_method_makes_the_recorded_video(backbones, case):
    found = numbers(backbones[case in CASES_22], *(CASES | CASES_22)[case])
    recorded = json.loads(RECORDED.read_text()) if RECORDED.exists() else {}
    if os.environ.get("RECORD"):
        recorded[case] = [round(number, 5) for number in found]
        lines = (f" {json.dumps(name)}: {json.dumps(recorded[name])}" for name in sorted(recorded))
        RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    assert case in recorded, (
        "not recorded; review the method, then run python tasks.py test --record "
        f"tests/engine/test_method_rules.py -k {case.split(',')[0]}"
    )
    assert found == pytest.approx(recorded[case], abs=2e-4)


def test_every_name_is_offered_once_and_the_page_of_methods_has_every_method_with_its_weights_and_its_size(
    repo_root,
):
    names = method_names()
    assert (
        len(set(names)) == len(names)
        and names[: len(PRESETS)] == list(PRESETS)
        and {*METHODS, *ALIASES} <= set(names)
    )
    page = (repo_root / "docs" / "methods.md").read_text("utf-8")
    rows = []
    for name, row in METHODS.items():
        minute = parse_timeline("a minute", 60.0)
        options = RenderOptions(given_method=row.method, model_family=family_for(row.method))
        made = RenderPlan.of(WanConfig(), options, minute)
        differs = row.differs or (
            "made from the paper alone" if name == "head_forcing" else "nothing"
        )
        paper = f"[{row.arxiv}](https://arxiv.org/abs/{row.arxiv})" if row.arxiv else row.paper
        rows.append(
            f"| {name} | {paper} | {row.weights} | {made.shape.frame_slots:,} | {differs} |"
        )
        (text,) = describe_method(name)
        assert row.paper in text and row.arxiv in text and row.weights in text
        assert ("were trained for this method" in text) == row.trained
    table = page.partition("## Table of methods")[2].partition("\n## ")[0]
    written = [line for line in table.splitlines() if line.startswith("| ")][2:]  # without its head
    missing = "\n".join(row for row in rows if row not in written)
    assert written == rows, f"rows in the order of METHODS; missing:\n{missing}"

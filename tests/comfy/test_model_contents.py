"""What other nodes put on a MODEL, in a real ComfyUI: each node that gives one, with stored blocks
and without.

A render with *resume* gives the latents of the same render without it, whichever model was rendered
before.
"""

import itertools
import sys
from typing import Any

import pytest
import torch
from comfy_graphs import (
    Graph,
    changed,
    demo_graph,
    failed,
    node,
    queued,
    saved_latents,
    short_graph,
    text_of,
)
from comfy_harness import ComfyServer
from headforcing.headforcing_core.demo import assets
from tiny_checkpoints import wan_lora

LORA = "hf_demo_lora.safetensors"
STRENGTHS = [{"strength_model": 1.0}, {"strength_model": 0.5}]
# Values at which a node does something; two of them, where the node has a strength. Others run with
# their defaults.
VALUES: dict[str, list[dict[str, Any]]] = {
    "APG": [{"eta": 0.5, "norm_threshold": 0.1}, {"eta": 0.5, "norm_threshold": 0.2}],
    "Epsilon Scaling": [{"scaling_factor": 1.2}, {"scaling_factor": 0.9}],
    "LoraLoader": STRENGTHS,
    "LoraLoaderBypass": STRENGTHS,
    "LoraLoaderBypassModelOnly": STRENGTHS,
    "LoraLoaderModelOnly": STRENGTHS,
    "ModelComputeDtype": [{"dtype": "bf16"}, {"dtype": "fp32"}],
    "ModelNoiseScale": [{"noise_scale": 7.5}],
    "ModelSamplingDiscrete": [{"sampling": "lcm"}, {"sampling": "eps"}],
    "ModelSamplingSD3": [{"shift": 8.0}, {"shift": 3.0}],
    "RescaleCFG": [{"multiplier": 0.7}, {"multiplier": 0.2}],
    "ScaleROPE": [{"scale_t": 2.0}, {"shift_t": 3.0}],
    "TemporalScoreRescaling": [{"tsr_k": 0.5}, {"tsr_k": 0.8}],
    "TestModelPatch": [
        {"kind": "apply_model", "factor": 1.05},
        {"kind": "apply_model", "factor": 0.9},
        {"kind": "model_function_wrapper", "factor": 1.05},
        {"kind": "model_function_wrapper", "factor": 0.9},
        {"kind": "optimized_attention_override", "factor": 1.05},
        {"kind": "optimized_attention_override", "factor": 0.9},
    ],
}
REFUSED = {"PerpNeg", "PerturbedAttentionGuidance"}
NOT_FOR_WAN = {"FreeU", "FreeU_V2", "RenormCFG", "TestOtherModel", "TripoSplatSamplingPreview"}
# nodes whose effect is named in the report: their latents are those without the node
NAMED = {
    "ContextWindowsManual": "context windows",
    "DifferentialDiffusion": "functions of a noise mask (DifferentialDiffusion)",
    "EasyCache": "wrappers of the whole forward pass (easycache)",
    "LazyCache": "wrappers of a sampling step (lazycache)",
    "ModelNoiseScale": "noise levels of the model sampling (noise_scale 7.5)",
    "ModelSamplingSD3": "noise levels of the model sampling (shift 8)",
    "NAGuidance": "patches of attention or blocks (attn1_output_patch)",
    "ScaleROPE": "a scaled or shifted RoPE",
    "TorchCompileModel": "torch.compile",
    "WanContextWindowsManual": "context windows",
}
CHANGING = {
    "Epsilon Scaling",
    "LoraLoader",
    "LoraLoaderBypass",
    "LoraLoaderBypassModelOnly",
    "LoraLoaderModelOnly",
    "ModelSamplingDiscrete",
    "TemporalScoreRescaling",
    "TestModelPatch",
}
# made by the code of another node here, with other inputs; HEADFORCING_EVERYTHING=1 takes them, too
REPEATED = {"LoraLoader", "LoraLoaderBypassModelOnly", "WanContextWindowsManual"}
OWN_MERGES = {
    "ModelMergeSimple",
    "ModelMergeAdd",
    "ModelMergeSubtract",
    "ModelMergeBlocks",
    "ModelMergeWAN2_1",
}
SOCKETS = {
    "MODEL": ["demo", 0],
    "CLIP": ["demo", 1],
    "VAE": ["demo", 2],
    "CONDITIONING": ["text", 0],
}
BATCH = itertools.count(100)  # seeds under which nothing is stored yet


@pytest.fixture
def server(comfy: ComfyServer) -> ComfyServer:
    """The server with a LoRA for the demo model."""
    config = assets.TOY_CONFIG
    wan_lora(
        comfy.model_path("loras", LORA), dim=config.dim, layers=config.num_layers, strength=1.0
    )
    return comfy


def inputs_of(info: dict[str, Any]) -> dict[str, Any] | str:
    """Inputs with which a node runs on the demo model; else why it cannot."""
    given: dict[str, Any] = {}
    for name, (kind, *options) in info["input"].get("required", {}).items():
        settings = options[0] if options else {}
        is_choice = kind == "COMBO" or isinstance(kind, list)
        choices = kind if isinstance(kind, list) else settings.get("options", [])
        if name == "lora_name":
            given[name] = LORA
        elif is_choice and (not choices or name in ("unet_name", "ckpt_name")):
            return f"loads a file of its own, {name}"  # which another test may have put there
        elif is_choice:
            given[name] = settings.get("default", choices[0])
        elif kind in SOCKETS:
            given[name] = SOCKETS[kind]
        elif "default" in settings:
            given[name] = settings["default"]
        else:
            return f"needs {kind}"
    return given


def rendered(models: Graph, runs: dict[str, tuple[str, int, bool]]) -> Graph:
    """One graph with a sampler for each of `runs`: its model, seed and whether it resumes."""
    short = short_graph()
    graph = {"demo": short["demo"], "text": short["text"], **models}
    for name, (model, seed, resume) in runs.items():
        sampler = changed(short, "sampler", model=[model, 0], seed=seed, resume=resume)["sampler"]
        graph |= {name: sampler, f"{name} report": node("PreviewAny", source=[name, 1])}
        graph[f"{name} latents"] = node(
            "SaveLatent", samples=[name, 0], filename_prefix="latents/contents"
        )
    return graph


def check_node(
    server: ComfyServer, kind: str, given: dict[str, Any], plain: torch.Tensor
) -> list[str]:
    """What is wrong with the renders behind a node: after one without it, before one without it, at
    other values.
    """
    values = VALUES.get(kind, [{}])
    models = {
        f"model {number}": node(kind, **given | changes) for number, changes in enumerate(values)
    }
    seed = next(BATCH)
    runs = dict[str, tuple[str, int, bool]]()
    for number, model in enumerate(models):
        runs |= {f"off {number}": (model, 1, False), f"on {number}": (model, 1, True)}
        if kind not in NAMED:  # the blocks of one that changes nothing are those without it
            runs[f"new {number}"] = (model, seed, True)
    result = queued(server, rendered(models, runs))
    latents = {name: saved_latents(server, result, f"{name} latents") for name in runs}
    wrong = [
        f"on {n}: other latents"
        for n in range(len(values))
        if not latents[f"off {n}"].equal(latents[f"on {n}"])
    ]
    changes = [not latents[f"off {number}"].equal(plain) for number in range(len(values))]
    if kind not in NAMED:
        removed = queued(server, rendered({}, {"then": ("demo", seed, True)}))
        if all(changes) and "reused" in text_of(removed, "then report"):
            wrong.append("its blocks are given to the model without it")
    report = text_of(result, "off 0 report")
    if kind in NAMED and (any(changes) or f"not used in a rollout: {NAMED[kind]}" not in report):
        wrong.append(f"not named: {report}")
    if kind in CHANGING and not all(changes):
        wrong.append("does nothing")
    if any(changes) and "not used in a rollout" in report:
        wrong.append("said to be unused")
    return wrong


@pytest.mark.repeat("all")
@pytest.mark.parametrize("which", ["named", "all"])
def test_a_render_behind_any_node_that_gives_a_model_is_that_without_stored_blocks(
    server: ComfyServer, which: str
):
    first = queued(server, rendered({}, {"off": ("demo", 1, False), "on": ("demo", 1, True)}))
    plain = saved_latents(server, first, "off latents")
    infos = server.object_info()
    infos.pop("TestPreviewSpy", None)  # it changes the previews of the whole server
    kinds = {name: info for name, info in infos.items() if "MODEL" in info["output"]}
    told = {*NAMED, *CHANGING}
    if which == "named":
        told -= REPEATED
        kinds = {name: info for name, info in kinds.items() if name in told}
    wrong = {}
    left_out = {}
    for kind, info in kinds.items():
        given = inputs_of(info)
        if kind.startswith("HeadForcing") or kind in REFUSED | NOT_FOR_WAN:
            left_out[kind] = "refused, not for this model, or ours"
        elif kind.startswith("ModelMerge") and kind not in OWN_MERGES:
            left_out[kind] = "merges weights by the names of another network"
        elif isinstance(given, str):
            left_out[kind] = given
        elif found := check_node(server, kind, given, plain):
            wrong[kind] = found
    sys.stdout.writelines(f"{kind} is left out: {reason}\n" for kind, reason in left_out.items())
    assert not wrong
    assert told <= {*kinds} - {*left_out}
    assert which == "named" or len(kinds) - len(left_out) >= 45, "of core's nodes"


def test_caches_over_steps_are_left_out_of_a_long_render(server: ComfyServer):
    graph = demo_graph(resume=False)
    graph |= {
        "latents": node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/cache")
    }
    del graph["video"]
    plain = saved_latents(server, queued(server, graph))
    for kind in ("EasyCache", "LazyCache"):
        values = {
            "reuse_threshold": 0.2,
            "start_percent": 0.15,
            "end_percent": 0.95,
            "verbose": False,
        }
        cached = graph | {"cache": node(kind, model=["demo", 0], **values)}
        result = queued(server, changed(cached, "sampler", model=["cache", 0]))
        assert plain.equal(saved_latents(server, result)), kind
        assert f"({kind.lower()})" in text_of(result)


@pytest.mark.parametrize(
    "kind",
    ["outer_sample", "sampler_sample", "predict_noise", "calc_cond_batch", "diffusion_model"],
)
def test_a_wrapper_around_steps_is_not_run_and_named(server: ComfyServer, kind: str):
    wrapped = node("TestModelPatch", model=["demo", 0], kind=kind, factor=0.5)
    runs = {"plain": ("demo", 2, False), "behind": ("wrapped", 2, False)}
    result = queued(server, rendered({"wrapped": wrapped}, runs))
    plain = saved_latents(server, result, "plain latents")
    behind = saved_latents(server, result, "behind latents")
    assert plain.equal(behind)
    assert "not used in a rollout: wrappers of" in text_of(result, "behind report")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("unreadable", "could not be read (model_options sampler_post_cfg_function)"),
        ("unknown", "could not be read (model_options of_another_pack)"),
        ("a_new_type", "could not be read (wrappers a_new_type)"),
    ],
)
def test_what_cannot_be_told_apart_leaves_no_stored_blocks(
    server: ComfyServer, kind: str, told: str
):
    model = node("TestModelPatch", model=["demo", 0], kind=kind, factor=1.1)
    seed = next(BATCH)
    for _ in range(2):
        result = queued(server, rendered({"patched": model}, {"on": ("patched", seed, True)}))
        report = text_of(result, "on report")
        assert (
            told in report
            and "stored blocks and measured head roles are neither read nor written" in report
        )
        assert "reused" not in report
    removed = queued(server, rendered({}, {"plain": ("demo", seed, True)}))
    assert "reused" not in text_of(removed, "plain report")


@pytest.mark.parametrize(
    ("kind", "values", "told"),
    [
        (
            "CFGOverride",
            {"cfg": 3.0, "start_percent": 0.0, "end_percent": 1.0},
            "CFGOverride sets cfg to 3.0",
        ),
        (
            "PerturbedAttentionGuidance",
            {"scale": 3.0},
            "remove PerturbedAttentionGuidance from the model",
        ),
        (
            "PerpNeg",
            {"empty_conditioning": ["text", 0], "neg_scale": 1.0},
            "remove PerpNeg from the model",
        ),
    ],
)
def test_guidance_is_refused_with_the_name_of_the_node(
    server: ComfyServer, kind: str, values: dict[str, Any], told: str
):
    graph = short_graph() | {"guided": node(kind, model=["demo", 0], **values)}
    failed(server, changed(graph, "sampler", model=["guided", 0]), "cfg must be 1", told)


@pytest.mark.parametrize(
    ("part", "told"),
    [
        (
            "batch",
            "positive holds 3 prompts in one batch (a schedule of another pack); use Prompt "
            "Timeline",
        ),
        ("start_percent", "positive has start_percent, which Head Forcing does not read"),
        ("end_percent", "positive has end_percent"),
        ("strength", "positive has strength"),
        ("area", "positive has area"),
        ("mask", "positive has mask"),
        ("control", "positive has control"),
        ("vace_frames", "positive has vace_frames"),
        ("concat_latent_image", "positive has concat_latent_image"),
    ],
)
def test_a_batch_of_prompts_and_parts_that_are_not_read_are_refused(
    comfy: ComfyServer, part: str, told: str
):
    graph = short_graph() | {"part": node("TestPartOfPrompt", conditioning=["text", 0], part=part)}
    failed(comfy, changed(graph, "sampler", positive=["part", 0]), told)

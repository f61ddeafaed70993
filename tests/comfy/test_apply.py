"""Apply Head Forcing: the same latents from ComfyUI's own sampler nodes as from Head Forcing
Sampler.
"""

import torch
from comfy_graphs import BALL, CROSS, Graph, changed, failed, node, queued, saved_latents, stopper
from comfy_harness import ComfyServer

STORY = f"0:00 {BALL}\n0:01.5 [flush] {CROSS}"


def native_graph(**apply: object) -> Graph:
    """Three seconds of the demo through SamplerCustomAdvanced; node ids name the nodes."""
    sampler = {
        "noise": ["noise", 0],
        "guider": ["guider", 0],
        "sampler": ["apply", 1],
        "sigmas": ["apply", 2],
    }
    return {
        "demo": node("HeadForcingLoadDemo"),
        "timeline": node("HeadForcingPromptTimeline", clip=["demo", 1], prompts=STORY, seconds=3.0),
        "apply": node("HeadForcingApply", model=["demo", 0], positive=["timeline", 0], **apply),
        "guider": node("BasicGuider", model=["apply", 0], conditioning=["timeline", 0]),
        "noise": node("RandomNoise", noise_seed=5),
        "empty": node(
            "EmptyHunyuanLatentVideo", width=64, height=64, length=["apply", 3], batch_size=1
        ),
        "native": node("SamplerCustomAdvanced", latent_image=["empty", 0], **sampler),
        "latents": node("SaveLatent", samples=["native", 0], filename_prefix="latents/native"),
        "denoised": node("SaveLatent", samples=["native", 1], filename_prefix="latents/denoised"),
    }


def own_graph(**sampler: object) -> Graph:
    """The same video by Head Forcing Sampler."""
    size = {"width": 64, "height": 64, "seconds": 0.0, "seed": 5, "resume": False}
    graph = {name: native_graph()[name] for name in ("demo", "timeline")}
    graph["sampler"] = node(
        "HeadForcingSampler", model=["demo", 0], positive=["timeline", 0], **size | sampler
    )
    graph["latents"] = node("SaveLatent", samples=["sampler", 0], filename_prefix="latents/own")
    return graph


def test_the_native_sampler_gives_the_latents_of_our_own_with_progress_and_goes_on_after_a_cancel(
    comfy: ComfyServer,
):
    """Guidance of 1 is none."""
    graph = native_graph()
    stopped = comfy.queue(graph, on_event=stopper(comfy, "native", 2))
    assert stopped.outcome == "interrupted"
    result = queued(comfy, graph)
    made = saved_latents(comfy, result)
    own = saved_latents(comfy, queued(comfy, own_graph()))
    assert made.shape == (1, 16, 15, 8, 8) and made.std() > 0.1
    assert torch.equal(made, own)
    assert torch.equal(saved_latents(comfy, result, "denoised"), made)
    assert "headforcing.story" not in dict(result.events), (
        "no button for a story that this sampler does not ask for"
    )
    # five blocks of four steps, clean passes not counted
    assert result.progress["native"][-1] == (20, 20)
    guided = node(
        "CFGGuider", model=["apply", 0], positive=["timeline", 0], negative=["timeline", 0], cfg=1.0
    )
    assert torch.equal(saved_latents(comfy, queued(comfy, graph | {"guider": guided})), own)


def scheduled(graph: Graph, steps: int) -> Graph:
    """The graph with the sigmas of BasicScheduler at the shift of Self Forcing."""
    shift = node("ModelSamplingSD3", model=["apply", 0], shift=5.0)
    scheduler = node(
        "BasicScheduler", model=["shift", 0], scheduler="simple", steps=steps, denoise=1.0
    )
    return changed(
        graph | {"shift": shift, "scheduler": scheduler}, "native", sigmas=["scheduler", 0]
    )


def test_native_sigmas_options_and_batches_are_those_of_our_own_sampler(comfy: ComfyServer):
    """Sigmas that are connected come before those of the options."""
    settings = {"method": "self_forcing_window_21", "sigmas": "1, 0.9"}
    graph = native_graph(options=["options", 0]) | {
        "options": node("HeadForcingOptions", **settings)
    }
    graph["sigmas"] = node("PreviewAny", source=["apply", 2])
    result = queued(comfy, scheduled(changed(graph, "empty", batch_size=2, length=33), 2))
    assert "0.9000" in result.outputs["sigmas"]["text"][0]
    own_options = node("HeadForcingOptions", **settings | {"sigmas": "1, 0.8333333134651184"})
    graph = own_graph(options=["options", 0], batch_size=2, seconds=33 / 16) | {
        "options": own_options
    }
    ours = queued(comfy, graph)
    assert torch.equal(saved_latents(comfy, result), saved_latents(comfy, ours))


def test_what_a_rollout_would_not_do_is_refused_in_one_sentence(comfy: ComfyServer):
    graph = native_graph()

    def refused(changes: Graph, name: str, *expected: str, **inputs: object) -> None:
        failed(comfy, changed(graph | changes, name, **inputs), *expected)

    guided = node(
        "CFGGuider", model=["apply", 0], positive=["timeline", 0], negative=["timeline", 0], cfg=3.0
    )
    refused({"guider": guided}, "noise", "guider: Head Forcing runs without guidance", "cfg 1")
    refused({}, "guider", "guider: connect the model of Apply Head Forcing", model=["demo", 0])
    other = node("CLIPTextEncode", clip=["demo", 1], text=CROSS)
    refused(
        {"other": other},
        "guider",
        "guider: connect the same conditioning",
        conditioning=["other", 0],
    )
    half = node("ConditioningSetTimestepRange", conditioning=["timeline", 0], start=0.0, end=0.5)
    refused(
        {"half": half}, "guider", "its conditioning has start_percent", conditioning=["half", 0]
    )
    refused(
        {}, "empty", "16 latent frames are no whole number of blocks of 3", "57 or 69", length=61
    )
    split = {"split": node("SplitSigmas", sigmas=["apply", 2], step=2)}
    refused(split, "native", "sigmas must end with 0, got 0.833333", sigmas=["split", 0])
    refused(
        {"none": node("DisableNoise")}, "native", "noise: connect RandomNoise", noise=["none", 0]
    )
    picture = node("EmptyImage", width=64, height=64, batch_size=9, color=255)
    full = {"picture": picture, "full": node("VAEEncode", pixels=["picture", 0], vae=["demo", 2])}
    refused(full, "native", "latent_image must be empty", latent_image=["full", 0])
    mask = node("SolidMask", value=1.0, width=64, height=64)
    masked = {
        "mask": mask,
        "masked": node("SetLatentNoiseMask", samples=["empty", 0], mask=["mask", 0]),
    }
    refused(masked, "native", "remove the noise mask", latent_image=["masked", 0])
    restarts = {"options": node("HeadForcingOptions", method="causvid")}
    restarts["apply"] = native_graph(options=["options", 0])["apply"]
    restarts["timeline"] = changed(graph, "timeline", prompts=BALL)["timeline"]
    refused(
        restarts,
        "empty",
        "method causvid encodes a video frame",
        "Head Forcing Sampler with a vae",
        length=93,
    )

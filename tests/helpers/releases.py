"""Published weights of the family and their look-alikes: which load, how that was tested, and which are refused."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# what `Release.tested` may hold, and what the table says of it
TESTS = {"layout": "layout", "size": "real size", "recorded": "recorded", "graph": "LoRA loader"}


@dataclass(frozen=True)
class Release:
    """Published weights.

    Attributes:
        files: as their authors name them.
        wrapper: the top-level key, "bare" without one.
        prefix: before every name.
        diffusers: whether names are those of the diffusers library.
        family: what `--model-family` is for them; "" where none of the names fits.
        methods: what they are meant for; the first methods of `--method`'s list run with all of them.
        tested: keys of `TESTS`.
        lora: whether this is a LoRA, to be used with the base model of the row before it.
        note: what else a user has to know.
        refused: for weights that do not load, a part of the sentence that they are refused with.
    """

    name: str
    files: str
    licence: str
    wrapper: str = "bare"
    prefix: str = ""
    diffusers: bool = False
    family: str = "self_forcing"
    methods: tuple[str, ...] = ("head_forcing",)
    tested: tuple[str, ...] = ("layout",)
    lora: bool = False
    note: str = ""
    refused: str = ""


_AR_5_SECONDS = ("head_forcing", "rolling_sink", "echo_forcing", "pyramid_forcing")

RELEASES: tuple[Release, ...] = (
    Release(
        "Self Forcing (DMD, SiD, 10 s)", "self_forcing_dmd.pt", "Apache-2.0", "generator_ema", "model.",
        methods=("head_forcing", "self_forcing", *_AR_5_SECONDS[1:]), tested=("layout", "size", "recorded"),
        note="several copies in one file; `convert` keeps one",
    ),
    Release("Self Forcing, repackaged for ComfyUI", "self_forcing.safetensors", "Apache-2.0", methods=_AR_5_SECONDS),
    Release(
        "Self Forcing, FastVideo's port", "diffusion_pytorch_model.safetensors", "Apache-2.0", diffusers=True,
        methods=_AR_5_SECONDS,
    ),
    Release(
        "Causal Forcing, chunkwise", "causal_forcing.pt", "Apache-2.0", "generator", "model.",
        family="causal_forcing_chunkwise", methods=("causal_forcing", "rolling_sink", "pyramid_forcing"),
        tested=("layout", "recorded"),
    ),
    Release(
        "Causal Forcing and Causal Forcing++, framewise", "causal_forcing-framewise.safetensors", "Apache-2.0",
        family="causal_forcing_framewise", methods=("causal_forcing",), tested=("layout", "recorded"),
        note="++ in 2 or 1 steps: `causal_forcing_framewise_2_steps` or `causal_forcing_framewise_1_step`",
    ),
    Release(
        "LongLive 1.3B, base", "longlive_base.pt", "Apache-2.0", "generator", "model.", family="longlive",
        methods=("longlive", "longlive_infinite", "memrope"), tested=("layout", "recorded"),
        note="not complete without its LoRA",
    ),
    Release(
        "LongLive 1.3B, LoRA", "lora.pt", "Apache-2.0", "generator_lora", "base_model.model.", family="longlive",
        methods=("longlive", "longlive_infinite", "memrope"), tested=("layout", "graph"), lora=True,
        note="`--lora`, or merged or renamed by `convert`",
    ),
    Release(
        "MemFlow, base and LoRA", "base.pt", "Apache-2.0, some files CC BY-NC-SA", "generator", "model.",
        methods=("memflow", "memflow_interactive"), tested=("layout", "recorded"), note="`lora.pt` as LongLive's",
    ),
    Release(
        "RAVEN and CM-GRPO, merged", "raven_model.pt, cmgrpo_raven_merge.pt", "CC BY-NC, non-commercial",
        family="raven", methods=("head_forcing", "self_forcing"),
    ),
    Release(
        "Infinite-Forcing", "ema_model.pt", "Apache-2.0", "generator_ema", "model.", methods=("infinity_rope",),
        tested=("layout", "recorded"),
    ),
    Release(
        "Rolling Forcing", "rolling_forcing_dmd.pt", "academic use only", "generator_ema",
        "model._fsdp_wrapped_module.", methods=("rolling_forcing",), tested=("layout", "recorded"),
    ),
    Release(
        "Self Gradient Forcing", "self_gradient_forcing.pt", "Apache-2.0 by its README", "generator_ema", "model.",
        family="self_gradient_forcing", methods=("self_gradient_forcing",),
        note="published as chunkwise/ar/model.pt and framewise/ar/model.pt; the framewise file takes "
        "`self_gradient_forcing_framewise`, as method and as family. No recording of its authors' code exists here",
    ),
    Release(
        "OPSD-V for Self Forcing or LongLive, LoRA", "opsdv_self_forcing_lora.pt",
        "Apache-2.0; the base checkpoints keep their terms", "generator_lora", "base_model.model.",
        methods=("self_forcing", "longlive"), lora=True, tested=("layout", "graph"),
        note="that for LongLive takes the place of LongLive's own LoRA; its authors read the sink as moving with the "
        "video, which is not built",
    ),
    Release(
        "Reward Forcing", "rewardforcing.pt", "Apache-2.0", prefix="model.", methods=("reward_forcing",),
        tested=("layout", "recorded"),
    ),
    Release(
        "CausVid, causal", "model.pt", "CC BY-NC-SA, non-commercial", "generator", "model.", methods=("causvid",),
        tested=("layout", "recorded"),
    ),
    Release(
        "ShotStream", "shotstream_merged.pt", "see its card", "generator", "model.",
        note="its frames of earlier shots (`--method shotstream`) are not built; trained at `--sigmas '1, 0.9579, "
        "0.8889, 0.7376'`",
    ),
    Release(
        "Krea Realtime 14B", "krea-realtime-video-14b.safetensors", "CC BY-NC-SA, non-commercial", prefix="model.",
        family="krea_14b", methods=("head_forcing", "forcing_kv"), tested=("layout", "size"),
        note="with rolling caches; its authors' recomputed cache (`--method krea_realtime`) is not built",
    ),
    Release(
        "LongLive 2.0 5B", "model_bf16.pt", "not verified at its source", "generator", "model.", family="longlive2",
        methods=("longlive2", "head_forcing"), tested=("layout", "size", "recorded"),
        note="on Wan2.2 TI2V 5B, whose own weights have the same names and shapes: they load, too, but were not made "
        "to be rolled out block by block; see [LongLive 2.0](longlive2.md)",
    ),
    Release(
        "LongLive 2.0 5B in NVFP4", "model_4o6.pt", "not verified at its source", family="", methods=(),
        note="`model_bf16.pt` with `--fp8-linears` is as exact and smaller than bf16",
        refused="LongLive 2.0 in NVFP4, which is not built here",
    ),
    Release(
        "Self Gradient Forcing+", "model.pt", "Apache-2.0 by its README", family="", methods=(),
        refused="Self Gradient Forcing+, whose clean passes have weights of their own, which is not built here",
    ),
    Release(
        "Wan2.2 T2V A14B, causal ones too", "wan2.2_t2v_high_noise_14B.safetensors", "Apache-2.0", family="",
        methods=(),
        note="known by the names of file and folder; without them it is a Wan 2.1 14B, and loads",
        refused="one expert of Wan2.2 A14B, which changes between two at a noise level; that is not built here",
    ),
    Release(
        "Wan2.2 I2V A14B, causal ones too", "wan2.2_i2v_high_noise_14B.safetensors", "Apache-2.0", family="",
        methods=(),
        refused="an expert of Wan2.2 I2V A14B, an image-to-video model of two experts, which is not built here",
    ),
    Release(
        "scaled fp8 and NVFP4 of the family", "self_forcing_fp8_scaled.safetensors", "as their source",
        note="ComfyUI's *Load Diffusion Model* reads them, and its MODEL works with the nodes",
        refused="quantised, which only ComfyUI can run",
    ),
)  # fmt: skip


def release_table(releases: Sequence[Release] = RELEASES) -> str:
    """The rows of the page on weights that load, in Markdown."""
    lines = ["| weights | file, licence | `--model-family` | tested with |", "| --- | --- | --- | --- |"]
    for row in releases:
        if row.refused:
            continue
        tested = ", ".join(TESTS[test] for test in row.tested) + (f"; {row.note}" if row.note else "")
        lines.append(f"| {row.name} | {row.files}, {row.licence} | `{row.family}` | {tested} |")
    return "\n".join(lines)


def refusal_table(releases: Sequence[Release] = RELEASES) -> str:
    """The refused weights and what is said about them, in Markdown."""
    lines = ["| weights | refused as | |", "| --- | --- | --- |"]
    lines += [f"| {row.name} | {row.refused} | {row.note} |" for row in releases if row.refused]
    return "\n".join(lines)

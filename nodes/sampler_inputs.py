"""The inputs of Head Forcing Sampler. Their names and order are frozen; new ones go to the end and are optional."""

from typing import Any

from comfy_api.latest import io

from ..headforcing_core.methods.registry import method_names
from ..headforcing_core.names import COMPRESSIONS, ROLE_ARRANGEMENTS
from ..headforcing_core.render.options import DEFAULTS, RenderOptions
from .host import helpers

HeadForcingOptions = io.Custom("HEAD_FORCING_OPTIONS")

# widgets that are called otherwise than what they set
_SETS = {"memory_every_blocks": "update_interval", "checkpoint_seconds": "state_seconds", "head_profile": "profile"}


def sampler_options(settings: dict[str, Any], options: dict[str, Any] | None = None) -> RenderOptions:
    """The `RenderOptions` from the inputs that set its fields; `options` of *Head Forcing Options* replace them."""
    settings = settings | (options or {})
    return RenderOptions(**{_SETS.get(name, name): value for name, value in settings.items()})


def sampler_inputs() -> list[Any]:
    return [*_video(), *_method(), *_memory(), *_files(), options_input(), *_starts()]


def method_inputs() -> list[Any]:
    """Inputs of *Head Forcing Options*, shown without folding."""
    inputs = [*_method(), *_memory(), *_guards()]
    for widget in inputs:
        widget.extra_dict.pop("advanced")
    method_options = helpers.explain(
        io.String.Input("method_options", default=DEFAULTS.method_options, optional=True),
        "Options of the chosen method, such as window_frames=12, sink_frames=3. Empty: those of its paper. A "
        "wrong name gets an error that lists all of them.",
    )
    return [*inputs, method_options]


def options_input(
    tooltip: str = "From Head Forcing Options; replaces method, model_family, sigmas, memory and roles of this node.",
) -> Any:
    """Settings from *Head Forcing Options*."""
    return HeadForcingOptions.Input("options", optional=True, tooltip=tooltip)


def _video() -> list[Any]:
    return [
        helpers.model_input(),
        helpers.positive_input(),
        *helpers.size_inputs(),
        helpers.seconds_input(
            "Length of the new part of the video. 0: the timeline's, or 10 for a plain prompt. A shorter value cuts "
            "the timeline, a longer one extends its last prompt."
        ),
        helpers.seed_input(
            "A block's noise depends only on the seed and the block's number, so changing a later prompt does not "
            "change earlier blocks.",
        ),
        helpers.profile_input(),
        io.Latent.Input(
            "start_frames",
            optional=True,
            tooltip="Latents of a video to continue (VAE Encode). The result begins with them and has their "
            "width and height.",
        ),
    ]


def _starts() -> list[Any]:
    return [
        io.Image.Input(
            "start_image",
            optional=True,
            tooltip="Image that the video begins with, for framewise models and LongLive 2.0; needs a vae. It is "
            "cropped around the middle and scaled to width and height.",
        ),
        io.Video.Input(
            "start_video",
            optional=True,
            tooltip="Video to go on from, of any size and frame rate, without its sound; needs a vae. Its "
            "last 4 seconds are taken (Video Slice chooses others), cropped and scaled to width and height.",
        ),
    ]


def _method() -> list[Any]:
    return [
        helpers.advanced(
            io.Combo.Input("method", options=method_names(), default=DEFAULTS.method),
            "Which past frames the caches keep: Head Forcing, its ablations, plain windows, other papers' "
            "methods. The report names the paper and the weights a method is meant for.",
        ),
        helpers.family_input(
            "Kind of weights: sets noise levels, frames per block and the bundled head profile. auto: what the weights "
            "file states, or its name.",
            auto=True,
        ),
        helpers.advanced(
            io.String.Input("sigmas", default=DEFAULTS.sigmas),
            "Noise levels, such as 1, 0.9375, 0.8333, 0.625. Empty: the method's or the model family's.",
        ),
    ]


def _memory() -> list[Any]:
    return [
        helpers.advanced(
            io.Int.Input("episodic_frames", default=DEFAULTS.episodic_frames, min=0, max=21),
            "Latent frames in episodic memory (memory heads), the summary included. 0: no episodic memory.",
        ),
        helpers.advanced(
            io.Int.Input("recent_frames", default=DEFAULTS.recent_frames, min=0, max=63, step=3),
            "Latent frames before the current block that memory heads keep (fast memory), in whole blocks.",
        ),
        helpers.advanced(
            io.Float.Input("novelty_threshold", default=DEFAULTS.novelty_threshold, min=0.0, max=1.0, step=0.005),
            "A frame is admitted to episodic memory if its similarity to all stored ones is below this. Lower "
            "values admit only very different frames; 0.90 to 0.97 is stable in the paper. See the report.",
        ),
        helpers.advanced(
            io.Int.Input("memory_every_blocks", default=DEFAULTS.update_interval, min=1, max=100),
            "Once in this many blocks a frame is considered for episodic memory.",
        ),
        helpers.advanced(
            io.Combo.Input("roles", options=list(ROLE_ARRANGEMENTS), default=DEFAULTS.roles),
            "The paper's ablations of head roles: one role merged into memory, or all shuffled.",
        ),
    ]


def _guards() -> list[Any]:
    return [
        helpers.advanced(
            io.Float.Input("sink_gate", default=DEFAULTS.sink_gate, min=0.0, max=0.99, step=0.01),
            "Leaves a sink or episodic frame out of a pass where more than this share of heads prefers it "
            "to the recent frames (DySink, whose authors use 0.8). 0: off. The report says how often it acted.",
        ),
        helpers.advanced(
            io.Float.Input("rope_jitter", default=DEFAULTS.rope_jitter, min=0.0, max=0.99, step=0.01),
            "Changes the rotary base of every head by up to this fraction, against falling back to the first "
            "frames in very long videos (LoL, whose authors use 0.8). 0: off.",
        ),
        helpers.advanced(
            io.Combo.Input("compression", options=list(COMPRESSIONS), default=DEFAULTS.compression),
            "Which tokens stay when episodic memory merges two frames: the most similar to the prompt, or "
            "(trigonometric) those that the model's usual queries attend to; needs a head profile measured with this "
            "version.",
        ),
    ]


def _files() -> list[Any]:
    return [
        helpers.advanced(
            io.Int.Input("batch_size", default=1, min=1, max=64),
            "Number of videos, rendered one after another, each with its own noise.",
        ),
        helpers.explain(
            io.Boolean.Input("resume", default=True, optional=True),
            "Store every finished block in ComfyUI/output/head_forcing. The same graph queued again resumes, "
            "a longer one extends the video, one with another later prompt begins at that prompt.",
        ),
        helpers.advanced(
            io.Float.Input("checkpoint_seconds", default=DEFAULTS.state_seconds, min=0.0, max=36000.0, step=10.0),
            "Seconds between two stored states of the cache (up to 2.7 GB at 832x480), with which resuming is "
            "immediate. 0: never; the cache is rebuilt from the blocks, with one pass of the model for each.",
        ),
        io.Vae.Input(
            "vae",
            optional=True,
            tooltip="Decodes every block while sampling into a video file in the output folder, which can be played "
            "meanwhile. A TAEHV decoder makes a quick draft.",
        ),
        helpers.explain(
            io.String.Input("filename_prefix", default="video/HeadForcing", optional=True),
            "With a vae: name of the file under ComfyUI's output folder; a counter is added.",
        ),
        helpers.advanced(
            io.Boolean.Input("decode_in_background", default=False),
            "If the VAE is on another GPU than the model: decode in a second thread and CUDA stream while "
            "the next block is sampled.",
        ),
    ]

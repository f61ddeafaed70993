"""The inputs of Head Forcing Sampler. Their names and order are frozen; new ones go to the end and
are optional.
"""

from typing import Any

from comfy_api.latest import io

from ..headforcing_core.files import Fields
from ..headforcing_core.methods.head_forcing import HeadForcing
from ..headforcing_core.methods.options import read_pairs
from ..headforcing_core.methods.registry import method_names
from ..headforcing_core.names import ROLE_ARRANGEMENTS
from ..headforcing_core.plan.options import DEFAULTS, RenderOptions, method_options
from ..headforcing_core.plan.settings import MEMORY_INPUTS
from .host.graph import schema
from .host.graph.schema import HeadProfileType
from .host.graph.speech import SpeechType
from .host.render import live_decoder

HeadForcingOptions = io.Custom("HEAD_FORCING_OPTIONS")

# widgets that are called otherwise than what they set
_SETS = {
    "method": "method_name",
    "memory_every_blocks": "update_interval",
    "checkpoint_seconds": "state_seconds",
    "head_profile": "profile",
}


def sampler_options(settings: Fields, options: Fields | None = None) -> RenderOptions:
    """The `RenderOptions` from the inputs that set its fields; `options` of *Head Forcing Options*
    replace them.
    """
    settings = settings | (options or {})
    values = {_SETS.get(name, name): value for name, value in settings.items()}
    memory = {name: values.pop(name, None) for name in MEMORY_INPUTS}
    pairs = read_pairs(values.pop("method_options", ""))
    chosen = method_options(values.get("method_name", DEFAULTS.method_name), memory, pairs)
    return RenderOptions(**values, method_options=chosen)


def sampler_inputs() -> list[Any]:
    """Inputs of *Head Forcing Sampler*."""
    return [
        io.Model.Input("model"),
        io.Conditioning.Input("positive"),
        *schema.size_inputs(),
        schema.seconds_input(),
        schema.seed_input(),
        HeadProfileType.Input("head_profile", optional=True),
        io.Latent.Input("start_frames", optional=True),
        *_method(),
        io.Int.Input("batch_size", default=1, min=1, max=64),
        io.Boolean.Input("resume", default=True, optional=True),
        io.Float.Input(
            "checkpoint_seconds",
            default=DEFAULTS.state_seconds,
            min=0.0,
            max=36000.0,
            step=10.0,
        ),
        io.Vae.Input("vae", optional=True),
        io.String.Input("filename_prefix", default="video/HeadForcing", optional=True),
        io.Boolean.Input("decode_in_background", default=False),
        HeadForcingOptions.Input("options", optional=True),
        io.Image.Input("start_image", optional=True),
        io.Video.Input("start_video", optional=True),
        SpeechType.Input("speech", optional=True),
        io.Combo.Input("live_decoder", options=live_decoder.choices(), default=live_decoder.NONE),
    ]


def method_inputs() -> list[Any]:
    """Inputs of *Head Forcing Options*, all optional."""
    inputs = [*_method(), io.String.Input("method_options", default="")]
    for widget in inputs:
        widget.optional = True
    return inputs


def _method() -> list[Any]:
    method = HeadForcing()
    return [
        io.Combo.Input("method", options=method_names(), default=DEFAULTS.method_name),
        schema.family_input(auto=True),
        io.String.Input("sigmas", default=DEFAULTS.sigmas),
        io.Int.Input("episodic_frames", default=method.memory.episodic_frames, min=0, max=21),
        io.Int.Input("recent_frames", default=method.memory.recent_frames, min=0, max=63),
        io.Float.Input(
            "novelty_threshold",
            default=method.episodic.novelty_threshold,
            min=0.0,
            max=1.0,
            step=0.005,
        ),
        io.Int.Input(
            "memory_every_blocks", default=method.episodic.update_interval, min=1, max=100
        ),
        io.Combo.Input("roles", options=list(ROLE_ARRANGEMENTS), default=DEFAULTS.roles),
    ]

"""Head Forcing Options: the method and its settings, for the sampler nodes that they are connected
to.
"""

from typing import Any

from comfy_api.latest import io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields
from ..headforcing_core.methods.registry import method_named
from .host.graph import schema
from .host.graph.queued_graph import inputs_of
from .sampler_inputs import HeadForcingOptions, method_inputs, sampler_options

# inputs that graphs of earlier versions may have, and their defaults
REMOVED_INPUTS = {"sink_gate": 0.0, "rope_jitter": 0.0, "compression": "prompt"}


class HeadForcingOptionsNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingOptions",
            "Head Forcing Options",
            "sampling",
            aliases="method, settings, advanced, long video, head forcing",
            inputs=method_inputs(),
            outputs={"options": HeadForcingOptions},
            hidden=(io.Hidden.unique_id, io.Hidden.prompt),
        )

    @classmethod
    def validate_inputs(cls, method: str | None = None) -> bool | str:
        """Answer a misspelt method with the one that was meant, see `schema.refusal`."""
        return schema.refusal(method_named, method)

    @classmethod
    @schema.shows_errors
    def execute(cls, **settings: Any) -> io.NodeOutput:
        check_removed(inputs_of(cls.hidden, cls.hidden.unique_id))
        sampler_options(settings)  # refuses wrong values
        return io.NodeOutput(settings)


def check_removed(inputs: Fields) -> None:
    """Refuse a queued node that asks for what it no longer has; defaults are ignored."""
    for name, default in REMOVED_INPUTS.items():
        if inputs.get(name, default) != default:
            raise HeadForcingError(
                f"Head Forcing Options no longer has the input {name}; remove it from the node, or "
                f"set it to {default}, got {inputs[name]!r}"
            )

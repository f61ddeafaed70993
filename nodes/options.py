"""Head Forcing Options: the method and its settings, for the sampler nodes that they are connected to."""

from typing import Any

from comfy_api.latest import io

from ..headforcing_core.methods.registry import method_policy
from .host import helpers
from .sampler_inputs import HeadForcingOptions, method_inputs, sampler_options


class HeadForcingOptionsNode(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return helpers.schema(
            "HeadForcingOptions",
            "Head Forcing Options",
            "sampling",
            aliases="method, settings, advanced, long video, head forcing",
            inputs=method_inputs(),
            outputs=[HeadForcingOptions.Output(display_name="options")],
        )

    @classmethod
    def validate_inputs(cls, method: str | None = None) -> bool | str:
        """Answer a misspelt method with the one that was meant, see `helpers.refusal`."""
        return helpers.refusal(method_policy, method)

    @classmethod
    @helpers.shows_errors
    def execute(cls, **settings: Any) -> io.NodeOutput:
        sampler_options(settings)  # refuses wrong values
        return io.NodeOutput(settings)

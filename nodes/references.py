"""Scene References: pictures that prompts name, for Prompt Timeline."""

from typing import Any

from comfy_api.latest import io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.timeline.references import MAX_REFERENCES, check_names
from .host.graph import schema
from .host.model.start import one_image

References = io.Custom("HEAD_FORCING_REFERENCES")
_NAMES = ("hero", "place", "prop", "other")


class SceneReferences(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingReferences",
            "Scene References",
            "prompts",
            aliases="reference image, character, identity, consistency, ip adapter",
            inputs=[
                part
                for number, name in enumerate(_NAMES, 1)
                for part in (
                    io.Image.Input(f"image_{number}", optional=True),
                    io.String.Input(f"name_{number}", default=name, optional=True),
                )
            ],
            outputs=[References.Output(display_name="references")],
        )

    @classmethod
    @schema.shows_errors
    def execute(cls, **given: Any) -> io.NodeOutput:
        numbers = [n for n in range(1, MAX_REFERENCES + 1) if given.get(f"image_{n}") is not None]
        if not numbers:
            raise HeadForcingError(
                "image_1: connect a picture, or disconnect Scene References from Prompt Timeline"
            )
        names = [given.get(f"name_{n}", _NAMES[n - 1]).strip().removeprefix("@") for n in numbers]
        check_names(names)
        pictures = {
            name: one_image(given[f"image_{n}"], f"image_{n}")
            for n, name in zip(numbers, names, strict=True)
        }
        return io.NodeOutput(pictures)

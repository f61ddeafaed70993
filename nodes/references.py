"""Scene References: pictures that prompts name, for Prompt Timeline."""

from typing import Any

from comfy_api.latest import io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.timeline.references import check_names
from .host.graph import schema
from .host.render.start import one_image

References = io.Custom("HEAD_FORCING_REFERENCES")
_NAMES = ("hero", "place", "prop", "other")


class SceneReferences(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        inputs: list[Any] = []
        for number, name in enumerate(_NAMES, 1):
            inputs.append(io.Image.Input(f"image_{number}", optional=True))
            inputs.append(io.String.Input(f"name_{number}", default=name, optional=True))
        return schema.node_schema(
            "HeadForcingReferences",
            "Scene References",
            "prompts",
            aliases="reference image, character, identity, consistency, ip adapter",
            inputs=inputs,
            outputs={"references": References},
        )

    @classmethod
    @schema.shows_errors
    def execute(cls, **given: Any) -> io.NodeOutput:
        names = []
        images = []
        for number, usual in enumerate(_NAMES, 1):
            image = f"image_{number}"
            if given.get(image) is not None:
                names.append(given.get(f"name_{number}", usual).strip().removeprefix("@"))
                images.append(one_image(given[image], image))
        if not names:
            raise HeadForcingError(
                "image_1: connect a picture, or disconnect Scene References from Prompt Timeline"
            )
        check_names(names)
        return io.NodeOutput(dict(zip(names, images, strict=True)))

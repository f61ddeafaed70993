"""Load Demo Model: the embedded toy world as MODEL, CLIP and VAE, without a download."""

from comfy_api.latest import io

from .host.graph import schema
from .host.model import native_model as native


class LoadDemoModel(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingLoadDemo",
            "Load Demo Model",
            "loaders",
            aliases="demo, example, toy, test model, head forcing",
            inputs=[],
            outputs={
                "model": io.Model,
                "clip": io.Clip,
                "vae": io.Vae,
            },
        )

    @classmethod
    @schema.shows_errors
    def execute(cls) -> io.NodeOutput:
        return io.NodeOutput(
            native.reloadable(native.load_toy_model), native.load_toy_clip(), native.ToyVAE()
        )

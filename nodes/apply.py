"""Apply Head Forcing: a long video inside native samplers, with their noise, guider and sigmas nodes."""

from typing import Any

from comfy_api.latest import io

from ..headforcing_core.errors import HeadForcingError
from .host import bridge, checks, helpers
from .host.conditioning import fitted, timeline_of
from .host.helpers import HeadProfileType
from .host.loaded_model import options_for
from .host.open_sampler import Request, RolloutSampler, applied
from .sampler_inputs import options_input, sampler_options


class ApplyHeadForcing(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        schema = io.Schema(
            node_id="HeadForcingApply",
            display_name="Apply Head Forcing",
            category=f"{helpers.CATEGORY}/sampling",
            description=(
                "Long videos with SamplerCustomAdvanced: connect the model and the same conditioning to BasicGuider, "
                "and the sampler, RandomNoise, sigmas and an empty video latent to SamplerCustomAdvanced. The same "
                "seed and sigmas give the same latents as Head Forcing Sampler, which also resumes and writes the "
                "video as it grows."
            ),
            inputs=[
                io.Model.Input("model", tooltip="Self Forcing or a relative, from Load Self Forcing or any loader."),
                io.Conditioning.Input(
                    "positive", tooltip="Prompt Timeline for several prompts, CLIP Text Encode for one."
                ),
                HeadProfileType.Input(
                    "head_profile",
                    optional=True,
                    tooltip="Roles of the attention heads. Not connected: the bundled profile that fits the model, or, "
                    "if none fits, roles found while the first seconds are sampled.",
                ),
                options_input("Method and memory, from Head Forcing Options. Not connected: those of the paper."),
            ],
            outputs=[
                io.Model.Output(display_name="model", tooltip="For the guider, and for BasicScheduler."),
                io.Sampler.Output(display_name="sampler"),
                io.Sigmas.Output(
                    display_name="sigmas",
                    tooltip="The noise levels of the method or the model family. Other sigmas can be used instead.",
                ),
                io.Int.Output(
                    display_name="length",
                    tooltip="Video frames that the timeline fills, in whole blocks: the length of the empty latent.",
                ),
            ],
        )
        return helpers.aliases(
            schema,
            "SamplerCustomAdvanced, custom sampler, long video, infinite, autoregressive, self forcing",
        )

    @classmethod
    @helpers.shows_errors
    def execute(
        cls, model: Any, positive: list[Any], head_profile: Any = None, options: dict[str, Any] | None = None
    ) -> io.NodeOutput:
        bridge.wan_config(model)  # refuses other models
        chosen, _ = options_for(model, sampler_options({"head_profile": head_profile}, options))
        timeline, embeds = timeline_of(fitted(positive, chosen), 0.0)
        if timeline.references:
            raise HeadForcingError(
                "Apply Head Forcing has no vae that could encode pictures: use Head Forcing Sampler, or disconnect "
                "references from Prompt Timeline"
            )
        checks.check_text_width(model, embeds.values())
        request = Request(chosen, timeline, embeds)
        return io.NodeOutput(applied(model, request), RolloutSampler(request), request.sigmas(), request.length())

"""Prompt Timeline: several prompts over time as one CONDITIONING."""

import uuid
from typing import Any

from comfy_api.latest import io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.render.options import DEFAULTS, RenderOptions
from ..headforcing_core.timeline.clock import MAX_SECONDS
from ..headforcing_core.timeline.switch import MAX_BLEND_BLOCKS, SWITCHES, Switch
from ..headforcing_core.timeline.timeline import parse_timeline
from .host import helpers
from .host.conditioning import CLIPS, TimelineNode
from .references import references_input

EXAMPLE = """0:00 A red fox trots through a snowy forest at dawn, cinematic
0:20 The fox stops at a frozen lake and looks at its reflection
0:40 The fox curls up under a pine tree while snow begins to fall"""


class PromptTimeline(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return helpers.schema(
            "HeadForcingPromptTimeline",
            "Prompt Timeline",
            "prompts",
            aliases="prompt travel, prompt schedule, prompt scheduling, multi prompt, story, keyframes, scenes",
            description="Prompts over time. One per line with its start (0:20 text), as ranges ([00:10-00:20] text), "
            "separated by vertical bars, as 'Scene 1:' blocks, or LongLive JSON. A tag such as [recache], [flush] or "
            "[blend 3] before a prompt sets its prompt switch. Other samplers use the first prompt only.",
            inputs=[
                io.Clip.Input("clip", tooltip="Load CLIP with umt5_xxl, type wan (or the demo model's)."),
                helpers.explain(
                    io.String.Input("prompts", multiline=True, default=EXAMPLE),
                    "The timeline. A new prompt takes effect at the nearest block.",
                ),
                helpers.seconds_input(
                    "Length of the video. 0 takes it from the text: its last end, or 10 s a prompt.", default=60.0
                ),
                helpers.advanced(
                    io.String.Input("shared_prompt", default=""),
                    "Put before every prompt, for what stays the same: the subject, the style.",
                ),
                helpers.advanced(
                    io.Combo.Input("switch", options=list(SWITCHES), default=DEFAULTS.switch.kind),
                    "What a new prompt does to the caches. reset: nothing. recache: the last blocks are "
                    "written again under the new prompt. flush: only the first and the last two latent frames stay. "
                    "A tag before a prompt, such as [flush], sets it for that prompt.",
                ),
                helpers.advanced(
                    io.Int.Input("blend_blocks", default=DEFAULTS.switch.blend_blocks, min=0, max=MAX_BLEND_BLOCKS),
                    "Blocks over which the text embedding is interpolated at a new prompt. As a tag: [blend 3].",
                ),
                helpers.advanced(
                    io.Boolean.Input("re_anchor", default=DEFAULTS.switch.re_anchor),
                    "Every prompt is a new scene: its first frames replace the video's first frames in the "
                    "cache of anchor heads. As a tag, for single cuts: [re-anchor], or [flush, re-anchor].",
                ),
                references_input(),
                helpers.family_input(
                    "Whose blocks the bars and the table show: 0.75 s with Wan 2.1, 1.33 s with longlive2. The sampler "
                    "reads the text for the model that it gets.",
                ),
            ],
            outputs=[
                io.Conditioning.Output(display_name="positive"),
                io.String.Output(display_name="table"),
                io.Float.Output(display_name="seconds"),
            ],
        )

    @classmethod
    def validate_inputs(cls, prompts: str | None = None) -> bool | str:
        """Check when the graph is queued that the text is a timeline at some length."""
        return helpers.refusal(lambda text: parse_timeline(text, MAX_SECONDS), prompts)

    @classmethod
    @helpers.shows_errors
    def execute(
        cls,
        clip: Any,
        prompts: str,
        seconds: float,
        shared_prompt: str = "",
        switch: str = DEFAULTS.switch.kind,
        blend_blocks: int = DEFAULTS.switch.blend_blocks,
        re_anchor: bool = DEFAULTS.switch.re_anchor,
        references: dict[str, Any] | None = None,
        model_family: str = DEFAULTS.model_family,
    ) -> io.NodeOutput:
        if clip is None:  # what a checkpoint loader gives when the file has no text encoder in it
            raise HeadForcingError("clip is empty: the file has no text encoder; use Load CLIP with umt5_xxl, type wan")
        CLIPS[key := uuid.uuid4().hex] = clip
        chosen, family = Switch(switch, blend_blocks, re_anchor), RenderOptions(model_family=model_family)
        node = TimelineNode(prompts, seconds, shared_prompt, chosen, key, family, references or {})
        positive, timeline = node.conditioning()
        return io.NodeOutput(positive, timeline.table(), timeline.seconds)

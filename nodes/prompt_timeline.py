"""Prompt Timeline: several prompts over time as one CONDITIONING."""

import uuid
from typing import Any

from comfy_api.latest import io

from ..headforcing_core.errors import HeadForcingError
from ..headforcing_core.files import Fields
from ..headforcing_core.plan.options import DEFAULTS, RenderOptions
from ..headforcing_core.timeline.clock import MAX_SECONDS
from ..headforcing_core.timeline.paste.paste import read_any
from ..headforcing_core.timeline.switch import MAX_BLEND_BLOCKS, SWITCHES, Switch
from ..headforcing_core.video.soundtrack import MAX_GAIN_DB
from .host.graph import schema
from .host.graph.conditioning import CLIPS, TimelineNode
from .host.graph.sound import soundtrack_of
from .references import References

EXAMPLE = """0:00 A red fox trots through a snowy forest at dawn, cinematic
0:20 The fox stops at a frozen lake and looks at its reflection
0:40 The fox curls up under a pine tree while snow begins to fall"""


class PromptTimeline(io.ComfyNode):
    @classmethod
    def define_schema(cls) -> io.Schema:
        return schema.node_schema(
            "HeadForcingPromptTimeline",
            "Prompt Timeline",
            "prompts",
            aliases=(
                "prompt travel, prompt schedule, prompt scheduling, multi prompt, story, "
                "keyframes, scenes"
            ),
            inputs=[
                io.Clip.Input("clip"),
                io.String.Input("prompts", multiline=True, default=EXAMPLE),
                schema.seconds_input(default=60.0),
                io.String.Input("shared_prompt", default=""),
                io.Combo.Input("switch", options=list(SWITCHES), default=DEFAULTS.switch.kind),
                io.Int.Input(
                    "blend_blocks",
                    default=DEFAULTS.switch.blend_blocks,
                    min=0,
                    max=MAX_BLEND_BLOCKS,
                ),
                io.Boolean.Input("re_anchor", default=DEFAULTS.switch.re_anchor),
                References.Input("references", optional=True),
                schema.family_input(),
                io.Audio.Input("audio", optional=True),
                io.Float.Input(
                    "audio_offset", default=0.0, min=-MAX_SECONDS, max=MAX_SECONDS, step=0.05
                ),
                io.Float.Input(
                    "audio_gain", default=0.0, min=-MAX_GAIN_DB, max=MAX_GAIN_DB, step=1.0
                ),
            ],
            advanced=(
                "shared_prompt switch blend_blocks re_anchor model_family audio_offset audio_gain"
            ),
            outputs={
                "positive": io.Conditioning,
                "table": io.String,
                "seconds": io.Float,
            },
        )

    @classmethod
    def validate_inputs(cls, prompts: str | None = None) -> bool | str:
        """Check when the graph is queued that the text is a timeline at some length."""
        return schema.refusal(lambda text: read_any(text, MAX_SECONDS), prompts)

    @classmethod
    @schema.shows_errors
    def execute(
        cls,
        clip: Any,
        prompts: str,
        seconds: float,
        shared_prompt: str = "",
        switch: str = DEFAULTS.switch.kind,
        blend_blocks: int = DEFAULTS.switch.blend_blocks,
        re_anchor: bool = DEFAULTS.switch.re_anchor,
        references: Fields | None = None,
        model_family: str = DEFAULTS.model_family,
        audio: Fields | None = None,
        audio_offset: float = 0.0,
        audio_gain: float = 0.0,
    ) -> io.NodeOutput:
        if clip is None:  # what a checkpoint loader gives when the file has no text encoder in it
            raise HeadForcingError(
                "clip is empty: the file has no text encoder; use Load CLIP with umt5_xxl, type wan"
            )
        CLIPS[key := uuid.uuid4().hex] = clip
        chosen = Switch(switch, blend_blocks, re_anchor)
        family = RenderOptions(model_family=model_family)
        soundtrack = soundtrack_of(audio)
        if soundtrack is not None:
            soundtrack = soundtrack.placed(audio_offset, audio_gain)
        node = TimelineNode(
            prompts,
            seconds,
            shared_prompt,
            chosen,
            clip=key,
            options=family,
            references=references or {},
            soundtrack=soundtrack,
        )
        positive, timeline = node.conditioning()
        return io.NodeOutput(positive, timeline.table(), timeline.seconds)

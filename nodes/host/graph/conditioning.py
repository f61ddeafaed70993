"""The prompt timeline in a CONDITIONING, and what reads and encodes another text as its node
did.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from ....headforcing_core.errors import HeadForcingError
from ....headforcing_core.files import Fields
from ....headforcing_core.plan.options import DEFAULTS, RenderOptions
from ....headforcing_core.rollout.rows import Embeddings
from ....headforcing_core.timeline.clock import BlockClock
from ....headforcing_core.timeline.editor import read_widgets
from ....headforcing_core.timeline.paste.paste import Pasted, paste
from ....headforcing_core.timeline.switch import Switch
from ....headforcing_core.timeline.timeline import Timeline, parse_timeline
from ....headforcing_core.video.soundtrack import Soundtrack
from ....headforcing_core.weights.umt5 import first_cut_word
from ..model.loaded_model import check_text_width, wan_config

TIMELINE = "head_forcing_timeline"
END = "</s>"  # the last piece of a prompt
Conditioning = list[Any]
# Parts of an entry that change what a native sampler makes.
_PARTS = frozenset(
    "area mask control gligen hooks default concat_latent_image concat_mask concat_image "
    "vace_frames vace_mask reference_latents reference_motion clip_vision_output time_dim_concat "
    "audio_embed camera_conditions control_video "
    "pose_video_latent face_video_pixels".split()
)
_WHOLE = {"start_percent": 0.0, "end_percent": 1.0}  # the range of a prompt that has none
# text encoders that nodes ran with, by a key of the run
CLIPS: WeakValueDictionary[str, Any] = WeakValueDictionary()


@dataclass(frozen=True)
class TimelineNode:
    """The values that a *Prompt Timeline* node ran with; makes its output, and encodes prompts that
    come later.

    Not the node's id: ComfyUI gives the same output to a node with the same values and another id.
    """

    text: str
    seconds: float
    shared_prompt: str
    switch: Switch
    # key of the text encoder in `CLIPS`, as a CONDITIONING in a cache must not keep it in memory
    clip: str
    # of the render that reads the text; before one does, those of the node's own widgets
    options: RenderOptions = DEFAULTS
    # pictures `[h, w, 3]` in 0..1
    references: Mapping[str, Tensor] = field(default_factory=dict, compare=False)
    soundtrack: Soundtrack | None = field(default=None, compare=False)

    @property
    def widgets(self) -> Fields:
        """The values by the names of the node's widgets."""
        return {
            "prompts": self.text,
            "seconds": self.seconds,
            "shared_prompt": self.shared_prompt,
            "switch": self.switch.kind,
            "blend_blocks": self.switch.blend_blocks,
            "re_anchor": self.switch.re_anchor,
        }

    def changed(self, text: str, widgets: Fields) -> TimelineNode:
        """The node with another text and other values of the widgets named; raises as
        `editor.read_widgets`.
        """
        seconds, shared_prompt, switch = read_widgets({**self.widgets, **widgets})
        return replace(self, text=text, seconds=seconds, shared_prompt=shared_prompt, switch=switch)

    def timeline(self) -> Timeline:
        """The timeline of the text, in any form, without *seconds* as long as its sound; raises as
        `lay_out_story`.
        """
        return self._pasted().timeline(
            **self._arguments,
            shared_prompt=self.shared_prompt,
            references=tuple(self.references),
        )

    @property
    def translation(self) -> Pasted | None:
        """The translation of the text; None for a text in the written form."""
        pasted = self._pasted()
        return pasted if pasted.is_translated else None

    def _pasted(self) -> Pasted:
        arguments = self._arguments
        return paste(self.text, arguments["clock"], arguments["seconds"])

    @property
    def _arguments(self) -> Fields:
        """Arguments of `lay_out_story` that are those of the render."""
        seconds = self.seconds
        if not seconds and self.soundtrack is not None:
            seconds = self.soundtrack.story_length()
        options = replace(self.options, seconds=seconds, switch=self.switch)
        return options.timeline_arguments

    def encode(self, texts: Iterable[str]) -> Fields:
        """By text its `[tensor, options]`, the entry of a CONDITIONING."""
        clip = CLIPS.get(self.clip)
        if clip is None:
            raise HeadForcingError(
                "the text encoder is no longer in memory; queue the new story as a render"
            )
        return {text: encode_text(clip, text) for text in texts}

    def conditioning(self) -> tuple[Conditioning, Timeline]:
        """The node's output: the first prompt as a CONDITIONING that carries all of them."""
        timeline = self.timeline()
        entries = self.encode(timeline.texts)
        embeds = {text: tensor for text, (tensor, _) in entries.items()}
        carried = {"timeline": timeline, "embeds": embeds, "node": self}
        tensor, options = entries[timeline.texts[0]]
        return [[tensor, {**options, TIMELINE: carried}]], timeline


def encode_text(clip: Any, text: str) -> list[Any]:
    """`[tensor, options]`, the entry of a CONDITIONING, of a text."""
    return clip.encode_from_tokens_scheduled(clip.tokenize(text))[0]


@dataclass(frozen=True)
class ReadConditioning:
    """A CONDITIONING as a MODEL with some options reads it.

    Attributes:
        positive: the CONDITIONING, with its text read and encoded again if the model needs that.
        embeds: the embedding `[tokens, text_dim]` of each text of the timeline.
        notes: lines for the report.
    """

    positive: Conditioning
    timeline: Timeline
    embeds: Embeddings
    notes: tuple[str, ...]


def read_conditioning(
    model: Any, positive: Conditioning, options: RenderOptions
) -> ReadConditioning:
    """Read a CONDITIONING for a MODEL with these options.

    A plain CONDITIONING is a timeline of one prompt that lasts the options' `seconds`, 10 when that
    is 0. Refuses what was made by another text encoder than the model's.
    """
    fitted = _fitted(positive, options)
    timeline, embeds = _timeline_of(fitted, options.seconds)
    check_text_width(model, embeds.values())
    node = node_of(fitted)
    clip = None if node is None else CLIPS.get(node.clip)
    most = wan_config(model).text_len
    notes = (
        *_other_blocks(positive, options),
        *cut_prompts(embeds, most, clip),
        *_translation(fitted),
    )
    return ReadConditioning(fitted, timeline, embeds, notes)


def _fitted(positive: Conditioning, options: RenderOptions) -> Conditioning:
    """The CONDITIONING with its text read and encoded again, if the model needs that: its blocks
    have another length than those the node knew, or it wants a prefix before the first prompt of
    each shot (`Schedule.shot_prefix`).
    """
    node = node_of(positive)
    if node is None or (
        _timing(node.options) == _timing(options) and not options.schedule.shot_prefix
    ):
        return positive
    tensor, entry = positive[0]
    node = replace(node, options=options)
    timeline = node.timeline()
    embeds = dict(entry[TIMELINE]["embeds"])
    missing = [text for text in timeline.texts if text not in embeds]
    if missing:
        embeds.update({text: encoded for text, (encoded, _) in node.encode(missing).items()})
    again = {"timeline": timeline, "embeds": embeds, "node": node}
    return [[tensor, {**entry, TIMELINE: again}]]


def cut_prompts(embeds: Embeddings, most: int, clip: Any = None) -> list[str]:
    """Lines for the report about prompts of which the model reads the first `most` tokens alone,
    with the first word that is cut if their text encoder is still in memory.
    """
    lines = []
    for text, rows in embeds.items():
        tokens = int(rows.any(dim=-1).sum())
        if tokens > most:
            word = _cut_word(clip, text, most)
            lines.append(
                f"the model reads the first {most} of {tokens} tokens of the prompt {text[:40]!r}: "
                + (f"the first word that is cut is {word!r}; " if word else "")
                + "say it in fewer words"
            )
    return lines


def _cut_word(clip: Any, text: str, most: int) -> str:
    """The first word of a prompt that is not among its first `most` tokens; empty where its text
    encoder cannot tell.
    """
    if clip is None:
        return ""
    with suppress(AttributeError, LookupError, TypeError, ValueError):  # a tokenizer of its own
        (of_encoder,) = clip.tokenize(text).values()
        pieces = [piece for _, piece in clip.tokenizer.untokenize(of_encoder[0])]
        pieces = pieces[: pieces.index(END)] if END in pieces else pieces
        if len(pieces) > most:
            return first_cut_word(pieces, most)
    return ""


def _other_blocks(positive: Conditioning, options: RenderOptions) -> list[str]:
    """A line for the report if *Prompt Timeline* draws blocks of another length than the
    model's.
    """
    node = node_of(positive)
    if node is None or _timing(node.options) == _timing(options):
        return []
    shown = node.options.schedule.clock.block_seconds
    made = options.schedule.clock.block_seconds
    return [
        f"Prompt Timeline shows blocks of {shown:.4g} s, this model's last {made:.4g} s: set its "
        f"model_family to {options.model_family}"
    ]


def _translation(positive: Conditioning) -> list[str]:
    """Lines for the report with the story that was rendered, if *Prompt Timeline* holds another
    form.
    """
    node = node_of(positive)
    pasted = None if node is None else node.translation
    if pasted is None:
        return []
    return [f"the text of Prompt Timeline was {pasted.sentence}:", *pasted.text.split("\n")]


def _timing(options: RenderOptions) -> tuple[BlockClock, str]:
    return options.schedule.clock, options.schedule.shot_prefix


def _timeline_of(positive: Conditioning, seconds: float) -> tuple[Timeline, Embeddings]:
    if not positive:
        raise HeadForcingError("positive is empty; connect Prompt Timeline or CLIP Text Encode")
    if len(positive) > 1:
        raise HeadForcingError(
            f"positive holds {len(positive)} combined prompts; connect one, or Prompt Timeline"
        )
    tensor, options = positive[0]
    if len(tensor) > 1:
        raise HeadForcingError(
            f"positive holds {len(tensor)} prompts in one batch (a schedule of another pack); use "
            "Prompt Timeline"
        )
    check_parts(options, "positive")
    carried = options.get(TIMELINE)
    if carried is not None:
        timeline: Timeline = carried["timeline"]
        embeds = {text: carried["embeds"][text][0] for text in timeline.texts}
        if not torch.equal(tensor[0], embeds[timeline.texts[0]]):
            raise HeadForcingError(
                "positive was changed after Prompt Timeline by a node that knows only one prompt; "
                "connect it directly"
            )
        return timeline, embeds
    timeline = parse_timeline("the connected prompt", seconds or None)
    return timeline, {timeline.texts[0]: tensor[0]}


def check_parts(entry: Fields, where: str) -> None:
    """Refuse an entry of a CONDITIONING that a native sampler reads with a range, an area, pictures
    or a control.
    """
    found = sorted(part for part in _PARTS if entry.get(part) is not None)
    if any(entry.get(part, whole) != whole for part, whole in _WHOLE.items()):
        found += [part for part in _WHOLE if part in entry]
    if entry.get("strength", 1.0) != 1.0:
        found.append("strength")
    if found:
        raise HeadForcingError(
            f"{where} has {' and '.join(found)}, which Head Forcing does not read; connect Prompt "
            "Timeline directly"
        )


def node_of(positive: Conditioning) -> TimelineNode | None:
    """The node that a CONDITIONING comes from; None for one of another node, and for several that
    were combined.
    """
    return positive[0][1].get(TIMELINE, {}).get("node") if len(positive) == 1 else None

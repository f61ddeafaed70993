"""SWIFT makes the recorded decisions at every switch and block, and each of its likely mistakes is
seen, by as much as an independent implementation saw it.
"""

import math
from dataclasses import replace

import pytest
import torch
from headforcing.headforcing_core.methods import swift
from headforcing.headforcing_core.methods.swift import Swift, SwiftCache
from headforcing.headforcing_core.model import rope
from headforcing.headforcing_core.model.wan import PromptKV
from headforcing.headforcing_core.rollout import loop
from headforcing.research.recordings import replay as replaying
from headforcing.research.recordings.authors import AuthorsSwift
from headforcing.research.recordings.replay import replay
from recorded_cases import apart, each_run, kept_cache, needs, noted, open_case, replayed
from torch import Tensor
from torch.nn import functional as F

NAME = "peers/swift"
MODES = {"full-recache": False, "bridge-only": True, "bridge+micro-recache": True}


class Notes:
    """Notes of a replay: each switch, and each block's window, scale, segments and keys."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.switches: list[dict] = []
        self.injected: list[Tensor] = []
        self.blocks: dict[int, tuple] = {}
        self.strengths = noted(monkeypatch, SwiftCache, "strength")
        attend = SwiftCache.context
        apply = SwiftCache.apply_switch
        notes = self

        def context(cache, layer, q):
            asked = cache.attention

            def counting(q, k, v):
                keys = k.shape[1]
                if cache.recaching:
                    notes.switches[-1]["keys"] = keys
                    notes.switches[-1]["frames"] = list(range(cache.start, cache.end))
                else:
                    has = cache.injected.shape[2] > 0
                    scale = cache.injected_scale if has else None
                    facts = (cache.read_frames, scale, cache.segments.shape[2], keys)
                    # all layers and passes of a block read alike
                    assert notes.blocks.setdefault(cache.start, facts) == facts
                return asked(q, k, v)

            cache.attention = counting
            made = attend(cache, layer, q)
            cache.attention = asked
            return made

        def apply_switch(cache, *given):
            notes.switches.append({"at": cache.frames_seen})
            apply(cache, *given)
            notes.switches[-1]["injects"] = cache.injected.shape[2] > 0
            if cache.injected.shape[2]:
                notes.injected.append(cache.injected)

        monkeypatch.setattr(SwiftCache, "context", context)
        monkeypatch.setattr(SwiftCache, "apply_switch", apply_switch)


@each_run(NAME, sets=("full",))
def test_swift_makes_the_recorded_decisions(monkeypatch, which, name, run):
    case = open_case(which, name)
    facts = case.config["facts"][run]
    caches = kept_cache(monkeypatch)
    notes = Notes(monkeypatch)
    replayed(case, run, tolerance=1e-5)
    (cache,) = caches
    switches = [switch for switch in facts["switches"] if switch["at_frame"]]
    assert notes.strengths == pytest.approx([switch["rho"] for switch in switches], abs=2e-6)
    for found, recorded in zip(notes.switches[-len(switches) :], switches, strict=True):
        assert found["at"] == recorded["at_frame"]
        assert found["injects"] == MODES[recorded["mode"]]
        assert found.get("frames") == recorded.get("recached_frames")
        assert found.get("keys") == recorded.get("keys_read_by_recache")
    assert len(notes.blocks) == len(facts["blocks"])
    for block in facts["blocks"]:
        window, scale, segments, keys = notes.blocks[block["first_frame"]]
        assert (window, segments, keys) == (
            block["window_frames"],
            block["anchors"],
            block["keys_read"],
        )
        recorded = block["bridge_scale"]
        assert scale == (None if recorded is None else pytest.approx(recorded, rel=1e-5))
    tokens = [case.tensors[key] for key in sorted(case.tensors) if key.startswith(f"bridge/{run}/")]
    for found, recorded in zip(notes.injected, tokens, strict=True):
        assert (found.transpose(1, 2) - recorded).abs().max() < 1e-5
    if (segments := case.tensors.get(f"anchors/{run}")) is not None:
        assert (cache.segments.transpose(1, 2) - segments).abs().max() < 1e-5
    for part, found in zip("kv", cache.slots[-1], strict=True):
        recorded = case.tensors.get(f"cache_{part}_last_layer/{run}")
        if recorded is not None:
            assert (found - rope.by_head(recorded[0], 24)).abs().max() < 1e-5


@needs(NAME)
def test_the_mean_text_of_a_prompt_is_the_recorded_signature():
    case = open_case("full", NAME)
    model = case.model()
    for embedding, signature in zip(
        case.tensors["prompt_embeds"], case.tensors["signatures"], strict=True
    ):
        prompt = loop.encode_prompt(model, embedding, torch.float32)
        assert (prompt.mean_text - signature).abs().max() < 1e-6


# ------------------------------------------------------------------------------------ mistakes

OWN_TOKENS = SwiftCache.own_tokens
APPLY_SWITCH = SwiftCache.apply_switch
SEGMENT_TOKEN = SwiftCache.segment_token
INJECTED_TOKENS = SwiftCache.injected_tokens
RECACHE = SwiftCache.recache
OPEN = SwiftCache.open
CONTEXT = SwiftCache.context
ENCODE = loop.encode_prompt


def all_at_once(run, block):
    return [-(-max(run["switch"]) // block) for _ in run["switch"]]


def rotated_tokens(self, layer):
    k, v = OWN_TOKENS(self, layer)
    spread = k[:, :, None].expand(-1, -1, self.shape.frame_tokens, -1)
    return torch.stack((self.rope.rotate(spread, [self.start] * k.shape[1])[:, :, 0], v))


def unscaled_values(self, layer):
    k, _ = OWN_TOKENS(self, layer)
    v = torch.cat((self.segments[layer], self.injected[layer]), dim=1)
    return torch.stack((k, v))


def decayed_first(self, *given):
    APPLY_SWITCH(self, *given)
    self.injected_scale *= self.method.injection_decay


def decayed_per_pass(self, layer, q):
    made = CONTEXT(self, layer, q)
    if layer == self.shape.layers - 1:
        self.injected_scale *= self.method.injection_decay
    return made


def injected_late(self, switch, write_clean, latest):
    asked = []

    def note(*given):
        asked.append(given)
        return self.injected

    self.injected_tokens = note
    APPLY_SWITCH(self, switch, write_clean, latest)
    del self.injected_tokens
    for _, change, strength in asked:
        self.injected = INJECTED_TOKENS(self, self._mean_values(), change, strength)


def kept_injection(self, *given):
    before = self.injected

    def recache(*inner):
        if not self.injected.shape[2]:
            self.injected = before
        RECACHE(self, *inner)

    self.recache = recache
    APPLY_SWITCH(self, *given)
    del self.recache


def segment_first(self, values, text):
    token = SEGMENT_TOKEN(self, values, text)
    self.segments = torch.cat((self.segments, token), dim=2)
    return token[:, :, :0]


def oldest_segments(self, *given):
    before = self.segments
    APPLY_SWITCH(self, *given)
    if before.shape[2] == self.method.segment_tokens:
        self.segments = before


def evicting(self):
    if not self.recaching:
        window = self.script.rows[self.block].window_frames
        excess = min(self.filled + self.frames - window, self.filled - self.sinks)
        self.drop(self.sinks, max(0, excess))
    OPEN(self)


def window_kept_in_a_recache(self):
    before = self.read_frames
    OPEN(self)
    if self.recaching:
        self.read_frames = before


def signed(self, means, change, strength):
    likeness = F.cosine_similarity(means, change, dim=-1)
    return strength * likeness[..., None]


def counted_from_what_was_announced(self, rows, frames_per_block):
    own = []
    number = 0
    for block, row in enumerate(rows):
        frame = block * frames_per_block
        number += row.switch is not None
        begun = self.announced[number - 1] if number else 0
        coming = self.announced[number:]
        ahead = max(0, coming[0] - frame) if coming else None
        own.append(replace(row, window_frames=self.window_at(frame - begun, ahead)))
    return own


def raw_text(backbone, embeds, dtype, device):
    prompt = ENCODE(backbone, embeds, dtype, device)
    padded = F.pad(embeds, (0, prompt.text.shape[1] - embeds.shape[1]))
    return replace(prompt, text=padded)


# by mistake: the run, the greatest difference in standard deviations, what is replaced by what
MISTAKES = {
    "the text's mean counts padding": (
        "six_prompts_odd_switches",
        0.1,
        (PromptKV, "mean_text", property(lambda self: self.text.float().mean(0))),
    ),
    "the text is that before the model's embedding": (
        "six_prompts_odd_switches",
        0.5,
        (loop, "encode_prompt", raw_text),
    ),
    "all switches that are due happen at one block": (
        "three_switches_in_a_row",
        2,
        (replaying, "_first_blocks", all_at_once),
    ),
    "tokens are rotated": (
        "six_prompts_odd_switches",
        0.1,
        (SwiftCache, "own_tokens", rotated_tokens),
    ),
    "tokens do not count in the window": (
        "code_defaults",
        0.15,
        (
            SwiftCache,
            "recent_tokens",
            lambda self, own: (self.read_frames - self.sinks) * self.shape.frame_tokens,
        ),
    ),
    "sinks do not count in the window": (
        "code_defaults",
        0.4,
        (
            SwiftCache,
            "recent_tokens",
            lambda self, own: self.read_frames * self.shape.frame_tokens - own,
        ),
    ),
    "tokens fade before the first block": (
        "w9_s1_decay03",
        0.2,
        (SwiftCache, "apply_switch", decayed_first),
    ),
    "tokens fade after each pass": (
        "w9_s1_decay03",
        0.2,
        (SwiftCache, "context", decayed_per_pass),
    ),
    "values do not fade": ("w9_s1_decay03", 0.05, (SwiftCache, "own_tokens", unscaled_values)),
    "tokens are computed after the recache": (
        "switches_at_0_and_3",
        0.06,
        (SwiftCache, "apply_switch", injected_late),
    ),
    "the change has its part along the motion": (
        "w9_s1_decay03",
        0.008,
        (swift, "without", lambda change, motion: change),
    ),
    "every head takes the change": (
        "switches_at_0_and_3",
        0.1,
        (
            SwiftCache,
            "gate",
            lambda self, means, change, strength: torch.full_like(means[..., :1], strength),
        ),
    ),
    "heads that point away take the opposite": (
        "six_prompts_odd_switches",
        0.04,
        (SwiftCache, "gate", signed),
    ),
    "a whole recache keeps the injected tokens": (
        "code_defaults",
        0.1,
        (SwiftCache, "apply_switch", kept_injection),
    ),
    "sinks stay in a recache from the first frame on": (
        "no_bridge",
        0.4,
        (SwiftCache, "protected", lambda self, layer: self.sinks if self.recaching else 0),
    ),
    "a partial recache reads the block's window": (
        "six_prompts_odd_switches",
        0.009,
        (SwiftCache, "open", window_kept_in_a_recache),
    ),
    "a recache reads the segment's token": (
        "no_bridge",
        0.003,
        (SwiftCache, "segment_token", segment_first),
    ),
    "a segment's token has the new prompt": (
        "code_defaults",
        0.04,
        (
            SwiftCache,
            "segment_token",
            lambda self, values, text: SEGMENT_TOKEN(self, values, self.text_of(self.model.prompt)),
        ),
    ),
    "the oldest segments are kept": (
        "six_prompts_odd_switches",
        0.001,
        (SwiftCache, "apply_switch", oldest_segments),
    ),
    "frames outside the window are dropped": (
        "six_prompts_odd_switches",
        0.008,
        (SwiftCache, "open", evicting),
    ),
    "windows are rounded down": ("code_defaults", 0.2, (swift, "round", math.floor)),
    "the next switch is where it happens": (
        "no_bridge",
        0.1,
        (AuthorsSwift, "own_rows", Swift.own_rows),
    ),
    "the prompt began where it was announced": (
        "three_switches_in_a_row",
        0.2,
        (AuthorsSwift, "own_rows", counted_from_what_was_announced),
    ),
}


@needs(NAME)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_in_swift_is_seen(monkeypatch, mistake):
    case = open_case("full", NAME)
    run, size, (owner, name, wrong) = MISTAKES[mistake]
    monkeypatch.setattr(owner, name, wrong, raising=owner is not swift)
    difference = apart(replay(case, run).latents, case.tensors[f"latents/{run}"][0])
    assert difference == pytest.approx(size, rel=0.5)

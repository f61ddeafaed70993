"""All methods by name: what the sampler and the command line offer.

`METHODS` has a row for every published method, `policy.PRESETS` one for every table of roles, the ablations of Head
Forcing included. Recorded cases name their settings themselves, see `recorded.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..cache.method import Method
from ..cache.policy import PRESETS
from ..errors import HeadForcingError
from ..rollout.schedule import Schedule, schedule
from .causvid import CausVid
from .deep_forcing import DeepForcing
from .dummy_forcing import DummyForcing
from .forcing_kv import ForcingKV
from .infinity_rope import InfinityRope
from .longlive import LongLive
from .memflow import MemFlow
from .rolling_forcing import RollingForcing

ANY_WEIGHTS = "Self Forcing and its relatives (Apache-2.0)"
LONGLIVE_WEIGHTS = "LongLive 1.3B, LoRA merged (Apache-2.0)"


@dataclass(frozen=True)
class PublishedMethod:
    """A published method.

    Attributes:
        policy: its settings.
        weights: those it is meant for, and their licence.
        trained: whether the method needs them; any others of the family run, but were not trained for it.
        differs: what is not as in the authors' code, or is easily missed.
    """

    policy: Method
    paper: str
    arxiv: str
    weights: str = ANY_WEIGHTS
    trained: bool = False
    differs: str = ""

    def describe(self, name: str) -> str:
        """One or two lines for a report."""
        lines = [f"method {name}: {self.paper} (arXiv {self.arxiv}); meant for {self.weights}"]
        if self.trained:
            lines.append("note: this method was trained together with those weights, with any others expect less")
        if self.differs:
            lines.append(f"note: {self.differs}")
        return "\n".join(lines)


_LONGLIVE = ("LongLive: Real-time Interactive Long Video Generation", "2509.22622", LONGLIVE_WEIGHTS, True)
_MEMFLOW = (
    "MemFlow: Flowing Adaptive Memory for Consistent and Efficient Long Video Narratives",
    "2512.14699",
    "MemFlow, LoRA merged (Apache-2.0, some files CC BY-NC-SA)",
    True,
)
_MEMFLOW_STORES = (
    "with one prompt the bank takes the last block of every interval, with several the first, as the authors' two "
    "scripts do, so a second prompt makes all of the video anew; memflow_interactive always takes the first"
)
_DEEP_FORCING = (
    "Deep Forcing: Training-Free Long Video Generation with Deep Sink and Participative Compression",
    "2512.05081",
    ANY_WEIGHTS,
    False,
)

METHODS: dict[str, PublishedMethod] = {
    "head_forcing": PublishedMethod(
        PRESETS["head_forcing"],
        "Head Forcing: Long Autoregressive Video Generation via Head Heterogeneity",
        "2605.14487",
    ),
    "self_forcing": PublishedMethod(
        PRESETS["self_forcing"],
        "Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion",
        "2506.08009",
        differs="every frame is kept; the authors stop at 21",
    ),
    "self_forcing_sink": PublishedMethod(
        PRESETS["self_forcing_sink"],
        "Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion",
        "2506.08009",
    ),
    "causal_forcing": PublishedMethod(
        PRESETS["self_forcing"],
        "Causal Forcing: Autoregressive Diffusion Distillation Done Right for High-Quality Real-Time Interactive "
        "Video Generation",
        "2602.02214",
        "Causal Forcing, chunkwise or framewise (Apache-2.0)",
        True,
        "choose its model family, which sets steps and block; every frame is kept, the authors stop at 21",
    ),
    "longlive": PublishedMethod(LongLive(), *_LONGLIVE),
    "longlive_infinite": PublishedMethod(LongLive(infinite=True), *_LONGLIVE),
    "infinity_rope": PublishedMethod(
        InfinityRope(),
        "Infinity-RoPE: Action-Controllable Infinite Video Generation Emerges From Autoregressive Self-Rollout",
        "2511.20649",
        "Infinite-Forcing, Self Forcing or Causal Forcing (Apache-2.0)",
        differs="every new prompt flushes; [re-anchor] before it is the paper's scene cut",
    ),
    "deep_forcing": PublishedMethod(DeepForcing(), *_DEEP_FORCING, "an interrupted render begins again"),
    "deep_forcing_sink_only": PublishedMethod(DeepForcing(sink_frames=14, budget_frames=None), *_DEEP_FORCING),
    "forcing_kv": PublishedMethod(
        ForcingKV(),
        "Forcing-KV: Hybrid KV Cache Compression for Efficient Autoregressive Video Diffusion Models",
        "2605.09681",
        differs="memory heads of the head profile are dynamic, all others static",
    ),
    "dummy_forcing": PublishedMethod(
        DummyForcing(),
        "Efficient Autoregressive Video Diffusion with Dummy Head",
        "2601.20499",
        differs="the sampled queries depend on the seed of the video alone; a new prompt drops the first frame, too",
    ),
    "memflow": PublishedMethod(MemFlow(), *_MEMFLOW, _MEMFLOW_STORES),
    "memflow_sma": PublishedMethod(MemFlow(routed=True), *_MEMFLOW, _MEMFLOW_STORES),
    "memflow_interactive": PublishedMethod(
        MemFlow(stores_every_block=False),
        *_MEMFLOW,
        "not the authors' rule for a single prompt: the bank takes the first block of every interval, so that a prompt "
        "can be added and the blocks before it stay",
    ),
    "rolling_forcing": PublishedMethod(
        RollingForcing(),
        "Rolling Forcing: Autoregressive Long Video Diffusion in Real Time",
        "2509.25161",
        "Rolling Forcing (academic use only)",
        True,
        "five steps of its own replace the model family's unless sigmas are given; a new prompt reaches the blocks "
        "under way, too; start frames are refused",
    ),
    "causvid": PublishedMethod(
        CausVid(),
        "From Slow Bidirectional to Fast Autoregressive Video Diffusion Models",
        "2412.07772",
        "CausVid (CC BY-NC-SA, non-commercial)",
        True,
        "three steps of its own replace the model family's unless sigmas are given; beyond one rollout, 5 s, it needs "
        "a VAE, which encodes a picture anew; the last rollout is not cut; start frames are refused",
    ),
}


def method_names() -> list[str]:
    """What can be chosen, in the order of the lists that people choose from."""
    return [*PRESETS, *(name for name in METHODS if name not in PRESETS)]


def method_policy(name: str) -> Method:
    """The settings of a method or ablation, or an error that lists the names."""
    if name in METHODS:
        return METHODS[name].policy
    if name not in PRESETS:
        raise HeadForcingError(f"method must be one of {', '.join(method_names())}, got {name!r}")
    return PRESETS[name]


def method_schedule(policy: Method, family: str, sigmas: str = "") -> Schedule:
    """The noise levels that are given, else the method's own, else the model family's, in blocks of that family."""
    chosen = schedule(family, sigmas)
    own = policy.own_schedule
    return chosen if own is None or sigmas.strip() else replace(own, frames_per_block=chosen.frames_per_block)


def describe_method(name: str) -> list[str]:
    """For a report: where the method comes from and which weights it is meant for; nothing for an ablation."""
    return [METHODS[name].describe(name)] if name in METHODS else []

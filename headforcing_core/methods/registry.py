"""All methods by name, as the sampler and the command line offer them, from a module that imports
nothing heavy.

`METHODS` has a row for every published method; `PRESETS` in `head_forcing.py` has one for every set
of role policies, the ablations of Head Forcing included; `ALIASES` names methods with options.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module, metadata
from typing import TYPE_CHECKING

from ..errors import HeadForcingError, first_line, unknown_name
from ..names import PRESETS
from ..rollout.schedule import Schedule, schedule
from .options import Pairs, option_text, options_of, pairs_text, read_pairs, with_options

if TYPE_CHECKING:
    from .method import Method

log = logging.getLogger(__name__)

ENTRY_POINTS = "headforcing.methods"  # of packages that bring methods: rows by name
ANY_WEIGHTS = "Self Forcing and its relatives (Apache-2.0)"


@dataclass(frozen=True)
class PublishedMethod:
    """A published method; `make` returns its settings, and imports their module first."""

    make: Callable[[], Method]
    paper: str
    arxiv: str = ""  # number of the paper
    weights: str = ANY_WEIGHTS  # those that it is meant for, and their licence
    # whether these were trained for the method; others of the family run with it, too
    trained: bool = False
    differs: str = ""  # from the authors' code, and what is easily missed

    @property
    def method(self) -> Method:
        return self.make()

    def describe(self, name: str) -> str:
        """One or two lines for a report."""
        paper = f"{self.paper} (arXiv {self.arxiv})" if self.arxiv else self.paper
        lines = [f"method {name}: {paper}; meant for {self.weights}"]
        if self.trained:
            lines.append(
                "note: these weights were trained for this method; expect lower quality with others"
            )
        if self.differs:
            lines.append(f"note: {self.differs}")
        return "\n".join(lines)


def _method(module: str, settings: str) -> Callable[[], Method]:
    """The settings that a module of this folder defines, with their defaults."""
    return lambda: getattr(import_module(f".{module}", __package__), settings)()


def _preset(name: str) -> Callable[[], Method]:
    """A row of `PRESETS` in `methods/head_forcing.py`."""
    return lambda: import_module(".head_forcing", __package__).PRESETS[name]


METHODS: dict[str, PublishedMethod] = {
    "head_forcing": PublishedMethod(
        _preset("head_forcing"),
        "Head Forcing: Long Autoregressive Video Generation via Head Heterogeneity",
        "2605.14487",
    ),
    "self_forcing": PublishedMethod(
        _preset("self_forcing"),
        "Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion",
        "2506.08009",
        differs="every frame is kept; the authors stop at 21",
    ),
    "self_forcing_sink": PublishedMethod(
        _preset("self_forcing_sink"),
        "Self Forcing: Bridging the Train-Test Gap in Autoregressive Video Diffusion",
        "2506.08009",
    ),
    "causal_forcing": PublishedMethod(
        _preset("self_forcing"),
        "Causal Forcing: Autoregressive Diffusion Distillation Done Right for High-Quality "
        "Real-Time Interactive Video Generation",
        arxiv="2602.02214",
        weights="Causal Forcing, chunkwise or framewise (Apache-2.0)",
        trained=True,
        differs=(
            "choose its model family, which sets noise levels and block length; every frame is "
            "kept, the authors stop at 21"
        ),
    ),
    "longlive": PublishedMethod(
        _method("longlive", "LongLive"),
        "LongLive: Real-time Interactive Long Video Generation",
        arxiv="2509.22622",
        weights="LongLive 1.3B, LoRA merged (Apache-2.0)",
        trained=True,
    ),
    "longlive2": PublishedMethod(
        _method("longlive2", "LongLive2"),
        "LongLive 2.0: interactive long video with several shots",
        arxiv="2605.18739",
        weights="LongLive-2.0-5B (licence of the weights not verified; its code is Apache-2.0)",
        trained=True,
        differs=(
            "a prompt without a tag begins a shot, [reset] goes on with the same one; the cache is "
            "not computed anew at a new prompt; the authors' program stops at latent frame 1,024 "
            "of a video without cuts, this one does not"
        ),
    ),
    "livetalk": PublishedMethod(
        _preset("livetalk"),
        "LiveTalk: Real-Time Multimodal Interactive Video Diffusion via Improved On-Policy "
        "Distillation",
        arxiv="2512.23576",
        weights=(
            "LiveTalk-1.3B-V0.1 (licence of the weights not verified; its code has the text of "
            "CC BY-NC-SA 4.0, its README says Apache-2.0)"
        ),
        trained=True,
        differs=(
            "the first nine latent frames, the portrait included, stay in all caches; its authors' "
            "program stops at 254 s, this one does not; they have one prompt, here a new one keeps "
            "the cache"
        ),
    ),
    "infinity_rope": PublishedMethod(
        _method("infinity_rope", "InfinityRope"),
        "Infinity-RoPE: Action-Controllable Infinite Video Generation Emerges From Autoregressive "
        "Self-Rollout",
        "2511.20649",
        "Infinite-Forcing, Self Forcing or Causal Forcing (Apache-2.0)",
        differs=(
            "every new prompt flushes the cache; [re-anchor] before it is the paper's scene cut"
        ),
    ),
    "deep_forcing": PublishedMethod(
        _method("deep_forcing", "DeepForcing"),
        "Deep Forcing: Training-Free Long Video Generation with Deep Sink and Participative "
        "Compression",
        "2512.05081",
        differs="an interrupted render goes on from where its cache was last stored",
    ),
    "forcing_kv": PublishedMethod(
        _method("forcing_kv", "ForcingKV"),
        "Forcing-KV: Hybrid KV Cache Compression for Efficient Autoregressive Video Diffusion "
        "Models",
        "2605.09681",
        differs="memory heads of the head profile are dynamic, all others static",
    ),
    "dummy_forcing": PublishedMethod(
        _method("dummy_forcing", "DummyForcing"),
        "Efficient Autoregressive Video Diffusion with Dummy Head",
        "2601.20499",
        differs=(
            "the sampled queries depend on the video's seed alone; a new prompt drops the first "
            "frame, too"
        ),
    ),
    "memflow": PublishedMethod(
        _method("memflow", "MemFlow"),
        "MemFlow: Flowing Adaptive Memory for Consistent and Efficient Long Video Narratives",
        arxiv="2512.14699",
        weights="MemFlow, LoRA merged (Apache-2.0, some files CC BY-NC-SA)",
        trained=True,
        differs=(
            "with one prompt the bank takes the last block of every interval, with several the "
            "first, as the authors' two scripts do, so that adding a second prompt renders the "
            "whole video again; the option stores_every_block=false always takes the first, which "
            "with a single prompt is not the authors' rule"
        ),
    ),
    "rolling_forcing": PublishedMethod(
        _method("rolling_forcing", "RollingForcing"),
        "Rolling Forcing: Autoregressive Long Video Diffusion in Real Time",
        arxiv="2509.25161",
        weights="Rolling Forcing (academic use only)",
        trained=True,
        differs=(
            "its own five noise levels replace the model family's unless sigmas are given; a new "
            "prompt also affects the unfinished blocks; start frames are refused"
        ),
    ),
    "rolling_sink": PublishedMethod(
        _method("rolling_sink", "RollingSink"),
        "Rolling Sink: Bridging Limited-Horizon Training and Open-Ended Testing in Autoregressive "
        "Video Diffusion",
        "2602.07775",
        "Self Forcing or Causal Forcing, chunkwise (Apache-2.0)",
        differs=(
            "its authors draw the noise of one block for all blocks; here every block has its own"
        ),
    ),
    "memrope": PublishedMethod(
        _method("memrope", "MemRoPE"),
        "MemRoPE: Training-Free Infinite Video Generation via Evolving Memory Tokens",
        "2603.12513",
        "Self Forcing or LongLive, LoRA merged (Apache-2.0)",
        differs=(
            "as in the authors' settings a memory frame is one average over all places of its "
            "frames; the option adaptive=true is theirs for averages per place in the frame and a "
            "rate that follows the change"
        ),
    ),
    "pyramid_forcing": PublishedMethod(
        _method("pyramid_forcing", "PyramidForcing"),
        "Pyramid Forcing: Head-Aware Pyramid KV Cache Policy for High-Quality Long Video "
        "Generation",
        "2605.13111",
        differs=(
            "the rules of the authors' Python cache without its two side effects, which are "
            "options; labels that a head profile lacks are taken from its roles"
        ),
    ),
    "echo_forcing": PublishedMethod(
        _method("echo_forcing", "EchoForcing"),
        "Echo-Forcing: A Scene Memory Framework for Interactive Long Video Generation",
        "2605.16003",
        differs=(
            "a new prompt is a smooth change of scene, [re-anchor] a hard cut, [recall 2] brings "
            "the scene of prompt 2 back and [recall] the most alike one; an interrupted render "
            "goes on from where its cache was last stored"
        ),
    ),
    "id_forcing": PublishedMethod(
        _method("id_forcing", "IdForcing"),
        "ID-Forcing: long video from keys and values that were made as in training",
        "2610.03120",
        differs=(
            "the variant for Self Forcing; its authors' code has one prompt, here a new one "
            "changes what is made from then on; what it keeps is rotated once, where its authors "
            "round it twice"
        ),
    ),
    "self_gradient_forcing": PublishedMethod(
        _method("longlive", "SelfGradientForcing"),
        "Self Gradient Forcing",
        arxiv="2607.20368",
        weights="Self Gradient Forcing, chunkwise or framewise (Apache-2.0 by its README)",
        trained=True,
        differs=(
            "choose its model family; self_gradient_forcing_framewise has the window of the "
            "framewise weights; a start image is the whole first block; its authors' code has no "
            "prompt switch, here a new prompt keeps the cache"
        ),
    ),
    "reward_forcing": PublishedMethod(
        _method("reward_forcing", "RewardForcing"),
        "Reward Forcing: Efficient Streaming Video Generation with Rewarded Distribution Matching "
        "Distillation",
        arxiv="2512.04678",
        weights="Reward Forcing (Apache-2.0)",
        trained=True,
        differs=(
            "with blocks of another length than its 3 sinks the authors' code copies evicted "
            "frames instead of averaging"
        ),
    ),
    "tethercache": PublishedMethod(
        _method("tethercache", "TetherCache"),
        "TetherCache, a gated memory between sinks and recent frames (GRAB, TAME)",
        "2606.13035",
        differs="a window that is no whole number of blocks is refused",
    ),
    "swift": PublishedMethod(
        _method("swift", "Swift"),
        "SWIFT: Prompt-Adaptive Memory for Efficient Interactive Long Video Generation",
        arxiv="2605.09442",
        weights="LongLive 1.3B, LoRA merged (Apache-2.0)",
        differs=(
            "the window grows towards the next prompt, so that moving it changes blocks up to 20 "
            "latent frames before; means and shares are computed in float32, where its authors "
            "round to bfloat16"
        ),
    ),
    "causvid": PublishedMethod(
        _method("causvid", "CausVid"),
        "From Slow Bidirectional to Fast Autoregressive Video Diffusion Models",
        arxiv="2412.07772",
        weights="CausVid (CC BY-NC-SA, non-commercial)",
        trained=True,
        differs=(
            "its own three noise levels replace the model family's unless sigmas are given; videos "
            "longer than one rollout, 5 s, need a VAE, which encodes one frame per rollout; the "
            "last rollout is not cut; start frames are refused"
        ),
    ),
}


# other names of methods with options, as `--method` takes them
ALIASES = {
    "head_forcing_scenes": ("head_forcing", "scenes=auto"),
    "id_forcing_longlive": ("id_forcing", "native_blocks=0"),
    "self_gradient_forcing_framewise": ("self_gradient_forcing", "window_frames=21, sink_frames=4"),
    "longlive_infinite": ("longlive", "infinite=true"),
    "deep_forcing_sink_only": ("deep_forcing", "sink_frames=14, budget_frames=none"),
    "memflow_sma": ("memflow", "routed=true"),
    "memflow_interactive": ("memflow", "stores_every_block=false"),
    "memrope_adaptive": ("memrope", "adaptive=true"),
}

_SIDE_EFFECTS = (
    "has side effects of its authors' code, which are not part of its paper; choose pyramid_forcing"
)

# methods that are known by name and not supported, and why
NOT_BUILT = {
    "pyramid_forcing_cuda": f"pyramid_forcing_cuda {_SIDE_EFFECTS}",
    "pyramid_forcing_python": f"pyramid_forcing_python {_SIDE_EFFECTS}",
    "krea_realtime": (
        "krea_realtime recomputes its whole cache before each block, from the last frames and an "
        "encoded video frame, which is not supported; with Krea's weights choose head_forcing or "
        "forcing_kv"
    ),
    "shotstream": (
        "shotstream reads frames of all earlier shots through a cache of their own, which is not "
        "supported; with its weights choose head_forcing or echo_forcing"
    ),
}


def add_methods(rows: Mapping[str, PublishedMethod]) -> None:
    """Add rows of other packages; raises HeadForcingError for a name that is taken, and for what is
    no row.
    """
    for name, row in rows.items():
        if not isinstance(row, PublishedMethod):
            raise HeadForcingError(
                f"method {name}: expected a PublishedMethod of methods.registry, found "
                f"{type(row).__name__}"
            )
        if METHODS.get(name, row) != row or name in PRESETS or name in ALIASES:
            raise HeadForcingError(f"method {name}: there is one of this name; choose another")
        METHODS[name] = row


def method_names() -> list[str]:
    """The names of all methods, ablations and aliases, in the order of menus."""
    return [*PRESETS, *(name for name in METHODS if name not in PRESETS), *ALIASES]


def unknown_method(name: str, field: str = "method") -> HeadForcingError:
    """The error for a name that no method has, or that is known and not supported."""
    if name in NOT_BUILT:
        return HeadForcingError(f"{field}: {NOT_BUILT[name]}")
    return unknown_name(field, name, method_names())


def method_named(name: str) -> Method:
    """The settings of a method, ablation or alias; raises HeadForcingError with the list of names
    for another name.
    """
    if name in ALIASES:
        method, options = ALIASES[name]
        return with_options(METHODS[method].method, read_pairs(options), method)
    if name in METHODS:
        return METHODS[name].method
    if name not in PRESETS:
        raise unknown_method(name)
    return _preset(name)()


def method_schedule(method: Method, family: str, sigmas: str = "") -> Schedule:
    """`sigmas` if given, else the method's own noise levels, else the model family's; block length
    of the family.
    """
    chosen = schedule(family, sigmas)
    own = method.own_schedule
    if own is not None and chosen.solver != "renoise":
        raise HeadForcingError(
            f"this method has a sampler of its own, which the model family {family} was not "
            "trained for; choose another method, such as longlive2 or head_forcing"
        )
    if own is None or sigmas.strip():
        return chosen
    return replace(own, frames_per_block=chosen.frames_per_block)


def check_model(method: Method, schedule: Schedule) -> None:
    """Refuse LongLive 2.0's window for models that know no shots: it is longer than theirs."""
    if method.needs_shots and not schedule.shot_prefix:
        raise HeadForcingError(
            "method longlive2 is for weights of the model family longlive2, which were trained "
            "with shots and a window of 32 latent frames; choose another method, such as "
            "head_forcing or longlive"
        )


def describe_method(name: str, options: Pairs = ()) -> list[str]:
    """Lines for a report: the paper of a method with these options, and its weights; none for a
    plain ablation.
    """
    method, own = ALIASES.get(name, (name, ""))
    lines = [METHODS[method].describe(method)] if method in METHODS else []
    if own or options:
        lines.append(f"method options: {pairs_text([*read_pairs(own), *options])}")
    return lines


def list_methods() -> list[str]:
    """A line for every method and ablation with its options and their defaults.

    Of the methods that keep frames by role all but the first have what differs from it.
    """
    first = options_of(method_named("head_forcing"))
    lines = []
    for name in [*METHODS, *(name for name in PRESETS if name not in METHODS)]:
        options = options_of(method_named(name))
        by_role = name != "head_forcing" and options.keys() == first.keys()
        if by_role:
            options = {key: option for key, option in options.items() if option != first[key]}
        texts = [f"{key}={option_text(option.value)}" for key, option in options.items()]
        lines.append(
            f"{name}: {'head_forcing with ' if by_role else ''}{', '.join(texts) or 'no options'}"
        )
    return lines + [
        f"{alias}: {method} with {options}" for alias, (method, options) in ALIASES.items()
    ]


def _add_installed() -> None:
    """Add the methods of installed packages; one that cannot be loaded is left out, with a
    warning.
    """
    for entry in metadata.entry_points(group=ENTRY_POINTS):
        try:
            add_methods({entry.name: entry.load()})
        except Exception as error:
            log.warning("Head Forcing: method %s is left out: %s", entry.name, first_line(error))


_add_installed()

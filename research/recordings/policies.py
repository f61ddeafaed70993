"""Read the settings of each method from a recorded case (`tests/golden/README.md`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from ...headforcing_core.cache.roles import Roles
from ...headforcing_core.errors import HeadForcingError
from ...headforcing_core.methods.longlive import LongLive
from ...headforcing_core.methods.method import Method
from ...headforcing_core.methods.pyramid_forcing import PyramidForcing
from ...headforcing_core.methods.pyramid_labels import HeadLabel
from ...headforcing_core.methods.registry import METHODS
from .authors import (
    AuthorsPyramidForcing,
    AuthorsSwift,
    AuthorsTetherCache,
    CommitForcing,
    RecordedDummyForcing,
)

Fields = dict[str, Any]  # of config.json
_LABELS = {-1: HeadLabel.WAVE, 1: HeadLabel.ANCHOR, 2: HeadLabel.VEIL}


def recorded_method(
    config: Fields, run: Fields, tensors: Mapping[str, Tensor]
) -> tuple[Method, Roles]:
    """The method and the head roles of one run of a case whose method is `config["method"]`."""
    method = config["method"]
    heads = config["num_heads"] * config["num_layers"]
    if method == "dummy_forcing":
        rows = tensors[f"sampled_rows_ar_start{run['ar_start']}"].tolist()
        run = {**run, "rows": tuple(map(tuple, rows)), "last_share": run["num_dummy"] / heads}
    if run.get("compression") == "eviction":  # MemRoPE's authors' own comparison: no memory frames
        method = "longlive"
        run = {**run, "infinite": True}
    roles: Any = [["memory"] * config["num_heads"] for _ in range(config["num_layers"])]
    if "split" in run:
        for layer in config["head_splits"][run["split"]]:
            for head in layer["static"]:
                roles[layer["layer"]][head] = "anchor"
    if "labels" in run:
        roles = []
        for layer in run["labels"]:
            roles.append([_LABELS[label] for label in layer])
    if method == "pyramid_forcing":
        return _pyramid_forcing(run), roles
    if method == "commit_forcing":
        return _commit_forcing(run), roles
    announced = tuple(run.get("switch", ()))
    if method == "swift" and any(frame % config["frames_per_block"] for frame in announced):
        return AuthorsSwift(**OPTIONS[method](run), announced=announced), roles
    if method == "tethercache" and run["budget_size"] % 3:
        return AuthorsTetherCache(**OPTIONS[method](run)), roles
    plain = RecordedDummyForcing() if method == "dummy_forcing" else METHODS[method].method
    return replace(plain, **OPTIONS[method](run)), roles


def _pyramid_forcing(run: Fields) -> PyramidForcing:
    """The paper's method, or that of its authors' code where the run has side effects of it."""
    sinks = {f"{label}_sinks": run["sink_frames"][str(number)] for number, label in _LABELS.items()}
    nearest, farthest = run["far_clamp"]
    settings: Fields = dict(
        recent_frames=run["recent_frames"],
        period=run["cyclic_period"],
        phase_frames=run["cyclic_places"],
        stride=run["stride_interval"],
        stride_frames=run["stride_places"],
        patch=run["merge_patch"],
        merged_blocks=run["merge_blocks"],
        nearest=nearest,
        farthest=farthest,
        **sinks,
    )
    side_effects = dict(
        overlaps_recent=run["mega"],
        stale_readout=run["stale_readout"],
        leftover_frame=run["anchor_leftover_frame"],
    )
    if any(side_effects.values()):
        return AuthorsPyramidForcing(**settings, **side_effects)
    return PyramidForcing(**settings)


def _commit_forcing(run: Fields) -> LongLive:
    """LongLive's window, or Self Forcing's with sinks, whose keys count in the context, and how
    much of it a clean pass reads.
    """
    if run["base"] not in ("longlive", "self_forcing_sink"):
        raise HeadForcingError(
            f"base must be longlive or self_forcing_sink, got {run['base']!r}; the run cannot be "
            "used"
        )
    if run.get("recency_bias"):
        raise HeadForcingError(
            "the run cannot be used: no method here has its temporal recency bias"
        )
    settings = dict(
        window_frames=run["window"] if "window" in run else run["sink"] + run["recent_frames"],
        sink_frames=run["sink"],
        infinite=run.get("infinite", run["base"] == "self_forcing_sink"),
        **_keeps_sinks(run),
    )
    # the authors' pipeline of several prompts does not follow its own rule
    if not run["commit_rule"] or run.get("authors_switch"):
        return LongLive(**settings)
    method = CommitForcing(**settings, commit_frames=run["commit_frames"])
    if method.commit_frames == method.window_frames:
        return LongLive(**settings, clean_reads="recent")
    return method


def _window(run: Fields) -> Fields:
    return {"window_frames": run["window"], "sink_frames": run["sink"]}


def _keeps_sinks(run: Fields) -> Fields:
    return {"keeps_sinks": run["global_sink"]} if "global_sink" in run else {}


def _longlive2(run: Fields) -> Fields:
    if run["guidance"] != 1:
        raise HeadForcingError(
            f"the run cannot be used: guidance must be 1, got {run['guidance']:g}"
        )
    if run["multi_shot_sink"] and run["sink"] % run["block"] and run["shot_starts"]:
        raise HeadForcingError(
            "the run cannot be used: its authors' code loses a shot's sink of no whole blocks"
        )
    if run["t_scale"] is not None:
        raise HeadForcingError(
            f"the run cannot be used: t_scale must be null, got {run['t_scale']!r}"
        )
    if run["independent_first_frame"] and not run["image"]:
        raise HeadForcingError("the run cannot be used: independent_first_frame needs an image")
    if run["rope_offset"] != int(run["rope_offset"]):
        raise HeadForcingError(
            f"the run cannot be used: rope_offset must be whole frames, got {run['rope_offset']:g}"
        )
    if run["clean_recache"] and not run["sink"]:
        raise HeadForcingError("the run cannot be used: clean_recache needs a sink")
    return dict(
        # as the authors' code reads -1
        window_frames=3 * run["block"] if run["window"] == -1 else run["window"],
        sink_frames=run["sink"],
        shot_sinks=run["multi_shot_sink"],
        shot_offset=int(run["rope_offset"]),
        drops_old_shots=run["clean_recache"],
        infinite=run["relative_rope"],
    )


def _deep_forcing(run: Fields) -> Fields:
    if run["ds_only"]:
        return dict(sink_frames=run["sink"], budget_frames=None)
    return dict(
        sink_frames=run["sink"],
        budget_frames=run["budget_frames"],
        recent_frames=run["recent_frames"],
        max_reuse=run["topc_max_reuse"],
    )


def _id_forcing(run: Fields) -> Fields:
    if run["base"] == "longlive":
        return dict(native_blocks=0, window_blocks=run["window_chunks"])
    return dict(
        native_blocks=run["native_chunks"],
        native_window=run["cache_frames"],
        native_sinks=run["sink_size"],
    )


def _swift(run: Fields) -> Fields:
    shortest = run["adaptive_prompt_window_min_size"]
    bridge = "semantic_bridge_"
    segment = "segment_anchor_"
    return dict(
        _window(run),
        **_keeps_sinks(run),
        shortest_window_frames=(
            shortest if run["adaptive_prompt_window_enabled"] else run["window"]
        ),
        after_switch_frames=run["adaptive_prompt_window_tau_post"],
        before_switch_frames=run["adaptive_prompt_window_tau_pre"],
        segment_tokens=run[segment + "max_segments"] if run[segment + "enabled"] else 0,
        segment_frames=run[segment + "recent_frames"],
        segment_text_share=run[segment + "semantic_mix"],
        segment_scale=run[segment + "scale"],
        injection=run[bridge + "enabled"],
        injection_frames=run[bridge + "recent_frames"],
        injection_scale=run[bridge + "scale"],
        injection_decay=run[bridge + "decay"],
        partial_recache_from=run[bridge + "tau_low"],
        partial_recache_frames=run[bridge + "micro_recache_frames"],
        recache_from=run[bridge + "tau_high"],
    )


# the options of each method, read from the settings of a run
OPTIONS: dict[str, Callable[[Fields], Fields]] = {
    "longlive": lambda run: dict(_window(run), infinite=run["infinite"], **_keeps_sinks(run)),
    "longlive2": _longlive2,
    "infinity_rope": _window,
    "rolling_sink": _window,
    "reward_forcing": lambda run: dict(_window(run), kept_share=run["alpha"]),
    "memrope": lambda run: dict(
        _window(run),
        long_rate=run["ema_alpha_long"],
        short_rate=run["ema_alpha_short"],
        adaptive=run["ema_adaptive"],
    ),
    "memflow": lambda run: dict(
        _window(run),
        **_keeps_sinks(run),
        bank_frames=run["bank"],
        interval=run["interval"],
        routed=run["SMA"],
        several_prompts=bool(run.get("switch")),
    ),
    "deep_forcing": _deep_forcing,
    "dummy_forcing": lambda run: dict(
        split_block=run["ar_start"],
        mid_blocks=run["mid"],
        last_share=run["last_share"],
        window_frames=run["window"],
        rows=run["rows"],
    ),
    "forcing_kv": lambda run: dict(
        sink_frames=run["sink"],
        split_block=run["ar_start"],
        static_frames=run["spatial"],
        dynamic_frames=run["temporal"],
        chunks_per_frame=run["patches_per_frame"],
        kept_share=run["ratio"] if run["dynamic"] else 0.0,
        **_keeps_sinks(run),
    ),
    "echo_forcing": lambda run: dict(
        window_frames=run["window"],
        sink_frames=run["sink_frames"],
        compressed_frames=run["compressed_frames"],
        cycle_blocks=run["rolling_cycle"],
        max_reuse=run["topc_max_reuse"],
        gated=run["use_drift_gate"],
        amplitude=run["use_amplitude_compensation"],
        drift=run["drift_gate_lambda"],
        takes_maximum=run["fusion"] == "max",
        scenes=len(run["prompts"]),
    ),
    "id_forcing": _id_forcing,
    "swift": _swift,
    "tethercache": lambda run: dict(
        window_frames=run["budget_size"],
        sink_frames=run["sink_size"],
        recent_frames=run["recent_size"] - 3,  # theirs counts the current block
        diversity_weight=run["alpha"],
        temperature=run["score_temperature"],
        alignment=run["tau"],
    ),
    "causal_forcing": lambda run: {},
    "rolling_forcing": lambda run: {},
    "causvid": lambda run: dict(overlap_frames=run.get("overlap", 3)),
}

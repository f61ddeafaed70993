"""Read the settings of each method from a recorded case (`tests/golden/README.md`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..cache.method import Method
from ..cache.policy import Roles, preset
from ..errors import HeadForcingError
from ..methods.deep_forcing import DeepForcing
from ..methods.dummy_forcing import DummyForcing
from ..methods.echo_forcing import EchoForcing
from ..methods.forcing_kv import ForcingKV
from ..methods.id_forcing import IdForcing
from ..methods.infinity_rope import InfinityRope
from ..methods.longlive2 import LongLive2
from ..methods.memflow import MemFlow
from ..methods.pyramid_forcing import ANCHOR, VEIL, WAVE, PyramidForcing
from ..methods.reward_forcing import RewardForcing
from ..methods.rolling_forcing import RollingForcing
from ..methods.rolling_sink import RollingSink
from .first_pass_sinks import AuthorsLongLive, AuthorsMemRoPE

Config = dict[str, Any]
Tensors = Mapping[str, Tensor]


def recorded_policy(config: Config, run: Config, tensors: Tensors) -> tuple[Method, Roles]:
    """The policy and the head roles of one run of a case whose method is `config["method"]`."""
    method = config["method"]
    if method not in _READERS:
        raise HeadForcingError(f"the case's method must be one of {', '.join(_READERS)}, got {method!r}")
    try:
        policy = _READERS[method](run, config, tensors)
    except KeyError as error:
        raise HeadForcingError(f"the run cannot be used: {error} is missing") from error
    roles = [["memory"] * config["num_heads"] for _ in range(config["num_layers"])]
    if "split" in run:
        for layer in config["head_splits"][run["split"]]:
            for head in layer["static"]:
                roles[layer["layer"]][head] = "anchor"
    if "labels" in run:
        roles = [[_LABELS[label] for label in layer] for layer in run["labels"]]
    return policy, roles


def _longlive(run: Config, config: Config, tensors: Tensors) -> Method:
    return AuthorsLongLive(
        window_frames=run["window"],
        sink_frames=run["sink"],
        infinite=run["infinite"],
        keeps_sinks=run.get("global_sink", True),
    )


def _longlive2(run: Config, config: Config, tensors: Tensors) -> Method:
    if run["guidance"] != 1:
        raise HeadForcingError(f"the run cannot be used: guidance must be 1, got {run['guidance']:g}")
    if run["multi_shot_sink"] and run["sink"] % run["block"] and run["shot_starts"]:
        raise HeadForcingError("the run cannot be used: its authors' code loses a shot's sink of no whole blocks")
    return LongLive2(
        window_frames=3 * run["block"] if run["window"] == -1 else run["window"],  # as the authors' code reads -1
        sink_frames=run["sink"],
        shot_sinks=run["multi_shot_sink"],
        shot_offset=int(run["rope_offset"]),
        drops_old_shots=run["clean_recache"],
        infinite=run["relative_rope"],
    )


def _infinity_rope(run: Config, config: Config, tensors: Tensors) -> Method:
    return InfinityRope(window_frames=run["window"], sink_frames=run["sink"])


def _deep_forcing(run: Config, config: Config, tensors: Tensors) -> Method:
    if run["ds_only"]:
        return DeepForcing(run["sink"], budget_frames=None)
    return DeepForcing(run["sink"], run["budget_frames"], run["recent_frames"], run["topc_max_reuse"])


def _memflow(run: Config, config: Config, tensors: Tensors) -> Method:
    return MemFlow(
        window_frames=run["window"],
        sink_frames=run["sink"],
        bank_frames=run["bank"],
        interval=run["interval"],
        keeps_sinks=run.get("global_sink", True),
        routed=run["SMA"],
        several_prompts=bool(run.get("switch")),
    )


def _forcing_kv(run: Config, config: Config, tensors: Tensors) -> Method:
    return ForcingKV(
        sink_frames=run["sink"],
        split_block=run["ar_start"],
        static_frames=run["spatial"],
        dynamic_frames=run["temporal"],
        chunks_per_frame=run["patches_per_frame"],
        kept_share=run["ratio"] if run["dynamic"] else 0.0,
        keeps_sinks=run.get("global_sink", True),
    )


def _dummy_forcing(run: Config, config: Config, tensors: Tensors) -> Method:
    rows = tensors[f"sampled_rows_ar_start{run['ar_start']}"]
    return DummyForcing(
        split_block=run["ar_start"],
        mid_blocks=run["mid"],
        last_share=run["num_dummy"] / (config["num_heads"] * config["num_layers"]),
        window_frames=run["window"],
        rows=tuple(map(tuple, rows.tolist())),
    )


def _causal_forcing(run: Config, config: Config, tensors: Tensors) -> Method:
    return preset("self_forcing")


def _rolling_sink(run: Config, config: Config, tensors: Tensors) -> Method:
    return RollingSink(run["window"], run["sink"])


def _echo_forcing(run: Config, config: Config, tensors: Tensors) -> Method:
    return EchoForcing(
        window_frames=run["window"],
        sink_frames=run["sink_frames"],
        compressed_frames=run["compressed_frames"],
        cycle_blocks=run["rolling_cycle"],
        max_reuse=run["topc_max_reuse"],
        takes_maximum=run["fusion"] == "max",
        amplitude=run["use_amplitude_compensation"],
        gated=run["use_drift_gate"],
        drift=run["drift_gate_lambda"],
        scenes=len(run["prompts"]),
    )


def _memrope(run: Config, config: Config, tensors: Tensors) -> Method:
    if run["compression"] == "eviction":  # the authors' own comparison: no memory frames
        return AuthorsLongLive(run["window"], run["sink"], infinite=True)
    rates = (run["ema_alpha_long"], run["ema_alpha_short"])
    return AuthorsMemRoPE(run["window"], run["sink"], *rates, adaptive=run["ema_adaptive"])


def _pyramid_forcing(run: Config, config: Config, tensors: Tensors) -> Method:
    wave, anchor, veil = (run["sink_frames"][str(label)] for label in _LABELS)
    return PyramidForcing(
        wave_sinks=wave,
        anchor_sinks=anchor,
        veil_sinks=veil,
        recent_frames=run["recent_frames"],
        period=run["cyclic_period"],
        phase_frames=run["cyclic_places"],
        stride=run["stride_interval"],
        stride_frames=run["stride_places"],
        patch=run["merge_patch"],
        merged_blocks=run["merge_blocks"],
        nearest=run["far_clamp"][0],
        farthest=run["far_clamp"][1],
        overlaps_recent=run["mega"],
        leftover_frame=run["anchor_leftover_frame"],
        stale_readout=run["stale_readout"],
    )


def _id_forcing(run: Config, config: Config, tensors: Tensors) -> Method:
    if run["base"] == "longlive":
        return IdForcing(native_blocks=0, window_blocks=run["window_chunks"])
    return IdForcing(run["native_chunks"], run["cache_frames"], run["sink_size"])


def _reward_forcing(run: Config, config: Config, tensors: Tensors) -> Method:
    return RewardForcing(run["window"], run["sink"], kept_share=run["alpha"])


_LABELS = {-1: WAVE, 1: ANCHOR, 2: VEIL}
_READERS: dict[str, Callable[[Config, Config, Tensors], Method]] = {
    "longlive": _longlive,
    "longlive2": _longlive2,
    "id_forcing": _id_forcing,
    "infinity_rope": _infinity_rope,
    "deep_forcing": _deep_forcing,
    "forcing_kv": _forcing_kv,
    "dummy_forcing": _dummy_forcing,
    "memflow": _memflow,
    "causal_forcing": _causal_forcing,
    "echo_forcing": _echo_forcing,
    "rolling_sink": _rolling_sink,
    "memrope": _memrope,
    "pyramid_forcing": _pyramid_forcing,
    "reward_forcing": _reward_forcing,
    "rolling_forcing": lambda run, config, tensors: RollingForcing(),
}

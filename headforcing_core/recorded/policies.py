"""Read the settings of each method from a recorded case (`tests/golden/README.md`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from ..cache.method import Method
from ..cache.policy import Roles, preset
from ..errors import HeadForcingError
from ..methods.causvid import CausVid
from ..methods.deep_forcing import DeepForcing
from ..methods.dummy_forcing import DummyForcing
from ..methods.echo_forcing import EchoForcing
from ..methods.forcing_kv import ForcingKV
from ..methods.id_forcing import IdForcing
from ..methods.infinity_rope import InfinityRope
from ..methods.longlive import LongLive
from ..methods.longlive2 import LongLive2
from ..methods.memflow import MemFlow
from ..methods.memrope import MemRoPE
from ..methods.pyramid_forcing import ANCHOR, VEIL, WAVE, PyramidForcing
from ..methods.reward_forcing import RewardForcing
from ..methods.rolling_forcing import RollingForcing
from ..methods.rolling_sink import RollingSink

Fields = dict[str, Any]  # of config.json
_LABELS = {-1: WAVE, 1: ANCHOR, 2: VEIL}


def recorded_policy(config: Fields, run: Fields, tensors: Mapping[str, Tensor]) -> tuple[Method, Roles]:
    """The policy and the head roles of one run of a case whose method is `config["method"]`."""
    method, heads = config["method"], config["num_heads"] * config["num_layers"]
    if method not in READERS:
        raise HeadForcingError(f"the case's method must be one of {', '.join(READERS)}, got {method!r}")
    if method == "dummy_forcing":
        rows = tensors[f"sampled_rows_ar_start{run['ar_start']}"].tolist()
        run = {**run, "rows": tuple(map(tuple, rows)), "last_share": run["num_dummy"] / heads}
    roles = [["memory"] * config["num_heads"] for _ in range(config["num_layers"])]
    if "split" in run:
        for layer in config["head_splits"][run["split"]]:
            for head in layer["static"]:
                roles[layer["layer"]][head] = "anchor"
    if "labels" in run:
        roles = [[_LABELS[label] for label in layer] for layer in run["labels"]]
    return READERS[method](run), roles


def _options(**names: str) -> Callable[[Fields], Fields]:
    """A reader of options from the settings of a run, by their names there."""
    return lambda run: {option: run[name] for option, name in names.items()}


_window = _options(window_frames="window", sink_frames="sink")
_forcing_kv = _options(
    sink_frames="sink",
    split_block="ar_start",
    static_frames="spatial",
    dynamic_frames="temporal",
    chunks_per_frame="patches_per_frame",
)
_echo_forcing = _options(
    window_frames="window",
    sink_frames="sink_frames",
    compressed_frames="compressed_frames",
    cycle_blocks="rolling_cycle",
    max_reuse="topc_max_reuse",
    amplitude="use_amplitude_compensation",
    gated="use_drift_gate",
    drift="drift_gate_lambda",
)
_pyramid_forcing = _options(
    recent_frames="recent_frames",
    period="cyclic_period",
    phase_frames="cyclic_places",
    stride="stride_interval",
    stride_frames="stride_places",
    patch="merge_patch",
    merged_blocks="merge_blocks",
    overlaps_recent="mega",
    leftover_frame="anchor_leftover_frame",
    stale_readout="stale_readout",
)


def _keeps_sinks(run: Fields) -> Fields:
    return {"keeps_sinks": run["global_sink"]} if "global_sink" in run else {}


def _longlive2(run: Fields) -> Method:
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


def _deep_forcing(run: Fields) -> Method:
    if run["ds_only"]:
        return DeepForcing(run["sink"], budget_frames=None)
    return DeepForcing(run["sink"], run["budget_frames"], run["recent_frames"], run["topc_max_reuse"])


def _memrope(run: Fields) -> Method:
    if run["compression"] == "eviction":  # the authors' own comparison: no memory frames
        return LongLive(**_window(run), infinite=True)
    rates = {"long_rate": run["ema_alpha_long"], "short_rate": run["ema_alpha_short"]}
    return MemRoPE(**_window(run), **rates, adaptive=run["ema_adaptive"])


def _id_forcing(run: Fields) -> Method:
    if run["base"] == "longlive":
        return IdForcing(native_blocks=0, window_blocks=run["window_chunks"])
    return IdForcing(run["native_chunks"], run["cache_frames"], run["sink_size"])


READERS: dict[str, Callable[[Fields], Method]] = {
    "longlive": lambda run: LongLive(**_window(run), infinite=run["infinite"], **_keeps_sinks(run)),
    "longlive2": _longlive2,
    "infinity_rope": lambda run: InfinityRope(**_window(run)),
    "rolling_sink": lambda run: RollingSink(**_window(run)),
    "reward_forcing": lambda run: RewardForcing(**_window(run), kept_share=run["alpha"]),
    "memrope": _memrope,
    "memflow": lambda run: MemFlow(
        **_window(run),
        **_keeps_sinks(run),
        bank_frames=run["bank"],
        interval=run["interval"],
        routed=run["SMA"],
        several_prompts=bool(run.get("switch")),
    ),
    "deep_forcing": _deep_forcing,
    "dummy_forcing": lambda run: DummyForcing(
        split_block=run["ar_start"],
        mid_blocks=run["mid"],
        last_share=run["last_share"],
        window_frames=run["window"],
        rows=run["rows"],
    ),
    "forcing_kv": lambda run: ForcingKV(
        **_forcing_kv(run), **_keeps_sinks(run), kept_share=run["ratio"] if run["dynamic"] else 0.0
    ),
    "echo_forcing": lambda run: EchoForcing(
        **_echo_forcing(run), takes_maximum=run["fusion"] == "max", scenes=len(run["prompts"])
    ),
    "id_forcing": _id_forcing,
    "pyramid_forcing": lambda run: PyramidForcing(
        **_pyramid_forcing(run),
        **{f"{name}_sinks": run["sink_frames"][str(label)] for label, name in _LABELS.items()},
        nearest=run["far_clamp"][0],
        farthest=run["far_clamp"][1],
    ),
    "causal_forcing": lambda run: preset("self_forcing"),
    "rolling_forcing": lambda run: RollingForcing(),
    "causvid": lambda run: CausVid(overlap_frames=run.get("overlap", 3)),
}

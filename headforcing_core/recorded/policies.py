"""Read the settings of each method from a recorded case (`tests/golden/README.md`)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
from ..methods.longlive import LongLive, LongLiveCache, WindowCache
from ..methods.longlive2 import LongLive2
from ..methods.memflow import MemFlow
from ..methods.memrope import MemRoPE, MemRoPECache
from ..methods.pyramid_forcing import ANCHOR, VEIL, WAVE, PyramidForcing
from ..methods.reward_forcing import RewardForcing
from ..methods.rolling_forcing import RollingForcing
from ..methods.rolling_sink import RollingSink

Config = dict[str, Any]
Tensors = Mapping[str, Tensor]
_LABELS = {-1: WAVE, 1: ANCHOR, 2: VEIL}
_NOT_IN_ALL = "global_sink"  # a setting that some runs lack, which then have the option's default


class FirstPassSinks(WindowCache):
    """Writes a block's sinks in its first pass alone, as authors' code does where sinks are not whole blocks.

    There a sink after the first block keeps the keys and values of its noisiest pass. With whole blocks of sinks, as
    both papers have, it is the same as the methods themselves.
    """

    def store(self, layer: int, k: Tensor, v: Tensor, protected: int = 0) -> None:
        repeated = not self.first_pass(layer) and self.start and not self.recaching
        super().store(layer, k, v, self.sinks if repeated else protected)


@dataclass(frozen=True)
class AuthorsLongLive(LongLive):
    resumes_from = ()  # clean passes cannot reproduce these sinks


@dataclass(frozen=True)
class AuthorsMemRoPE(MemRoPE):
    resumes_from = ()


class _LongLiveCache(FirstPassSinks, LongLiveCache, of=AuthorsLongLive):
    pass


class _MemRoPECache(FirstPassSinks, MemRoPECache, of=AuthorsMemRoPE):
    pass


def recorded_policy(config: Config, run: Config, tensors: Tensors) -> tuple[Method, Roles]:
    """The policy and the head roles of one run of a case whose method is `config["method"]`."""
    method = config["method"]
    if method not in _OPTIONS and method not in _READERS:
        names = ", ".join((*_OPTIONS, *_READERS))
        raise HeadForcingError(f"the case's method must be one of {names}, got {method!r}")
    try:
        policy = _READERS[method](run, config, tensors) if method in _READERS else _with_options(method, run)
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


def _with_options(method: str, run: Config) -> Method:
    """A method with the options of a run by the table `_OPTIONS`."""
    settings, text, computed = _OPTIONS[method]
    names = dict(pair.split("=") for pair in text.split())
    known = {option: run[name] for option, name in names.items() if name != _NOT_IN_ALL or name in run}
    return settings(**known, **{option: value(run) for option, value in computed.items()})


_WINDOW = "window_frames=window sink_frames=sink"
# by method, its settings, the run's setting of every option, and options that are computed from several
_OPTIONS: dict[str, tuple[Callable[..., Method], str, dict[str, Callable[[Config], Any]]]] = {
    "longlive": (AuthorsLongLive, f"{_WINDOW} infinite=infinite keeps_sinks={_NOT_IN_ALL}", {}),
    "infinity_rope": (InfinityRope, _WINDOW, {}),
    "rolling_sink": (RollingSink, _WINDOW, {}),
    "reward_forcing": (RewardForcing, f"{_WINDOW} kept_share=alpha", {}),
    "memflow": (
        MemFlow,
        f"{_WINDOW} bank_frames=bank interval=interval keeps_sinks={_NOT_IN_ALL} routed=SMA",
        {"several_prompts": lambda run: bool(run.get("switch"))},
    ),
    "forcing_kv": (
        ForcingKV,
        "sink_frames=sink split_block=ar_start static_frames=spatial dynamic_frames=temporal "
        f"chunks_per_frame=patches_per_frame keeps_sinks={_NOT_IN_ALL}",
        {"kept_share": lambda run: run["ratio"] if run["dynamic"] else 0.0},
    ),
    "echo_forcing": (
        EchoForcing,
        "window_frames=window sink_frames=sink_frames compressed_frames=compressed_frames cycle_blocks=rolling_cycle "
        "max_reuse=topc_max_reuse amplitude=use_amplitude_compensation gated=use_drift_gate drift=drift_gate_lambda",
        {"takes_maximum": lambda run: run["fusion"] == "max", "scenes": lambda run: len(run["prompts"])},
    ),
    "pyramid_forcing": (
        PyramidForcing,
        "recent_frames=recent_frames period=cyclic_period phase_frames=cyclic_places stride=stride_interval "
        "stride_frames=stride_places patch=merge_patch merged_blocks=merge_blocks overlaps_recent=mega "
        "leftover_frame=anchor_leftover_frame stale_readout=stale_readout",
        {f"{name}_sinks": lambda run, label=label: run["sink_frames"][str(label)] for label, name in _LABELS.items()}
        | {"nearest": lambda run: run["far_clamp"][0], "farthest": lambda run: run["far_clamp"][1]},
    ),
    "causal_forcing": (lambda: preset("self_forcing"), "", {}),
    "rolling_forcing": (RollingForcing, "", {}),
}


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


def _deep_forcing(run: Config, config: Config, tensors: Tensors) -> Method:
    if run["ds_only"]:
        return DeepForcing(run["sink"], budget_frames=None)
    return DeepForcing(run["sink"], run["budget_frames"], run["recent_frames"], run["topc_max_reuse"])


def _dummy_forcing(run: Config, config: Config, tensors: Tensors) -> Method:
    rows = tensors[f"sampled_rows_ar_start{run['ar_start']}"]
    return DummyForcing(
        split_block=run["ar_start"],
        mid_blocks=run["mid"],
        last_share=run["num_dummy"] / (config["num_heads"] * config["num_layers"]),
        window_frames=run["window"],
        rows=tuple(map(tuple, rows.tolist())),
    )


def _memrope(run: Config, config: Config, tensors: Tensors) -> Method:
    if run["compression"] == "eviction":  # the authors' own comparison: no memory frames
        return AuthorsLongLive(run["window"], run["sink"], infinite=True)
    rates = (run["ema_alpha_long"], run["ema_alpha_short"])
    return AuthorsMemRoPE(run["window"], run["sink"], *rates, adaptive=run["ema_adaptive"])


def _id_forcing(run: Config, config: Config, tensors: Tensors) -> Method:
    if run["base"] == "longlive":
        return IdForcing(native_blocks=0, window_blocks=run["window_chunks"])
    return IdForcing(run["native_chunks"], run["cache_frames"], run["sink_size"])


_READERS: dict[str, Callable[[Config, Config, Tensors], Method]] = {
    "longlive2": _longlive2,
    "id_forcing": _id_forcing,
    "deep_forcing": _deep_forcing,
    "dummy_forcing": _dummy_forcing,
    "memrope": _memrope,
}

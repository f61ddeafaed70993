"""Cut the full set of recorded cases down to what every clone of the repository carries.

    python tests/golden/make_subset.py ../shared/golden tests/golden

Runs are shortened from the end, never changed: the frames that remain are the recorded numbers. What the episodic
memory holds at the new end follows from the recorded events alone.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

# latent frames kept: enough that every window has slid, every sink is out of the window, the summary is fed repeatedly
FRAMES = {
    "self_forcing_tiny_d32": {
        "full": 9,
        "full_from_initial": 9,
        "window21": 30,
        "window6": 12,
        "window9_sink3": 18,
        "window7_sink1": 15,
    },
    "head_forcing_tiny_d32": {
        "paper_defaults": 33,
        "overflow": 33,
        "all_memory_small": 33,
        "local_and_anchor_only": 15,
        "no_rope_reencoding": 33,
    },
}
FLOWS = 4  # model outputs of the first block

# of other methods: enough frames for what a run is about, a switch, a cut, or heads that part
PEERS = {
    "longlive": {"switch_w12_s3_globalsink": 15, "infinity_switch_w12_s3_globalsink": 15},
    "infinity_rope": {"cut_w6_s1": 18},
    "forcing_kv": {"selfforcing_like_dynamic": 15},
    "dummy_forcing": {"ar1_mid1": 12},
    "deep_forcing": {"ds_pc_sink10_budget16_recent4": 24},
    "memflow": {"single_bank2_interval2": 18, "single_bank3_interval3_sma": 18},
    "causal_forcing": {"framewise_1step": 4},
    "rolling_forcing": {"steps5_15": 15},
    "causvid": {"single_3step": 6},
}
# frames that are taken from the recording instead of made again, where what a run is about comes late: Deep Forcing
# compresses for the first time at frame 21, and until then clean passes bring its cache back; MemFlow's always do
GIVEN = {"deep_forcing": 21, "memflow": 15}
NOTES = ("facts", "tensors", "patched_constants", "cache_states_last_layer")  # left out of the subset


def sources_after(events: list[dict[str, Any]]) -> list[list[int]]:
    """The source frames of every entry after these memory events: a merge goes first, an admitted frame last."""
    entries: list[list[int]] = []
    for event in events:
        if event["merged"]:
            first, second = event["merged"]
            entries = [first + second, *(entry for entry in entries if entry not in (first, second))]
        if event["admitted"]:
            entries.append([event["frame"]])
    return entries


def shorten(run: dict[str, Any], frames: int, frames_per_block: int) -> dict[str, Any]:
    if run["method"] != "head_forcing":
        return {**run, "frames": frames}
    if sources_after(run["memory_events"]) != run["final_episodic_sources"]:
        raise ValueError("the recorded memory events do not lead to the recorded entries")
    events = [event for event in run["memory_events"] if event["after_block"] < frames // frames_per_block]
    return {**run, "frames": frames, "memory_events": events, "final_episodic_sources": sources_after(events)}


def buckets(recorded: dict[str, Tensor], run: str, blocks: int) -> dict[str, Tensor]:
    """The recorded attention shares of the blocks that are kept."""
    prefix = f"buckets/{run}/block"
    return {
        key: tensor
        for key, tensor in recorded.items()
        if key.startswith(prefix) and int(key.removeprefix(prefix)) < blocks
    }


def make_subset(source: Path, target: Path) -> None:
    for name, frames in FRAMES.items():
        config = json.loads((source / name / "config.json").read_text(encoding="utf-8"))
        recorded = load_file(source / name / config["tensors"])
        f = config["frames_per_block"]
        runs = {run: shorten(config["runs"][run], count, f) for run, count in frames.items()}
        longest = max(frames.values())

        kept = {key: tensor for key, tensor in recorded.items() if key.startswith(("prompt_embeds_", "initial_"))}
        kept["noise"] = recorded["noise"][:longest]
        kept["renoise"] = recorded["renoise"][: longest // f]
        for run, settings in runs.items():
            given = len(recorded["initial_latent"]) if settings.get("initial_latent") else 0
            kept[f"latents/{run}"] = recorded[f"latents/{run}"][: given + settings["frames"]]
            kept |= buckets(recorded, run, settings["frames"] // f)
        if "flow_predictions/full" in recorded:
            kept["flow_predictions/full"] = recorded["flow_predictions/full"][:FLOWS]

        folder = target / name
        folder.mkdir(parents=True, exist_ok=True)
        save_file({key: tensor.contiguous() for key, tensor in kept.items()}, folder / config["tensors"])
        text = json.dumps({**config, "runs": runs}, indent=1)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")
        weights = Path(config["weights"])
        if len(weights.parts) == 1:  # the other case refers to this one's
            shutil.copyfile(source / name / weights, folder / weights)


def make_peers(source: Path, target: Path) -> None:
    """The same for the methods with caches of their own."""
    for method, frames in PEERS.items():
        config = json.loads((source / method / "config.json").read_text(encoding="utf-8"))
        recorded = load_file(source / method / "golden.safetensors")
        runs = {run: {**config["runs"][run], "frames": n} for run, n in frames.items()}
        given, made = GIVEN.get(method, 0), max(frames.values()) - GIVEN.get(method, 0)
        if given:
            runs = {run: {**settings, "input_frames": given} for run, settings in runs.items()}
        kept = {key: tensor for key, tensor in recorded.items() if key.startswith(("prompt_embeds", "sampled_rows"))}
        kind, f = ("renoise", config["frames_per_block"]) if method != "causal_forcing" else ("renoise_framewise", 1)
        # axes from the end: CausVid has one of rollouts in front, of which only the first is kept
        kept["noise"] = recorded["noise"][:1].narrow(-4, given, made)
        renoise = recorded[kind][:1] if method == "causvid" else recorded[kind]
        kept[kind] = renoise.narrow(-6, given // f, made // f)
        kept |= {f"latents/{run}": recorded[f"latents/{run}"][:1].narrow(-4, 0, n) for run, n in frames.items()}

        folder = target / method
        folder.mkdir(parents=True, exist_ok=True)
        save_file({key: tensor.contiguous() for key, tensor in kept.items()}, folder / "golden.safetensors")
        settings = {key: value for key, value in config.items() if key not in NOTES}
        text = json.dumps({**settings, "runs": runs}, indent=1)
        (folder / "config.json").write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    make_subset(Path(sys.argv[1]), Path(sys.argv[2]))
    make_peers(Path(sys.argv[1]) / "peers", Path(sys.argv[2]) / "peers")

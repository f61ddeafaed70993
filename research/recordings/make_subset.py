"""Cut the full set of recorded cases down to what every clone of the repository carries.

    python -m headforcing.research.recordings.make_subset ../shared/golden tests/golden

Runs are shortened from the end, never changed. What the episodic memory holds at the new end
follows from the recorded events alone. The same full set gives the same files, byte for byte; a
test compares them. `record_absolute.py` records the one case that the full set does not have.
"""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from .record_absolute import TENSORS, record_absolute, write_case

# latent frames kept: every window has slid, every sink is out of the window, the summary is fed and
# attended to
FRAMES = {
    "self_forcing_tiny_d32": {
        "full": 6,
        "full_from_initial": 6,
        "window21": 6,
        "window6": 12,
        "window9_sink3": 18,
    }
    | {"window7_sink1": 12},
    "head_forcing_tiny_d32": {
        "paper_defaults": 24,
        "overflow": 24,
        "all_memory_small": 18,
        "no_rope_reencoding": 12,
    },
}

# of other methods: enough frames for what a run is about, see the table in README.md
PEERS = {
    "longlive": {
        "switch_w12_s3_globalsink": 15,
        "infinity_switch_w12_s3_globalsink": 15,
        "single_w7_s4": 9,
    },
    "commit_forcing": {
        "longlive_w9_s3": 18,
        "longlive_switch_w12_s3": 24,
        "sf_cache12_s3_r6_c9": 15,
    },
    "infinity_rope": {"cut_w6_s1": 18, "early_switch_w12_s1": 15},
    "forcing_kv": {"dynamic_temporal2_keep2": 12},
    "dummy_forcing": {"ar1_mid1": 12},
    "deep_forcing": {"ds_pc_sink10_budget18_recent4_reuse2": 30},
    "memflow": {
        "single_bank2_interval2": 18,
        "single_bank3_interval3_sma": 12,
        "switch_early_bank3": 15,
    },
    "causal_forcing": {"framewise_1step": 4, "framewise_2step_i2v": 4},
    "rolling_forcing": {"steps4_36": 36},
    "causvid": {"single_3step": 6},
    "rolling_sink": {"w9": 21},
    "memrope": {"w9_s1_adaptive": 15},
    "echo_forcing": {"single": 24, "smooth_early": 24},
    "pyramid_forcing": {"mixed": 24, "mixed_leftover_and_stale_readout": 24},
    "reward_forcing": {"w9_s3_alpha09": 15},
    "tethercache": {"k9_s2_r4_tau07": 18},
    "swift": {"three_switches_in_a_row": 24},
}
LONGLIVE2 = {"i2v": 16}
# of the driven model, of all runs
LIVETALK = {
    "one_block": 3,
    "three_blocks": 9,
    "window_full": 15,
    "rolling": 24,
    "rolling_other_audio": 21,
    "window9_sink3": 15,
    "window12_no_sink": 15,
    "unbounded": 18,
    "empty_prompt": 3,
    "silence": 3,
    "grid_8x8": 6,
    "exact_timesteps": 6,
}
LONGLIVE2_NOTES = (
    "scheduler",
    "vae",
    "facts_note",
    "shims",
    "wrapped_weights",
    "lora",
    "lora_rank",
    "lora_alpha",
)
DRIFTING = ("odd_size", "fps10", "one_frame", "red_shift")
# left out of the subset
NOTES = ("facts", "tensors", "patched_constants", "cache_states_last_layer")


def sources_after(events: list[dict[str, Any]]) -> list[list[int]]:
    """The source frames of every entry after these memory events: a merge goes first, an admitted
    frame last.
    """
    entries: list[list[int]] = []
    for event in events:
        if event["merged"]:
            first, second = event["merged"]
            entries = [
                first + second,
                *(entry for entry in entries if entry not in (first, second)),
            ]
        if event["admitted"]:
            entries.append([event["frame"]])
    return entries


def shorten(run: dict[str, Any], frames: int, frames_per_block: int) -> dict[str, Any]:
    if run["method"] != "head_forcing":
        return {**run, "frames": frames}
    if sources_after(run["memory_events"]) != run["final_episodic_sources"]:
        raise ValueError("the recorded memory events do not lead to the recorded entries")
    events = [
        event for event in run["memory_events"] if event["after_block"] < frames // frames_per_block
    ]
    return {
        **run,
        "frames": frames,
        "memory_events": events,
        "final_episodic_sources": sources_after(events),
    }


def read_case(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return json.loads((folder / "config.json").read_text(encoding="utf-8")), load_file(
        folder / TENSORS
    )


def make_subset(source: Path, target: Path) -> None:
    for name, frames in FRAMES.items():
        config, recorded = read_case(source / name)
        f = config["frames_per_block"]
        longest = max(frames.values())
        runs = {run: shorten(config["runs"][run], count, f) for run, count in frames.items()}
        kept = {
            key: tensor
            for key, tensor in recorded.items()
            if key.startswith(("prompt_embeds_", "initial_"))
        }
        kept["noise"] = recorded["noise"][:longest]
        kept["renoise"] = recorded["renoise"][: longest // f]
        for run, settings in runs.items():
            given = len(recorded["initial_latent"]) if settings.get("initial_latent") else 0
            kept[f"latents/{run}"] = recorded[f"latents/{run}"][: given + settings["frames"]]
            shares = f"buckets/{run}/block"  # attention of a block
            blocks = {
                key: int(key.removeprefix(shares)) for key in recorded if key.startswith(shares)
            }
            kept |= {
                key: recorded[key]
                for key, block in blocks.items()
                if block < settings["frames"] // f
            }
        write_case(target / name, kept, {**config, "runs": runs})
        weights = Path(config["weights"])
        if len(weights.parts) == 1:  # the other case refers to this one's
            shutil.copyfile(source / name / weights, target / name / weights)


def make_peers(source: Path, target: Path) -> None:
    """The same for the methods with caches of their own."""
    for method, frames in PEERS.items():
        config, recorded = read_case(source / method)
        runs = {run: {**config["runs"][run], "frames": n} for run, n in frames.items()}
        longest = max(frames.values())
        given = max(run.get("input_frames", 0) for run in runs.values())
        kept = {
            key: tensor
            for key, tensor in recorded.items()
            if key.startswith(("prompt_embeds", "sampled_rows"))
        }
        if given:
            kept["initial_latent"] = recorded["initial_latent"][:, :given]
        kind, f = (
            ("renoise", config["frames_per_block"])
            if method != "causal_forcing"
            else ("renoise_framewise", 1)
        )
        # axes from the end: CausVid has one of rollouts in front, of which only the first is kept
        kept["noise"] = recorded["noise"][:1].narrow(-4, 0, longest)
        renoise = recorded[kind][:1] if method == "causvid" else recorded[kind]
        listed = [run.get("steps") or config["denoising_steps_listed"] for run in runs.values()]
        listed += [run.get("first_chunk", []) for run in runs.values()]
        # authors may name the clean end, too
        steps = 0
        for given_steps in listed:
            steps = max(steps, sum(step > 0 for step in given_steps))
        kept[kind] = renoise.narrow(-6, 0, longest // f).narrow(-5, 0, steps - 1)
        kept |= {
            f"latents/{run}": recorded[f"latents/{run}"][:1].narrow(-4, 0, n)
            for run, n in frames.items()
        }
        settings = {key: value for key, value in config.items() if key not in NOTES}
        write_case(target / method, kept, {**settings, "runs": runs})


def make_longlive2(source: Path, target: Path) -> None:
    """A video of LongLive 2.0 that begins with an image, which its first block alone holds: no
    other case has one.
    """
    config, recorded = read_case(source)
    count = LONGLIVE2["i2v"]
    kept = {name: recorded[name] for name in ("prompt_embeds", "image_latent")}
    kept["noise"] = recorded["noise"][:, :count]
    kept["latents/i2v"] = recorded["latents/i2v"][:, :count]
    run = {**config["runs"]["i2v"], "frames": count}
    run["prompts"] = [blocks[: count // run["block"]] for blocks in run["prompts"]]
    settings = {
        key: value for key, value in config.items() if key not in (*NOTES, *LONGLIVE2_NOTES)
    }
    write_case(target, kept, {**settings, "runs": {"i2v": run}})
    shutil.copyfile(source / config["weights"], target / config["weights"])


def make_livetalk(source: Path, target: Path) -> None:
    """The runs of LiveTalk, with what was recorded of the first block beside its latents."""
    config, recorded = read_case(source)
    longest = max(LIVETALK.values())
    kept = {}
    for name in ("image_latents", "prompt_embeds"):
        kept[name] = recorded[name]
    for name in ("audio_rows", "flow_predictions", "image_channels"):
        kept[f"{name}/one_block"] = recorded[f"{name}/one_block"]
    for name in ("image_latent", "noise", "renoise"):
        kept[f"{name}/grid_8x8"] = recorded[f"{name}/grid_8x8"]
    kept["noise"] = recorded["noise"][:longest]
    kept["renoise"] = recorded["renoise"][: longest // config["frames_per_block"]]
    for name in ("audio_features/a", "audio_features/b"):
        kept[name] = recorded[name][: 4 * longest - 3]
    runs = {}
    for run, frames in LIVETALK.items():
        kept[f"latents/{run}"] = recorded[f"latents/{run}"][:frames]
        runs[run] = {**config["runs"][run], "frames": frames}
    left_out = {*NOTES, "shims"} - {"facts"}
    settings = {key: value for key, value in config.items() if key not in left_out}
    write_case(target, kept, {**settings, "runs": runs})
    shutil.copyfile(source / config["weights"], target / config["weights"])


def make_drift(source: Path, target: Path) -> None:
    """Of the drift metrics' clips those with a case of their own: motion lost and gained, odd
    sizes, colours.
    """
    config, recorded = read_case(source)
    wanted = (*DRIFTING, "rgb", "hue")
    kept = {key: tensor for key, tensor in recorded.items() if key.partition("/")[2] in wanted}
    results = {}
    for name, found in config["results"].items():
        if isinstance(found, dict):
            of_clips = found["per_clip"]
            cut = {"per_clip": {clip: of_clips[clip] for clip in DRIFTING if clip in of_clips}}
            results[name] = cut | {key: found[key] for key in ("seconds", "end") if key in found}
    clips = {clip: config["clips"][clip] for clip in DRIFTING}
    write_case(target, kept, {**config, "clips": clips, "results": results})


if __name__ == "__main__":
    make_subset(Path(sys.argv[1]), Path(sys.argv[2]))
    make_peers(Path(sys.argv[1]) / "peers", Path(sys.argv[2]) / "peers")
    make_longlive2(Path(sys.argv[1]) / "longlive2", Path(sys.argv[2]) / "longlive2")
    make_livetalk(Path(sys.argv[1]) / "livetalk", Path(sys.argv[2]) / "livetalk")
    make_drift(Path(sys.argv[1]) / "metrics_id_forcing", Path(sys.argv[2]) / "metrics_id_forcing")
    record_absolute(Path(sys.argv[2]), Path(sys.argv[2]))

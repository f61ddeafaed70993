"""Recorded cases come out again: the same latents, the same memory events, through every attention path.

Every test id names the set that was used: `subset` lies in tests/golden, `full` in ../shared/golden (skipped where that
folder is missing). Weights are random, sizes tiny, float32 on CPU. Required agreement is 1e-3; these tests ask for
1e-4, and 1e-5 is what is reached.
"""

import json
from pathlib import Path

import pytest
import torch
from attention_cases import WHOLE_LAYER
from headforcing.headforcing_core.cache.head_cache import CacheShape, HeadCache
from headforcing.headforcing_core.cache.policy import CachePolicy, RolePolicy
from headforcing.headforcing_core.commands.cli import main
from headforcing.headforcing_core.model.attention import BACKENDS
from headforcing.headforcing_core.recorded.replay import Case, Replay, replay
from headforcing.headforcing_core.rollout.loop import WanVideoModel, rollout
from headforcing.headforcing_core.rollout.rows import RecordedNoise
from headforcing.headforcing_core.rollout.schedule import SCHEDULES, Schedule
from safetensors.torch import load_file
from scripts import script_of

TOLERANCE = 1e-4
WINDOW_RUNS = ["full", "full_from_initial", "window21", "window6", "window9_sink3", "window7_sink1"]
RUNS = {
    "self_forcing_tiny_d32": WINDOW_RUNS,
    "self_forcing_tiny_d128": WINDOW_RUNS,
    "head_forcing_tiny_d32": [
        "paper_defaults",
        "overflow",
        "all_memory_small",
        "local_and_anchor_only",
        "no_rope_reencoding",
    ],
    "head_forcing_absolute": ["absolute_with_merges"],
}
CASES = [
    ("subset", "self_forcing_tiny_d32"),
    ("subset", "head_forcing_tiny_d32"),
    ("subset", "head_forcing_absolute"),  # our reference's, so that the full set does not have it
    ("full", "self_forcing_tiny_d32"),
    ("full", "self_forcing_tiny_d128"),
    ("full", "head_forcing_tiny_d32"),
]


def runs_of(which: str, name: str) -> list[str]:
    """The runs of a case. A clone leaves one out: heads of both its roles are in the other runs, too."""
    return [run for run in RUNS[name] if (which, run) != ("subset", "local_and_anchor_only")]


EVERY_CASE = pytest.mark.parametrize(("which", "name"), CASES, ids=["-".join(case) for case in CASES])


@pytest.fixture(scope="session")
def golden(repo_root: Path, shared_dir: Path | None):
    """Where a set lies, or a skip that says the full set was not used."""

    def folder(which: str) -> Path:
        if which == "subset":
            return repo_root / "tests" / "golden"
        if shared_dir is None or not (shared_dir / "golden").is_dir():
            pytest.skip("the full set (../shared/golden) is not here; only the subset was checked")
        return shared_dir / "golden"

    return folder


def assert_as_recorded(case: Case, run: str, done: Replay) -> None:
    expected = case.tensors[f"latents/{run}"]
    assert done.latents.shape == expected.shape
    worst = float((done.latents - expected).abs().max())
    assert worst < TOLERANCE, f"latents differ by {worst:.1e}"
    assert_events_as_recorded(case.run(run), done.memory_events, done.final_episodic_sources)


def assert_events_as_recorded(run: dict, events: list[dict], sources: list[list[int]]) -> None:
    expected = run.get("memory_events", [])
    assert [{**event, "delta": None} for event in events] == [{**event, "delta": None} for event in expected]
    deltas = [event["delta"] for event in expected]
    assert [event["delta"] for event in events] == pytest.approx(deltas, abs=1e-4)
    assert sources == run.get("final_episodic_sources", [])


@EVERY_CASE
def test_every_recorded_run_is_in_the_list_of_these_tests(golden, which, name):
    assert set(Case.open(golden(which) / name).config["runs"]) == set(runs_of(which, name))


# every run with the usual attention, and in a clone three runs with the others
REPLAYED = [(which, name, run, "sdpa") for which, name in CASES for run in runs_of(which, name)]
REPLAYED += [
    ("subset", name, run, attention)
    for attention in ("explicit", "reference", *WHOLE_LAYER)
    for name, run in (
        ("self_forcing_tiny_d32", "window9_sink3"),
        ("head_forcing_tiny_d32", "overflow"),
        ("head_forcing_absolute", "absolute_with_merges"),
    )
]


@pytest.mark.parametrize(("which", "name", "run", "attention"), REPLAYED, ids=["-".join(case) for case in REPLAYED])
def test_a_replay_gives_the_recorded_latents_and_memory_events(golden, monkeypatch, which, name, run, attention):
    if attention in WHOLE_LAYER:
        monkeypatch.setitem(BACKENDS, attention, lambda: WHOLE_LAYER[attention])
    case = Case.open(golden(which) / name)
    assert_as_recorded(case, run, replay(case, run, attention=attention))


@EVERY_CASE
def test_the_recorded_runs_of_a_case_differ_so_that_agreement_means_something(golden, which, name):
    tensors = Case.open(golden(which) / name).tensors
    last_blocks = {key: tensor[-3:] for key, tensor in tensors.items() if key.startswith("latents/")}
    runs = [run for run in last_blocks if not run.endswith(("/full", "/full_from_initial"))]
    for one in runs:
        for other in runs:
            frames = min(len(tensors[one]), len(tensors[other]))
            # what differs shows once frames have left the window, after 21 frames for that of 21
            if one < other and frames > (21 if "/window21" in one + other else 9):
                assert (tensors[one][:frames] - tensors[other][:frames]).abs().max() > 100 * TOLERANCE


def test_the_memory_events_of_start_blocks_are_in_a_replay(golden):
    case, run, given = Case.open(golden("subset") / "head_forcing_tiny_d32"), "overflow", 6
    settings = case.run(run)
    config = {**case.config, "runs": {run: {**settings, "initial_latent": True, "frames": settings["frames"] - given}}}
    tensors = {
        **case.tensors,
        "initial_latent": case.tensors[f"latents/{run}"][:given],
        "noise": case.tensors["noise"][given:],
        "renoise": case.tensors["renoise"][given // 3 :],
    }
    case = Case(case.folder, config, tensors)
    done = replay(case, run)
    first = done.memory_events[0]
    assert (first["after_block"], first["frame"], first["admitted"]) == (1, 0, True)
    assert_as_recorded(case, run, done)


class RecordingModel(WanVideoModel):
    def flow(self, *args, **options):
        flow = super().flow(*args, **options)
        self.flows = [*getattr(self, "flows", []), *([] if flow is None else [flow])]
        return flow


@pytest.mark.parametrize(
    ("which", "name"),
    [("subset", "self_forcing_tiny_d32"), ("full", "self_forcing_tiny_d32"), ("full", "self_forcing_tiny_d128")],
)
def test_every_single_model_output_is_the_recorded_one(golden, which, name):
    case = Case.open(golden(which) / name)
    expected = case.tensors["flow_predictions/full"]
    blocks = len(expected) // 4
    model = case.model()
    heads = [["memory"] * model.config.num_heads] * model.config.num_layers
    policy = CachePolicy.uniform(RolePolicy(recent_frames=None), "absolute")
    size = case.tensors["noise"].shape[-2:]
    cache = HeadCache(CacheShape.for_model(model.config, heads, policy, *size, 3, 3 * blocks), torch.float32)
    video = RecordingModel(model, torch.float32)
    noise = RecordedNoise(case.tensors["noise"], case.tensors["renoise"])
    script = script_of([0] * blocks, SCHEDULES["self_forcing"], [case.tensors["prompt_embeds_0"]])
    for _ in rollout(video, cache, script, noise):
        pass
    flows = torch.stack(video.flows)
    assert flows.shape == expected.shape
    assert (flows - expected).abs().max() < TOLERANCE


@EVERY_CASE
def test_the_self_forcing_schedule_is_the_recorded_one_to_the_last_bit(golden, which, name):
    recorded = Case.open(golden(which) / name).config["schedule"]
    schedule = Schedule.warped(recorded["denoising_steps"], recorded["shift"])
    assert [1000 * sigma for sigma in schedule.sigmas] == pytest.approx(recorded["timesteps"], abs=2.5e-5)
    assert schedule == SCHEDULES["self_forcing"]


@pytest.mark.parametrize(
    ("name", "run"), [("head_forcing_tiny_d32", "overflow"), ("self_forcing_tiny_d32", "full_from_initial")]
)
def test_the_command_line_replays_a_case_into_files(golden, tmp_path, capsys, name, run):
    folder = golden("subset") / name
    out, events = tmp_path / "new folder" / "latents.safetensors", tmp_path / "events.json"
    command = ["replay", str(folder), "--run", run, "--out", str(out), "--events", str(events), "--attention", "sdpa"]
    assert main(command) == 0 and not capsys.readouterr().err
    stored = load_file(out)
    assert list(stored) == ["latents"]
    recorded = json.loads(events.read_text())
    assert set(recorded) == {"memory_events", "final_episodic_sources"}
    case = Case.open(folder)
    assert_as_recorded(case, run, Replay(stored["latents"], **recorded))
    assert sorted(path.name for path in out.parent.iterdir()) == [out.name], "a temporary file was left behind"


def test_the_published_pt_layout_gives_the_same_video_as_safetensors(golden, tmp_path):
    folder = golden("full") / "self_forcing_tiny_d32"
    config = json.loads((folder / "config.json").read_text())
    config["weights"] = str(folder / "self_forcing_layout.pt")
    config["tensors"] = str(folder / config["tensors"])
    (tmp_path / "config.json").write_text(json.dumps(config))
    case = Case.open(tmp_path)
    assert_as_recorded(case, "window6", replay(case, "window6"))

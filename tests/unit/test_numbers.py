"""Numbers that no option can have: every option of every command answers with one short sentence, at once."""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.commands import cli, profiles
from headforcing.headforcing_core.commands.parser import PathType, seed_number
from headforcing.headforcing_core.commands.source import Source
from headforcing.headforcing_core.errors import MAX_MESSAGE, HeadForcingError
from headforcing.headforcing_core.video.writer import VideoWriter
from headforcing.headforcing_core.weights.umt5 import save_embeddings
from malformed import run
from path_arguments import commands
from safetensors.torch import save_file

MODEL = Path(__file__).resolve().parents[1] / "golden" / "self_forcing_tiny_d32" / "model.safetensors"
NO_NUMBERS = ("9" * 5000, "nan", "1e400", "-inf")
LARGE = "9" * 30  # no count or size, but a number
WITHIN_BOUNDS = {"--novelty-threshold", "--lora-strength", "--shuffle"}  # may be negative
UNUSED = {"compare": {"--size", "--num-heads"}}  # with the embedded model

# the arguments without which a command ends before it looks at the number
FILES = {
    "demo": "--seconds 0.5 --device cpu --found-profiles found --roles shuffled",
    "generate": f"--weights {MODEL} --num-heads 4 --prompts a --embeddings texts.safetensors --size 64x64 --dtype fp32"
    " --latents out.safetensors --device cpu --seconds 0.5 --found-profiles found --roles shuffled",
    "encode": "out.safetensors --text-encoder none --prompts a",
    "decode": "latents.safetensors out.mp4 --demo --device cpu", "batch": "jobs.jsonl --out out",
    "inspect": str(MODEL), "convert": f"{MODEL} out.safetensors --num-heads 4",
    "profile": f"out.json --weights {MODEL} --num-heads 4 --prompts a --embeddings texts.safetensors --device cpu",
    "profiles plot": "toy_world out.png", "report": "video.mp4 --metric-models models",
    "compare": "--demo --seconds 0.5 --device cpu --methods head_forcing --out out --found-profiles found",
    "runs prune": "runs", "replay": "case --run x --out out.safetensors",
}  # fmt: skip


PRODUCT = dict(commands(cli._parser()))


def options(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The options that take a text or a number which is neither a file nor one of a list."""
    for action in parser._actions:
        if action.option_strings and action.nargs != 0 and not action.choices and not isinstance(action.type, PathType):
            yield action


def refused(argv: list[str]) -> str:
    """The last line on stderr of a command that ends with exit code 2."""
    code, err = run(*argv)
    last = (err.splitlines() or [""])[-1]
    assert code == 2 and "error: " in last and len(last) < MAX_MESSAGE + 100, (argv[-1][:40], code, last[:300])
    return last


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files that `FILES` names; a render whose options are taken is not begun."""

    def taken(*parts: object, **named: object) -> None:
        raise HeadForcingError("all options are taken")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Source, "load", taken)
    monkeypatch.setattr(profiles, "_measure_here", taken)
    save_embeddings(Path("texts.safetensors"), {"a": torch.randn(12, 48)})
    about = json.dumps({"video_frames": 9, "restart_frames": []})
    save_file({"latents": torch.zeros(3, 16, 8, 8)}, "latents.safetensors", {"head_forcing": about})
    Path("jobs.jsonl").write_text(json.dumps({"demo": True, "seconds": 0.5, "device": "cpu"}), encoding="utf-8")
    with VideoWriter("video.mp4", 16, 16) as writer:
        writer.write(torch.zeros(9, 16, 16, 3))
    for folder in ("runs", "models"):
        Path(folder).mkdir()


@pytest.mark.parametrize("name", PRODUCT)
def test_every_option_refuses_absurd_numbers_in_one_sentence(name: str, inputs: None) -> None:
    assert set(FILES) <= set(PRODUCT)
    for action in options(PRODUCT[name]):
        option = action.option_strings[0]
        if option in UNUSED.get(name, ()):
            continue
        values = [*([] if option in WITHIN_BOUNDS else ["-1"]), *([] if action.type is float else [LARGE])]
        for value in (*values, *([] if action.type in (int, float) else NO_NUMBERS)):
            given = f"{value},{value}" if action.dest == "head" else value
            line = refused([*name.split(), *FILES.get(name, "").split(), f"{option}={given}"])
            assert "all options are taken" not in line, (action.dest, value[:40])


def test_an_argument_that_takes_a_number_takes_no_other_text() -> None:
    numbers = [(parser, one) for parser in PRODUCT.values() for one in options(parser) if one.type in (int, float)]
    assert len(numbers) > 30
    for parser, action in numbers:
        for value in (*NO_NUMBERS, *([LARGE] if action.type is int else [])):
            with pytest.raises(argparse.ArgumentError, match="must be a"):
                parser._get_values(action, [value])
    for seed in (str(2**64), "1.5", "", "٣", "1_0"):
        with pytest.raises(argparse.ArgumentTypeError, match="from 0 to 18446744073709551615"):
            seed_number(seed)
    assert seed_number(str(2**64 - 1)) == 2**64 - 1

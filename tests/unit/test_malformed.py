"""Malformed and hostile files, arguments and machines: one short sentence, no traceback, at most 5
s and 1 GB.
"""

import argparse
import json
import os
import random
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoint_files import WEIGHTS, save, wan_weights
from headforcing.cli import cli, texts, values
from headforcing.cli.codec import load_codec
from headforcing.cli.parser import seed_number, whole_number
from headforcing.cli.source import Source
from headforcing.headforcing_core.errors import MAX_MESSAGE, HeadForcingError
from headforcing.headforcing_core.head_profiles.shares import HeadShares
from headforcing.headforcing_core.render.sinks import read_latents
from headforcing.headforcing_core.timeline.timeline import MAX_TEXT_BYTES
from headforcing.headforcing_core.video.tiny_decoder import TinyDecoder
from headforcing.headforcing_core.video.writer import VideoSettings, VideoWriter
from headforcing.headforcing_core.weights.checkpoint import (
    convert,
    inspect_checkpoint,
    load_state_dict,
)
from headforcing.headforcing_core.weights.umt5 import load_embeddings, save_embeddings
from malformed import bounded, damaged, refusal, run
from path_arguments import commands
from safetensors.torch import load_file, save_file
from tiny_checkpoints import wan_vae

TARGET = "blocks.0.self_attn.q"


def by_header(path: Path, header: Any, body: bytes = b"") -> Path:
    """A safetensors file of any header: an object, or bytes."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)
    return path


HEADERS: dict[str, Any] = {
    "infinite offset": b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,1e999]}}',
    "sizes without end": {"a": {"dtype": "F32", "shape": [10**4000] * 300, "data_offsets": [0, 4]}},
    "many dimensions": {"a": {"dtype": "F32", "shape": [1] * 100_000, "data_offsets": [0, 4]}},
    "many names": {
        f"a.{i}.b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]} for i in range(30_000)
    },
    "long names": {
        "model." * 38 + str(i): {"dtype": "F32", "shape": [1], "data_offsets": [4 * i, 4 * i + 4]}
        for i in range(3_000)
    },
    "much metadata": {"__metadata__": {str(i): "x" * 100 for i in range(20_000)}},
    "another field of a tensor, and an empty one of a huge shape": {
        "a": {"dtype": "F32", "shape": [0, 2**31, 2**31, 2**31], "data_offsets": [0, 0], "x": 1}
    },
    "a very long name": {
        "model." * 100_000: {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
    },
    "tensors on top of each other": {
        f"a.{i}": {"dtype": "F32", "shape": [20_000], "data_offsets": [0, 80_000]}
        for i in range(1000)
    },
}


@pytest.mark.parametrize("case", HEADERS)
def test_a_hostile_header_is_refused(case: str, tmp_path: Path) -> None:
    path = by_header(tmp_path / "x.safetensors", HEADERS[case], b"\0" * 80_000)
    for use in (inspect_checkpoint, load_embeddings, read_latents):
        assert "x.safetensors" in refusal(lambda use=use: use(path))


def test_stated_sizes_that_no_model_has_are_not_used(tmp_path: Path) -> None:
    for stated in (10**15, 10**400, -1, 1.5, "x", [], None, True):
        config = json.dumps({"transformer": {"num_heads": stated, "text_len": stated}})
        about = json.dumps({"frames_per_block": stated, "lora": stated})
        path = save(tmp_path / "x.safetensors", WEIGHTS, {"config": config, "head_forcing": about})
        with bounded():
            info = inspect_checkpoint(path)
        assert (info.config.num_heads, info.config.text_len, info.frames_per_block) == (
            1,
            512,
            None,
        )
    for heads in ("9" * 5000, "٣", "1e999", "-1", ""):
        path = save(tmp_path / "x.safetensors", WEIGHTS, {"num_heads": heads})
        with bounded():
            assert inspect_checkpoint(path).config.num_heads == 1


def expanded(*shape: int) -> torch.Tensor:
    return torch.zeros(1).expand(shape)


PICKLES: dict[str, Callable[[], Any]] = {
    "a tensor that is one number": lambda: {**WEIGHTS, "patch_embedding.bias": expanded(10**12)},
    "a sparse tensor": lambda: {**WEIGHTS, "x": torch.eye(3).to_sparse()},
    "a tensor without numbers": lambda: {**WEIGHTS, "x": torch.empty(3, device="meta")},
    "one tensor under many names": lambda: dict.fromkeys(
        map(str, range(1000)), torch.zeros(10_000)
    ),
    "many names": lambda: {str(i): {} for i in range(8_000)},
}


@pytest.mark.parametrize("case", PICKLES)
def test_a_hostile_pickle_is_refused(case: str, tmp_path: Path) -> None:
    path = save(tmp_path / "x.pt", PICKLES[case]())
    assert "x.pt" in refusal(lambda: inspect_checkpoint(path))
    assert "x.pt" in refusal(lambda: convert(path, tmp_path / "out.safetensors"))


PARTS = {  # of an archive, and what is said of it
    "byteorder": "byteorder is too large",
    "version": "version is too large",
    ".format_version": "is too large",
    ".data/serialization_id": "is too large",
    "constants.pkl": "a program of TorchScript",
    "data.pkl": "data.pkl is too large",
}


def archive(path: Path, extra: dict[str, bytes], compression: int) -> Path:
    """A file of PyTorch with other parts, packed by another program."""
    whole = save(path.with_name("whole.pt"), WEIGHTS)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(path, "w", compression) as target:
        root = source.namelist()[0].partition("/")[0]
        added = {f"{root}/{name}": content for name, content in extra.items()}
        for name in source.namelist():
            if name not in added:
                target.writestr(name, source.read(name))
        for name, content in added.items():
            target.writestr(name, content)
    return path


@pytest.mark.parametrize("part", PARTS)
def test_a_part_of_an_archive_that_is_read_into_memory_is_small(tmp_path: Path, part: str) -> None:
    path = archive(tmp_path / "x.pt", {part: bytes(50_000_000)}, zipfile.ZIP_STORED)
    assert PARTS[part] in refusal(lambda: inspect_checkpoint(path))


def test_an_archive_that_was_compressed_is_refused(tmp_path: Path) -> None:
    """PyTorch maps the bytes of its tensors as they lie there: they would be other numbers."""
    path = archive(tmp_path / "x.pt", {"junk": bytes(500_000_000)}, zipfile.ZIP_DEFLATED)
    assert "compressed by another program" in refusal(lambda: inspect_checkpoint(path))
    assert inspect_checkpoint(archive(tmp_path / "x.pt", {}, zipfile.ZIP_STORED))


def test_an_archive_of_many_parts_is_refused(tmp_path: Path) -> None:
    many = {f"data/{place}": b"" for place in range(1000, 60_000)}
    path = archive(tmp_path / "x.pt", many, zipfile.ZIP_STORED)
    assert "too many parts" in refusal(lambda: inspect_checkpoint(path))


def factors(down: torch.Tensor, up: torch.Tensor) -> dict[str, torch.Tensor]:
    return {f"{TARGET}.lora_A.weight": down, f"{TARGET}.lora_B.weight": up}


LORAS: dict[str, Callable[[], Any]] = {
    "rank 0": lambda: factors(torch.zeros(0, 128), torch.zeros(128, 0)),
    "scalars": lambda: factors(torch.zeros(()), torch.zeros(())),
    "rank above the matrix": lambda: factors(torch.zeros(129, 128), torch.zeros(128, 129)),
    "rank of a billion": lambda: factors(expanded(10**9, 128), expanded(128, 10**9)),
    "alpha of two": lambda: (
        factors(torch.ones(1, 128), torch.ones(128, 1)) | {f"{TARGET}.alpha": torch.ones(2)}
    ),
    "many names": lambda: {f"blocks.0.{i}.lora_A.weight": torch.ones(1) for i in range(500)},
}


@pytest.mark.parametrize("case", LORAS)
def test_a_hostile_lora_is_refused(case: str, tmp_path: Path) -> None:
    model = save(tmp_path / "model.safetensors", WEIGHTS)
    lora = save(tmp_path / "x.pt", LORAS[case]())
    assert "x.pt" in refusal(lambda: load_state_dict(model, lora=lora))


ROWS = torch.ones(3, 8)


def test_embeddings_come_back_by_exact_prompt(tmp_path):
    embeddings = {
        "a red ball": torch.randn(4, 8).bfloat16(),
        "ein Bällchen\n🎈": torch.randn(7, 8).T.contiguous().T,
    }
    save_embeddings(tmp_path / "e.safetensors", embeddings)
    loaded = load_embeddings(tmp_path / "e.safetensors")
    assert list(loaded) == list(embeddings)
    for prompt, rows in embeddings.items():
        assert torch.equal(loaded[prompt], rows) and loaded[prompt].dtype == rows.dtype
    with pytest.raises(HeadForcingError, match="'a blue ball'; the file has: 'a red ball'; 'ein B"):
        loaded["a blue ball"]


def test_files_of_other_embeddings_and_latents_are_refused(tmp_path: Path) -> None:
    texts = ("5", '[["a"]]', '"a"', '{"a": 1}', "[" * 1_000_000, "x", '["a", "b"]')
    tensors = (
        torch.ones(8),
        torch.ones(1, 3, 8),
        torch.ones(0, 8),
        ROWS.int(),
        ROWS.to(torch.float8_e4m3fn),
        ROWS * torch.nan,
        ROWS * torch.inf,
    )
    for prompts, rows in (
        *((text, ROWS) for text in texts),
        *(('["a"]', rows) for rows in tensors),
    ):
        path = save(tmp_path / "x.safetensors", {"prompt_0": rows}, {"prompts": prompts})
        assert "not a prompt embeddings file" in refusal(lambda path=path: load_embeddings(path)), (
            prompts[:9],
            rows,
        )
    good = torch.ones(3, 16, 2, 2)
    others = good.to(torch.float8_e4m3fn), good.long(), good * torch.nan, good * -torch.inf
    for latents in (*others, good[:0], good[0], good[:, :4]):
        path = save(tmp_path / "x.safetensors", {"latents": latents.contiguous()})
        assert "x.safetensors" in refusal(lambda path=path: read_latents(path, (16, 16)))


VAES: tuple[tuple[Callable[[torch.Tensor], torch.Tensor], str], ...] = (
    (lambda tensor: torch.full_like(tensor, torch.nan), "NaN or infinity in {}"),
    (lambda tensor: tensor[:0], ""),
    (lambda tensor: torch.full_like(tensor, -torch.inf), "NaN or infinity"),
    (torch.Tensor.int, "in torch.int32, not"),
    (lambda tensor: torch.full_like(tensor, 1e5), "read as torch.float16"),  # more than it holds
    (lambda tensor: tensor.to(torch.complex64), "not in floating point"),
)


@pytest.mark.parametrize("kind", ["wan", "tiny"])
def test_a_vae_that_holds_no_finite_numbers_is_refused(kind: str, tmp_path: Path, recwarn) -> None:
    """It would decode every video to black, or to nothing that is seen, without a word."""
    if kind == "wan":
        weights = load_file(wan_vae(tmp_path / "good.safetensors"))
        name = "decoder.conv1.weight"
    else:
        weights = TinyDecoder((8, 8, 8, 8)).state_dict()
        name = "decoder.1.weight"
    load_codec(save(tmp_path / "x.pt", weights), torch.device("cpu"), torch.float16, encodes=False)
    for change, why in VAES:
        path = save(tmp_path / "x.pt", {**weights, name: change(weights[name])})
        message = refusal(
            lambda path=path: load_codec(path, torch.device("cpu"), torch.float16, encodes=False)
        )
        assert path.name in message and why.format(name) in message
    assert not recwarn.list


@pytest.mark.slow
def test_damage_anywhere_in_models_embeddings_latents_loras_and_vaes_is_one_sentence_or_harmless(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    save_embeddings(tmp_path / "e.safetensors", {"a red ball": ROWS, "b": ROWS})
    small = wan_weights(dim=4, ffn=2, layers=1, text=2, freq=2)
    model = save(tmp_path / "model.safetensors", small)
    lora = factors(torch.ones(2, 4), torch.ones(4, 2))
    good: list[tuple[Path, Callable[[Path], Any]]] = [
        (tmp_path / "e.safetensors", load_embeddings),
        (save(tmp_path / "l.safetensors", {"latents": torch.ones(3, 16, 2, 2)}), read_latents),
        (
            wan_vae(tmp_path / "v.safetensors"),
            lambda path: load_codec(path, torch.device("cpu"), torch.float32),
        ),
    ]
    for kind in ("safetensors", "pt"):
        good.append(
            (
                save(tmp_path / f"x.{kind}", lora),
                lambda path: load_state_dict(model, num_heads=1, lora=path),
            )
        )
        good.append(
            (
                save(tmp_path / f"m.{kind}", small),
                lambda path: inspect_checkpoint(path, num_heads=1),
            )
        )
    rng = random.Random(5)
    bad = tmp_path / "bad"
    refused = 0
    tried = 0
    for path, use in good:
        for number in range(30):
            bad.write_bytes(damaged(path.read_bytes(), rng, number))
            tried += 1
            with bounded():
                try:
                    use(bad)
                except HeadForcingError:
                    refused += 1
    record_property("malformed files and texts tried", tried)
    assert tried == 210 and refused > 75


def test_a_message_is_one_short_line_whatever_it_quotes() -> None:
    message = str(HeadForcingError("no file 'a\nerror: forged\x1b[2J\r\u2028b' here"))
    assert message == r"no file 'a\nerror: forged\x1b[2J\r\u2028b' here"
    assert str(HeadForcingError("größer, 一　二, …")) == "größer, 一　二, …"
    str(HeadForcingError("\ud800")).encode()
    for value in ("9" * 5000, "a cat " * 900):
        message = str(
            HeadForcingError(f"--size must look like 832x480, got {value!r}: choose another")
        )
        assert len(message) < 300 and message.startswith(
            f"--size must look like 832x480, got '{value[:50]}"
        )
        assert message.endswith(f"{value[-20:]}': choose another")


def test_latents_that_say_something_absurd_of_themselves_are_not_decoded(tmp_path: Path) -> None:
    file = tmp_path / "latents.safetensors"
    digits = "9" * 5000
    for about in (
        f'{{"video_frames": {digits}}}',
        '{"video_frames": 10}',
        '{"restart_frames": [3]}',
        '{"starts_seconds": [NaN]}',
        '{"starts_seconds": [-1]}',
        '{"starts_seconds": 3}',
        "[]",
    ):
        save_file({"latents": torch.zeros(3, 16, 8, 8)}, file, {"head_forcing": about})
        code, err = run(
            "decode", str(file), str(tmp_path / "video.mp4"), "--demo", "--device", "cpu"
        )
        assert code == 2 and "does not say what its latents are of" in err


@pytest.mark.parametrize(
    "argv",
    [
        ("profiles", "compare", "x\nerror: forged\x1b[31m", "y"),
        ("demo", "--method", "x\nerror: forged" * 10_000),
        ("inspect", "x" * 100_000),
        ("demo", "--prompts", "@" + "x" * 100_000),
        ("x\n" * 100_000,),
        ("generate", "--weights", "x" * 100_000, "--prompts", "a", "--latents", "x.safetensors"),
        ("memory", "--cards", "0"),
        ("memory", "--cards", "nan"),
        ("runs", "prune", ".", "--keep-gb", "-1"),
    ],
)
def test_the_command_line_answers_in_one_short_line(argv: tuple[str, ...]) -> None:
    code, err = run(*argv)
    *before, last = err.splitlines()
    assert code == 2 and "error:" in last and len(last) < MAX_MESSAGE + 100
    assert not any("error:" in line for line in before) and "\x1b" not in err


@pytest.mark.skipif(os.name == "nt", reason="there are no pipes and devices in its file system")
@pytest.mark.parametrize("kind", ["pipe", "device", "folder", "nothing"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    path = Path("/dev/zero") if kind == "device" else tmp_path / "x.safetensors"
    if kind == "pipe":
        os.mkfifo(path)
    if kind == "folder":
        path.mkdir()
    for use in (inspect_checkpoint, load_embeddings, read_latents, HeadShares.load):
        assert path.name in refusal(lambda use=use: use(path))
    for use, text in ((values.find_profile, str(path)), (texts.read_text, f"@{path}")):
        assert path.name in refusal(lambda use=use, text=text: use(text))
    generate = ["generate", "--prompts", "a", "--latents", str(tmp_path / "out"), "--weights"]
    assert [run(*words, str(path))[0] for words in (["report"], ["inspect"], generate)] == [2, 2, 2]


def test_a_prompt_file_of_more_than_1_mb_or_of_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    for data, said in ((b"a" * (MAX_TEXT_BYTES + 1), "1 MB"), (b"\xff\xfe\x00", "UTF-8")):
        path.write_bytes(data)
        assert said in refusal(lambda: texts.read_text(f"@{path}"))


def video(path: Path, **tags: str) -> bytes:
    pictures = torch.randint(
        0, 256, (24, 48, 64, 3), generator=torch.Generator().manual_seed(0)
    ).byte()
    with VideoWriter(VideoSettings(path, fps=16, tags=tags), 64, 48) as writer:
        writer.write(pictures)
    return path.read_bytes()


@pytest.mark.slow
def test_damage_anywhere_in_a_video_is_one_sentence_or_harmless(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    own = json.dumps({"prompts": ["a", "b"], "starts_seconds": [0, 1], "seed": 3})
    good = video(tmp_path / "good.mp4", head_forcing=own, title="x" * 99)
    rng = random.Random(7)
    codes = []
    for number in range(150):
        (tmp_path / "bad.mp4").write_bytes(damaged(good, rng, number))
        with bounded():
            code, err = run("report", str(tmp_path / "bad.mp4"), "--json")
        assert code in (0, 2) and (
            code == 0 or (err.count("\n") == 1 and err.startswith("error: "))
        )
        codes.append(code)
    record_property("malformed files and texts tried", len(codes))
    assert codes.count(0) > 10 and codes.count(2) > 10


def test_a_videos_tags_forge_no_lines_of_a_report_and_stop_none(tmp_path: Path, capsys) -> None:
    path = tmp_path / "x.mp4"
    for own in ('{"prompts": ["a\\u001b[2J\\nb"], "method": "x\\ny"}', "[" * 100_000):
        data = video(path, head_forcing=own, title="tuvwxyz")
        assert cli.main(["report", str(path)]) == 0
        told = capsys.readouterr().out
        assert "\x1b" not in told and "\ny" not in told
    assert data.count(b"tuvwxyz") == 1
    path.write_bytes(data.replace(b"tuvwxyz", b"\xff\xfe\x80\xc0\xc1\xf5\xff"))
    assert run("report", str(path), "--json") == (0, "")


def test_a_user_without_a_home_can_use_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", no_home)
    for given, folders in (([], ()), (["--found-profiles", "x"], (Path("x"),))):
        assert Source.of(cli._parser().parse_args(["demo", *given])).roles_folders == folders
    assert run("budget", "--seconds", "60")[0] == 0


def test_an_argument_that_takes_a_number_takes_no_other_text_and_none_that_overflows() -> None:
    numbers = []
    for _, command in commands(cli._parser()):
        numbers += [(command, action) for action in command._actions if is_number(action)]
    assert len(numbers) > 50
    for command, action in numbers:
        for value in ("9" * 5000, "-" + "9" * 5000, "nan", "1e400", "-inf"):
            with pytest.raises(argparse.ArgumentError, match="must be a"):
                command._get_values(action, [value])
    for seed in (str(2**64), "1.5", "", "٣", "1_0"):
        with pytest.raises(argparse.ArgumentTypeError, match="from 0 to 18446744073709551615"):
            seed_number(seed)
    assert seed_number(str(2**64 - 1)) == 2**64 - 1


def is_number(action: argparse.Action) -> bool:
    return action.type in (int, float) or getattr(action.type, "func", None) is whole_number

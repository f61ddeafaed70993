"""The examples of docs/python.md run as they stand there; tables and lists on pages are those of the code."""

import re
import runpy
from pathlib import Path

import pytest
import torch
from headforcing.headforcing_core.demo import assets, word_hash
from headforcing.headforcing_core.methods import registry
from headforcing.headforcing_core.methods.registry import METHODS
from headforcing.headforcing_core.model.wan import WanModel
from headforcing.headforcing_core.render.job import RenderJob
from headforcing.headforcing_core.render.options import RenderOptions
from headforcing.headforcing_core.render.render import begin_render
from headforcing.headforcing_core.rollout.loop import WanVideoModel
from headforcing.headforcing_core.timeline.timeline import parse_timeline
from headforcing.headforcing_core.weights.checkpoint import inspect_checkpoint, load_state_dict

ROOT = next(folder for folder in Path(__file__).resolve().parents if (folder / "pyproject.toml").is_file())
MOST_WORDS = 1500  # of the README


def page(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", page("docs/python.md"), re.DOTALL)


def test_the_readme_is_short():
    assert len(page("README.md").split()) <= MOST_WORDS


def test_the_python_example_makes_a_video(tmp_path: Path):
    code, _, _ = examples()
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    names = runpy.run_path(str(tmp_path / "example.py"))
    assert names["latents"].shape == (27, 16, 8, 8)  # 6 s: 96 video frames of the 105 that 9 blocks hold
    assert names["plan"].video_frames == 96


@pytest.mark.slow
def test_the_example_of_a_changed_story_tells_it(tmp_path: Path):
    video, story, _ = examples()
    (tmp_path / "example.py").write_text(video + story, encoding="utf-8")
    names = runpy.run_path(str(tmp_path / "example.py"))
    texts = [segment.text for segment in names["result"].plan.timeline.segments]
    assert texts == ["a red ball bouncing in the teal plain room", "a blue star circling in the navy checkerboard room"]


@pytest.mark.slow
def test_the_example_of_a_new_method_renders_a_video(tmp_path: Path, monkeypatch):
    _, _, code = examples()
    assert len(code.splitlines()) <= 40
    monkeypatch.setattr(registry, "METHODS", dict(METHODS))
    (tmp_path / "thinned.py").write_text(code, encoding="utf-8")
    runpy.run_path(str(tmp_path / "thinned.py"))
    assert "thinned" in registry.method_names()
    info, timeline = inspect_checkpoint(assets.model_path()), parse_timeline("a red ball", 9.0)
    plan = RenderOptions(method="thinned", width=64, height=64).plan(info.config, timeline)
    state_dict, _ = load_state_dict(assets.model_path())
    backbone = WanModel.from_state_dict(info.config, state_dict, torch.float32)
    job = RenderJob(plan, {"a red ball": word_hash.encode("a red ball")})
    with begin_render(job, WanVideoModel(backbone, torch.float32)) as render:
        blocks = list(render.blocks())
    assert len(blocks) == plan.blocks and all(block.latents.isfinite().all() for block in blocks)
    held = sum(len(k) * k.shape[1] for k, _ in (*render.run.cache.past, *render.run.cache.own))
    assert held == plan.shape.frame_slots


def test_the_table_of_nodes_names_every_node():
    shown = re.findall(r"^\| ([A-Z][\w ]+) \| ", page("README.md"), re.MULTILINE)
    nodes = (ROOT / "nodes").rglob("*.py")
    schema = r'helpers\.schema\(\s*"HeadForcing\w+",\s*"([A-Z][\w ]+)",'
    names = [name for path in nodes for name in re.findall(schema, path.read_text("utf-8"))]
    assert len(names) > 8 and sorted(names) == sorted(shown)

"""What the README shows runs as it stands there."""

import re
import runpy
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


def test_the_python_example_makes_a_video(tmp_path: Path):
    (code,) = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "example.py").write_text(code, encoding="utf-8")
    names = runpy.run_path(str(tmp_path / "example.py"))
    assert names["latents"].shape == (27, 16, 8, 8)  # 6 s: 96 pictures of the 105 that 9 blocks hold
    assert names["plan"].pictures == 96


def test_the_table_of_nodes_names_every_node():
    shown = re.findall(r"^\| ([A-Z][\w ]+) \| ", README.read_text(encoding="utf-8"), re.MULTILINE)
    nodes = (README.parent / "nodes").glob("*.py")
    names = [name for path in nodes for name in re.findall(r'display_name="([A-Z][\w ]+)",\n', path.read_text("utf-8"))]
    assert len(names) > 8 and sorted(names) == sorted(shown)

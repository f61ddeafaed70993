"""The method of the example in docs/python.md, as packages of others bring it."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def source(row: str = "THINNED") -> str:
    """The source of a module with the example's method, whose row has this name."""
    (code,) = [
        code
        for code in re.findall(r"^```python\n(.*?)^```", PAGE.read_text("utf-8"), re.M | re.S)
        if "class Thinned" in code
    ]
    assert 'METHODS["thinned"] = ' in code
    return code.replace('METHODS["thinned"]', row).replace("import METHODS, ", "import ")

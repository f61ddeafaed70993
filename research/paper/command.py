"""The command `paper`: every table and figure, and the page that lists them."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from ...cli.arguments import Result
from ...headforcing_core.files import replacing
from ...headforcing_core.plan.describe import markdown_table
from .figures import FIGURES, figure
from .fixed_tables import FIXED_TABLES
from .paper_tables import TABLES
from .tables import NUMBERS, add_amount, table

ABOUT = """# The paper's tables and figures, and the embedded model

```
python -m headforcing.research paper --out research/evidence/paper
```

makes these files on one CPU core that is free in about half an hour, with four stories a row and
two for each value of a parameter; `--videos` takes other numbers, and each file says what it has.
The tables of the paper are in its layout, its numbers first. What is below them and in the figures
is the embedded model's, a toy of 5 million parameters: other measures on another model, so that
nothing in it confirms or refutes a number of the paper. It shows that every row and every figure
can be made, and what a row does to memory at a small scale; a few stories decide nothing.
[The evidence](../README.md) has what was measured with enough of them. `table N --check FOLDER`
puts the numbers of [`check-claim`](../../README.md#check-claim) beside the paper's, in the same
layout.
"""


def add_parsers(command: Callable[..., argparse.ArgumentParser]) -> None:
    sub = command("paper", paper, "Make every table and figure of the paper, and their page.")
    sub.add_argument("--demo", action="store_true", help="of the embedded model; the default")
    add_amount(sub, "output/paper")


def paper(args: argparse.Namespace) -> Result:
    """Run `table all` and `figure all` in one folder, and write its README.md."""
    args.number = "all"
    args.check = None
    tables = table(args)
    figures = figure(args)
    text = page()
    with replacing(args.out / "README.md") as temporary:
        temporary.write_text(text, encoding="utf-8")
    data: dict[str, Any] = {"tables": tables.json, "figures": figures.json}
    return Result([text], data)


def page() -> str:
    """The list of all tables and figures, with what their own numbers need."""
    needs = "nothing: it is the same measure on both models, or computed"
    rows = []
    for number in NUMBERS:
        title = f"Table {number}"
        told = needs if number in FIXED_TABLES else TABLES[number].needs
        rows.append([f"[{title}](table_{number}.md)", told])
    for number, each in FIGURES.items():
        link = f"[Figure {number}](figure_{number}.md), {each.title}"
        rows.append([link, each.needs])
    return f"{ABOUT}\n{markdown_table(['', 'the own numbers of the paper take'], rows)}\n"

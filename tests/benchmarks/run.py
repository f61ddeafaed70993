"""How fast the engine is, as JSON and as a Markdown table: `python tests/benchmarks/run.py --help`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.command import main

if __name__ == "__main__":
    main()

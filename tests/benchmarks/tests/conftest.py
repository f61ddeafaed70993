"""What the tests of the benchmark share with the others: their helpers."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[2] / "helpers"))

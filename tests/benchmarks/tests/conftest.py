"""What the tests of the benchmark share with the others: their helpers."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path += [str(HERE), str(HERE.parents[1] / "helpers")]

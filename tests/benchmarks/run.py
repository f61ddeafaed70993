"""How fast the engine is, as JSON and as a Markdown table: `python tests/benchmarks/run.py --help`."""

import logging
import sys

from headforcing.tests.benchmarks.command import main

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")  # why a kernel or a backend is not used
    sys.exit(main())

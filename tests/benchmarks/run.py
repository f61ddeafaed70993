"""How fast the engine is, as JSON and as a Markdown table: `python tests/benchmarks/run.py
--help`.
"""

import sys

from headforcing.tests.benchmarks.command import main

if __name__ == "__main__":
    sys.exit(main())

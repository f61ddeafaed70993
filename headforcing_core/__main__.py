"""`python -m headforcing.headforcing_core`: the command line."""

import sys

from .commands.cli import main

if __name__ == "__main__":
    sys.exit(main())

"""`python -m headforcing`: the command line."""

import sys

from .cli.cli import main

if __name__ == "__main__":
    sys.exit(main())

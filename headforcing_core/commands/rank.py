"""The program of a rank that `--gpus` has started: the command line, with the same arguments."""

import sys

from ..parallel.outcome import decided

if __name__ == "__main__":
    if decided():  # asked before torch is imported, which takes seconds
        sys.exit(0)
    from .cli import main

    sys.exit(main())

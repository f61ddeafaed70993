"""The program of a rank that `--gpus` has started: the command line, with the same arguments."""

import signal
import sys

from ..headforcing_core.distributed.rank_outcome import decided, end_with_starter

if __name__ == "__main__":
    if decided():  # asked before torch is imported, which takes seconds
        sys.exit(0)
    end_with_starter()
    # Ctrl-C ends it without a word until `joined_ranks` takes it
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    from .cli import main

    sys.exit(main())

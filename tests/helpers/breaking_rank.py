"""The program of a rank whose video is made, and of which rank 1 breaks while it ends."""

import argparse
import os
import sys

from headforcing.headforcing_core.distributed.rank_outcome import decided

if __name__ == "__main__":
    if decided():
        sys.exit(0)
    from headforcing.headforcing_core.commands.several import _as_rank
    from headforcing.headforcing_core.distributed import start_ranks

    if os.environ["RANK"] == "1":
        start_ranks.dist.destroy_process_group = lambda: os._exit(3)
    given = argparse.Namespace(device="cpu", rank_timeout=None, gpu_speeds=None)
    _as_rank(given, lambda args: (0, "made"))

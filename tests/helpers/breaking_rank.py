"""The program of a rank whose video is made, and of which rank 1 breaks while it ends."""

import argparse
import os
import sys

from headforcing.headforcing_core.commands.several import _as_rank
from headforcing.headforcing_core.parallel.outcome import decided

if __name__ == "__main__":
    if decided():
        sys.exit(0)
    code, text = _as_rank(argparse.Namespace(device="cpu"), lambda args: (0, "made"))
    sys.stdout.write(text)
    sys.stdout.flush()
    os._exit(3 if os.environ["RANK"] == "1" else code)

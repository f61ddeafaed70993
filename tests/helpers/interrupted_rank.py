"""The program of a rank that takes two seconds to end when it is interrupted, as one in the middle of a block."""

import os
import signal
import sys
import time
from pathlib import Path

from headforcing.headforcing_core.distributed.rank_outcome import say

if __name__ == "__main__":
    stopped: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: stopped.append(number))
    rank = int(os.environ["RANK"])
    (Path(os.environ["BEGUN"]) / str(rank)).touch()
    while not stopped:
        time.sleep(0.05)
    end = time.monotonic() + 2
    while time.monotonic() < end:
        time.sleep(0.05)
    if rank == 0:
        say(rank, (130, "interrupted; all is kept"))
    sys.exit(0)

"""The most memory that this process ever had. Imported by programs that tests start."""

import sys
from pathlib import Path


def peak_bytes() -> int:
    """Since the program began. Not by getrusage on Linux: there it counts the process that started
    this one, too.
    """
    status = Path("/proc/self/status")
    if status.exists():
        (line,) = [line for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) * 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (
        1 if sys.platform == "darwin" else 1024
    )

"""Memory over the length of a video, measured on whole processes."""

import json
import subprocess
import sys
from pathlib import Path

RUN = f"""
import sys
sys.path.append({str(Path(__file__).parent)!r})
from headforcing.headforcing_core.cli import main
from peak_memory import peak_bytes
code = main(sys.argv[1:])
print(code, peak_bytes())
"""


def demo(folder: Path, seconds: int) -> tuple[dict, float]:
    """The report of a demo render with a run folder, and the peak of its process in kB."""
    arguments = ["demo", "--json", "--out", folder, "--seconds", seconds, "--runs", folder / "runs", "--scale", 1]
    done = subprocess.run([sys.executable, "-c", RUN, *map(str, arguments)], capture_output=True, text=True, check=True)
    report, last = done.stdout.splitlines()
    code, peak = last.split()
    assert code == "0"
    return json.loads(report), int(peak) / 1024


def test_five_minutes_take_no_more_memory_than_one(tmp_path: Path):
    """From one minute on, as everything is in place by then; the rule is 5 % and 1 kB for every further picture."""
    (short, short_peak), (long, long_peak) = (demo(tmp_path / str(seconds), seconds) for seconds in (60, 300))
    assert (short["pictures"], long["pictures"]) == (960, 4800)
    assert long["cache_bytes"] == short["cache_bytes"]
    grown = long_peak - short_peak
    assert grown < 0.05 * short_peak
    assert grown < 4800 - 960

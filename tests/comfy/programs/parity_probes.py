"""All probes of test_nodes_parity.py, in one process; prints the error of each as JSON, null where
all is well.
"""

import importlib
import json
import sys
from pathlib import Path

import parity  # puts ComfyUI in the place of this folder on the path

sys.path.append(str(Path(__file__).parent))
for file in sorted(Path(__file__).parent.glob("probes_*.py")):
    importlib.import_module(file.stem)
print("RESULTS" + json.dumps(parity.results))

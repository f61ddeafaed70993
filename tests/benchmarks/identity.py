"""How long the identity of a model of the 1.3B size takes: `python tests/benchmarks/identity.py`."""

import sys
import time

import torch
from headforcing.headforcing_core.weights.identity import identity

PARAMETERS, WIDTH, COLUMNS = 1_418_996_800, 1536, 8960


def main() -> None:
    layer = torch.randn(WIDTH, COLUMNS).to(torch.bfloat16)
    count = round(PARAMETERS / layer.numel())
    layers = [(str(number), layer.clone()) for number in range(count)]  # all of it, more than any processor's cache
    identity(layers[:1])
    begun = time.perf_counter()
    identity(layers)
    seconds = time.perf_counter() - begun
    sys.stdout.write(f"{count * layer.numel() / 1e9:.2f} billion bfloat16 weights: {seconds:.2f} s\n")


if __name__ == "__main__":
    main()

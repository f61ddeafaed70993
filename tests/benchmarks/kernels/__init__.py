"""Kernels that the engine does not launch, for comparing speeds; built and tested like those of `kernels/`.

| file | what | launched by |
| --- | --- | --- |
| `move.py`, `merge.py`, `pool.py` | rolling with re-rotation, merging, pooling | rows V3 and V4 |
| `paper.py` | the paper's own three kernels, made of the ones above | rows V3 and V4 |
| `attend_turning.py` | attention to keys without temporal rotation | no row |
| `rotations.py` | tables of rotations, built and read | the others |

The engine rolls, merges and pools in plain torch, since it does so once a block and not once a pass.
"""

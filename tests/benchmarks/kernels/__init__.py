"""Kernels that the engine does not launch, for comparing speeds; built and tested like those of `kernels/`.

| file | what | launched by |
| --- | --- | --- |
| `paper.py` | the paper's own three kernels, made of those of `kernels/` | rows V3 and V4 |
| `attend_turning.py` | attention to keys without temporal rotation | no row |
"""

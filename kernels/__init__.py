"""Fused kernels: one operation a file, in plain torch and beside it in Triton; `dispatch.py` decides which runs.

Importing any of it imports no Triton. How tensors lie in memory is described in `layout.py`.
"""

"""Fused kernels: each file holds one operation, in plain PyTorch and in Triton; `dispatch.py`
decides which one runs.

Importing this package does not import Triton. The memory layout of tensors is described in
`layout.py`.

A layer launches `modulate.py` three times and `write.py` once per pass, and `attend.py` where
attention is `triton`; layers in 8 bits `quantise.py`; the Wan VAE `feature_frames.py`. For all
layers at once, a cache launches `move.py` after every block, `merge.py` and `pool.py` after some;
where these do not work, it loops over the layers.
"""

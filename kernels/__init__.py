"""Fused kernels: each file holds one operation, in plain PyTorch and in Triton; `dispatch.py` decides which one runs.

Importing this package does not import Triton. The memory layout of tensors is described in `layout.py`.

| file | what | launched by |
| --- | --- | --- |
| `modulate.py` | gated residual sum, layer norm, modulation | the engine, three times per layer |
| `write.py` | norms, rotary embedding, writing of keys and values | the engine, once per layer |
| `quantise.py` | rows in 8-bit floating point, each with its scale | linear layers in 8 bits |
| `feature_frames.py` | residual sum, norm, SiLU and earlier frames, which a causal convolution reads | the Wan VAE |
| `attend.py` | attention to each head's own number of keys | the engine, as attention `triton` |
| `move.py` | moving and re-rotating cached frames of all layers | the engine, after every block |
| `merge.py`, `pool.py` | merging and pooling frames of episodic memory of all layers | the engine, after some blocks |

Where the last three do not work, the engine loops over the layers in plain PyTorch.
"""

"""Fused kernels: one operation a file, in plain torch and beside it in Triton; `dispatch.py` decides which runs.

Importing any of it imports no Triton. How tensors lie in memory is described in `layout.py`.

| file | what | launched by |
| --- | --- | --- |
| `modulate.py` | residual sum with its gate, layer norm, modulation | the engine, three times a layer |
| `write.py` | norms, rotary embedding, storing of keys and values | the engine, once a layer |
| `attend.py` | attention to each head's own number of keys | the engine, as attention `triton` |

The engine moves, re-rotates, merges and pools frames in plain torch, since it does so once a block and not once a pass.
"""

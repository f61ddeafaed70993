"""Fused kernels, each beside its plain-torch reference (none shipped yet; the engine runs on SDPA)."""

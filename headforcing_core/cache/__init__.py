"""Latent frames that each attention head keeps: policies, the head-wise KV cache, episodic
memory.
"""

"""Latent frames that each attention head keeps: the head-wise KV cache and episodic memory."""

"""Reading and writing of checkpoints, LoRA files, text encoders and prompt embeddings."""

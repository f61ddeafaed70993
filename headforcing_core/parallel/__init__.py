"""One video on several GPUs; imported only where a render asks for it (docs/several_gpus.md)."""

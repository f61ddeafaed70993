"""Videos without a fixed end, whose prompts are given while they are rendered."""

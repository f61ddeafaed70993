"""The paper's tables and figures, with its numbers, and what the embedded model shows."""

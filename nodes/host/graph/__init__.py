"""The graph that was queued: prompts, widgets, schemas of nodes, and the files that they name."""

"""Prompts over time: seconds, frames and blocks, the grammar, prompt switches."""

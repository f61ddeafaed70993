"""Prompts over time: seconds, frames and blocks, the grammar and its writer, prompt switches."""

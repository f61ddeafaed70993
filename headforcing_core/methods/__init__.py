"""Other papers' methods for long videos with the same models, one file each."""

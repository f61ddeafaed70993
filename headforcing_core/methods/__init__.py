"""Methods for long videos: Head Forcing, other papers' methods, and what all of them have."""

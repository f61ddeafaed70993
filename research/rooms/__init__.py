"""The world of rooms: its drawing, its detector, and the pre-registered tables and verdicts."""

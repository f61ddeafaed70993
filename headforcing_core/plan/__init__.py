"""A render before it is made: options, timeline and request, checked and counted."""

"""One render, from settings to files; used by the command line and the nodes."""

"""One render, from options to files, for the command line and the nodes."""

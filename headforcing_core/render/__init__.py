"""One render of a plan, for the command line and the nodes."""

"""Pages of the editor: routes, the player, progress, live edits and the list of runs."""

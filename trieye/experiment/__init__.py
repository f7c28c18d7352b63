"""`Experiment`, and the loop that drives it."""

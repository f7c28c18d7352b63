"""`Experiment`, the base class of trainings, and the loop that drives it."""

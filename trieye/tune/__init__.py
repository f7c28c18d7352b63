"""Studies: many trials of an experiment under Ray Tune, early stopping and population-based training."""

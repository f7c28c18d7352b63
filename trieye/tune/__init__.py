"""Studies: hyperparameter search under Ray Tune, with early stopping and population-based training."""

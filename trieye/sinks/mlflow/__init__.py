"""The MLflow sink; the only package that depends on MLflow's tables."""

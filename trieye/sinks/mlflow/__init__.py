"""Points and files to MLflow; no other module knows its tables."""

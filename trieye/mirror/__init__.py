"""A copy of a run in an object store, and the way back."""

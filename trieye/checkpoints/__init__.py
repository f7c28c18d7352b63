"""Checkpoints: writing, verification, retention, and the choice of a resume point."""

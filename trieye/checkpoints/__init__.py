"""Checkpoints: written, verified, kept or deleted, and chosen when a run goes on."""

"""Rows of a replay buffer: their storage, memory and readers."""

"""Sweeps: the jobs of a grid or a search on Ray, what became of each, and the start of those that are missing.

Entered through `grid`, `jobs`, `record`, `launcher`, `sweeper` and `status`.
"""

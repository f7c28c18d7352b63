"""Sweeps: run the jobs of a grid or a search on Ray, track their states, and relaunch unfinished jobs.

Entered through `grid`, `jobs`, `record`, `launcher`, `sweeper` and `status`.
"""

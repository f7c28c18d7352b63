"""Mirrors: copies of runs in object stores, and their restore."""

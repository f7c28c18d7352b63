"""Peers: their environments, and adapters that give each library the same interface."""

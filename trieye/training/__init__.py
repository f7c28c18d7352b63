"""Reinforcement learning: policies, engines, collection and evaluation.

Start with `engine`, `policy`, `rows`, `gae`, `loading` and `launch`.
"""

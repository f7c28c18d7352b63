"""Training by reinforcement in one process: policies, engines, and what an algorithm is made of.

Enter by `engine`, `policy`, `rows`, `gae`, `loading` and `launch`.
"""

"""Explorers: processes that collect experience for a learner.

With explorers, an engine collects through `Explorers` (`explorers.py`) instead of a `Collector`. It assigns fragments
to an `ExplorerGroup` (`group.py`) under the `SyncRules` (`pace.py`), takes their results from a fragment queue
(`inbox.py`), and publishes weights through a transport (`transports.py`). An `Explorer` (`explorer.py`) runs in a
thread (`places.py`) or in a Ray actor (`in_ray.py`).
"""

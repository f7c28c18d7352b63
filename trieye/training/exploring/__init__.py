"""Explorers: processes that collect for a learner.

`Explorers` (`explorers.py`) is what an engine has in place of a `Collector`. It grants fragments to an `ExplorerGroup`
(`group.py`), as the `Pace` (`pace.py`) allows, takes reports out of an inbox (`inbox.py`), and publishes weights by a
transport (`transports.py`) and a `Synchronizer` (`synchronizer.py`). An `Explorer` (`explorer.py`) knows nothing of
where it runs: in a thread (`places.py`), or in a Ray actor (`in_ray.py`).
"""

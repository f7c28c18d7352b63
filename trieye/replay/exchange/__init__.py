"""Imports and exports replay rows in formats of other libraries, for offline training.

Importing this package loads none of those libraries.
"""

from trieye.replay.exchange.datasets import import_minari, import_sb3
from trieye.replay.exchange.files import export_npz, export_parquet, import_npz, import_parquet

__all__ = ["export_npz", "export_parquet", "import_minari", "import_npz", "import_parquet", "import_sb3"]

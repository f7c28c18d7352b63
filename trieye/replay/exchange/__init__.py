"""Exchange: the rows of replay buffers in the formats of others, for offline training.

Importing this loads none of their libraries.
"""

from trieye.replay.exchange.datasets import import_minari, import_sb3
from trieye.replay.exchange.files import export_npz, export_parquet, import_npz, import_parquet

__all__ = ["export_npz", "export_parquet", "import_minari", "import_npz", "import_parquet", "import_sb3"]

"""Exchange: the rows of replay buffers in the formats of others, for offline training.

Importing this loads none of their libraries.
"""

from trieye.replay.exchange.minari import import_minari
from trieye.replay.exchange.npz import export_npz, import_npz
from trieye.replay.exchange.parquet import export_parquet, import_parquet
from trieye.replay.exchange.sb3 import import_sb3

__all__ = ["export_npz", "export_parquet", "import_minari", "import_npz", "import_parquet", "import_sb3"]
